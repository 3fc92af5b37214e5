"""The sets of participation patterns under which sensitivity is defined.

| symbol | name here            | meaning                                    |
|--------|----------------------|--------------------------------------------|
| n      | `rounds`             | number of rounds of the mechanism          |
| b      | `min_sep`            | rounds i, j of one client: abs(i - j) >= b |
| k      | `max_participations` | largest number of rounds of one client     |

`min_sep` is the difference of round numbers, r2 - r1: 1 allows consecutive
rounds. TensorFlow Privacy and the Gboard reports count the rounds in between,
r2 - r1 - 1, which is one less: `min_sep_from_rounds_between` converts.

A pattern is the set of rounds of one client. `Budget` allows every pattern
whose cost under C is at most the largest cost of a pattern of `MinSep`. `Costs`
computes the cost.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar, Optional

import attrs
import numpy as np

from tff_bandmf import _checks, _files, errors

# Two data sets are neighbours if one client's contributions are zero in one.
ZERO_OUT = 'zero-out'
# The cost of a pattern with this many rounds fits in 64 bits.
_MOST_ROUNDS = 2**16


@attrs.frozen
class Cohorts(abc.ABC):
  """A rule by which clients take part in the rounds of a run.

  Attributes:
    name: name of the kind on the command line and in JSON.
    is_enforced: whether the run refuses clients that would break `schema`.
      Other cohorts are drawn at random, or are read from a log.
    adjacency: relation between neighbouring data sets.
  """

  name: ClassVar[str]
  is_enforced: ClassVar[bool] = False

  if TYPE_CHECKING:
    # Some kinds have a constant, and others a field.
    @property
    def adjacency(self) -> str: ...

  @property
  @abc.abstractmethod
  def schema(self) -> Participation:
    """The worst patterns of a client; its sensitivity scales the noise."""

  @abc.abstractmethod
  def to_dict(self) -> _files.JsonObject:
    """Returns the cohorts as a JSON object."""

  def for_cohort_size(self, clients_per_round: float) -> Cohorts:
    """Returns the cohorts for an expected number of clients a round, > 0."""
    return self

  def for_bands(self, bands: int) -> Cohorts:
    """Returns the cohorts for a C of `bands` bands, with all values set.

    Raises:
      ValueError: a value is missing that the number of bands does not give.
    """
    return self

  def candidate_bands(self, rounds: int) -> Optional[list[int]]:
    """Returns the numbers of bands to compare; None if C may have any."""
    return None


@attrs.frozen
class Participation(Cohorts):
  """A set of participation patterns; each is a set of rounds of one client.

  A run enforces it: it refuses a client whose round would break the schema.

  Attributes:
    evenly_spaced: whether rounds of a client are exactly `min_sep` apart.
    adjacency: `zero-out`.
  """

  is_enforced: ClassVar[bool] = True
  evenly_spaced: ClassVar[bool] = False
  adjacency: ClassVar[str] = ZERO_OUT

  if TYPE_CHECKING:
    # Subclasses have fields of these names. At run time a property would become
    # the default of the field.
    @property
    def min_sep(self) -> Optional[int]: ...

    @property
    def max_participations(self) -> Optional[int]: ...

    @property
    def costs(self) -> Optional[Costs]: ...
  else:
    costs = None

  @abc.abstractmethod
  def participations(self, rounds: int) -> int:
    """Returns k: the most rounds in which one client can take part."""

  @abc.abstractmethod
  def separation(self, rounds: int) -> int:
    """Returns b, the least difference of two rounds of one client.

    If a client takes part only once, b is the number of rounds.
    """

  @property
  def schema(self) -> Participation:
    """This schema itself, since the run enforces it."""
    return self

  @property
  def typical(self) -> Participation:
    """The schema for which C is optimised: another one for a `Budget`."""
    return self

  def to_dict(self) -> _files.JsonObject:
    """Returns the schema as a JSON object; `from_name` reads it back."""
    return {'participation': self.name, **attrs.asdict(self)}


@attrs.frozen
class Single(Participation):
  """Every client takes part in at most one round."""

  name: ClassVar[str] = 'single'
  min_sep: ClassVar[None] = None
  max_participations: ClassVar[int] = 1

  def participations(self, rounds: int) -> int:
    return 1

  def separation(self, rounds: int) -> int:
    return rounds


def _count_min_sep(min_sep: object) -> int:
  return _checks.count(
    'min_sep', min_sep, 'it is r2 - r1, so 1 allows consecutive rounds'
  )


def _count_participations(most: object) -> int:
  return _checks.count(
    'max_participations', most, 'leave it out where only min_sep is enforced'
  )


@attrs.frozen
class _Separated(Participation):
  """The fields that `MinSep` and `FixedEpoch` share.

  Attributes:
    min_sep: b, the least difference of two round numbers of one client.
    max_participations: a bound on k that is enforced on top of min_sep, or
      None if only min_sep is enforced.
  """

  min_sep: int = attrs.field(converter=_count_min_sep)
  max_participations: Optional[int] = attrs.field(
    default=None, converter=attrs.converters.optional(_count_participations)
  )

  def participations(self, rounds: int) -> int:
    # PRIVACY: floor(n / b) would understate the rounds of a client: n = 9 and
    # b = 4 allow rounds 0, 4 and 8. This line takes ceil(n / b).
    # Guard: participation_test.test_participations_is_the_longest_pattern.
    fit = -(-rounds // self.min_sep)
    if self.max_participations is None:
      return fit
    return min(self.max_participations, fit)

  def separation(self, rounds: int) -> int:
    return self.min_sep


@attrs.frozen
class MinSep(_Separated):
  """Rounds of one client are at least `min_sep` apart.

  >>> MinSep(min_sep=4).participations(rounds=9)
  3
  """

  name: ClassVar[str] = 'min-sep'


@attrs.frozen
class FixedEpoch(_Separated):
  """Rounds of one client are exactly `min_sep` apart, as in fixed epochs.

  >>> FixedEpoch(min_sep=4, max_participations=2).participations(rounds=9)
  2
  """

  name: ClassVar[str] = 'fixed-epoch'
  evenly_spaced: ClassVar[bool] = True


def check_cohorts(cohorts: object) -> None:
  """Raises TypeError unless the value is a kind of cohorts."""
  if not isinstance(cohorts, Cohorts):
    raise errors.type_error(
      f'cohorts={cohorts}: must say who takes part; use '
      'tff_bandmf.MinSep(min_sep)'
    )


@attrs.frozen(eq=False)
class Costs:
  """The costs of patterns under one C, in integers, and a client's limit.

    cost(P) = sum_{s in P} h(s, 0) + 2 sum_{s < t in P} h(s, t - s)

  h(s, l) is |X[s, s + l]| / unit, rounded up, with X = C^T C. For a Toeplitz C,
  X has infinite columns, so that it bounds X of a run of any length. Sums of
  integers are exact in any order, so that servers and devices decide alike.

  Attributes:
    table: [1 or n, lags] int64, h, each in [0, 2^30]. A single row holds for
      every s. For l >= lags, h is 0.
    limit: largest cost of a client, integer >= 0.
    unit: size of one unit of cost, in squared clips, > 0.
    strategy_sha256: digest of C.
  """

  table: np.ndarray
  limit: int
  unit: float
  strategy_sha256: str

  @property
  def most(self) -> int:
    """An upper bound on the rounds of a client, since each round costs."""
    return self.limit // int(self.table[:, 0].min())

  def pairs(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns h(s, t - s), int64, of the shape of s and t.

    Args:
      first: integers, s; a negative s stands for no round, with h = 0.
      second: integers, t >= s.
    """
    lags = second - first
    near = (first >= 0) & (lags < self.table.shape[1])
    costs = np.zeros(np.shape(lags), np.int64)
    rows = first[near] if len(self.table) > 1 else 0
    costs[near] = self.table[rows, lags[near]]
    return costs

  def total(self, rounds: np.ndarray) -> np.ndarray:
    """Returns the costs of patterns, [m] int64.

    Args:
      rounds: [m, K] integers, one pattern per row, descending; negative numbers
        stand for no round, and come last.
    """
    # PRIVACY: a sum beyond 64 bits would wrap around, and an expensive pattern
    # would seem cheap. Patterns with more rounds than fit are refused.
    # Guard: budget_test.test_patterns_of_too_many_rounds_are_refused.
    if rounds.shape[1] > _MOST_ROUNDS:
      raise errors.value_error(
        f'participations={rounds.shape[1]}: a client cannot have more '
        f'than {_MOST_ROUNDS}; use a larger min_sep or fewer rounds'
      )
    total = np.zeros(len(rounds), np.int64)
    for j in range(rounds.shape[1]):
      # PRIVACY: a pair of rounds s < t moves the run by X[s, t] and by X[t, s],
      # and a cost of only one of them would be too small. Pairs count twice.
      # Guard: budget_test.test_cost_bounds_the_shift_of_every_pattern.
      latest = np.broadcast_to(rounds[:, j : j + 1], rounds[:, j:].shape)
      costs = self.pairs(rounds[:, j:], latest)
      total += 2 * costs[:, 1:].sum(1) + costs[:, 0]
    return total


@attrs.frozen
class Budget(Participation):
  """A client takes part as long as its rounds cost no more than a budget.

  The budget is the cost of `max_participations` rounds that are `min_sep`
  apart, under the C of the run; see `Costs` for the cost, and
  `sensitivity.budget` for the families of C that have costs. So a client may
  have closer rounds than `min_sep`, or more rounds, as long as they cost no
  more. A plan optimises C for `typical`, which is a `MinSep`.

  Attributes:
    min_sep: b of `typical`, integer >= 1.
    max_participations: k of `typical`, integer >= 1; None is ceil(n / b).
    apart: least difference of two round numbers of one client, in
      [1, min_sep].
    horizon: number of rounds up to which a run may go on, >= n; None is 10 n if
      C is Toeplitz, else n.
    costs: costs under the C of a run; None as long as no C is known.
  """

  name: ClassVar[str] = 'budget'
  min_sep: int = attrs.field(converter=_count_min_sep)
  max_participations: Optional[int] = attrs.field(
    default=None, converter=attrs.converters.optional(_count_participations)
  )
  apart: int = attrs.field(
    default=1,
    kw_only=True,
    converter=lambda value: _checks.count(
      'apart', value, 'it is r2 - r1, so 1 allows consecutive rounds'
    ),
  )
  horizon: Optional[int] = attrs.field(
    default=None,
    kw_only=True,
    converter=attrs.converters.optional(
      lambda value: _checks.count(
        'horizon', value, 'give the rounds up to which a run may go on'
      )
    ),
  )
  costs: Optional[Costs] = attrs.field(
    default=None, kw_only=True, eq=False, repr=False
  )

  def __attrs_post_init__(self):
    _checks.at_most(
      'apart',
      self.apart,
      self.min_sep,
      'min_sep',
      'the typical client would not be admitted: use a smaller one',
    )

  @property
  def known_costs(self) -> Costs:
    """The costs under the C of a run.

    Raises:
      ValueError: no C is known.
    """
    if self.costs is None:
      raise errors.value_error(
        f'participation={self.name}: needs the C of a run: what a round '
        'costs follows from it; use plan.schema, or guarantee.cohorts'
      )
    return self.costs

  def check_horizon(self, rounds: int) -> None:
    """Raises ValueError if the horizon is below the planned rounds."""
    if self.horizon is not None and self.horizon < rounds:
      raise errors.value_error(
        f'horizon={self.horizon}: is below rounds={rounds}; leave it '
        'out, or give the rounds up to which the run may go on'
      )

  def device_rule(self) -> _files.JsonObject:
    """Returns the rule by which a device can admit itself, a JSON object.

    `costs` is the list h(0), h(1), ..., and later values are 0. `limit`,
    `apart` and `horizon` are the attributes of `Costs` and `Budget`.
    docs/reference/budget.md has the code for a device.

    Raises:
      ValueError: C is not Toeplitz, so that costs depend on the round.
    """
    costs = self.known_costs
    if len(costs.table) > 1:
      raise errors.value_error(
        f'participation={self.name}: has costs that differ from round '
        'to round: C is not Toeplitz; use banded-toeplitz or blt'
      )
    return {
      'costs': costs.table[0].tolist(),
      'limit': costs.limit,
      'apart': self.apart,
      'horizon': self.horizon,
    }

  def participations(self, rounds: int) -> int:
    return min(rounds, self.known_costs.most)

  def separation(self, rounds: int) -> int:
    return self.apart

  @property
  def typical(self) -> MinSep:
    return MinSep(self.min_sep, self.max_participations)

  def to_dict(self) -> _files.JsonObject:
    return {
      'participation': self.name,
      'min_sep': self.min_sep,
      'max_participations': self.max_participations,
      'apart': self.apart,
      'horizon': self.horizon,
    }


def check(participation: object) -> None:
  """Raises TypeError unless the value is a schema."""
  if not isinstance(participation, Participation):
    raise errors.type_error(
      f'participation={participation}: must be a participation '
      'schema; use tff_bandmf.participation.MinSep(min_sep)'
    )


def min_sep_from_rounds_between(rounds_between: int) -> int:
  """Returns min_sep, given the number of rounds between two of one client.

    b = r2 - r1 = (r2 - r1 - 1) + 1

  TensorFlow Privacy's `min_separation` and the min-separation of the Gboard
  reports [Gboard23] count r2 - r1 - 1.

  Args:
    rounds_between: r2 - r1 - 1, at least 0.

  Raises:
    TypeError: `rounds_between` is not an integer.
    ValueError: `rounds_between` is negative.

  >>> min_sep_from_rounds_between(484)
  485
  """
  return 1 + _checks.count(
    'rounds_between',
    rounds_between,
    'it is r2 - r1 - 1, so 0 allows consecutive rounds',
    least=0,
  )


def from_name(
  name: str,
  min_sep: Optional[int] = None,
  max_participations: Optional[int] = None,
  apart: Optional[int] = None,
  horizon: Optional[int] = None,
) -> Participation:
  """Returns the schema called `name`.

  Args:
    name: 'single', 'fixed-epoch', 'min-sep' or 'budget'.
    min_sep: r2 - r1; required by all but 'single'.
    max_participations: optional bound on k.
    apart: least r2 - r1 that 'budget' allows, >= 1; None is 1.
    horizon: rounds up to which a run with 'budget' may go on; None takes the
      default of `Budget`.

  Raises:
    ValueError: the name is unknown, a parameter is missing, or a parameter does
      not apply.
  """
  for parameter, value in (('apart', apart), ('horizon', horizon)):
    if value is not None and name != Budget.name:
      raise errors.value_error(
        f'{parameter}={value}: participation {name} does not take it; '
        'leave it out, or use budget'
      )
  if name == Single.name:
    if min_sep is not None or max_participations not in (None, 1):
      raise errors.value_error(
        f'participation={name}: takes no min_sep and no '
        'max_participations above 1; use min-sep or fixed-epoch'
      )
    return Single()
  if name not in (MinSep.name, FixedEpoch.name, Budget.name):
    raise errors.value_error(
      f'participation={name}: is not a known schema; use {" or ".join(NAMES)}'
    )
  if min_sep is None:
    raise errors.value_error(
      f'min_sep={min_sep}: participation {name} needs it; give the '
      'least r2 - r1 of two rounds of one client'
    )
  if name == Budget.name:
    return Budget(
      min_sep,
      max_participations,
      apart=1 if apart is None else apart,
      horizon=horizon,
    )
  schema = MinSep if name == MinSep.name else FixedEpoch
  return schema(min_sep, max_participations)


# The names of schemas in flags and files.
NAMES = (Single.name, FixedEpoch.name, MinSep.name, Budget.name)
