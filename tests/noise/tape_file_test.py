"""Tests of the files of a tape, without TensorFlow."""

import gzip
import pathlib
import struct

import numpy as np
import pytest

from tff_bandmf.noise.tape import file as tape_file

_ID, _ROUND, _FIRST = 2**62 + 1, 3, 64
# Of one block, of just one more, of several.
_COUNTS = (1, 5, 30, 16_371, 16_372, 50_000)


def _y(count, seed=0):
  return np.random.default_rng(seed).integers(
    -(2**31), 2**31, count).astype(np.int32)  # fmt: skip


def _write(directory, count):
  path = pathlib.Path(directory) / f'{_ROUND:08d}.noise'
  path.write_bytes(
    b''.join(tape_file.contents(_ID, _ROUND, _FIRST, _y(count))))  # fmt: skip
  return path


def _is_whole(path, tape_id=_ID, first=_FIRST, count=None):
  return tape_file.is_whole(path, tape_id, first, count)


@pytest.mark.parametrize('count', _COUNTS)
def test_file_is_gzip_of_header_and_noise(tmp_path, count):
  path = _write(tmp_path, count)
  packed = gzip.decompress(path.read_bytes())
  assert struct.unpack('<6q', packed[:48]) == (
    tape_file.MAGIC, 4, _ID, _ROUND, _FIRST, count)  # fmt: skip
  assert np.array_equal(np.frombuffer(packed[48:], '<i4'), _y(count))
  assert path.stat().st_size == tape_file.size(count)


@pytest.mark.parametrize('count', _COUNTS)
def test_frame_is_what_all_files_share(count):
  contents = [
    np.frombuffer(
      b''.join(tape_file.contents(seed, seed, 0, _y(count, seed))), np.uint8)
    for seed in range(30)]  # fmt: skip
  places, values = tape_file.frame(count)
  for content in contents:
    assert np.array_equal(content[places], values)
  # All else differs in some file, but for bytes of the header.
  same = np.flatnonzero(np.all(np.equal(contents, contents[0]), 0))
  assert set(places) <= set(same)
  others = np.setdiff1d(same, places)
  assert np.all((others < 10 + 5 + 48) | (others >= len(contents[0]) - 4))


@pytest.mark.parametrize('count', _COUNTS)
def test_whole_file_is_known_and_no_other_is(tmp_path, count):
  path = _write(tmp_path, count)
  assert _is_whole(path, count=count)
  assert not _is_whole(path, tape_id=_ID + 1, count=count)
  assert not _is_whole(path, first=0, count=count)
  assert not _is_whole(path, count=count + 1)
  assert not _is_whole(path.rename(tmp_path / '00000004.noise'), count=count)


def test_changed_bit_is_seen_wherever_it_is(tmp_path):
  path = _write(tmp_path, 5)
  content = path.read_bytes()
  for place in range(len(content)):
    for bit in range(8):
      changed = bytearray(content)
      changed[place] ^= 1 << bit
      path.write_bytes(changed)
      assert not _is_whole(path, count=5)


def test_swapped_words_blocks_and_sectors_are_seen(tmp_path):
  path = _write(tmp_path, 50_000)
  content = path.read_bytes()
  for size in (4, 512, 4096):
    start = 15 + 48
    changed = bytearray(content)
    one, other = slice(start, start + size), slice(
      start + 8 * size, start + 9 * size)  # fmt: skip
    changed[one], changed[other] = changed[other], changed[one]
    path.write_bytes(changed)
    assert not _is_whole(path, count=50_000)
