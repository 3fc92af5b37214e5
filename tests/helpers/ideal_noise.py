"""The ideal noise of single coordinates, by its definition and with 60 digits.

Words, quantiles and sums are computed here anew, and share nothing with the
library but the entries of C or C^-1.
"""

import functools

import mpmath
import scipy.special
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms

from tff_bandmf import strategies

_DIGITS = 60
# Further words that are read: 192 bits, so that a quantile has 50 digits.
_FURTHER = 3
# Digits to which a quantile is refined, and then checked.
_REFINED = 45
_real = mpmath.mpf


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
  """Returns z with some 45 digits, an mpf."""
  first = word(key, t, i, 0)
  digits = first >> 1
  for stream in range(1, _FURTHER + 1):
    digits = digits << 64 | word(key, t, i, stream)
  with mpmath.workdps(_DIGITS):
    tail = (mpmath.mpf(digits) + 0.5) / mpmath.mpf(2) ** (64 * (_FURTHER + 1))
    z, error = mpmath.mpf(float(scipy.special.ndtri(float(tail)))), mpmath.inf
    while abs(error) > mpmath.mpf(10) ** -_REFINED:
      error = mpmath.ncdf(z) / tail - 1
      # The step of Halley has three times the digits.
      step = error * tail / mpmath.npdf(z)
      z -= step / (1 + z * step / 2)
    return -z if first & 1 else z


def _mean(strategy, t, past):
  """Returns (factor of z_steps z_t, m_t) for feedback.

  Args:
    strategy: C.
    t: round.
    past: y_0, ..., y_{t-1}, integers.
  """
  if isinstance(strategy, strategies.Stamped):
    start = t - t % strategy.block.rounds
    return _mean(strategy.block, t - start, past[start:])
  norms, inner = [1] * strategy.rounds, strategy
  if isinstance(strategy, strategies.ColumnNormalized):
    norms, inner = strategy.column_norms, strategy.toeplitz
  if isinstance(inner, strategies.Blt):
    norms = list(map(_real, norms[: t + 1]))
    theta, buffers = list(map(_real, inner.theta)), [_real(0)] * inner.buffers
    for y, norm in zip(past, norms):
      entered = y / norm
      buffers = [
        decay * buffer + entered for decay, buffer in zip(theta, buffers)
      ]
    total = sum(_real(w) * b for w, b in zip(inner.omega, buffers))
    return norms[t], -norms[t] * total
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
    weights = tree.step(height).readout
    mean = sum(_real(weights[h]) * nodes[h] for h in range(height))
    return _real(tree.scales[height]), mean
  row = strategy.band_rows(t, t + 1)[0]
  first = _real(row[0])
  total = sum(
    _real(row[s]) * past[t - s] for s in range(1, min(len(row), t + 1))
  )
  return 1 / first, -total / first


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
      v = factor * _real(z_steps) * normal(key, t, i) + mean
    y = mpmath.floor(v + 0.5)
    # Far enough from a boundary that 45 digits decide: |v| is below 2^31.
    assert abs(abs(v - y) - 0.5) > _real(10) ** -30
    return int(y)
