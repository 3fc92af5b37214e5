"""What more privacy, and more clients a round, cost and give.

| symbol | name here           | meaning                                     |
|--------|---------------------|---------------------------------------------|
| B      | `clients_per_round` | what a mean divides by                      |
|        | `error`             | root mean square of what noise does to a    |
|        |                     | coordinate of the model: rmse * clip / B    |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

import attrs
import tabulate

from tff_bandmf import clips, errors
from tff_bandmf.program import feasibility


@dataclasses.dataclass(frozen=True)
class Point:
  """One plan of a trade-off.

  Attributes:
    clients_per_round: B.
    epsilon: of the whole run.
    noise_multiplier: sigma.
    z_stddev: standard deviation of z, clip included.
    error: of a coordinate of the model, by the noise alone.
    feasible: whether so many clients can fill every round; None if they are not
      known.
  """

  clients_per_round: int
  epsilon: float
  noise_multiplier: float
  z_stddev: float
  error: float
  feasible: Optional[bool]


@dataclasses.dataclass(frozen=True)
class TradeOff:
  """Plans that differ in clients a round and in epsilon.

  Attributes:
    points: by clients_per_round, then epsilon.
    delta: of all of them.
  """

  points: tuple[Point, ...]
  delta: float

  def __str__(self) -> str:
    """Returns the errors as a table: a row a cohort, a column an epsilon."""
    epsilons = sorted({point.epsilon for point in self.points})
    rows = [
      [clients, *(_cell(points.get(epsilon)) for epsilon in epsilons)]
      for clients, points in self._by_clients()
    ]
    heads = ['clients a round', *(f'epsilon {each:g}' for each in epsilons)]
    table = tabulate.tabulate(rows, headers=heads, disable_numparse=True)
    text = f'error of a coordinate by the noise, delta {self.delta:g}\n{table}'
    if any(point.feasible is False for point in self.points):
      text += '\n*: so many clients cannot fill every round'
    return text

  def to_dict(self) -> dict[str, Any]:
    """Returns the trade-off as a JSON object."""
    return dataclasses.asdict(self)

  def plot(self) -> Any:
    """Returns a matplotlib figure: error against epsilon, a line a cohort.

    Raises:
      ImportError: matplotlib is not installed.
    """
    from matplotlib import figure

    drawing = figure.Figure(figsize=(5.6, 3.6), layout='constrained')
    axes = drawing.subplots()
    for clients, points in self._by_clients():
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
    axes.set_xlabel('epsilon of the whole run', fontsize=13)
    axes.set_ylabel('error by the noise', fontsize=13)
    axes.tick_params(labelsize=12)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=12)
    return drawing

  def _by_clients(self) -> Iterator[tuple[int, dict[float, Point]]]:
    for clients in sorted({point.clients_per_round for point in self.points}):
      yield (
        clients,
        {
          point.epsilon: point
          for point in self.points
          if point.clients_per_round == clients
        },
      )


def of(
  plan: Any,
  clients_per_round: tuple[int, ...],
  epsilons: tuple[float, ...],
  population: Optional[int],
) -> TradeOff:
  """Returns what the plan would be with other cohorts and epsilons.

  The strategy is that of the plan where cohorts are enforced: its error does
  not depend on either. Where they are sampled it is searched for again.

  Args:
    plan: a `Plan` that states a delta.
    clients_per_round: of a round; empty for that of the plan.
    epsilons: of the whole run; empty for that of the plan.
    population: clients to draw from; None if they are not known.

  Raises:
    ValueError: the plan states no delta, or no epsilon where none is given; a
      value is out of range.
  """
  epsilons = epsilons or ((plan.epsilon,) if plan.epsilon else ())
  if plan.delta is None or not epsilons:
    name = 'delta' if plan.delta is None else 'epsilon'
    raise errors.value_error(
      name, None, 'is what is traded for noise', 'plan with epsilon and delta'
    )
  mechanism = plan.strategy if plan.sampled is None else plan.mechanism
  # That of an update; what an indicator adds is in `rmse`.
  norm = clips.norm(clips.layers(plan.l2_norm_clip))
  points = []
  for clients in clients_per_round or (plan.clients_per_round,):
    for epsilon in epsilons:
      other = attrs.evolve(
        plan,
        clients_per_round=clients,
        epsilon=epsilon,
        noise_multiplier=None,
        mechanism=mechanism,
        largest_cohort=None,
        stands_for=None,
      )
      points.append(
        Point(
          clients,
          float(epsilon),
          other.guarantee.noise_multiplier,
          other.z_stddev,
          other.rmse * norm / clients,
          None if population is None else _feasible(other, population),
        )
      )
  return TradeOff(tuple(points), plan.delta)


def _feasible(plan: Any, population: int) -> bool:
  wanted = feasibility.Wanted(
    'uniform',
    population,
    plan.clients_per_round,
    plan.rounds,
    plan.cohorts.schema,
  )
  return plan.sampled is not None or not wanted.never()


def _cell(point: Optional[Point]) -> str:
  if point is None:
    return ''
  return f'{point.error:.3g}{"*" if point.feasible is False else ""}'
