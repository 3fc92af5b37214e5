"""The pages on what correlated noise gains, from the runs of a sweep."""

from __future__ import annotations

import dataclasses
import math
import statistics
import textwrap
from typing import Any, Optional

import tabulate

from simulations.sweeps import analysis
from simulations.sweeps import summary as summary_lib

# What the others are compared with.
_INDEPENDENT, _SILENT = 'identity', 'none'
# Ends the name of a mechanism whose C is for the models of a run's momentum.
_MOMENTUM = '-momentum'

_EXPECTED = """\
- The error L of a mechanism, computed before any training, decides: runs with
  the same L end with the same loss, whatever the matrix. L is the root mean
  squared error of the sum of all updates so far, from noise alone, in clipping
  norms times clients a round.
- Mechanisms come in the order of L. Here independent noise has an L about
  seven times that of banded, the tree with its optimal decoder half as much
  again; BLT, banded inverse and banded differ by less than a quarter.
- Matrices optimised for the models that momentum makes have the least error of
  the models, and more error of the sums. BandMF23 found that they train no
  better.
"""

_LIMITS = """\
- Epsilon is that of 850 clients a round, which 85 stand for: the noise of the
  mean is that of the larger cohort, its guarantee is not. `true-` and
  `poisson-` rows have a guarantee of their own, and noise to match; so few
  clients learn little then.
- One corpus of docstrings, one model of 0.15 million parameters, 1,032 rounds:
  nothing is shown of other text or of longer training.
- Rates follow from L by the rule of BandMF23, and the same one for all; a
  search for each mechanism may change what is close.
- Tests compare two mechanisms at a time. Nothing corrects for how many there
  are.
- An adaptive clip and amplified cohorts change more than L. Those runs show
  that they train, and not what they gain.
"""


_EXPECTED_OF_PEOPLE = """\
- The error L of a mechanism, computed before any training, decides, as in the
  [comparison](comparison). A person comes 15 times, so independent noise has an
  L about three times that of banded.
- Noise costs more than on the docstrings: 50 people stand for nobody else, and
  share noise that hides each of them.
"""

_LIMITS_OF_PEOPLE = """\
- 1,145 people who chatted in 2018, 250 of them for the test: nothing is shown
  of other people. The words are those of public text; about a third of what
  people wrote is not among them, and counts as the unknown word.
- Rates follow from L by the rule of BandMF23, and the same one for all; a
  search for each mechanism may change what is close.
- Tests compare two mechanisms at a time. Nothing corrects for how many there
  are.
- [Participation by budget](budget) has no row: cohorts of 50 need 14.3 of the
  15 rounds of each of 837 people, so nobody has budget to spare for coming
  again soon, and the driver refuses `apart = 8` because round 175 cannot be
  filled.
- Adam whose second moment has the known variance of the noise taken out did
  not gain, and is not in the code (it was up to commit 46ef42a, as
  `denoised-adam`). Loss minus that of momentum at epsilon 8, on seeds 1 to 3:
  identity -0.010, +0.006, -0.002; banded +0.031, +0.034, +0.027; blt-4 +0.029,
  +0.028, +0.027. Its rate was searched on identity (1.7^-8 to 1.7^-11; 1.7^-11
  was best) and followed the same rule elsewhere (1.7^-9); beta_2 0.99, floor
  0.01. So scaling before privatising was not built.
"""


@dataclasses.dataclass(frozen=True)
class Study:
  """A page and the sweep that it is made of.

  Attributes:
    name: of the page below docs/reference, and before the names of its plots.
    title: of the page.
    question: a paragraph: what is compared.
    data: name of the JSON file beside the page that has the runs.
    sweep: flags of `simulations.sweep`.
    hollow: a sentence on the points that stand for no larger cohort.
    expected: items: what theory says.
    limits: items: what the runs cannot show.
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
  'Does correlated noise pay? Every mechanism trains the same next-word '
  'model, for 1,032 rounds with six participations a client; what differs '
  'is the matrix, and the learning rate that follows from it.',
  'evidence',
  '--config=configs/evidence.toml --out=runs/evidence',
  'Hollow points have a guarantee of their own.',
  _EXPECTED,
  _LIMITS,
)
PEOPLE = Study(
  'people',
  'People',
  'Does correlated noise pay for real people, with a guarantee for the very '
  'people of the run? A next-word model learns public text without noise, and '
  'then the chats of 837 people with noise: 240 rounds of 50 people, each in '
  'at most 15 of them and at most every 16th. No cohort stands for a larger '
  'one.',
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
      'A point is a run: what theory said before, and the loss of its last '
      'model. The line is one curve through all of them, the dashed one '
      f'training without noise. {study.hollow}'.strip(),
    ),
    '## What was expected',
    study.expected.strip(),
    '## What was seen',
    *(_seen(summary) or ['Nothing yet.']),
    summary.table(),
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
    'The first command goes on where it was after any crash, and the last '
    'writes this page from the finished runs alone. Learning rates: log(rate) '
    '= -0.95 log(L) + constant, no larger than what is stable without noise; '
    'the candidates on one row gave the constant, by validation loss:',
    summary.search_table() or 'None has ended.',
    *summary.notes,
  ]
  return '\n\n'.join(part for part in parts if part) + '\n'


def readme(summary: summary_lib.Summary, attacked: str) -> str:
  """Returns the part of README.md on people; '' without runs.

  Args:
    summary: runs of `PEOPLE`.
    attacked: sentence on attacks on these runs.
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
    'Test loss in nats a word of a next-word model that learnt public text, '
    'and then the chats of 837 people; means over seeds, with 95 % intervals '
    'of the differences on the same seeds. (epsilon, 1e-5) holds for each of '
    f'these people: [people](docs/reference/people.md). {attacked}',
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
  """Returns the loss of a mechanism at an epsilon, and what it gains."""
  losses = [
    row['loss_mean'] for row in rows if row['epsilon'] in (epsilon, None)
  ]
  return (
    f'{losses[0]:.3f}' if losses else '',
    '' if gain is None else _of(gain),
  )


def _picture(summary: summary_lib.Summary, *parts: str) -> tuple[str, ...]:
  """Returns what belongs to a plot, if there is anything to draw."""
  drawn = any(
    run['noise'] > 0 and run['test_loss'] is not None for run in summary.tests
  )
  return parts if drawn else ()


def _progress(ended: int, planned: int, failed: int) -> str:
  """Returns how many runs there are, if some are not."""
  if ended == planned:
    return ''
  more = f'{failed} failed, ' if failed else ''
  return (
    f'**{ended} of {planned} runs have ended**, {more}'
    f'{planned - ended - failed} are missing; what follows is about those that '
    'are there.'
  )


def _seen(summary: summary_lib.Summary) -> list[str]:
  """Returns sentences and tables of what the runs show."""
  paragraphs = _costs(summary)
  noised = [
    run
    for run in summary.tests
    if run['noise'] > 0 and run['test_loss'] is not None
  ]
  rows = summary.rows
  spread = [row['loss_stdev'] for row in rows if row['loss_stdev'] is not None]
  for key, name in (
    ('noise', 'sums of updates'),
    ('momentum_noise', 'models'),
  ):
    curve = analysis.curve([(run[key], run['test_loss']) for run in noised])
    if curve is not None:
      losses = [run['test_loss'] for run in noised]
      text = (
        f'One curve in the L of the {name} holds {len(noised)} runs to '
        f'{curve.stdev:.3f} nats a word, of {max(losses) - min(losses):.2f} '
        'between the best and the worst'
      )
      if spread:
        seeds = analysis.pooled(spread)
        text += (
          f'; seeds of one mechanism differ by {seeds:.3f} (standard '
          'deviations), '
        )
        text += (
          'so L explains what the mechanisms differ in'
          if curve.stdev < 1.5 * seeds
          else 'so L explains much of it, and not all'
        )
      paragraphs.append(f'{text}.')
  for other, said in (
    (_INDEPENDENT, 'independent noise'),
    (_SILENT, 'training without noise'),
  ):
    differences = summary.against(other)
    if differences:
      paragraphs.append(
        f'Loss minus that of {said}, on the same seeds, with 95 % intervals:'
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
      'The order, each with the next one; it is claimed where it is shown:'
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
      f'{sum(first < second for first, second in shown)} of the {len(shown)} '
      'differences that are shown come in the order of L.'
    )
  paragraphs += _momentum(summary)
  return paragraphs


def _momentum(summary: summary_lib.Summary) -> list[str]:
  """Returns what C optimised for the run's own momentum changed."""
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
    "With C optimised for the run's own momentum and schedule, against the "
    'same family optimised for the sums: ratios of L, and what the loss '
    'differs by on one seed.',
    tabulate.tabulate(
      rows,
      ['mechanism', 'seed', 'L of sums', 'L of models', 'difference in loss'],
      'github',
      disable_numparse=True,
    ),
  ]


def _costs(summary: summary_lib.Summary) -> list[str]:
  """Returns a sentence an epsilon: what noise costs, independent and least."""
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
        f'{independent.mean:.3f} nats a word, and {least} '
        f'{of_all[least].mean:.3f}**, against training without noise on '
        'the same seeds.'
      )
  return sentences


def _unseen(summary: summary_lib.Summary) -> list[str]:
  """Returns items of what the runs are too few for."""
  items = []
  if summary.pairs:
    seeds = statistics.mode(pair['seeds'] for pair in summary.pairs)
    stdevs = [pair['stdev'] for pair in summary.pairs if pair['seeds'] == seeds]
    least = analysis.least_difference(analysis.pooled(stdevs), seeds)
    items.append(
      f'- {seeds} seeds show a difference of {least:.3f} nats a word, and none '
      f'that is smaller: a factor of {math.exp(least):.3f} in perplexity.'
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
        f'- One seed says nothing of the order{where}: {", ".join(single)}.'
      )
  taken = [run for run in summary.runs if run['search'] and run['taken']]
  rates = [run['rate'] for run in summary.runs if run['search']]
  if taken and taken[0]['rate'] in (min(rates), max(rates)):
    items.append(
      '- The candidate that gave the constant is the last on its side: a '
      'better one may lie beyond.'
    )
  return items


def _of(paired: analysis.Paired) -> str:
  return f'{paired.mean:+.3f} ± {paired.half_width:.3f}'
