"""A file of a tape: y of one round and one shard, as gzip [RFC 1952].

What is packed is little-endian: 6 int64 (`MAGIC`, `VERSION`, tape id, round,
first coordinate, count), then `count` int32, y_t in steps of the lattice. It is
stored, not compressed, in blocks of 65,535 bytes [RFC 1951, 3.2.4]. So the size
of a file, and every byte that is not packed, follow from `count`; a reader
compares them, and zlib compares the CRC-32 of what is packed, in C++ in a
graph.

The polynomial of CRC-32 is primitive, of degree 32. Up to 512 MiB all damage is
detected that is confined to 32 bits in a row, or to two bits, or swaps two
words of up to 32 bits: x^i (x^j + 1) e(x) with e of a degree below 32 has no
such factor. Other damage, swapped sectors among it, is missed with a
probability of 2^-32.
"""

from __future__ import annotations

import pathlib
import struct
import zlib
from typing import Any

import numpy as np

MAGIC = 0x7466665F6D66
VERSION = 3
HEADER_WORDS = 6
# What TensorFlow unpacks is below 2^31 bytes.
LARGEST_COUNT = 2**29 - 16

# No name, no time, no system.
_GZIP = np.frombuffer(b'\x1f\x8b\x08\0\0\0\0\0\0\xff', np.uint8)
_BLOCK = 2**16 - 1
_PREFIX = 5
_TRAILER = 8


def size(count: int) -> int:
  """Returns the bytes of a file of so many coordinates."""
  packed = _packed_size(count)
  blocks = -(-packed // _BLOCK)
  return len(_GZIP) + _PREFIX * blocks + packed + _TRAILER


def frame(count: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns (places, values) of the bytes that are the same in all files.

  Returns:
    [.] int32 and [.] uint8.
  """
  prefixes = _prefixes(_packed_size(count))
  starts = len(_GZIP) + np.arange(len(prefixes)) * (_PREFIX + _BLOCK)
  places = np.concatenate(
    [
      np.arange(len(_GZIP)),
      (starts[:, np.newaxis] + np.arange(_PREFIX)).ravel(),
    ]
  )
  return places.astype(np.int32), np.concatenate([_GZIP, prefixes.ravel()])


def header(tape_id: Any, round_index: Any, first: int, count: int) -> list[Any]:
  """Returns the header; of tensors or of numbers."""
  return [MAGIC, VERSION, tape_id, round_index, first, count]


def contents(
  tape_id: int, round_index: int, first: int, y: np.ndarray
) -> list[Any]:
  """Returns a file, in pieces; y is [count] int32, from `first` on."""
  packed = np.array(
    header(tape_id, round_index, first, len(y)), '<i8'
  ).tobytes()
  packed += np.ascontiguousarray(y, '<i4').data
  view = memoryview(packed)
  pieces: list[Any] = [_GZIP]
  for i, prefix in enumerate(_prefixes(len(packed))):
    pieces += [prefix, view[i * _BLOCK : (i + 1) * _BLOCK]]
  pieces.append(struct.pack('<II', zlib.crc32(packed), len(packed)))
  return pieces


def is_whole(path: pathlib.Path, tape_id: int, first: int, count: int) -> bool:
  """Returns whether a file, named by its round, is one of this shard."""
  found = path.read_bytes()
  try:
    packed = zlib.decompress(found, wbits=31)
  except zlib.error:
    return False
  y = np.frombuffer(packed[8 * HEADER_WORDS : len(packed) // 4 * 4], '<i4')
  return len(y) == count and found == b''.join(
    contents(tape_id, int(path.stem), first, y)
  )


def _packed_size(count: int) -> int:
  return 8 * HEADER_WORDS + 4 * count


def _prefixes(packed_size: int) -> np.ndarray:
  """Returns what precedes each block, [blocks, 5] uint8."""
  starts = np.arange(0, packed_size, _BLOCK)
  lengths = np.minimum(_BLOCK, packed_size - starts).astype('<u2')
  prefixes = np.empty((len(starts), _PREFIX), np.uint8)
  prefixes[:, 0] = starts + _BLOCK >= packed_size
  prefixes[:, 1:3] = lengths.view(np.uint8).reshape(-1, 2)
  prefixes[:, 3:] = ~prefixes[:, 1:3]
  return prefixes
