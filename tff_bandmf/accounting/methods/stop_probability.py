"""Stops: events that end a run or withhold a round, and their part of delta.

Every release is a function of the ideal mechanism, except in three events: the
noise y_t leaves its range, sound noise fails its self-test, or a sampled cohort
is too large. The events depend on the noise or on the draw of cohorts. Let tau
bound their probability. Let P be the ideal law and P~ the law of the program on
one data set, and P' and P~' on its neighbour. Then

  P~(E) <= P(E) + tau <= e^epsilon P'(E) + delta + tau
        <= e^epsilon (P~'(E) + tau) + delta + tau

so the program is (epsilon, delta + (1 + e^epsilon) tau)-DP. For several runs,
the taus are added. docs/reference/arithmetic.md has the proof.
"""

from __future__ import annotations

import math

import scipy.special

from tff_bandmf import errors

# Range of y, and of the part of y from past rounds, in standard deviations.
DEVIATIONS = 16.0
# Largest number of pairs (round, coordinate) of a run.
PAIRS = 2**60
# Bounds of the probabilities that sound noise fails its self-test in a run, and
# that a sampled cohort of a run is too large.
SELF_TEST = 1e-40
OVERSIZE = 1e-40
# `accountants.MonteCarlo` bounds the log ratio of two Gaussians with different
# means. The log ratio exceeds this bound with probability Phi(-`MEANS`).
MEANS = 14.0
# PRIVACY: The three events change the law of the releases on both neighbours,
# so delta + tau would be too small. `delta` has the factor 1 + e^epsilon, and
# tau counts every event.
# Guards: stops_test.test_delta_of_a_mechanism_that_stops_is_covered and
# test_tau_counts_every_event.
TAU = (1 + 1e-9) * (
  4 * PAIRS * float(scipy.special.ndtr(-DEVIATIONS))
  + SELF_TEST
  + OVERSIZE
  + float(scipy.special.ndtr(-MEANS))
)

# Shares of delta for stops. A claim takes the first share that suffices. The
# first share changes no printed digit of epsilon; the last share allows epsilon
# 70 at a delta of 1e-6.
SHARES = (2.0**-44, 2.0**-20, 0.02)


def delta(epsilon: float, runs: int = 1) -> float:
  """Returns (1 + e^epsilon) tau, at most 1.

  Args:
    epsilon: epsilon of the claim, >= 0.
    runs: number of runs that the claim covers.
  """
  # PRIVACY: A run stops with probability at most tau on each of two neighbours.
  # Without a term for these events, delta would be too small. The term is
  # (1 + e^epsilon) tau.
  # Guards: stops_test.test_delta_of_a_mechanism_that_stops_is_covered and
  # stops_test.test_tau_counts_every_event.
  return min(1.0, (1 + math.exp(min(epsilon, 300.0))) * TAU * runs)


def suffices(share: float, epsilon: float, total: float, runs: int = 1) -> bool:
  """Returns whether half of a share of delta covers the stops.

  The other half is for rounding errors of the sums that make up delta.

  Args:
    share: share of delta for stops.
    epsilon: epsilon of the claim, >= 0.
    total: delta of the claim.
    runs: number of runs that the claim covers.
  """
  return delta(epsilon, runs) <= share * total / 2


def remaining(epsilon: float, total: float) -> float:
  """Returns delta of the ideal mechanism for a claim about the program.

  Args:
    epsilon: epsilon of the claim, >= 0.
    total: delta of the claim.

  Raises:
    ValueError: `total` is too small for `epsilon`.
  """
  for share in SHARES:
    if suffices(share, epsilon, total):
      return (1 - share) * total
  largest = math.floor(100 * largest_epsilon(total)) / 100
  text = f'epsilon={largest:g} or less, or a larger delta'
  if not largest:
    least = 2 * delta(epsilon) / SHARES[-1]
    text = f'delta={1.01 * least:.3g} or more, or a smaller epsilon'
  raise errors.value_error(
    f'epsilon={epsilon:.4g}: is not proved at delta={total:g}, since a run '
    f'stops with probability up to {TAU:.2g}; use {text}'
  )


def largest_epsilon(total: float) -> float:
  """Returns the largest epsilon that is proved at a delta; 0 if there is none.

  >>> round(largest_epsilon(1e-6), 1)
  70.2
  """
  return math.log(max(1.0, SHARES[-1] * total / 2 / TAU - 1))
