"""Standard normals from a key: ChaCha20 and the inverse of the normal CDF.

Coordinate i of row t has the word w[i % 8] of one block of 64 bytes:

  w = ChaCha20(key, (i // 8, t)),   eight little-endian integers of 64 bits
  u = (k + 1/2) 2^-64,              k = w // 2;   0 < u < 1/2
  z = Phi^-1(u), or -Phi^-1(u) where w is odd

Where k < 2^39 a second word e of the same coordinate continues it, so that the
tail ends at 13 and not at 9 standard deviations:

  u = (k + (e + 1/2) 2^-64) 2^-64

so z is a pure function of (key, row, coordinate), and the same however rows and
coordinates are cut into pieces. Who tells words from uniform ones breaks
ChaCha20 [RFC 8439]. What the finite words and float64 cost is
`accounting.arithmetic`.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import scipy.special
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms

from tff_bandmf import errors
from tff_bandmf.noise import key as key_lib

# 'expand 32-byte k', and how often columns and diagonals take a quarter round
# [RFC 8439, 2.3].
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
DOUBLE_ROUNDS = 10
# Words of a block of ChaCha20; coordinates begin at multiples of it.
GROUP = 8
# PRIVACY: below it the spacing of u is no longer small against u. Guard:
# generator_test.test_tail_has_words_of_its_own.
EXTENDED_BELOW = 2**39

# Largest |z|: where both words are 0.
MOST_DEVIATIONS = -float(scipy.special.ndtri(2.0**-129))

# The last bit of the nonce: the words, and those that extend them.
WORDS, EXTENSIONS = 0, 1
# Groups and rows that a nonce can hold.
_MOST = 2**63
_ONE, _SIGN_BIT = np.uint64(1), np.uint64(63)
# Coordinates made at once: they stay in cache.
_PIECE = 1 << 13


class Generator:
  """The normals of one key."""

  def __init__(self, key: key_lib.Key):
    self.key = key

  def words(
    self, row: int, start: int, count: int, stream: int = WORDS
  ) -> np.ndarray:
    """Returns words of a row, [count] uint64.

    Args:
      row: 0 or more.
      start: first coordinate, a multiple of `GROUP`.
      count: how many coordinates.
      stream: `WORDS` or `EXTENSIONS`.

    Raises:
      ValueError: `start` is off the grid, or a value is out of range.
    """
    if start % GROUP or not (0 <= row < _MOST and 0 <= start < _MOST):
      raise errors.value_error(
        'start',
        start,
        f'must be a multiple of {GROUP}, and row={row} at least 0',
        'cut coordinates into pieces of the stream',
      )
    # PRIVACY: rows, coordinates and streams share no block, so none shares z.
    # Guard: generator_test.test_rows_and_coordinates_never_share_words.
    block = (start // GROUP) | row << 64 | stream << 127
    cipher = ciphers.Cipher(
      algorithms.ChaCha20(self.key.secret, block.to_bytes(16, 'little')), None
    )
    groups = -(-count // GROUP)
    return np.frombuffer(
      cipher.encryptor().update(bytes(8 * GROUP * groups)), '<u8'
    )[:count]

  def rows(self, first: int, rows: int, start: int, count: int) -> np.ndarray:
    """Returns z[first : first + rows, start : start + count].

    Args:
      first: row of z, 0 or more.
      rows: how many rows.
      start: first coordinate, a multiple of `GROUP`.
      count: how many coordinates.

    Returns:
      [rows, count] float64, unit standard deviation.

    Raises:
      ValueError: `start` is off the grid, or a value is out of range.
    """
    z = np.empty((rows, count))
    self.fill(z, first, start)
    return z

  def fill(self, z: np.ndarray, first: int, start: int) -> None:
    """Writes `rows` to z, [rows, count] float64."""
    for r in range(len(z)):
      for offset in range(0, z.shape[1], _PIECE):
        self._fill(z[r, offset : offset + _PIECE], first + r, start + offset)

  def _fill(self, z: np.ndarray, row: int, start: int) -> None:
    words = self.words(row, start, len(z))
    magnitudes = words >> _ONE
    z[:] = magnitudes
    z += 0.5
    if magnitudes.min(initial=EXTENDED_BELOW) < EXTENDED_BELOW:
      rare = np.flatnonzero(magnitudes < EXTENDED_BELOW)
      extensions = self.words(row, start, len(z), EXTENSIONS)[rare]
      z[rare] = magnitudes[rare] + (extensions + 0.5) * 2.0**-64
    z *= 2.0**-64
    scipy.special.ndtri(z, out=z)
    # Odd words turn the sign.
    bits = z.view(np.uint64)
    bits ^= words << _SIGN_BIT


def quarter_round(
  rotated: Callable[[Any, int], Any], a: Any, b: Any, c: Any, d: Any
) -> tuple[Any, Any, Any, Any]:
  """Returns four uint32 words after a quarter round [RFC 8439, 2.1].

  Args:
    rotated: turns words to the left by so many bits.
    a, b, c, d: arrays or tensors of one shape.
  """
  a = a + b
  d = rotated(d ^ a, 16)
  c = c + d
  b = rotated(b ^ c, 12)
  a = a + b
  d = rotated(d ^ a, 8)
  c = c + d
  return a, rotated(b ^ c, 7), c, d
