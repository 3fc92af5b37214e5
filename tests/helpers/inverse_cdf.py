"""Compares an inverse of the normal CDF with one of 40 digits."""

import mpmath
import numpy as np
import scipy.special


def points(count=1500):
  """Returns points u in (0, 1/2): in the tail, in the middle, near both ends.

  At the first point, SciPy's inverse has its largest error of 3 million points.
  """
  rng = np.random.default_rng(0)
  return np.concatenate(
    [
      [0.1353364653738562, 2.0**-129, 0.14101270314811418],
      2.0 ** -rng.uniform(1, 129, count),
      rng.uniform(0.05, 0.5, count),
      rng.uniform(0.1353, 0.16, count),
      0.5 - 2.0 ** -rng.uniform(1, 54, count // 4),
    ]
  )


def largest_error(u, z):
  """Returns the largest error of z = Phi^-1(u), over 2^-48 max(1, |z|)."""
  return np.max(_absolute(u, z) / np.maximum(1, np.abs(z))) / 2**5


def largest_units(u, z):
  """Returns the largest relative error of z = Phi^-1(u), in units of 2^-53.

  Args:
    u: [m] points.
    z: [m] values of the inverse, with more bits than a float64.
  """
  return float(np.max(_absolute(u, z) / np.abs(z)))


def _absolute(u, z):
  with mpmath.workdps(40):
    exact = []
    for each in map(float, u):
      # One step of Halley's method turns 15 correct digits into 40.
      near = mpmath.mpf(float(scipy.special.ndtri(each)))
      step = (each - mpmath.ncdf(near)) / mpmath.npdf(near)
      exact.append(near + step * (1 + near * step / 2))
    high = [float(a) for a in z]
    low = [float(a - b) for a, b in zip(z, high)]
    return np.array(
      [float(abs(a + (b - c)) * 2**53) for a, b, c in zip(low, high, exact)]
    )
