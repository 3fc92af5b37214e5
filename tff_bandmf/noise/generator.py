"""Standard normals z from a key: ChaCha20 and the inverse of the normal CDF.

ChaCha20 gives blocks of 64 bytes, and a block gives eight words. Coordinate i
of row t is computed from the word w[i % 8] of one block:

  w = ChaCha20(key, (i // 8, t, 0)),   eight little-endian integers of 64 bits
  V = (k + 0.e_1 e_2 ...) 2^-64,       k = w // 2;   0 < V < 1/2
  z = Phi^-1(V), or -Phi^-1(V) if w is odd

Here Phi is the normal CDF, and e_j is the word of the same coordinate and row
in the block (i // 8, t, j), whose nonce has the 32 bits of j in reverse. k and
all e_j together are the binary digits of a real number V. So z is a real
number, exactly normal, that depends only on key, row and coordinate. A test
that distinguishes the words from uniform ones would break ChaCha20 [RFC 8439].

`Generator.fill` computes z in float64, from w and, for k < 2^39, from e_1 too.
The computed z has an error of at most `ERROR`, and is NaN for k = 0.
`noise.exact` reads as many words as it needs.
"""

from __future__ import annotations

import numpy as np
import scipy.special
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms

from tff_bandmf import errors
from tff_bandmf.noise import key as key_lib

# Number of 64-bit words in a block of ChaCha20. The first coordinate for which
# a caller asks must be a multiple of this number.
GROUP = 8
# PRIVACY: If k is below this limit, z is in the tails, and one word gives z too
# large an error. Such a z is computed from a further word too.
# Guard: generator_test.test_tail_has_words_of_its_own.
EXTENDED_BELOW = 2**39
# PRIVACY: The noise y is the rounding of a real number v (see
# docs/reference/arithmetic.md), which is computed from the z of this module. If
# an error of z exceeded its bound, y could be another integer than the rounding
# of the ideal mechanism's v, and the claim would not cover this y. The bound is
# proved. It is the sum of two errors: 2^-47 max(1, |z|) from
# `scipy.special.ndtri`, and at most 2^-42.4 because `fill` does not read all
# words of V.
# Guards: normal_error_test.test_inverse_cdf_is_within_its_bound and
# test_bound_of_the_inverse_and_of_words_is_that_of_the_generator.
ERROR = 2.0**-42
# Bound of |z| if `fill` returns a number, which requires k >= 1.
MOST_DEVIATIONS = 9.25

# Stream 0 has the words w, and stream j has the words e_j.
WORDS, EXTENSIONS = 0, 1
# Coordinates are below the first number, and rows and streams below the second,
# so each fits in its bits of the nonce.
_MOST, _MOST_ROWS = 2**63, 2**32
# PRIVACY: The lowest bit of a word is the sign of z. If another bit gave the
# sign, the sign and |z| would depend on each other.
# Guard: generator_test.test_tail_has_words_of_its_own.
_ONE, _SIGN_BIT = np.uint64(1), np.uint64(63)
# Number of coordinates computed at once, so few that they stay in cache.
_PIECE = 1 << 14


class Generator:
  """The normals z[t, i] of one key.

  **Formal guarantee.**
  Assumption: the key is uniform and secret, and nobody can distinguish
  ChaCha20's words from uniform ones. Statement: nobody can distinguish the
  z[t, i] from independent standard normals. No two coordinates, rows or streams
  share a word. Source: [RFC 8439, 2.3] for the block.
  """

  def __init__(self, key: key_lib.Key):
    self.key = key

  def words(
    self, row: int, start: int, count: int, stream: int = WORDS
  ) -> np.ndarray:
    """Returns the words of one row, [count] uint64.

    Args:
      row: row of z, in [0, 2^32).
      start: first coordinate, a multiple of `GROUP`, in [0, 2^63).
      count: number of coordinates, >= 0.
      stream: `WORDS` for first words, j in [1, 2^32) for the words e_j.

    Raises:
      ValueError: `start` is not a multiple of `GROUP`, or a value is out of
        range.
    """
    if start % GROUP or not (0 <= row < _MOST_ROWS and 0 <= start < _MOST):
      raise errors.value_error(
        f'start={start}: must be a multiple of {GROUP} in [0, 2^63), and '
        f'row={row} must be in [0, 2^32); use noise.Stream'
      )
    # PRIVACY: If two z came from one word, they would be equal, and an attacker
    # could combine releases so that the noise cancels. The nonce has separate
    # bits for the row, the group of coordinates and the stream, so two z never
    # share a word.
    # Guard: generator_test.test_rows_and_coordinates_never_share_words.
    reversed_stream = int(f'{stream:032b}'[::-1], 2)
    block = (start // GROUP) | row << 64 | reversed_stream << 96
    nonce = block.to_bytes(16, 'little')
    algorithm = algorithms.ChaCha20(self.key.secret, nonce)
    encryptor = ciphers.Cipher(algorithm, None).encryptor()
    zeros = bytes(8 * GROUP * -(-count // GROUP))
    return np.frombuffer(encryptor.update(zeros), '<u8')[:count]

  def word(self, row: int, coordinate: int, stream: int) -> int:
    """Returns the word of one coordinate; see `words`."""
    group, place = divmod(coordinate, GROUP)
    return int(self.words(row, GROUP * group, GROUP, stream)[place])

  def normal(self, row: int, coordinate: int) -> float:
    """Returns one z, as `fill` computes it."""
    group, place = divmod(coordinate, GROUP)
    return float(self.rows(row, 1, GROUP * group, GROUP)[0, place])

  def rows(self, first: int, rows: int, start: int, count: int) -> np.ndarray:
    """Returns z[first : first + rows, start : start + count].

    Args:
      first: first row of z, >= 0.
      rows: number of rows, >= 0.
      start: first coordinate, a multiple of `GROUP`, >= 0.
      count: number of coordinates, >= 0.

    Returns:
      [rows, count] float64, standard normals; NaN where k = 0.

    Raises:
      ValueError: `start` is not a multiple of `GROUP`, or a value is out of
        range.
    """
    z = np.empty((rows, count))
    self.fill(z, first, start)
    return z

  # PRIVACY: If two pieces of a row used the same words, they would have the
  # same noise. Each piece uses the words of its own coordinates.
  # Guard: generator_test.test_pieces_agree_with_the_whole.
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

  # PRIVACY: Noise of a smaller standard deviation, of another law or of
  # repeated words would make epsilon larger than claimed. z is the normal
  # quantile of its words.
  # Guards: generator_test.test_tail_has_words_of_its_own,
  # generator_test.test_normals_are_those_of_their_words,
  # generator_test.test_normals_are_normal_and_independent,
  # exact_noise_test.test_normal_of_the_smallest_words_is_decided and
  # generator_test.test_pieces_agree_with_the_whole.
  def _fill(self, z: np.ndarray, row: int, start: int) -> None:
    words = self.words(row, start, len(z))
    magnitudes = words >> _ONE
    z[:] = magnitudes
    z += 0.5
    if magnitudes.min(initial=EXTENDED_BELOW) < EXTENDED_BELOW:
      rare = np.flatnonzero(magnitudes < EXTENDED_BELOW)
      extensions = self.words(row, start, len(z), EXTENSIONS)[rare]
      z[rare] = magnitudes[rare] + (extensions + 0.5) * 2.0**-64
      # No bound of the error holds for k = 0. A comparison with NaN is false,
      # so the check that float64 suffices fails, and the exact program decides
      # the rounding of this entry.
      z[magnitudes == 0] = np.nan
    z *= 2.0**-64
    scipy.special.ndtri(z, out=z)
    # If a word is odd, the sign of its z is flipped.
    bits = z.view(np.uint64)
    bits ^= words << _SIGN_BIT
