"""Participation schemas: rules for the rounds in which a client takes part.

| symbol | name here            | meaning                                    |
|--------|----------------------|--------------------------------------------|
| n      | `rounds`             | number of rounds of the mechanism          |
| b      | `min_sep`            | least difference of two rounds of a client |
| k      | `max_participations` | largest number of rounds of one client     |

`min_sep` is the least difference r2 - r1 of two rounds r1 < r2 of one client,
so 1 allows consecutive rounds. TensorFlow Privacy and the Gboard reports count
the rounds in between, r2 - r1 - 1. The function `min_sep_from_rounds_between`
converts this count to `min_sep`.

A pattern is the set of rounds of one client, and a schema is a set of allowed
patterns. The sensitivity of a strategy matrix C is defined for a schema.
`Costs` computes the cost of a pattern under C. `Budget` allows a pattern if its
cost is at most a budget and its rounds differ by at least `apart`. The budget
is so large that no pattern of `Budget.reference_schema`, a `MinSep` schema,
exceeds it.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import attrs
import numpy as np

from tff_bandmf import _checks, _files, errors

# Adjacency: two data sets are neighbours if they differ in one client, whose
# contributions are zero in one of the data sets.
ZERO_OUT = 'zero-out'
# The cost of a pattern with at most this many rounds fits in 64 bits.
_MOST_ROUNDS = 2**16


@attrs.frozen
class Cohorts(abc.ABC):
  """A rule by which clients take part in the rounds of a run.

  Attributes:
    name: name of the kind on the command line and in JSON.
    is_enforced: whether the run refuses clients that would break `schema`.
      Cohorts that are not enforced are sampled at random, or are read from the
      log of a finished run.
    adjacency: name of the relation between neighbouring data sets.
  """

  name: ClassVar[str]
  is_enforced: ClassVar[bool] = False

  if TYPE_CHECKING:
    # `adjacency` is a constant in some subclasses, and a field in others.
    @property
    def adjacency(self) -> str: ...

  @property
  @abc.abstractmethod
  def schema(self) -> Participation:
    """The schema for which the sensitivity of C is computed."""

  @abc.abstractmethod
  def to_dict(self) -> _files.JsonObject:
    """Returns the cohorts as a JSON object."""

  def for_cohort_size(self, clients_per_round: float) -> Cohorts:
    """Returns these cohorts for an expected number of clients a round, > 0."""
    return self

  def for_bands(self, bands: int) -> Cohorts:
    """Returns these cohorts for a C of `bands` bands, with missing values set.

    Raises:
      ValueError: a value is missing and cannot be computed from the number of
        bands, or the computed value is out of range.
    """
    return self

  def candidate_bands(self, rounds: int) -> Optional[list[int]]:
    """Returns the numbers of bands to try for C; None if all are possible."""
    return None


@attrs.frozen
class Participation(Cohorts):
  """A schema: a set of patterns, each the set of rounds of one client.

  A run enforces its schema: a client that would break the schema is refused.

  Attributes:
    evenly_spaced: whether the differences of a client's rounds are multiples of
      `min_sep`.
    adjacency: name of the relation between neighbouring data sets, `zero-out`.
  """

  is_enforced: ClassVar[bool] = True
  evenly_spaced: ClassVar[bool] = False
  adjacency: ClassVar[str] = ZERO_OUT

  if TYPE_CHECKING:
    # Subclasses have fields of these names. A property that existed at run time
    # would become the default of the field.
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
    """Returns k, the largest number of rounds of one client in a run.

    For a `Budget`, the result is an upper bound on k.

    Args:
      rounds: number n of rounds of the run.

    Raises:
      ValueError: the schema is a `Budget` whose C is not known yet.
    """

  @abc.abstractmethod
  def separation(self, rounds: int) -> int:
    """Returns the least difference of two rounds of one client.

    The result is the number of rounds for `Single`, `apart` for a `Budget`, and
    `min_sep` for other schemas.

    Args:
      rounds: number n of rounds of the run.
    """

  @property
  def schema(self) -> Participation:
    """This schema itself."""
    return self

  @property
  def reference_schema(self) -> Participation:
    """This schema, or for `Budget` the `MinSep` for which C is optimised."""
    return self

  def to_dict(self) -> _files.JsonObject:
    """Returns the schema as a JSON object, whose values `from_name` takes."""
    values = attrs.asdict(self, filter=lambda field, _: field.name != 'costs')
    return {'participation': self.name, **values}


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


_CONSECUTIVE = 'it is r2 - r1, so 1 allows consecutive rounds'


def _count_min_sep(min_sep: int) -> int:
  return _checks.count('min_sep', min_sep, _CONSECUTIVE)


def _count_apart(apart: int) -> int:
  return _checks.count('apart', apart, _CONSECUTIVE)


def _count_participations(most: int) -> int:
  return _checks.count('max_participations', most, 'leave it out for no limit')


def _count_horizon(horizon: int) -> int:
  return _checks.count('horizon', horizon, 'give the most rounds of a run')


@attrs.frozen
class _Separated(Participation):
  """The fields of schemas with a min_sep.

  Attributes:
    min_sep: b, the least difference of two round numbers of one client.
    max_participations: an upper bound on k that the run enforces in addition to
      min_sep; None if the run enforces only min_sep.
  """

  min_sep: int = attrs.field(converter=_count_min_sep)
  max_participations: Optional[int] = attrs.field(
    default=None, converter=attrs.converters.optional(_count_participations)
  )

  def participations(self, rounds: int) -> int:
    # PRIVACY: A client can take part in ceil(n / b) of n rounds: if n = 9 and
    # b = 4, in rounds 0, 4 and 8. A sensitivity for only floor(n / b) rounds
    # would be too small. This line rounds n / b up.
    # Guard: participation_test.test_participations_is_the_longest_pattern.
    fit = -(-rounds // self.min_sep)
    if self.max_participations is None:
      return fit
    # PRIVACY: If a pattern had more rounds than the result, the sensitivity
    # would be too small. The result is k, or less if fewer rounds fit.
    # Guard: participation_test.test_participations_is_the_longest_pattern.
    return min(self.max_participations, fit)

  def separation(self, rounds: int) -> int:
    return self.min_sep


@attrs.frozen
class MinSep(_Separated):
  """The rounds of one client are at least `min_sep` apart.

  >>> MinSep(min_sep=4).participations(rounds=9)
  3
  """

  name: ClassVar[str] = 'min-sep'


@attrs.frozen
class FixedEpoch(_Separated):
  """Successive rounds of a client are exactly `min_sep` apart (epochs).

  A client may skip epochs if it is allowed ceil(n / b) rounds of n.

  >>> FixedEpoch(min_sep=4, max_participations=2).participations(rounds=9)
  2
  """

  name: ClassVar[str] = 'fixed-epoch'
  evenly_spaced: ClassVar[bool] = True


def check_cohorts(cohorts: object) -> None:
  """Raises TypeError unless the value is an instance of `Cohorts`."""
  _checks.instance('cohorts', cohorts, Cohorts, 'use MinSep(min_sep)')


@attrs.frozen(eq=False)
class Costs:
  """The costs of patterns under one C, in integers, and the budget of a client.

    cost(P) = sum_{s in P} h(s, 0) + 2 sum_{s < t in P} h(s, t - s)

  Here P is a pattern, X = C^T C, and h(s, l) is an integer >=
  |X[s, s + l]| / unit: an allowance for rounding errors is added to the
  quotient, and the sum is rounded up. If C is Toeplitz and defined for any
  number of rounds (`Strategy.goes_on`), X is computed from columns that are not
  cut off at the last row, and h(s, l) is the same for all s. Sums of integers
  are exact in any order, so servers and devices compute equal costs.

  Attributes:
    table: [1 or number of rounds, lags] int64, the values h(s, l) in [0, 2^30].
      A single row holds for every s. For l >= lags, h(s, l) is 0.
    limit: budget of a client, the largest allowed cost of its rounds, integer
      >= 0.
    unit: size of one unit of cost, in squared clips, > 0.
    strategy_sha256: SHA-256 of C.
  """

  table: np.ndarray
  limit: int
  unit: float
  strategy_sha256: str

  # PRIVACY: If a client could take part in more rounds than this bound, epsilon
  # would be too small. The bound follows from the cheapest round.
  # Guard: budget_test.test_random_budgets_bound_the_rounds_that_they_admit.
  @property
  def most(self) -> int:
    """An upper bound on the number of rounds of a client within the limit."""
    return self.limit // int(self.table[:, 0].min())

  def pairs(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns h(s, t - s) for arrays s and t, an int64 array of their shape.

    Args:
      first: integers s. A negative s stands for no round, for which h is 0.
      second: integers t >= s.
    """
    lags = second - first
    near = (first >= 0) & (lags < self.table.shape[1])
    costs = np.zeros(np.shape(lags), np.int64)
    rows = first[near] if len(self.table) > 1 else 0
    costs[near] = self.table[rows, lags[near]]
    return costs

  def total(self, rounds: np.ndarray) -> np.ndarray:
    """Returns the costs of m patterns, [m] int64.

    Args:
      rounds: [m, largest number of rounds] integers. A row has the rounds of
        one pattern, descending, and then negative numbers, which stand for no
        round.
    """
    # PRIVACY: A cost that exceeds 64 bits would wrap around, and its pattern
    # could be admitted although it exceeds the budget. Costs of patterns with
    # at most `_MOST_ROUNDS` rounds fit in 64 bits. Longer patterns are refused.
    # Guard: budget_test.test_patterns_of_too_many_rounds_are_refused.
    if rounds.shape[1] > _MOST_ROUNDS:
      raise errors.value_error(
        f'participations={rounds.shape[1]}: a client cannot have more '
        f'than {_MOST_ROUNDS}; use a larger min_sep or fewer rounds'
      )
    total = np.zeros(len(rounds), np.int64)
    for j in range(rounds.shape[1]):
      # PRIVACY: A pair of rounds s < t adds X[s, t] and X[t, s] to the squared
      # sensitivity. A cost with only one of these terms would be too small, and
      # would admit too many rounds. The cost of each pair is doubled.
      # Guard: budget_test.test_cost_bounds_the_shift_of_every_pattern.
      latest = np.broadcast_to(rounds[:, j : j + 1], rounds[:, j:].shape)
      costs = self.pairs(rounds[:, j:], latest)
      total += 2 * costs[:, 1:].sum(1) + costs[:, 0]
    return total


@attrs.frozen
class Budget(_Separated):
  """A client's rounds cost at most a budget, and differ by at least `apart`.

  `max_participations` rounds that are at least `min_sep` apart never cost more
  than the budget. `Costs` defines the cost of rounds under the C of the run,
  and the module `sensitivity.budget` computes the budget. As long as its rounds
  cost at most the budget, a client may have rounds that are closer than
  `min_sep`, but not closer than `apart`, and more rounds than
  `max_participations`. A plan optimises C for `reference_schema`.

  Attributes:
    min_sep: least difference of two rounds of one client in
      `reference_schema`, integer >= 1.
    max_participations: largest number of rounds of one client in
      `reference_schema`, integer >= 1; None stands for ceil(planned number of
      rounds / min_sep).
    apart: least difference of two rounds of one client that the budget allows,
      in [1, min_sep].
    horizon: largest number of rounds to which a run may be extended, at least
      the planned number. If None, this is 10 times the planned number for a C
      that may have more rounds than planned (`Strategy.goes_on`), such as
      banded-toeplitz and blt, and the planned number for all other C.
    costs: costs under the C of a run; None before C is known.
  """

  name: ClassVar[str] = 'budget'
  apart: int = attrs.field(default=1, kw_only=True, converter=_count_apart)
  horizon: Optional[int] = attrs.field(
    default=None,
    kw_only=True,
    converter=attrs.converters.optional(_count_horizon),
  )
  costs: Optional[Costs] = attrs.field(
    default=None, kw_only=True, eq=False, repr=False
  )

  def __attrs_post_init__(self):
    _checks.at_most('apart', self.apart, self.min_sep, 'min_sep', 'use less')
    if self.costs is not None:
      _checks.instance('costs', self.costs, Costs, 'leave it out')

  @property
  def known_costs(self) -> Costs:
    """The costs under the C of a run.

    Raises:
      ValueError: C is not known yet.
    """
    if self.costs is None:
      raise errors.value_error(
        f'participation={self.name}: the costs of rounds follow from the C of '
        'a run; use plan.schema or guarantee.cohorts'
      )
    return self.costs

  def check_horizon(self, rounds: int) -> None:
    """Raises ValueError if the planned number of rounds exceeds the horizon."""
    if self.horizon is not None and self.horizon < rounds:
      raise errors.value_error(
        f'horizon={self.horizon}: is below rounds={rounds}; leave it out'
      )

  def device_rule(self) -> _files.JsonObject:
    """Returns a JSON object of the rule by which a device can admit itself.

    `costs` is the list h(s, 0), h(s, 1), ... of `Costs`, which is the same for
    every s; after its end h(s, l) is 0. `limit` is the largest allowed cost of
    the rounds of a client. `apart` and `horizon` are attributes of this schema.
    docs/reference/budget.md has the code for a device.

    Raises:
      ValueError: C is not known yet, or costs depend on the round s.
    """
    costs = self.known_costs
    if len(costs.table) > 1:
      raise errors.value_error(
        f'participation={self.name}: the costs of this C depend on the round; '
        'use banded-toeplitz or blt'
      )
    return {
      'costs': costs.table[0].tolist(),
      'limit': costs.limit,
      'apart': self.apart,
      'horizon': self.horizon,
    }

  def participations(self, rounds: int) -> int:
    # PRIVACY: If a client could take part in more rounds than this bound,
    # epsilon would be too small. The bound follows from the costs, not from the
    # reference schema.
    # Guard: budget_test.test_random_budgets_bound_the_rounds_that_they_admit.
    return min(rounds, self.known_costs.most)

  def separation(self, rounds: int) -> int:
    return self.apart

  @property
  def reference_schema(self) -> MinSep:
    return MinSep(self.min_sep, self.max_participations)


def check(schema: object) -> None:
  """Raises TypeError unless the value is an instance of `Participation`."""
  _checks.instance('participation', schema, Participation, 'use MinSep')


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
    min_sep: least r2 - r1, integer >= 1; 'single' refuses it, and all other
      schemas require it. For 'budget' this is `Budget.min_sep`.
    max_participations: upper bound on k, integer >= 1; None for no bound. For
      'budget' this is `Budget.max_participations`, which does not bound k.
    apart: least r2 - r1 that 'budget' allows, integer >= 1; None for 1.
    horizon: largest number of rounds of a run with 'budget'; None for the
      default of `Budget`.

  Raises:
    TypeError: a parameter is not an integer.
    ValueError: the name is unknown, or a parameter is missing, out of range or
      does not apply.
  """
  # PRIVACY: If fixed epochs were read from a file as another schema, the
  # sensitivity would be for other patterns. The name in the file chooses the
  # class.
  # Guard: participation_test.test_from_name_reads_to_dict_back.
  schema = next((each for each in _SCHEMAS if each.name == name), None)
  if schema is None:
    raise errors.value_error(
      f'participation={name}: is not a known schema; use {" or ".join(NAMES)}'
    )
  fields = attrs.fields_dict(schema)
  if schema is Single and max_participations == 1:
    max_participations = None
  if min_sep is None and 'min_sep' in fields:
    raise errors.value_error(
      f'min_sep=None: participation {name} needs it; give the least distance '
      'of two rounds of a client'
    )
  values = {
    'min_sep': min_sep,
    'max_participations': max_participations,
    'apart': apart,
    'horizon': horizon,
  }
  given = {key: value for key, value in values.items() if value is not None}
  for key, value in given.items():
    if key not in fields:
      raise errors.value_error(
        f'{key}={value}: participation {name} does not take it; leave it out'
      )
  return schema(**given)


_SCHEMAS: tuple[type[Any], ...] = (Single, FixedEpoch, MinSep, Budget)
# The names of schemas in flags and files.
NAMES = tuple(each.name for each in _SCHEMAS)
