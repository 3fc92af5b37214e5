"""Ranks families of strategies by error at the same (epsilon, delta).

`choose` optimises every family that fits in memory, calibrates its noise to
(epsilon, delta), and sorts by error. Families are optimised in parallel
threads.

  rmse     = noise_multiplier * sensitivity * sqrt(mean error)
  max_rmse = noise_multiplier * sensitivity * sqrt(max error)

Both are root mean square errors that the noise causes in one coordinate of the
model, in units of the clipping norm times the learning rate. `rmse` is the root
of the mean square over all rounds; `max_rmse` is for the worst round.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import os
import pathlib
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from tff_bandmf import (
  _blas,
  _checks,
  accounting,
  errors,
  optimize,
  participation,
  sensitivity,
  strategies,
  workloads,
)
from tff_bandmf.strategies import base

if TYPE_CHECKING:
  from matplotlib.figure import Figure

# For sampled cohorts, the strategy with the least estimated error is calibrated
# with all samples, and every other strategy with 1 / `_FEWER` of the samples.
# Fewer samples make the noise larger than necessary, mostly by less than one
# percent; the claim holds.
_FEWER = 10


@dataclasses.dataclass(frozen=True)
class Target:
  """The (epsilon, delta) that a whole run has to meet.

  Attributes:
    epsilon: target epsilon of the whole run, > 0.
    delta: target delta of the whole run, in (0, 1).

  Raises:
    ValueError: a value is out of range.
  """

  epsilon: float
  delta: float

  def __post_init__(self):
    accounting.gaussian_noise_multiplier(self.epsilon, self.delta)


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
  """A strategy, its calibrated noise and its error.

  Attributes:
    name: name of the family. For a strategy from the caller: its path, or its
      family and digest.
    guarantee: guarantee of C with noise that is calibrated to (epsilon, delta).
    converged: whether the optimiser of the strategy converged.
    copies: number of copies of the model that the noise keeps, >= 0.
    normals: number of normals that the noise draws for one coordinate and
      round, >= 1; see `Strategy.normals`.
    rmse: root mean square error over all rounds, for a clip of 1.
    max_rmse: root mean square error of the worst round, for a clip of 1.
    ranked: root of the error that the argument `objective` of `choose` defines,
      for a clip of 1; the choices are sorted by it.
  """

  name: str
  guarantee: accounting.Guarantee
  converged: bool
  copies: int
  normals: float
  rmse: float
  max_rmse: float
  ranked: float

  @property
  def strategy(self) -> strategies.Strategy:
    """The strategy C."""
    return self.guarantee.strategy


@dataclasses.dataclass(frozen=True, eq=False)
class Ranking:
  """Families sorted by their errors, and the families that were not ranked.

  Attributes:
    choices: at least one choice, least error first.
    left_out: maps the name of a family that was not ranked to the reason.
  """

  choices: tuple[Choice, ...]
  left_out: dict[str, str]

  def plot(self) -> Figure:
    """Returns a Matplotlib figure: error by family, and by copies in memory.

    The error is `ranked` of each choice.

    Raises:
      ImportError: Matplotlib is not installed.
    """
    with errors.importing('a plot'):
      from tff_bandmf import _figures

    return _figures.errors(
      [(each.name, each.ranked) for each in self.choices],
      [(each.copies, each.ranked) for each in self.choices],
      'error for a clip of 1',
    )


def choose(
  rounds: int,
  cohorts: participation.Cohorts,
  target: Target,
  *,
  memory_copies: Optional[int] = None,
  objective: workloads.Objective = optimize.MEAN,
  workload: workloads.Workload = workloads.PREFIX,
  families: Optional[
    Iterable[Union[str, os.PathLike[str], strategies.Strategy]]
  ] = None,
  progress: Callable[[str], None] = lambda family: None,
) -> Ranking:
  """Returns the families that fit in memory, ranked by error at `target`.

  Each family is optimised for `reference_schema` of the cohorts. Under balls in
  bins and b-min-sep, the search estimates the noise that `target` needs, and
  minimises the error with this noise. The noise of each choice is then
  calibrated. Under cyclic Poisson sampling a strategy has at most as many bands
  as there are groups of clients. If `cohorts` has no number of groups, numbers
  of bands that are powers of two are compared. With more bands, the error at
  the same noise multiplier is smaller. But groups are smaller as well, and
  sampling from smaller groups amplifies less [BandMF23, Sec 4 and Table 3].

  Args:
    rounds: n, number of rounds of the run, >= 1.
    cohorts: participation schema that is enforced, or kind of sampling.
    target: (epsilon, delta) that every choice meets.
    memory_copies: limit on the vectors of past noise in memory, each of the
      model's size, >= 0; None for no limit. If C^-1 has few bands and its noise
      needs more vectors, the generator keeps none and draws past normals again;
      `Choice.normals` has the cost.
    objective: error to minimise and rank by: `optimize.MEAN`, `MAX`, `LAST`, or
      a weight for each round.
    workload: matrix A that turns released sums into models.
    families: names of the families to compare, strategies, or paths of strategy
      files; None for `strategies.SEARCHED`.
    progress: function that is called with the name of each finished family.

  Raises:
    TypeError: `cohorts` is not a kind of cohorts.
    ValueError: a value is out of range, or no family fits.

  >>> from tff_bandmf import participation
  >>> ranking = choose(
  ...     100, participation.MinSep(10), Target(1.0, 1e-6),
  ...     memory_copies=1, families=['identity', 'dp-cgd'])
  >>> [choice.strategy.family for choice in ranking.choices]
  ['dp-cgd', 'identity']
  """
  rounds = base.count_rounds(rounds)
  participation.check_cohorts(cohorts)
  _checks.instance('target', target, Target, 'use choosing.Target')
  # Maps a name to a family or a strategy.
  declared: dict[str, Union[strategies.Family, strategies.Strategy]] = {}
  for each in families or strategies.SEARCHED:
    if isinstance(each, strategies.Strategy):
      declared[f'{each.family} {each.digest()[:8]}'] = each
    elif pathlib.Path(each).suffix:
      declared[os.fspath(each)] = strategies.load(each)[0]
    else:
      declared[os.fspath(each)] = strategies.families.get(each)
  claim = dataclasses.asdict(target)
  kind = accounting.sampled(cohorts)
  fewer = kind.samples // _FEWER if kind and kind.samples else None
  task = (rounds, cohorts.schema.reference_schema, workload, objective)
  stopped = threading.Event()

  def stop(loss):
    # Ctrl-C reaches only the main thread, so this exception ends the searches
    # in the other threads.
    if stopped.is_set():
      raise KeyboardInterrupt

  def searched(
    family: Union[strategies.Family, strategies.Strategy],
  ) -> list[optimize.Optimized]:
    noise = accounting.needed_noise(cohorts, rounds, **claim)
    if isinstance(family, strategies.Strategy):
      check_given('families', family, rounds, memory_copies)
      return [optimize.Problem(*task, noise=noise).evaluated(family)]
    return [
      optimize.optimize(
        family.name,
        *task,
        memory_copies=memory_copies,
        callback=stop,
        noise=noise,
        **parameters,
      )
      for parameters in _parameters(family, rounds, cohorts, memory_copies)
    ]

  def calibrated(name: str, results: list[optimize.Optimized]) -> list[Choice]:
    choices = []
    # PRIVACY: Each Monte Carlo bound is too low with a small probability, and
    # its strategy then seems to need less noise and ranks better. So the claim
    # of the best strategy would be false with a larger probability than stated.
    # All candidates share one failure probability.
    # Guard: choosing_test.test_compared_families_share_the_failure_probability.
    tries = len(declared) * len(results)
    for best in results:
      strategy = best.strategy
      ranked = strategy.error(workload, objective)
      samples = accounting.Samples(
        count=None if best.loss == least else fewer,
        tries=tries,
        near=math.sqrt(best.loss / ranked),
      )
      guarantee = accounting.calibrate(
        *sensitivity.budget.for_horizon(cohorts, strategy),
        **claim,
        samples=samples,
      )
      squared = (*strategy.errors(workload), ranked)
      roots = [guarantee.z_stddev_per_clip * math.sqrt(e) for e in squared]
      cost = strategy.copies(memory_copies), strategy.normals(memory_copies)
      choices.append(Choice(name, guarantee, best.converged, *cost, *roots))
    return choices

  reasons: dict[str, str] = {}

  def finished(running):
    """Yields (name of a family, result) of futures, and collects reasons."""
    for done in concurrent.futures.as_completed(running):
      name = running[done]
      try:
        yield name, done.result()
      # TensorFlow may be missing for a family.
      except (ImportError, ValueError) as error:
        reasons[name] = str(error)
        progress(name)

  # Families that need a search take longest, so they start first.
  order = sorted(
    declared, key=lambda name: not getattr(declared[name], 'optimizer', '')
  )
  by_family: dict[str, list[Choice]] = {}
  # Families are compared in parallel, each in one thread.
  executor = concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)))
  with _blas.one_thread(), executor as pool:
    try:
      searches = {pool.submit(searched, declared[name]): name for name in order}
      results = dict(finished(searches))
      losses = [best.loss for each in results.values() for best in each]
      least = min(losses, default=math.nan)
      calibrations = {
        pool.submit(calibrated, name, each): name
        for name, each in results.items()
      }
      for name, choices in finished(calibrations):
        by_family[name] = choices
        progress(name)
    except BaseException:
      stopped.set()
      pool.shutdown(cancel_futures=True)
      raise
  left_out = {name: reasons[name] for name in declared if name in reasons}
  choices = [each for name in declared for each in by_family.get(name, [])]
  if not choices:
    raise errors.value_error(
      f'families={", ".join(left_out)}: none fits; '
      f'{next(iter(left_out.values()), "name one").rstrip(".")}'
    )
  choices.sort(key=lambda choice: choice.ranked)
  return Ranking(tuple(choices), left_out)


def check_given(
  name: str,
  strategy: strategies.Strategy,
  rounds: int,
  memory_copies: Optional[int],
) -> None:
  """Raises ValueError if a given strategy does not fit the rounds or memory.

  Args:
    name: name of the argument that has the strategy, for the message.
    strategy: strategy matrix C.
    rounds: number of rounds of the run.
    memory_copies: largest number of copies of the model; None for no limit.
  """
  if strategy.rounds != rounds:
    raise errors.value_error(
      f'{name}={strategy.family}: is for {strategy.rounds} rounds, not for '
      f'rounds={rounds}; give a strategy of as many rounds'
    )
  if memory_copies is not None and strategy.least_copies > memory_copies:
    raise errors.value_error(
      f'memory_copies={memory_copies}: {strategy.family} keeps '
      f'{strategy.least_copies} copies of the model; allow as many'
    )


def _parameters(
  family: strategies.Family,
  rounds: int,
  cohorts: participation.Cohorts,
  memory_copies: Optional[int],
) -> list[dict[str, Any]]:
  """Returns the parameters of each strategy to optimise in a family.

  Raises:
    ValueError: the cohorts need a C of few bands, which the family lacks.
  """
  bands = cohorts.candidate_bands(rounds)
  if bands is None:
    return [{}]
  if not family.few_bands:
    raise errors.value_error(
      f'family={family.name}: {cohorts.name} needs a C of few bands, which the '
      'family lacks; compare it without amplification'
    )
  if not family.parameter('bands'):
    return [{}]
  most = rounds if memory_copies is None else min(rounds, memory_copies + 1)
  if len(bands) == 1:
    return [{'bands': min(*bands, most)}]
  return [{'bands': each} for each in bands if each <= most]
