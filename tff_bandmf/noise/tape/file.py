"""The file format of a tape: the noise y_t of round t, for one shard.

A tape is the stored noise of all rounds of a run. A shard is a range of the
coordinates of y_t; see `tape.folder`. A file is in the gzip format [RFC 1952].
The uncompressed bytes, `packed` in the code, are little-endian: 6 int64
(`MAGIC`, `VERSION`, tape ID, round, first coordinate, `count`), then `count`
int32, the coordinates of y_t as multiples of the lattice step. These bytes are
stored without compression in blocks of up to 65,535 bytes [RFC 1951, 3.2.4].
The frame of a file is the gzip header and the headers of the blocks; `count`
determines the frame and the size of the file. The CRC-32 and the length of
`packed` end the file. A reader compares the size, the frame and the six int64
with the values that it expects, and zlib compares the CRC-32 and the length
with the bytes that it unpacks.

If `packed` has at most 512 MiB, the CRC detects all damage within 32
consecutive bits, all damage of two bits, and all swaps of two words of up to 32
bits. Every primitive polynomial of degree 32, such as the polynomial of CRC-32,
has these properties. The CRC misses other damage, such as swapped sectors, with
a probability of 2^-32.
"""

from __future__ import annotations

import pathlib
import struct
import zlib
from typing import Union

import numpy as np

MAGIC = 0x7466665F6D66
VERSION = 4
HEADER_WORDS = 6
# The reasons for which a reader refuses a file.
SIZE = 'the file has the wrong size, or another version of tff_bandmf wrote it'
DAMAGED = 'the file is damaged, or another version of tff_bandmf wrote it'
OTHER = 'the file is of another tape, shard or round'
# Maximum number of coordinates: TensorFlow unpacks less than 2^31 bytes.
LARGEST_COUNT = 2**29 - 16

# Header of a gzip file without a file name, a time or an operating system.
_GZIP = np.frombuffer(b'\x1f\x8b\x08\0\0\0\0\0\0\xff', np.uint8)
_BLOCK = 2**16 - 1
_PREFIX = 5
_TRAILER = 8


def size(count: int) -> int:
  """Returns the size in bytes of a file of `count` coordinates."""
  packed = _packed_size(count)
  blocks = -(-packed // _BLOCK)
  return len(_GZIP) + _PREFIX * blocks + packed + _TRAILER


def frame(count: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns (positions, values) of the frame of a file.

  Args:
    count: number of coordinates in the file, > 0.

  Returns:
    positions: [m] int32, positions of the frame's m bytes in the file.
    values: [m] uint8, the bytes at these positions.
  """
  prefixes = _prefixes(_packed_size(count))
  starts = len(_GZIP) + np.arange(len(prefixes)) * (_PREFIX + _BLOCK)
  of_blocks = np.add.outer(starts, range(_PREFIX)).ravel()
  positions = np.r_[: len(_GZIP), of_blocks].astype(np.int32)
  return positions, np.r_[_GZIP, prefixes.ravel()]


def contents(
  tape_id: int, round_index: int, first: int, y: np.ndarray
) -> list[Union[bytes, memoryview]]:
  """Returns the bytes of a file as a list of consecutive pieces.

  Args:
    tape_id: 63-bit ID of the noise.
    round_index: t, >= 0.
    first: first coordinate of the shard, >= 0.
    y: [count] int32, coordinates `first` to `first + count - 1` of y_t, in
      lattice steps.
  """
  packed = _header(tape_id, round_index, first, len(y))
  packed += np.ascontiguousarray(y, '<i4').data
  view = memoryview(packed)
  pieces: list[Union[bytes, memoryview]] = [_GZIP.tobytes()]
  for i, prefix in enumerate(_prefixes(len(packed))):
    pieces += [prefix.tobytes(), view[i * _BLOCK : (i + 1) * _BLOCK]]
  pieces.append(struct.pack('<II', zlib.crc32(packed), len(packed)))
  return pieces


def unpack(
  content: bytes, tape_id: int, round_index: int, first: int, count: int
) -> np.ndarray:
  """Returns the shard of y_t in a file, [count] int32, in lattice steps.

  Args:
    content: all bytes of the file.
    tape_id: expected ID of the noise, 63 bits.
    round_index: expected round t, >= 0.
    first: expected first coordinate, >= 0.
    count: expected number of coordinates, > 0.

  Raises:
    ValueError: the file is damaged, or is of another tape, shard or round. The
      message is one of `SIZE`, `DAMAGED` and `OTHER`.
  """
  if len(content) != size(count):
    raise ValueError(SIZE)
  positions, values = frame(count)
  # PRIVACY: Epsilon holds only for undamaged noise, and zlib is sure to check
  # the CRC only if the gzip frame is intact. A damaged frame could lead to
  # wrong noise. So the frame is compared byte by byte before zlib reads it.
  # Guard: tape_release_test.test_damaged_file_is_refused.
  if not np.array_equal(np.frombuffer(content, np.uint8)[positions], values):
    raise ValueError(DAMAGED)
  try:
    packed = zlib.decompress(content, 31, _packed_size(count))
  except zlib.error:
    raise ValueError(DAMAGED) from None
  header = _header(tape_id, round_index, first, count)
  # PRIVACY: If a round used the noise of another round or tape, the noise would
  # cancel in a difference of releases. The header must name this tape and this
  # round.
  # Guard: tape_release_test.test_file_of_another_round_is_refused.
  if not packed.startswith(header):
    raise ValueError(OTHER)
  return np.frombuffer(packed, '<i4', offset=len(header))


def is_whole(path: pathlib.Path, tape_id: int, first: int, count: int) -> bool:
  """Returns whether a file is complete and belongs to this tape and shard.

  Args:
    path: the file; its name is the number of its round.
    tape_id: 63-bit ID of the noise.
    first: first coordinate of the shard, >= 0.
    count: number of coordinates of the shard, > 0.
  """
  try:
    unpack(path.read_bytes(), tape_id, int(path.stem), first, count)
  except ValueError:
    return False
  return True


def _header(tape_id: int, round_index: int, first: int, count: int) -> bytes:
  words = [MAGIC, VERSION, tape_id, round_index, first, count]
  return np.array(words, '<i8').tobytes()


def _packed_size(count: int) -> int:
  return 8 * HEADER_WORDS + 4 * count


def _prefixes(packed_size: int) -> np.ndarray:
  """Returns the headers of all stored blocks, [blocks, 5] uint8."""
  starts = np.arange(0, packed_size, _BLOCK)
  is_last = starts + _BLOCK >= packed_size
  lengths = np.minimum(_BLOCK, packed_size - starts)
  words = np.column_stack([lengths, ~lengths]).astype('<u2').view(np.uint8)
  return np.column_stack([is_last, words])
