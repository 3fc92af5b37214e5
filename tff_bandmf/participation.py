"""The sets of participation patterns under which sensitivity is defined.

| symbol | name here            | meaning                                    |
|--------|----------------------|--------------------------------------------|
| n      | `rounds`             | rounds that the mechanism supports         |
| b      | `min_sep`            | rounds i, j of one client: abs(i - j) >= b |
| k      | `max_participations` | rounds of one client, at most              |

`min_sep` is the difference of round numbers, r2 - r1: 1 allows consecutive
rounds. TensorFlow Privacy and the Gboard reports count the rounds in between,
r2 - r1 - 1, which is one less: `min_sep_from_rounds_between` converts.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import attrs

from tff_bandmf import _checks, errors

# Two data sets are neighbours if one client's contributions are zero in one.
ZERO_OUT = 'zero-out'


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
    # A constant of some kinds, and a field of others.
    @property
    def adjacency(self) -> str: ...

  @property
  @abc.abstractmethod
  def schema(self) -> Participation:
    """Worst participation of a client; noise multipliers are relative to it."""

  @abc.abstractmethod
  def to_dict(self) -> dict[str, Any]:
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
    # A field where there is one; a property while the program runs would be
    # the default of that field.
    @property
    def min_sep(self) -> Optional[int]: ...

    @property
    def max_participations(self) -> Optional[int]: ...

  @abc.abstractmethod
  def participations(self, rounds: int) -> int:
    """Returns k: the most rounds in which one client can take part."""

  @abc.abstractmethod
  def separation(self, rounds: int) -> int:
    """Returns b: rounds of one client are at least so far apart.

    It is `min_sep`; where a client takes part once, all of the run.
    """

  @property
  def schema(self) -> Participation:
    """What a client can do at worst: these patterns, which are enforced."""
    return self

  def to_dict(self) -> dict[str, Any]:
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


def _count_min_sep(min_sep: Any) -> int:
  return _checks.count(
    'min_sep', min_sep, 'it is r2 - r1, so 1 allows consecutive rounds'
  )


def _count_participations(most: Any) -> int:
  return _checks.count(
    'max_participations', most, 'leave it out where only min_sep is enforced'
  )


@attrs.frozen
class _Separated(Participation):
  """What `MinSep` and `FixedEpoch` share.

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
    # PRIVACY: ceil, not floor: n=9, b=4 fits rounds 0, 4 and 8.
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
      'cohorts',
      cohorts,
      'must say who takes part',
      'use tff_bandmf.MinSep(min_sep)',
    )


def check(participation: object) -> None:
  """Raises TypeError for what is not a schema."""
  if not isinstance(participation, Participation):
    raise errors.type_error(
      'participation',
      participation,
      'must be a participation schema',
      'use tff_bandmf.participation.MinSep(min_sep)',
    )


def min_sep_from_rounds_between(rounds_between: int) -> int:
  """Returns the min_sep b for a number of rounds between two of one client.

    b = r2 - r1 = (r2 - r1 - 1) + 1

  TensorFlow Privacy's `min_separation` and the min-separation of the Gboard
  reports [Gboard23] count r2 - r1 - 1.

  Args:
    rounds_between: r2 - r1 - 1, at least 0.

  Raises:
    TypeError: `rounds_between` is not an integer.
    ValueError: it is negative.

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
) -> Participation:
  """Returns the schema called `name`.

  Args:
    name: 'single', 'fixed-epoch' or 'min-sep'.
    min_sep: r2 - r1; required by 'fixed-epoch' and 'min-sep'.
    max_participations: optional bound on k.

  Raises:
    ValueError: unknown name, a parameter missing, or one that does not apply.
  """
  if name == Single.name:
    if min_sep is not None or max_participations not in (None, 1):
      raise errors.value_error(
        'participation',
        name,
        'takes no min_sep and no max_participations above 1',
        'use min-sep or fixed-epoch',
      )
    return Single()
  for schema in (MinSep, FixedEpoch):
    if name == schema.name:
      if min_sep is None:
        raise errors.value_error(
          'min_sep',
          min_sep,
          f'participation {name} needs it',
          'give the least r2 - r1 of two rounds of one client',
        )
      return schema(min_sep, max_participations)
  raise errors.value_error(
    'participation',
    name,
    'is not a known schema',
    'use single, fixed-epoch or min-sep',
  )
