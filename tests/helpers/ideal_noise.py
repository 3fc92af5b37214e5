"""The ideal noise of single coordinates, by its definition and with 90 digits.

Words, quantiles and sums are computed here anew, and share nothing with the
library but the entries of C or C^-1.
"""

import fractions
import functools

import mpmath
import scipy.special
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms

from tff_bandmf import strategies

_DIGITS = 90
# Further words that are read: 256 bits, so that a quantile has 70 digits.
_FURTHER = 4
# Digits to which a quantile is refined, and then checked.
_REFINED = 70
Fraction = fractions.Fraction


def word(key, t, i, stream):
  """Returns a word of coordinate i of round t, below 2^64."""
  flipped = int(f'{stream:032b}'[::-1], 2)
  nonce = (i // 8) | t << 64 | flipped << 96
  cipher = ciphers.Cipher(
    algorithms.ChaCha20(key.secret, nonce.to_bytes(16, 'little')), None
  )
  block = cipher.encryptor().update(bytes(64))
  return int.from_bytes(block[8 * (i % 8) :][:8], 'little')


@functools.lru_cache(maxsize=2**17)
def normal(key, t, i):
  """Returns z with some 70 digits, an mpf."""
  first = word(key, t, i, 0)
  digits = first >> 1
  for stream in range(1, _FURTHER + 1):
    digits = digits << 64 | word(key, t, i, stream)
  with mpmath.workdps(_DIGITS):
    tail = (mpmath.mpf(digits) + 0.5) / mpmath.mpf(2) ** (64 * (_FURTHER + 1))
    z, error = mpmath.mpf(float(scipy.special.ndtri(float(tail)))), mpmath.inf
    while abs(error) > mpmath.mpf(10) ** -_REFINED:
      error = mpmath.ncdf(z) / tail - 1
      z -= error * tail / mpmath.npdf(z)
    return -z if first & 1 else z


def _real(fraction):
  fraction = Fraction(fraction)
  return mpmath.mpf(fraction.numerator) / fraction.denominator


def _mean(strategy, t, past):
  """Returns (factor of z_steps z_t, m_t) in fractions, for feedback.

  Args:
    strategy: C.
    t: round.
    past: y_0, ..., y_{t-1}, integers.
  """
  if isinstance(strategy, strategies.Stamped):
    start = t - t % strategy.block.rounds
    return _mean(strategy.block, t - start, past[start:])
  norms = [1] * strategy.rounds
  if isinstance(strategy, strategies.ColumnNormalized):
    norms = list(map(Fraction, strategy.column_norms))
    inner = strategy.toeplitz
  else:
    inner = strategy
  if isinstance(inner, strategies.Blt):
    buffers = [Fraction(0)] * inner.buffers
    for y, norm in zip(past, norms):
      buffers = [
        Fraction(theta) * buffer + y / Fraction(norm)
        for theta, buffer in zip(inner.theta, buffers)
      ]
    total = sum(Fraction(w) * b for w, b in zip(inner.omega, buffers))
    return Fraction(norms[t]), -norms[t] * total
  if isinstance(inner, strategies.OnlineTree):
    tree = inner.recursion()
    nodes = {}
    for s, y in enumerate([*past, 0]):
      height = 0
      while (s >> height) & 1:
        height += 1
      if s == t:
        break
      nodes[height] = y + sum(nodes[h] for h in range(height))
    weights = tree.readout[height]
    mean = sum(Fraction(weights[h]) * nodes[h] for h in range(height))
    return Fraction(tree.scales[height]), Fraction(mean)
  row = strategy.band_rows(t, t + 1)[0]
  first = Fraction(row[0])
  total = sum(
    Fraction(row[s]) * past[t - s] for s in range(1, min(len(row), t + 1))
  )
  return 1 / first, -Fraction(total) / first


def rounded(strategy, z_steps, key, t, i, past):
  """Returns y_t of coordinate i, an integer.

  Args:
    strategy: C.
    z_steps: standard deviation of z in lattice steps.
    key: key of the noise.
    t: round.
    i: coordinate.
    past: y_0, ..., y_{t-1} of the coordinate.
  """
  with mpmath.workdps(_DIGITS):
    if strategy.inverse_bands is not None:
      row = strategy.inverse_band_rows(t, t + 1)[0]
      v = sum(
        _real(row[s]) * normal(key, t - s, i)
        for s in range(min(len(row), t + 1))
        if row[s]
      ) * _real(z_steps)
    else:
      factor, mean = _mean(strategy, t, [int(y) for y in past])
      v = _real(factor) * _real(z_steps) * normal(key, t, i) + _real(mean)
    y = mpmath.floor(v + 0.5)
    # Far enough from a boundary that 70 digits decide.
    assert abs(abs(v - y) - 0.5) > mpmath.mpf(10) ** -50
    return int(y)
