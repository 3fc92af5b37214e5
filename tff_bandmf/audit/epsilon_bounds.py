"""Lower bounds on epsilon from scores of trials with and without a client.

Trials are independent. In each trial the client took part or did not, and an
attacker computes a score from the release. For every (epsilon, delta)-DP
mechanism, the rates of the test 'score above a threshold' satisfy

  TPR <= e^epsilon FPR + delta,   TNR <= e^epsilon FNR + delta.

TPR and FNR are the rates of scores above and not above the threshold in trials
with the client; FPR and TNR are these rates in trials without the client. The
bounds are valid only if the score function and the threshold do not depend on
the trials that are scored.

| argument  | meaning in both bounds                                          |
|-----------|-----------------------------------------------------------------|
| `inside`  | scores of trials with the client, [m] float64                   |
| `outside` | scores of trials without the client, [m'] float64               |
| `delta`   | delta of (epsilon, delta), in (0, 1)                            |
| `miss`    | largest probability that the bound exceeds epsilon, in (0, 1)   |
"""

from __future__ import annotations

import math

import numpy as np
import scipy.special
import scipy.stats

from tff_bandmf import accounting

# Largest value of `least_mu`, which would be infinite if scores with different
# means had no noise.
_LARGEST_MU = 1e3


def clopper_pearson(
  inside: np.ndarray,
  outside: np.ndarray,
  threshold: float,
  delta: float,
  miss: float,
) -> float:
  """Returns a lower bound on epsilon for noise of any distribution.

  The bound is

    max(0, log((TPR_low - delta) / FPR_high), log((TNR_low - delta) / FNR_high))

  where a logarithm that is not defined is left out. _low and _high are
  exact binomial bounds on the four rates, and each is wrong with probability at
  most `miss` / 4. A bound near epsilon needs about 100 e^epsilon trials.

  Args:
    threshold: score above which the attacker says that the client took part.
  """
  above = int(np.sum(inside > threshold)), len(inside)
  false_above = int(np.sum(outside > threshold)), len(outside)
  below = (len(outside) - false_above[0], len(outside))
  false_below = (len(inside) - above[0], len(inside))
  bound = 0.0
  for hits, errors in ((above, false_above), (below, false_below)):
    rate = _lowest_rate(*hits, miss / 4) - delta
    if rate > 0:
      bound = max(bound, math.log(rate / _highest_rate(*errors, miss / 4)))
  return bound


def gaussian(
  inside: np.ndarray, outside: np.ndarray, delta: float, miss: float
) -> float:
  """Returns a lower bound on epsilon, >= 0, that assumes Gaussian scores.

  If the means of the scores with and without the client are mu standard
  deviations apart, the mechanism is not mu'-GDP for any mu' < mu. So the bound
  is the epsilon of the Gaussian mechanism with mu = `least_mu`.
  [GDP22, arXiv 1905.02383]
  """
  mu = least_mu(inside, outside, miss)
  return accounting.gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


def least_mu(inside: np.ndarray, outside: np.ndarray, miss: float) -> float:
  """Returns a lower bound on the distance of means, in standard deviations.

  Assumption: scores with and without the client are Gaussian and have the same
  variance. Let s^2 be the pooled estimate of this variance with f = m + m' - 2
  degrees of freedom, chi2_f and z the quantile functions of the chi-square and
  the normal distribution, and mean and mean' the averages of `inside` and
  `outside`. Then each of

    stddev <= s (f / chi2_f(miss / 2))^(1/2)
    mu >= (mean - mean') / stddev - z(1 - miss / 2) (1 / m + 1 / m')^(1/2)

  is wrong with probability at most `miss` / 2.

  Returns:
    The bound, in [0, 1000].
  """
  counts = len(inside), len(outside)
  squares = sum(np.sum((each - each.mean()) ** 2) for each in (inside, outside))
  largest_stddev = math.sqrt(
    squares / scipy.stats.chi2.ppf(miss / 2, sum(counts) - 2)
  )
  difference = float(inside.mean() - outside.mean())
  if difference <= 0:
    return 0.0
  if difference >= _LARGEST_MU * largest_stddev:
    return _LARGEST_MU
  error = scipy.special.ndtri(1 - miss / 2)
  error *= math.sqrt(1 / counts[0] + 1 / counts[1])
  return max(0.0, difference / largest_stddev - error)


def best_threshold(
  inside: np.ndarray, outside: np.ndarray, delta: float, miss: float
) -> float:
  """Returns the threshold with the largest `clopper_pearson` bound.

  The candidates are 201 evenly spaced quantiles of all scores together.
  """
  candidates = np.quantile(
    np.concatenate([inside, outside]), np.linspace(0, 1, 203)[1:-1]
  )

  def bound(threshold):
    return clopper_pearson(inside, outside, threshold, delta, miss)

  return float(max(candidates, key=bound))


def _lowest_rate(hits: int, trials: int, miss: float) -> float:
  """Returns the Clopper-Pearson lower bound on a probability."""
  if hits == 0:
    return 0.0
  return float(scipy.special.betaincinv(hits, trials - hits + 1, miss))


def _highest_rate(hits: int, trials: int, miss: float) -> float:
  """Returns the Clopper-Pearson upper bound on a probability."""
  return 1.0 - _lowest_rate(trials - hits, trials, miss)
