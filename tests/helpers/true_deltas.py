"""Delta of Gaussian mechanisms without the library, for tests of bounds."""

import math

import mpmath
import numpy as np


def gaussian(noise_multiplier, epsilon):
  """Returns delta(epsilon) of the Gaussian mechanism, to 50 digits."""
  with mpmath.workdps(70):
    mu = 1 / mpmath.mpf(noise_multiplier)
    epsilon = mpmath.mpf(epsilon)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(
      epsilon
    ) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def mixture(means, weights, sigma, epsilon, points=61):
  """Returns delta of a Gaussian mixture against N(0, sigma^2), on a grid.

  Args:
    means: [components, dimensions], of the mixture.
    weights: [components].
    sigma: standard deviation.
    epsilon: of the hockey stick.
    points: of the grid, in each dimension.

  Returns:
    The larger of both directions.
  """
  axis = [
    np.linspace(
      min(0, means[:, d].min()) - 7 * sigma,
      max(0, means[:, d].max()) + 7 * sigma,
      points,
    )
    for d in range(means.shape[1])
  ]
  volume = math.prod(a[1] - a[0] for a in axis)
  y = np.stack(np.meshgrid(*axis, indexing='ij'), -1).reshape(-1, len(axis))

  def density(mean):
    return np.exp(-((y - mean) ** 2).sum(-1) / (2 * sigma**2)) / (
      (2 * math.pi) ** (len(axis) / 2) * sigma ** len(axis)
    )

  q = density(np.zeros(len(axis)))
  p = sum(w * density(m) for w, m in zip(weights, means))
  scale = math.exp(epsilon)
  return volume * max(
    np.maximum(p - scale * q, 0).sum(), np.maximum(q - scale * p, 0).sum()
  )


def sampled_mixture(means, weights, sigma, epsilon, count=8000):
  """Returns an estimate of what `mixture` returns, in any dimension.

  All calls share their random numbers. The samples are of several mixtures, and
  each has the density of all of them together.
  """
  rng = np.random.default_rng(0)
  means = means / sigma
  squares = (means**2).sum(1)
  middle = weights @ means
  gap = epsilon - weights @ squares / 2
  shift = max(1.0, gap / max(middle @ middle, 1e-2))
  drawn_from = [(weights, means), (np.ones(1), -shift * middle[None])]
  for a in (2.0, 4.0):
    logs = a * (a - 1) / 2 * squares
    odds = weights * np.exp(logs - logs.max())
    drawn_from.append((odds / odds.sum(), a * means))
  y = []
  for odds, centres in drawn_from:
    z = rng.standard_normal((count // len(drawn_from), means.shape[1]))
    u = rng.permutation(np.arange(len(z)) + 0.5) / len(z)
    y.append(z + centres[np.searchsorted(np.cumsum(odds)[:-1], u)])
  y = np.concatenate(y)

  def ratio(odds, centres):
    return np.exp(y @ centres.T - (centres**2).sum(1) / 2) @ odds

  density = sum(ratio(*each) for each in drawn_from) / len(drawn_from)
  p, scale = ratio(weights, means), math.exp(epsilon)
  return max(
    np.mean(np.maximum(p - scale, 0) / density),
    np.mean(np.maximum(1 - scale * p, 0) / density),
  )
