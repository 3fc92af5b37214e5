"""Makes the pages that compare mechanisms from the summary of a sweep."""

from __future__ import annotations

import dataclasses
import math
import statistics
import textwrap
from typing import Any, Optional

import tabulate

from simulations.sweeps import analysis
from simulations.sweeps import summary as summary_lib

# Mechanisms that the other mechanisms are compared with: independent noise, and
# training without noise.
_INDEPENDENT, _SILENT = 'identity', 'none'
# End of the name of a mechanism whose C minimises the error of the models that
# the server's momentum makes.
_MOMENTUM = '-momentum'

_EXPECTED = """\
- The error L of a mechanism determines the loss: runs with the same L end with
  the same loss, even if their matrices differ. L is computed before training.
  It is the root mean square of the error that the noise causes in prefix sums
  of updates, divided by clip and clients per round.
- A mechanism with a smaller L has a smaller loss. Here independent noise has
  about seven times the L of banded, and the tree with its optimal decoder one
  and a half times. BLT, banded inverse and banded differ by less than a
  quarter.
- A matrix optimised for training with momentum has the least error in the
  models, and more error in the prefix sums. BandMF23 found that such a matrix
  trains no better.
"""

_LIMITS = """\
- Epsilon is for 850 clients a round, which 85 clients simulate. The noise of
  the mean is the noise of 850 clients, so the guarantee does not hold for the
  85 clients. Rows `true-` and `poisson-` have a guarantee for their own small
  cohort. Its mean has more noise, so these runs learn little.
- The runs use one corpus of docstrings, one model of 0.15 million parameters
  and 1,032 rounds. They say nothing about other text or longer training.
- All rates follow from L by one rule of BandMF23. A search of the rate for each
  mechanism may change the order of mechanisms with close losses.
- Each test compares two mechanisms, without correction for multiple tests.
- An adaptive clip and amplified cohorts do not change L alone. Their runs show
  that such training works, but not how much it gains.
"""


_EXPECTED_OF_PEOPLE = """\
- The error L of a mechanism determines the loss, as in the
  [comparison](comparison). A person takes part 15 times, so the L of
  independent noise is about three times the L of banded.
- Noise costs more than in the comparison, because the mean of 50 people has
  more noise than the mean of the large cohort that the comparison simulates.
"""

_LIMITS_OF_PEOPLE = """\
- The corpus has 1,145 people who chatted in 2018, 250 of them for the test.
  The runs say nothing about other people. The vocabulary comes from public
  text, and about a third of the words that people wrote are unknown words.
- All rates follow from L by one rule of BandMF23. A search of the rate for each
  mechanism may change the order of mechanisms with close losses.
- Each test compares two mechanisms, without correction for multiple tests.
- The best BLT for these participations has one buffer, so blt-1, blt-2 and
  blt-4 have the same C. Their losses differ only by their random noise.
- [Participation by budget](budget) is not in the tables. Cohorts of 50 need
  14.3 of the 15 rounds of each of 837 people. Rounds close together cost more,
  and no budget is left for them: with `apart = 8`, a run cannot fill round 175
  and is refused.
- `denoised-adam` of commit 46ef42a, a variant of Adam, subtracts the known
  variance of the noise from the second moment. It did not help, and is no
  longer in the code. Its loss minus the loss of SGD with momentum at epsilon 8,
  on seeds 1 to 3, was -0.010, +0.006, -0.002 for identity; +0.031, +0.034,
  +0.027 for banded; +0.029, +0.028, +0.027 for blt-4. The search of its rate on
  identity tried 1.7^-8 to 1.7^-11; 1.7^-11 was best. The rule of BandMF23 gave
  the rate of the other mechanisms (1.7^-9). beta_2 was 0.99, and the least root
  of the second moment 0.01.
"""


@dataclasses.dataclass(frozen=True)
class Study:
  """A page and the sweep whose runs it shows.

  Attributes:
    name: file name of the page below docs/reference, without suffix, and start
      of the names of its plots.
    title: title of the page.
    question: paragraph that says which runs are compared.
    data: file name, without suffix, of the JSON summary beside the page.
    sweep: flags of `simulations.sweep`.
    hollow: sentence about the hollow points of the plot; '' for no sentence.
    expected: Markdown items on the predictions of theory.
    limits: Markdown items on conclusions that the runs do not allow.
  """

  name: str
  title: str
  question: str
  data: str
  sweep: str
  hollow: str
  expected: str
  limits: str


COMPARISON = Study(
  'comparison',
  'Comparison',
  'Does correlated noise reduce the loss? Every mechanism trains the same '
  'next-word model for 1,032 rounds with six participations a client. The runs '
  'differ in the matrix, and in the learning rate that follows from it.',
  'evidence',
  '--config=configs/evidence.toml --out=runs/evidence',
  'Hollow points are runs with a guarantee for their own cohort; all other '
  'runs simulate a larger cohort.',
  _EXPECTED,
  _LIMITS,
)
PEOPLE = Study(
  'people',
  'People',
  'Does correlated noise reduce the loss on the text of real people, with a '
  'guarantee for each of them? A next-word model learns public text without '
  'noise, and then the chats of 837 people with noise, in 240 rounds of 50 '
  'people. A person takes part in at most 15 rounds, which are at least 16 '
  'apart. The guarantee is for these cohorts of 50.',
  'people',
  '--config=configs/people.toml --out=runs/people_grid',
  '',
  _EXPECTED_OF_PEOPLE,
  _LIMITS_OF_PEOPLE,
)


def page(summary: summary_lib.Summary, study: Study = COMPARISON) -> str:
  """Returns the page of a study."""
  planned = len(summary.runs) + len(summary.missing) + len(summary.failed)
  command = f'python -m simulations.sweep {study.sweep}'
  parts = [
    f'# {study.title}',
    study.question,
    _progress(len(summary.runs), planned, len(summary.failed)),
    *_picture(
      summary,
      f'![Test loss against the predicted error]({study.name}_noise.png)',
      "A point shows a run's predicted error L, and the test loss of its last "
      'model. The solid line is a curve fitted to all points. The dashed line '
      f'is training without noise. {study.hollow}'.strip(),
    ),
    '## What was expected',
    study.expected.strip(),
    '## What was seen',
    *(_seen(summary) or ['Nothing yet.']),
    summary.table(),
    *_memory(summary),
    *_picture(
      summary,
      f'![Validation loss by round]({study.name}_convergence.png)',
    ),
    '## What was not shown',
    '\n'.join([*_unseen(summary), study.limits.strip()]),
    '## How it was made',
    f'    {command} --resume\n'
    f'    {command} --results > {study.data}.json\n'
    f'    python docs/generate.py {study.name} < {study.data}.json',
    'After a crash, the first command resumes the sweep. The last command '
    'writes this page from the finished runs alone. The learning rates follow '
    'from log(rate) = -0.95 log(L) + constant, and are at most the rate that '
    'is stable without noise. One mechanism has candidate rates, and the '
    'constant is fitted to the candidate with the least validation loss:',
    summary.search_table() or 'No candidate has ended.',
    *summary.notes,
  ]
  return '\n\n'.join(part for part in parts if part) + '\n'


def readme(summary: summary_lib.Summary, attacked: str) -> str:
  """Returns the part of README.md on people; '' without runs.

  Args:
    summary: runs of `PEOPLE`.
    attacked: sentence about the results of attacks on these runs.
  """
  rows = {
    name: [row for row in summary.rows if row['mechanism'] == name]
    for name in dict.fromkeys(
      row['mechanism'] for row in summary.rows if row['seeds'] > 1
    )
  }
  if _INDEPENDENT not in rows:
    return ''
  epsilons = sorted(
    {row['epsilon'] for each in rows.values() for row in each} - {None}
  )
  gains = summary.against(_INDEPENDENT)
  table = tabulate.tabulate(
    [
      [f'`{name}`']
      + [
        cell
        for epsilon in epsilons
        for cell in _cells(each, epsilon, gains.get((name, epsilon)))
      ]
      for name, each in rows.items()
    ],
    ['mechanism']
    + [
      head
      for epsilon in epsilons
      for head in (f'loss, epsilon {epsilon:g}', 'against independent')
    ],
    'github',
    disable_numparse=True,
  )
  caption = textwrap.fill(
    'The table has the test loss, in nats per word, of a next-word model that '
    'learnt public text, and then the chats of 837 people. Losses are means '
    'over seeds; differences are between runs of the same seeds, with 95 % '
    'intervals. Each of these people has the guarantee (epsilon, 1e-5): '
    f'[people](docs/reference/people.md). {attacked}',
    88,
  )
  return (
    '## What it gains\n\n'
    '![Test loss against the predicted error]'
    '(docs/reference/people_noise.png)\n\n'
    f'{table}\n\n{caption}\n'
  )


def _cells(
  rows: list[dict[str, Any]], epsilon: float, gain: Optional[analysis.Paired]
) -> tuple[str, str]:
  """Returns the texts of a mechanism's mean loss and gain at one epsilon.

  Args:
    rows: rows of the mechanism.
    epsilon: epsilon; a row without noise counts for every epsilon.
    gain: difference in loss from independent noise; None gives ''.
  """
  losses = [
    row['loss_mean'] for row in rows if row['epsilon'] in (epsilon, None)
  ]
  return (
    f'{losses[0]:.3f}' if losses else '',
    '' if gain is None else _of(gain),
  )


def _picture(summary: summary_lib.Summary, *parts: str) -> tuple[str, ...]:
  """Returns the parts of the page that show a plot; () without a plot."""
  drawn = any(
    run['noise'] > 0 and run['test_loss'] is not None for run in summary.tests
  )
  return parts if drawn else ()


def _progress(ended: int, planned: int, failed: int) -> str:
  """Returns a sentence on unfinished runs; '' if all runs have ended."""
  if ended == planned:
    return ''
  more = f'{failed} failed, ' if failed else ''
  return (
    f'**{ended} of {planned} runs have ended**, {more}'
    f'{planned - ended - failed} are missing. This page shows the ended runs.'
  )


def _seen(summary: summary_lib.Summary) -> list[str]:
  """Returns the paragraphs and tables of the results."""
  paragraphs = _costs(summary)
  noised = [
    run
    for run in summary.tests
    if run['noise'] > 0 and run['test_loss'] is not None
  ]
  rows = summary.rows
  spread = [row['loss_stdev'] for row in rows if row['loss_stdev'] is not None]
  for key, name in (
    ('noise', 'L, the error of sums of updates,'),
    ('momentum_noise', 'the error of models'),
  ):
    curve = analysis.curve([(run[key], run['test_loss']) for run in noised])
    if curve is not None:
      losses = [run['test_loss'] for run in noised]
      text = (
        f'A curve of the loss over {name} was fitted to {len(noised)} '
        f'runs. Its residuals have a standard deviation of {curve.stdev:.3f} '
        'nats per word. The best and the worst run differ by '
        f'{max(losses) - min(losses):.2f}'
      )
      if spread:
        seeds = analysis.pooled(spread)
        text += (
          f'. Seeds of one mechanism have a standard deviation of {seeds:.3f}. '
        )
        text += (
          'So this error explains the differences between mechanisms'
          if curve.stdev < 1.5 * seeds
          else 'So this error explains most of the differences between '
          'mechanisms, but not all'
        )
      paragraphs.append(f'{text}.')
  for other, said in (
    (_INDEPENDENT, 'independent noise'),
    (_SILENT, 'training without noise'),
  ):
    differences = summary.against(other)
    if differences:
      paragraphs.append(
        f'The table has the loss minus the loss of {said}, on the same seeds, '
        'with 95 % intervals. The column `shown` says whether the interval '
        'excludes 0:'
      )
      paragraphs.append(
        tabulate.tabulate(
          [
            [
              name,
              epsilon,
              each.seeds,
              _of(each),
              'yes' if each.shown else 'no',
            ]
            for (name, epsilon), each in differences.items()
          ],
          ['mechanism', 'epsilon', 'seeds', 'difference', 'shown'],
          'github',
        )
      )
  if summary.pairs:
    paragraphs.append(
      'The table has the mechanisms in the order of loss, and compares each '
      'with the next one:'
    )
    paragraphs.append(summary.pairs_table())
    noise = {(row['mechanism'], row['epsilon']): row['noise'] for row in rows}
    shown = [
      [
        noise.get((pair[name], pair['epsilon']), 0.0)
        for name in ('first', 'second')
      ]
      for pair in summary.pairs
      if pair['shown'] == 'yes'
    ]
    paragraphs.append(
      f'In {sum(first < second for first, second in shown)} of the '
      f'{len(shown)} differences that are shown, the smaller loss has the '
      'smaller L.'
    )
  paragraphs += _momentum(summary)
  return paragraphs


def _memory(summary: summary_lib.Summary) -> list[str]:
  """Returns a table of loss by the copies of the model that the noise keeps.

  The result is [] if no run of the summary states its copies.
  """
  gains = summary.against(_INDEPENDENT)
  rows = [
    [row['epsilon'], row['copies'], row['mechanism']]
    + list(
      _cells(
        [row], row['epsilon'], gains.get((row['mechanism'], row['epsilon']))
      )
    )
    for row in sorted(
      (
        row
        for row in summary.rows
        if row['noise'] and row['copies'] is not None
      ),
      key=lambda row: (-row['epsilon'], row['copies'], -row['loss_mean']),
    )
  ]
  return rows and [
    '## Loss by copies of the model',
    'A copy is an array, of the size of the model, that the noise keeps in '
    'memory.',
    _table(
      rows,
      ['epsilon', 'copies', 'mechanism', 'test loss', 'against independent'],
    ),
  ]


def _momentum(summary: summary_lib.Summary) -> list[str]:
  """Returns the effect of a C that is optimised for the run's momentum.

  The result is a sentence and a table; [] if there is no such run.
  """
  losses = {
    (run['mechanism'], run['epsilon'], run['seed']): run
    for run in summary.tests
    if run['test_loss'] is not None
  }
  rows = []
  for (name, epsilon, seed), run in losses.items():
    plain = losses.get((name.removesuffix(_MOMENTUM), epsilon, seed))
    if name.endswith(_MOMENTUM) and plain is not None:
      rows.append(
        [
          plain['mechanism'],
          seed,
          f'{run["noise"] / plain["noise"]:.2f}',
          f'{run["momentum_noise"] / plain["momentum_noise"]:.2f}',
          f'{run["test_loss"] - plain["test_loss"]:+.3f}',
        ]
      )
  if not rows:
    return []
  return [
    "The table compares C optimised for the run's momentum and schedule with C "
    'of the same family optimised for prefix sums: the ratios of L, and the '
    'difference in loss on one seed.',
    _table(
      rows,
      ['mechanism', 'seed', 'L of sums', 'L of models', 'difference in loss'],
    ),
  ]


def _costs(summary: summary_lib.Summary) -> list[str]:
  """Returns a sentence for each epsilon on the increase of loss by noise.

  A sentence states the increase by independent noise, and the least increase by
  any other mechanism.
  """
  costs = summary.against(_SILENT)
  sentences = []
  for epsilon in sorted({epsilon for _, epsilon in costs}, reverse=True):
    of_all = {
      name: cost for (name, each), cost in costs.items() if each == epsilon
    }
    independent = of_all.pop(_INDEPENDENT, None)
    if independent is not None and of_all:
      least = min(of_all, key=lambda name: of_all[name].mean)
      sentences.append(
        f'**At epsilon {epsilon:g} independent noise costs '
        f'{independent.mean:.3f} nats per word, and {least} '
        f'{of_all[least].mean:.3f}**, against training without noise on '
        'the same seeds.'
      )
  return sentences


def _unseen(summary: summary_lib.Summary) -> list[str]:
  """Returns Markdown items on conclusions for which there are too few runs."""
  items = []
  if summary.pairs:
    seeds = statistics.mode(pair['seeds'] for pair in summary.pairs)
    stdevs = [pair['stdev'] for pair in summary.pairs if pair['seeds'] == seeds]
    least = analysis.least_difference(analysis.pooled(stdevs), seeds)
    items.append(
      f'- The least difference that {seeds} seeds show is {least:.3f} nats per '
      f'word, a factor of {math.exp(least):.3f} in perplexity.'
    )
    unshown = [pair for pair in summary.pairs if pair['shown'] == 'no']
    if unshown:
      items.append(
        '- Not shown: the order of '
        + ', '.join(
          f'{pair["first"]} and {pair["second"]} at epsilon {pair["epsilon"]:g}'
          for pair in unshown
        )
        + '.'
      )
  for epsilon in dict.fromkeys(row['epsilon'] for row in summary.rows):
    single = [
      row['mechanism']
      for row in summary.rows
      if row['seeds'] == 1 and row['epsilon'] == epsilon
    ]
    if single:
      where = '' if epsilon is None else f' at epsilon {epsilon:g}'
      items.append(
        f'- One seed{where} does not show the order of: {", ".join(single)}.'
      )
  taken = [run for run in summary.runs if run['search'] and run['taken']]
  rates = [run['rate'] for run in summary.runs if run['search']]
  if taken and taken[0]['rate'] in (min(rates), max(rates)):
    items.append(
      '- The best candidate, to which the constant is fitted, is the smallest '
      'or the largest one. A better rate may lie outside the candidates.'
    )
  return items


def _table(rows: list[list[Any]], headers: list[str]) -> str:
  """Returns a Markdown table whose cells stay as they are."""
  return tabulate.tabulate(rows, headers, 'github', disable_numparse=True)


def _of(paired: analysis.Paired) -> str:
  return f'{paired.mean:+.3f} ± {paired.half_width:.3f}'
