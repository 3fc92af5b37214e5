"""min_sep from other rules: rounds in between, or the timer of a device."""

import math

from tff_bandmf import _checks


def min_sep_from_rounds_between(rounds_between: int) -> int:
  """Returns min_sep, given the least number of rounds between two rounds.

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
  remedy = 'it is r2 - r1 - 1, so 0 allows consecutive rounds'
  # PRIVACY: If min_sep were larger than the least r2 - r1, the sensitivity
  # would be too small. min_sep is exactly one more than the rounds in between.
  # Guard: participation_test.test_rounds_between_are_one_less_than_min_sep.
  return 1 + _checks.count('rounds_between', rounds_between, remedy, least=0)


def min_sep_from_timer(
  hours: float, rounds_per_hour: float, *, margin: float = 0.1
) -> int:
  """Returns the min_sep that clients keep by themselves with a timer.

    b = floor(hours * rounds_per_hour * (1 - margin)), but at least 1

  At this rate, at least hours * rounds_per_hour rounds begin between two
  participations of a client. The timer guarantees nothing: a clock may be
  wrong, and rounds may be slower. Admission enforces min_sep, and refuses few
  clients if the margin covers the slowest hours.

  Args:
    hours: shortest time between two participations of a client, > 0.
    rounds_per_hour: number of rounds that begin in an hour, when they are
      slowest, > 0.
    margin: share of these rounds that is left out, in [0, 1).

  Raises:
    TypeError: an argument is not a number.
    ValueError: an argument is out of range.

  >>> min_sep_from_timer(24, 15)
  324
  """
  rounds = _checks.positive('hours', hours, 'give the timer of a device')
  rounds *= _checks.positive('rounds_per_hour', rounds_per_hour, 'give a rate')
  _checks.between('margin', margin, 0, 1 - 2.0**-52, 'usual is 0.1')
  return max(1, math.floor(rounds * (1 - margin)))
