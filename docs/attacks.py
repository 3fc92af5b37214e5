"""Makes the page on attacks on people from lines of `simulations.attacks`.

python -m simulations.attacks RUN_DIR ... | python docs/generate.py attacks
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import tabulate
from matplotlib import figure as figure_lib
from scipy import stats

Lines = Sequence[Mapping[str, Any]]

_INTRODUCTION = """\
# Attacks on people

An attacker has the last model of a run and the public model from which the run
started. The attacker wants to know who took part in training, and what these
people wrote. `simulations/attacks.py` attacks single runs of the
[page of people](people).

A guarantee bounds all attacks, known and unknown. Members took part in
training, and bystanders did not. If an attacker calls a bystander a member with
probability alpha, the attacker finds a member with probability at most
Phi(Phi^-1(alpha) + 1 / noise multiplier). An attack above this bound refutes
the guarantee; an attack below the bound proves nothing.
"""
_COMMANDS = """\
## How it was made

    python -m simulations.attacks runs/people_grid/*/seed[1-9] > attacks.jsonl
    python -m simulations.attacks runs/people_grid/none/seed1 \\
        runs/people_grid/identity_epsilon8/seed1 \\
        runs/people_grid/banded_epsilon8/seed1 \\
        --planted=100 --out=runs/people_planted
    python docs/generate.py attacks < attacks.jsonl

The lines of the second command are appended to `attacks.jsonl`.
"""
# Probability with which `_detectable` demands that an attack is shown.
_POWER = 0.8


def page(lines: Lines) -> str:
  """Returns the page.

  Args:
    lines: JSON objects that `simulations.attacks` printed, one for each run.
  """
  plain = [line for line in lines if 'exposure' not in line]
  planted = [line for line in lines if 'exposure' in line]
  parts = [
    _INTRODUCTION.strip(),
    '![True positive rates of both attacks, and their bounds](attacks.png)',
    'A point is the true positive rate of the attack on a run, with its 95 % '
    'interval. A red line is the bound of a guarantee. The dashed line is '
    'chance.',
    '## Who was trained on',
    "A person's score is the decrease of the mean loss per word of the "
    "person's text. The area is the probability that a member's score exceeds "
    "a bystander's. `found at 1 %` is the percentage of members found if 1 % "
    'of bystanders are called members, as a mean over seeds. An upper end is '
    "the largest end of the seeds' intervals.",
    _table(plain, lambda line: line['membership'], _area, 'area'),
    *_sentences(plain, lambda line: line['membership'], 'members'),
  ]
  if planted:
    parts += [
      '## What they wrote',
      f'{planted[0]["exposure"]["planted"]} people got a planted sentence of '
      'eight random words in place of up to four sentences of their own. The '
      'references are 4,095 such sentences that nobody wrote. The attack calls '
      'a sentence planted if the decrease of its loss exceeds a threshold, '
      'which at most a share alpha of the references exceed. If r - 1 '
      'references exceed the decrease of a planted sentence, its exposure is '
      f'{planted[0]["exposure"]["most_bits"]:.0f} - log2(r) bits, on average '
      '1.4 bits without training on the sentence.',
      _table(
        planted,
        lambda line: line['exposure']['rates'],
        lambda line: line['exposure']['mean_bits'],
        'exposure, bits',
      ),
      *_sentences(
        planted, lambda line: line['exposure']['rates'], 'planted sentences'
      ),
    ]
  return '\n\n'.join([*parts, _COMMANDS.strip()]) + '\n'


def headline(lines: Lines) -> str:
  """Returns a sentence on the planted sentences that the attack finds.

  Args:
    lines: JSON objects that `simulations.attacks` printed, one for each run.
  """
  planted = {
    line['run'].split('/')[0]: line['exposure']
    for line in lines
    if 'exposure' in line
  }
  silent, private = planted['none'], planted['banded_epsilon8']
  rates = [each['rates'][0] for each in (silent, private)]
  shares = [f'{100 * rate["true_positive_rate"]:.0f} %' for rate in rates]
  return (
    'In other runs, sentences were planted in the chats. At a false positive '
    f'rate of {100 * rates[0]["alpha"]:g} %, an [attack]'
    f'(docs/reference/attacks.md) finds {shares[0]} of them in the model '
    f'without noise, and {shares[1]} in the model with banded noise at epsilon '
    '8. The guarantee of this model allows at most '
    f'{100 * rates[1]["bound"]:.0f} %.'
  )


def _area(line: Mapping[str, Any]) -> float:
  return line['area']


def _groups(lines: Lines) -> dict[str, list[Mapping[str, Any]]]:
  """Returns the runs of each row of the grid, rows without noise first."""
  groups: dict[str, list[Mapping[str, Any]]] = {}
  for line in sorted(
    lines, key=lambda line: (line['noise_multiplier'], line['run'])
  ):
    groups.setdefault(line['run'].split('/')[0], []).append(line)
  return groups


def _table(lines: Lines, rates: Any, measure: Any, head: str) -> str:
  """Returns a Markdown table with true positive rates in percent.

  Args:
    lines: runs of the table.
    rates: function from a run to its rates, results of `attacks.membership`.
    measure: function from a run to a further figure.
    head: head of the column of this figure.
  """
  alphas = [each['alpha'] for each in rates(lines[0])] if lines else []
  rows = []
  for name, runs in _groups(lines).items():
    row = [
      f'`{name}`',
      len(runs),
      f'{statistics.fmean(map(measure, runs)):.3f}',
    ]
    for i, _ in enumerate(alphas):
      of_alpha = [rates(run)[i] for run in runs]
      mean = statistics.fmean(each['true_positive_rate'] for each in of_alpha)
      upper = max(each['high'] for each in of_alpha)
      row += [
        f'{100 * mean:.1f}',
        f'{100 * upper:.1f}',
        f'{100 * of_alpha[0]["bound"]:.1f}',
      ]
    rows.append(row)
  heads = ['row', 'seeds', head]
  for alpha in alphas:
    heads += [f'found at {100 * alpha:g} %', 'upper end', 'bound']
  return tabulate.tabulate(rows, heads, 'github', disable_numparse=True)


def _sentences(lines: Lines, rates: Any, those: str) -> list[str]:
  """Returns sentences on the rates that the runs show.

  Args:
    lines: runs of a table.
    rates: function from a run to its rates, results of `attacks.membership`.
    those: the attack's targets, as a plural noun.
  """
  private = [line for line in lines if line['noise_multiplier'] > 0]
  silent = [line for line in lines if line['noise_multiplier'] == 0]
  sentences = []
  if private:
    over = sum(
      each['high'] >= each['bound'] for line in private for each in rates(line)
    )
    total = sum(len(rates(line)) for line in private)
    refuted = sum(each['refuted'] for line in private for each in rates(line))
    sentences.append(
      f'With noise, {total - over} of {total} intervals lie below the bounds '
      f'of their guarantees; {refuted} intervals refute a guarantee.'
    )
  if silent:
    above = sum(each['above_chance'] for line in silent for each in rates(line))
    total = sum(len(rates(line)) for line in silent)
    text = (
      f'Without noise, {above} of {total} rates are shown to be above chance.'
    )
    if above < total:
      text += (
        ' With probability 0.8, the test would show a rate above chance if the '
        f'attack found these shares of {those}: '
        + ', '.join(
          f'{100 * _detectable(line, rate):.1f} % at '
          f'{100 * rate["alpha"]:g} % false positives'
          for line in silent[:1]
          for rate in rates(line)
        )
        + '.'
      )
    sentences.append(text)
  return sentences


def _detectable(line: Mapping[str, Any], rate: Mapping[str, Any]) -> float:
  """Returns the least true positive rate that is shown with probability 0.8.

  A rate is shown if the lower end of its confidence interval exceeds the upper
  end of the confidence interval of the false positive rate.

  Args:
    line: run that is attacked.
    rate: rate of the run at one alpha.
  """
  from simulations import attacks

  exposure = line.get('exposure')
  members = exposure['planted'] if exposure else line['members']
  others = 2 ** round(exposure['most_bits']) - 1 if exposure else line['others']
  false = round(rate['false_positive_rate'] * others)
  _, most = attacks.interval(false, others)
  least = next(
    (
      count
      for count in range(members + 1)
      if attacks.interval(count, members)[0] > most
    ),
    members,
  )
  return next(
    (
      percent / 1000
      for percent in range(1, 1001)
      if stats.binom.sf(least - 1, members, percent / 1000) >= _POWER
    ),
    1.0,
  )


def figure(lines: Lines) -> figure_lib.Figure:
  """Returns a plot with a panel for each attack and alpha.

  A panel has a row of points for each row of the grid.
  """
  kinds = [
    ('who was trained on', [x for x in lines if 'exposure' not in x], False),
    ('what they wrote', [x for x in lines if 'exposure' in x], True),
  ]
  kinds = [kind for kind in kinds if kind[1]]
  drawing = figure_lib.Figure(
    figsize=(11, 3.6 * len(kinds)), layout='constrained'
  )
  panels = drawing.subplots(len(kinds), 2, squeeze=False)
  for row, (title, runs, exposed) in zip(panels, kinds):
    groups = _groups(runs)
    for i, panel in enumerate(row):
      for y, group in enumerate(groups.values()):
        for j, run in enumerate(group):
          rates = run['exposure']['rates'] if exposed else run['membership']
          rate = rates[i]
          height = y + 0.12 * (j - (len(group) - 1) / 2)
          share = rate['true_positive_rate']
          panel.errorbar(
            share,
            height,
            xerr=[[share - rate['low']], [rate['high'] - share]],
            color='C0',
            marker='o',
            markersize=3,
            linewidth=1,
          )
        if rate['bound'] < 1:
          panel.plot([rate['bound']] * 2, [y - 0.4, y + 0.4], color='C3')
      panel.axvline(rate['alpha'], color='gray', linestyle='--', zorder=0)
      panel.set_xscale('log')
      panel.set_xlim(0.001, 1)
      panel.set_yticks(range(len(groups)), list(groups))
      panel.invert_yaxis()
      panel.set_title(
        f'{title}, {100 * rate["alpha"]:g} % of bystanders accused',
        fontsize='medium',
      )
      panel.set_xlabel('share found')
      panel.grid(alpha=0.3, axis='x')
      panel.spines[['top', 'right']].set_visible(False)
  return drawing
