"""The request of a plan: the values that a user gives."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import attrs

from tff_bandmf import (
  _checks,
  clipping_norm,
  errors,
  participation,
  strategies,
  workloads,
)
from tff_bandmf.plan import mechanism as mechanism_lib

# Largest value of each attribute. A ledger has no room for more rounds. A claim
# with a larger epsilon or a larger delta protects nobody.
_MOST = {'rounds': 2**30, 'epsilon': 100.0, 'delta': 1e-2}


def _clips(name: str, value: Any) -> Any:
  """Returns one clip, a clip for each layer, or an adaptive clip."""
  if isinstance(value, clipping_norm.AdaptiveClip):
    _clips(name, value.initial)
    return value
  if isinstance(value, (tuple, list)) and value:
    return tuple(_checks.positive(name, x, 'one clip a layer') for x in value)
  return _checks.positive(name, value, 'the largest norm of a clipped update')


def _mechanism(name: str, value: Any) -> Any:
  """Returns a checked mechanism; a path object is converted to a string."""
  if isinstance(value, os.PathLike):
    value = os.fspath(value)
  if isinstance(value, strategies.Strategy):
    strategies.check_known(value)
  elif isinstance(value, str):
    if value != mechanism_lib.BEST and not pathlib.Path(value).suffix:
      strategies.families.get(value)
  elif not isinstance(value, mechanism_lib.Mechanism):
    raise errors.type_error(
      f'{name}={value}: must be best, a family, a Mechanism, a Strategy, or '
      'the path of a file; give one of them'
    )
  return value


def _number(check: Callable[..., Any], remedy: str, **limits: Any) -> Any:
  """Returns a check of `_checks` with its remedy and its limits."""
  return functools.partial(check, remedy=remedy, **limits)


# Maps the name of an attribute to a function of (name, value) that returns the
# converted value, or raises the error. The default is not checked.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
  'rounds': _number(_checks.count, 'rounds of the run'),
  'clients_per_round': _number(_checks.count, 'the expected number of clients'),
  'l2_norm_clip': _clips,
  'epsilon': _number(_checks.positive, 'usual values are 1 to 10'),
  'delta': _number(
    _checks.positive, 'take one far below one over the population'
  ),
  'noise_multiplier': _number(
    _checks.nonnegative,
    'it is stddev(z) / (clip * sensitivity); 0 adds no noise',
  ),
  'mechanism': _mechanism,
  'memory_copies': _number(
    _checks.count, 'give the vectors that fit in memory', least=0
  ),
  'largest_cohort': _number(_checks.count, 'clients'),
  'zeroing_norm': _number(_checks.positive, 'leave it out to zero nothing'),
  'workload': _number(
    _checks.instance, 'use workloads.Workload', kind=workloads.Workload
  ),
  'dimension': _number(_checks.count, 'the coordinates of the model'),
  'clients_per_unit': _number(_checks.count, 'give 1 for one client'),
  'stands_for': _number(_checks.count, 'clients'),
}


@attrs.frozen(kw_only=True, slots=False, eq=False)
class Request:
  """The rounds, cohorts, clip and claim that a user asks for.

  Attributes:
    rounds: n, number of rounds of the run, integer >= 1.
    clients_per_round: B, expected number of clients in a round, integer >= 1;
      the sum of a round is divided by B to get the mean.
    cohorts: rule by which clients take part. `MinSep`, `Budget`, `FixedEpoch`
      and `Single` are enforced. `CyclicPoisson`, `BallsInBins` and `BMinSep`
      are sampled at random, which amplifies privacy.
    l2_norm_clip: largest norm of a client's clipped update, > 0; or a tuple
      with one norm for each layer; or an `AdaptiveClip`.
    epsilon: target epsilon of the whole run, in (0, 100]. A request has either
      epsilon and delta or `noise_multiplier`.
    delta: target delta of the whole run, in (0, 0.01]. If `noise_multiplier` is
      given, delta may be given too: epsilon is then computed at this delta.
    noise_multiplier: stddev(Z) / (clip * sensitivity of C), >= 0, where the
      noise is C^-1 Z. The value 0 adds no noise and claims nothing.
    mechanism: 'best', for the family with the least error that fits in
      `memory_copies`; or the name of a family, a `Mechanism`, a strategy, or
      the path of a strategy file or of a `.npy` file of C. A text without a
      suffix is the name of a family. A path object is converted to a string.
    memory_copies: largest number of vectors of past noise in memory, each of
      the model's size, >= 0. A mechanism that needs more vectors is refused. An
      exception is a C^-1 with few bands: the noise generator then keeps no
      vectors and draws past normals again, which takes time. None stands for 8
      if the search compares families or numbers of bands, and otherwise for no
      limit.
    largest_cohort: largest number of clients of a round, >=
      `clients_per_round`. If None, the limit is `clients_per_round` or, for
      sampled cohorts, a size that the cohorts of a run exceed with probability
      at most 1e-40.
    zeroing_norm: norm above which an update becomes zero, > 0. If None, no
      finite update becomes zero.
    workload: linear map from released sums to models: prefix sums, momentum,
      learning rates, weight decay, or a matrix.
    objective: rule that computes the error of the run from the errors of its
      rounds: 'mean', 'max', 'last', or a weight >= 0 of each round. Strategies
      are optimised and ranked by the error of the run.
    dimension: number of coordinates of the model, >= 1. The plan needs this
      number to compare the noise with the updates. None: the number is unknown.
    clients_per_unit: largest number of clients of one unit of privacy, such as
      the devices of a person, >= 1. Each client follows `cohorts`.
    stands_for: number of clients in a round of a larger run that this run
      simulates, >= `clients_per_round`; `epsilon` and `delta` are then the
      claim of the larger run. None if this run simulates no larger run.

  Raises:
    TypeError: a value has a wrong type.
    ValueError: a value is out of range, or values contradict each other.
  """

  rounds: int
  clients_per_round: int
  cohorts: participation.Cohorts
  l2_norm_clip: Union[float, Sequence[float], clipping_norm.AdaptiveClip]
  epsilon: Optional[float] = None
  delta: Optional[float] = None
  noise_multiplier: Optional[float] = None
  mechanism: Union[
    str, os.PathLike[str], mechanism_lib.Mechanism, strategies.Strategy
  ] = mechanism_lib.BEST
  memory_copies: Optional[int] = None
  largest_cohort: Optional[int] = None
  zeroing_norm: Optional[float] = None
  workload: workloads.Workload = workloads.PREFIX
  objective: workloads.Objective = workloads.MEAN
  dimension: Optional[int] = None
  clients_per_unit: int = 1
  stands_for: Optional[int] = None

  def __attrs_post_init__(self):
    participation.check_cohorts(self.cohorts)
    for field in attrs.fields(Request):
      name, value = field.name, getattr(self, field.name)
      if name in _CHECKS and value is not field.default:
        value = _CHECKS[name](name, value)
        if name in _MOST:
          _checks.at_most(name, value, _MOST[name], 'the limit', 'reduce it')
        object.__setattr__(self, name, value)
    claim = ('epsilon', 'delta')
    missing = [name for name in claim if getattr(self, name) is None]
    if self.noise_multiplier is None and missing:
      other = ', or noise_multiplier (0 claims nothing)' * (missing == [*claim])
      raise errors.value_error(
        f'{missing[0]}=None: a claim is an epsilon at a delta; give '
        f'{" and ".join(missing)}{other}'
      )
    # PRIVACY: With a noise multiplier, epsilon follows from the noise. A
    # smaller epsilon in the request would look like the claim. So a request
    # with an epsilon and a noise multiplier is refused.
    # Guard: plan_test.test_values_that_do_not_go_together_are_refused.
    if None not in (self.noise_multiplier, self.epsilon):
      raise errors.value_error(
        f'noise_multiplier={self.noise_multiplier}: is given in place of '
        'epsilon; leave out one of them'
      )
    least = self.clients_per_round
    for name in ('largest_cohort', 'stands_for'):
      value = getattr(self, name)
      if value is not None and value < least:
        raise errors.value_error(
          f'{name}={value}: must be at least clients_per_round={least}; leave '
          'it out'
        )
    # PRIVACY: A larger run with sampled cohorts would draw each client with a
    # larger probability than the plan accounts for, so its epsilon would be
    # larger than the plan says. `stands_for` is refused if cohorts are sampled.
    # Guard: plan_test.test_values_that_do_not_go_together_are_refused.
    if self.stands_for is not None and not self.cohorts.is_enforced:
      raise errors.value_error(
        f'stands_for={self.stands_for}: larger sampled cohorts amplify less; '
        'leave it out, or enforce a schema such as min-sep'
      )
    objective = workloads.check_objective(self.objective, self.rounds)
    object.__setattr__(self, 'objective', objective)
    if self.workload.name == 'matrix':
      self.workload.matrix(self.rounds)
    self.workload.learning_rates(self.rounds)
    schema = self.cohorts.schema
    if isinstance(schema, participation.Budget):
      schema.check_horizon(self.rounds)
    min_sep = schema.min_sep
    if min_sep is not None and min_sep > self.rounds:
      raise errors.value_error(
        f'min_sep={min_sep}: exceeds rounds={self.rounds}, so a client takes '
        'part at most once; use participation single'
      )

  @property
  def clip(self) -> float:
    """The largest norm of one client's contribution to a round.

    The norm is over all layers. For an adaptive clip, it is the norm of an
    update together with its indicator, in the first round.
    """
    return clipping_norm.norm(self.l2_norm_clip)

  @property
  def file(self) -> Optional[str]:
    """The path of the file of C; None if the mechanism is not a file."""
    name = self.mechanism if isinstance(self.mechanism, str) else ''
    return name if pathlib.Path(name).suffix else None

  @property
  def unit(self) -> str:
    """The unit of privacy, as the subject of a sentence."""
    return 'one client' if self.clients_per_unit == 1 else 'one unit of privacy'
