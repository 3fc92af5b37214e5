"""Standard normals z from a key: ChaCha20 and the inverse of the normal CDF.

ChaCha20 gives blocks of 64 bytes, and a block gives eight words. Coordinate i
of row t is computed from the word w[i % 8] of one block:

  w = ChaCha20(key, (i // 8, t)),   eight little-endian integers of 64 bits
  u = (k + 1/2) 2^-64,              k = w // 2;   0 < u < 1/2
  z = Phi^-1(u), or -Phi^-1(u) if w is odd

Here Phi is the normal CDF. If k < 2^39, a second word e for the same coordinate
makes u finer, so that the tail ends at 13 instead of 9 standard deviations:

  u = (k + (e + 1/2) 2^-64) 2^-64

So z depends only on key, row and coordinate, and not on how a caller divides
rows and coordinates into pieces. A test that distinguishes the words from
uniform ones would break ChaCha20 [RFC 8439]. z is not exactly normal, because
words have 64 bits and float64 rounds; `accounting.arithmetic.cells` bounds the
privacy cost of this difference.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import scipy.special
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms

from tff_bandmf import errors
from tff_bandmf.noise import key as key_lib

# Words of 'expand 32-byte k', and the number of double rounds: each consists
# of quarter rounds of all columns and then of all diagonals [RFC 8439, 2.3].
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
DOUBLE_ROUNDS = 10
# Array or tensor of uint32 words, of NumPy, JAX or TensorFlow.
_Words = Any
# Number of 64-bit words in a block of ChaCha20. The first coordinate for which
# a caller asks must be a multiple of this number.
GROUP = 8
# PRIVACY: With one word for each u, no |z| would exceed 9.2, and the possible
# values of large |z| would be far apart. Some rare releases would be possible
# with a client and impossible without it. Below this k, a second word makes u
# finer, so that |z| can reach 13.
# Guard: generator_test.test_tail_has_words_of_its_own.
EXTENDED_BELOW = 2**39

# Largest |z|, which occurs if both words are 0.
MOST_DEVIATIONS = -float(scipy.special.ndtri(2.0**-129))

# Last bit of the nonce: 0 for first words w, 1 for second words e.
WORDS, EXTENSIONS = 0, 1
# Rows and coordinates are below this number, so each fits in its bits of the
# nonce.
_MOST = 2**63
_ONE, _SIGN_BIT = np.uint64(1), np.uint64(63)
# Number of coordinates computed at once, so few that they stay in cache.
_PIECE = 1 << 14


class Generator:
  """The normals z[t, i] of one key.

  **Formal guarantee.**
  Assumption: the key is uniform and secret, and nobody can distinguish
  ChaCha20's words from uniform ones. Statement: nobody can distinguish the
  z[t, i] from independent numbers, each computed by the formulas of this module
  from independent uniform words. No two coordinates, rows or streams share a
  word. Source: [RFC 8439, 2.3] for the block; docs/reference/arithmetic.md,
  Theorem 2, for the distance from the normal distribution.
  """

  def __init__(self, key: key_lib.Key):
    self.key = key

  def words(
    self, row: int, start: int, count: int, stream: int = WORDS
  ) -> np.ndarray:
    """Returns the words of one row, [count] uint64.

    Args:
      row: row of z, in [0, 2^63).
      start: first coordinate, a multiple of `GROUP`, in [0, 2^63).
      count: number of coordinates, >= 0.
      stream: `WORDS` for first words, or `EXTENSIONS` for second words.

    Raises:
      ValueError: `start` is not a multiple of `GROUP`, or a value is out of
        range.
    """
    if start % GROUP or not (0 <= row < _MOST and 0 <= start < _MOST):
      raise errors.value_error(
        f'start={start}: must be a multiple of {GROUP} in [0, 2^63), and '
        f'row={row} must be in [0, 2^63); use noise.Stream'
      )
    # PRIVACY: If two z came from one word, they would be equal, and an attacker
    # could combine releases so that the noise cancels. The nonce has separate
    # bits for the row, the group of coordinates and the stream, so two z never
    # share a word.
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
      first: first row of z, >= 0.
      rows: number of rows, >= 0.
      start: first coordinate, a multiple of `GROUP`, >= 0.
      count: number of coordinates, >= 0.

    Returns:
      [rows, count] float64, standard normals.

    Raises:
      ValueError: `start` is not a multiple of `GROUP`, or a value is out of
        range.
    """
    z = np.empty((rows, count))
    self.fill(z, first, start)
    return z

  def fill(self, z: np.ndarray, first: int, start: int) -> None:
    """Writes z[first : first + m, start : start + count] to an array.

    Args:
      z: [m, count] float64, overwritten.
      first: first row, >= 0.
      start: first coordinate, a multiple of `GROUP`, >= 0.
    """
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
    # If a word is odd, the sign of its z is flipped.
    bits = z.view(np.uint64)
    bits ^= words << _SIGN_BIT


def quarter_round(
  rotated: Callable[[_Words, int], _Words],
  a: _Words,
  b: _Words,
  c: _Words,
  d: _Words,
) -> tuple[_Words, _Words, _Words, _Words]:
  """Returns four uint32 words after a quarter round [RFC 8439, 2.1].

  Args:
    rotated: function (words, bits) that rotates words to the left.
    a, b, c, d: uint32 arrays or tensors of one shape.
  """
  a = a + b
  d = rotated(d ^ a, 16)
  c = c + d
  b = rotated(b ^ c, 12)
  a = a + b
  d = rotated(d ^ a, 8)
  c = c + d
  return a, rotated(b ^ c, 7), c, d
