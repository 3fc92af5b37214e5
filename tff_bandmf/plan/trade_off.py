"""A comparison of plans that differ in cohort size and in epsilon.

| symbol | name here           | meaning                                     |
|--------|---------------------|---------------------------------------------|
| B      | `clients_per_round` | number of clients in a round; the sum of a  |
|        |                     | round is divided by it to get the mean      |
| sigma  | `noise_multiplier`  | stddev(z) / (clip * sensitivity)            |
|        | `error`             | root mean square error that the noise alone |
|        |                     | causes in one coordinate of the model:      |
|        |                     | rmse * clip / B                             |
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Optional

import tabulate

from tff_bandmf import _files, errors

if TYPE_CHECKING:
  from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Point:
  """The numbers of one plan of a comparison.

  Attributes:
    clients_per_round: B, integer >= 1.
    epsilon: epsilon of the whole run, > 0.
    noise_multiplier: sigma, > 0.
    z_stddev: standard deviation of z, in the unit of the updates.
    error: root mean square error that the noise alone causes in one coordinate
      of the model, in the unit of the updates.
    feasible: None: the population is unknown. False: a schema is enforced, and
      with it the population is certainly too small to fill all cohorts. True:
      all other cases.
  """

  clients_per_round: int
  epsilon: float
  noise_multiplier: float
  z_stddev: float
  error: float
  feasible: Optional[bool]


@dataclasses.dataclass(frozen=True)
class TradeOff:
  """Plans that differ in the number of clients in a round and in epsilon.

  Attributes:
    points: the plans. Plans of the same clients_per_round follow one another;
      cohort sizes and epsilons are in the order of arguments of `Plan.sweep`.
    delta: delta of all plans.
  """

  points: tuple[Point, ...]
  delta: float

  def __str__(self) -> str:
    """Returns a table of errors by cohort size (rows) and epsilon (columns)."""
    epsilons = sorted({point.epsilon for point in self.points})
    rows = [
      [clients, *(_cell(points[epsilon]) for epsilon in epsilons)]
      for clients, points in self._by_clients().items()
    ]
    heads = ['clients a round', *(f'epsilon {each:g}' for each in epsilons)]
    table = tabulate.tabulate(rows, headers=heads, disable_numparse=True)
    text = (
      'error that the noise causes in a coordinate of the model, delta '
      f'{self.delta:g}\n{table}'
    )
    if any(point.feasible is False for point in self.points):
      text += '\n*: the population cannot fill every round'
    return text

  def to_dict(self) -> _files.JsonObject:
    """Returns the trade-off as a JSON object."""
    return dataclasses.asdict(self)

  def plot(self) -> Figure:
    """Returns a matplotlib figure of the error against epsilon.

    The figure has one line for each cohort size.

    Raises:
      ImportError: matplotlib is not installed.
    """
    with errors.importing('a plot'):
      from tff_bandmf import _figures

    drawing, axes = _figures.empty(
      'epsilon of the whole run', 'error from the noise'
    )
    for clients, points in self._by_clients().items():
      axes.plot(
        sorted(points),
        [points[epsilon].error for epsilon in sorted(points)],
        marker='o',
        label=f'{clients} clients a round',
      )
    axes.set_xscale('log', base=2)
    axes.set_yscale('log')
    ticks = sorted({point.epsilon for point in self.points})
    axes.set_xticks(ticks, [f'{each:g}' for each in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=12)
    return drawing

  def _by_clients(self) -> dict[int, dict[float, Point]]:
    by_clients: dict[int, dict[float, Point]] = {}
    for point in sorted(self.points, key=lambda each: each.clients_per_round):
      by_clients.setdefault(point.clients_per_round, {})[point.epsilon] = point
    return by_clients


def _cell(point: Point) -> str:
  return f'{point.error:.3g}{"*" if point.feasible is False else ""}'
