"""Lower bounds on epsilon from scores of trials with and without a client.

Trials are independent. In each trial the client took part or did not, and an
attacker computes a score from the release. For the rates of the test 'score
above a threshold' every (epsilon, delta) mechanism has

  TPR <= e^epsilon FPR + delta,   TNR <= e^epsilon FNR + delta.

Both bounds are valid only if score and threshold were chosen with other trials.

| argument  | of each bound                                                   |
|-----------|-----------------------------------------------------------------|
| `inside`  | scores of trials with the client, [m]                           |
| `outside` | scores of trials without it, [m']                               |
| `delta`   | of (epsilon, delta)                                             |
| `miss`    | probability with which the bound may be too large               |
"""

from __future__ import annotations

import math

import numpy as np
import scipy.special
import scipy.stats

from tff_bandmf import accounting

# Largest bound of mu that is returned, reached if scores have no noise.
_LARGEST_MU = 1e3


def clopper_pearson(
  inside: np.ndarray,
  outside: np.ndarray,
  threshold: float,
  delta: float,
  miss: float,
) -> float:
  """Returns a lower bound on epsilon that assumes nothing about the noise.

    max(log((TPR_low - delta) / FPR_high), log((TNR_low - delta) / FNR_high))

  from exact binomial bounds of the four rates, each of which is wrong with
  probability `miss` / 4. About 100 e^epsilon trials are needed for a bound near
  epsilon.

  Args:
    threshold: threshold of the scores.

  Returns:
    The bound, at least 0.
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
  """Returns a lower bound on epsilon that assumes Gaussian scores.

  The bound is epsilon of the Gaussian mechanism at `least_mu`: no test of a
  mu-GDP mechanism has scores further apart. [GDP22, arXiv 1905.02383]

  Returns:
    The bound, at least 0.
  """
  mu = least_mu(inside, outside, miss)
  return accounting.gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


def least_mu(inside: np.ndarray, outside: np.ndarray, miss: float) -> float:
  """Returns a lower bound of the distance of means, in standard deviations.

  Scores with and without the client have the same variance. With its pooled
  estimate s^2 of f degrees of freedom, at `miss` / 2 each,

    stddev <= s (f / chi2_f(miss / 2))^(1/2)
    mu >= (mean - mean') / stddev - z(1 - miss / 2) (1 / m + 1 / m')^(1/2)

  Returns:
    The bound, 0 if it is not positive, 1000 at most.
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
  return max(
    0.0,
    difference / largest_stddev
    - scipy.special.ndtri(1 - miss / 2)
    * math.sqrt(1 / counts[0] + 1 / counts[1]),
  )


def best_threshold(
  inside: np.ndarray, outside: np.ndarray, delta: float, miss: float
) -> float:
  """Returns the threshold with the largest `clopper_pearson` bound."""
  candidates = np.quantile(
    np.concatenate([inside, outside]), np.linspace(0, 1, 203)[1:-1]
  )
  return float(
    max(
      candidates,
      key=lambda threshold: clopper_pearson(
        inside, outside, threshold, delta, miss
      ),
    )
  )


def _lowest_rate(hits: int, trials: int, miss: float) -> float:
  """Returns the Clopper-Pearson lower bound of a probability."""
  if hits == 0:
    return 0.0
  return float(scipy.special.betaincinv(hits, trials - hits + 1, miss))


def _highest_rate(hits: int, trials: int, miss: float) -> float:
  """Returns the Clopper-Pearson upper bound of a probability."""
  return 1.0 - _lowest_rate(trials - hits, trials, miss)
