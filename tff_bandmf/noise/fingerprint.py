"""A 64-bit fingerprint of a release: a tree of FarmHash64, in NumPy.

A release is a vector of int32. It is cut into rows of 16 int32, and the
FarmHash64 of the 64 bytes of a row gives two int32. The hashes of all rows are
the next level of the tree, and are cut into rows in the same way. The hash of a
level of one row is the root. Zeros pad the last row of a level. Padding can
make releases of different lengths equal, so the fingerprint is the exclusive or
of the root and the number of coordinates. `tape.graph_reader.fingerprint`
returns the same bits: its `tf.fingerprint` is FarmHash64
[github.com/google/farmhash, farmhashna].

In a tree, many rows can be hashed at once and in any order. If FarmHash64
behaves like a random function, two different releases have the same fingerprint
with a probability of at most 2^-64 for each level. The fingerprint has no key:
a person who wants two releases with the same fingerprint can construct such a
pair.
"""

from __future__ import annotations

import numpy as np

# Number of int32 in a row.
ROW = 16
# Number of rows that are hashed at once, so few that they stay in cache.
_PIECE = 1 << 11
_K2 = np.uint64(0x9AE16A3B2F90404F)
# PRIVACY: With another constant this hash would not be FarmHash64, and a second
# sum could pass for the first more often than the module docstring says. The
# constant is FarmHash's for rows of 64 bytes.
# Guard: tape_release_test.test_mark_holds_only_the_fingerprint_of_the_release.
_MULTIPLIER = np.uint64((0x9AE16A3B2F90404F + 2 * 4 * ROW) % 2**64)
_SHIFT = np.uint64(47)


def fingerprint(released: np.ndarray) -> tuple[int, int]:
  """Returns the upper and the lower 32 bits of the fingerprint of a release.

  >>> fingerprint(np.zeros(3, np.int32)) == fingerprint(np.ones(3, np.int32))
  False

  PRIVACY: If two sums had one fingerprint, the noise of a round could be added
  to both, and their difference would have no noise. Each coordinate is hashed.
  Guards: served_tape_test.test_one_sum_is_released_by_all_shards and
  tape_release_test.test_mark_holds_only_the_fingerprint_of_the_release.

  Args:
    released: [dimension] int32.
  """
  words = released
  while True:
    rows = -(-len(words) // ROW)
    hashes = np.empty(rows, np.uint64)
    for start in range(0, rows, _PIECE):
      piece = words[start * ROW : (start + _PIECE) * ROW]
      piece = np.pad(piece, (0, -len(piece) % ROW))
      hashes[start : start + _PIECE] = _hashed(piece.view('<u8').reshape(-1, 8))
    if rows == 1:
      root = int(hashes[0]) ^ len(released)
      return root >> 32, root % 2**32
    words = hashes.view(np.int32)


# PRIVACY: Two sums with one fingerprint would get the same noise. The hash
# reads all words of a row, and has all steps of FarmHash.
# Guards: served_tape_test.test_one_sum_is_released_by_all_shards,
# tape_release_test.test_mark_holds_only_the_fingerprint_of_the_release
# and tape_test.test_round_is_gone_after_the_next_one_was_released.
def _hashed(rows: np.ndarray) -> np.ndarray:
  """Returns the FarmHash64 of rows of 64 bytes, [rows, 8] uint64 -> [rows]."""
  s = np.ascontiguousarray(rows.T)
  a, b, c, d = s[0] * _K2, s[1], s[7] * _MULTIPLIER, s[6] * _K2
  y = _rotated(a + b, 43) + _rotated(c, 30) + d
  z = _mixed(y, a + _rotated(b + _K2, 18) + c)
  e, f = s[2] * _MULTIPLIER, s[3]
  g, h = (y + s[4]) * _MULTIPLIER, (z + s[5]) * _MULTIPLIER
  return _mixed(
    _rotated(e + f, 43) + _rotated(g, 30) + h, e + _rotated(f + a, 18) + g
  )


def _mixed(u: np.ndarray, v: np.ndarray) -> np.ndarray:
  a = (u ^ v) * _MULTIPLIER
  a ^= a >> _SHIFT
  b = (v ^ a) * _MULTIPLIER
  b ^= b >> _SHIFT
  return b * _MULTIPLIER


def _rotated(words: np.ndarray, bits: int) -> np.ndarray:
  """Returns words of 64 bits, rotated to the right."""
  return (words >> np.uint64(bits)) | (words << np.uint64(64 - bits))
