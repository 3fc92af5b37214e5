"""Tests of noise whose past is on disk."""

import contextlib
import errno
import os
import pathlib
import stat
import time

import numpy as np
import pytest

from tff_bandmf import noise, strategies
from tff_bandmf.noise import chunks, stream

_KEY = noise.Key.from_seed(3)
_ROUNDS = 100
_STRATEGIES = {
    'banded': strategies.BandedToeplitz(_ROUNDS, 0.8**np.arange(40)),
    'normalised': strategies.ColumnNormalized(
        strategies.BandedToeplitz(_ROUNDS, 0.8**np.arange(5))),
    'inverse': strategies.BandedInverseSqrt(_ROUNDS, 6),
    'blt': strategies.Blt(_ROUNDS, [0.3, 0.2], [0.95, 0.6]),
    'tree': strategies.OnlineTree(_ROUNDS),
    'identity': strategies.Identity(_ROUNDS),
}


def _stream(strategy, dimension, max_memory_bytes, **kwargs):
  return stream.Stream(
      noise.Plan.of(strategy), dimension, _KEY,
      max_memory_bytes=max_memory_bytes, **kwargs)


def _rows(made):
  return np.stack([y.copy() for y in made.rows() if y is not None])


def _unnamed_files(folder):
  """Returns the open files of this process that had a name in the folder."""
  return [
      path for path in pathlib.Path('/proc/self/fd').iterdir()
      if path.is_symlink() and os.readlink(path).startswith(f'{folder}/')]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.setattr(chunks.tempfile, 'tempdir', str(tmp_path))
  return tmp_path


@pytest.mark.parametrize('generator', [noise.PHILOX, noise.AES_CTR])
@pytest.mark.parametrize('name', _STRATEGIES)
def test_noise_is_the_same_to_the_bit(folder, monkeypatch, name, generator):
  monkeypatch.setattr(stream, '_CHUNK', 16)
  strategy = _STRATEGIES[name]
  kept = _rows(_stream(strategy, 50, None, generator=generator))
  monkeypatch.setattr(chunks, '_aligned_zeros', None)  # Not called.
  filed = _rows(_stream(strategy, 50, 1, generator=generator))
  assert kept.shape == (_ROUNDS, 50)
  assert np.array_equal(kept, filed)
  assert not _unnamed_files(folder)


def test_chunks_of_other_sizes_give_the_same_noise(folder, monkeypatch):
  expected = _rows(_stream(_STRATEGIES['banded'], 50, None))
  for chunk in (16, 32):
    monkeypatch.setattr(stream, '_CHUNK', chunk)
    np.testing.assert_allclose(
        _rows(_stream(_STRATEGIES['banded'], 50, 1)), expected, atol=1e-6)


def test_file_is_used_above_the_bound_only(folder):
  for bound, files in [(4 * 3 * 40, 0), (4 * 3 * 40 - 1, 1), (None, 0)]:
    with contextlib.closing(chunks.Chunks(3, 40, 16, bound)):
      assert len(_unnamed_files(folder)) == files


@pytest.mark.parametrize('bound', [None, 1])
def test_arrays_start_at_zero_and_keep_what_is_written(folder, bound):
  with contextlib.closing(chunks.Chunks(3, 40, 16, bound)) as arrays:
    assert list(arrays.starts) == [0, 16, 32]
    for i, count in enumerate((16, 16, 8)):
      assert arrays[i].shape == (3, count) and not np.any(arrays[i])
      arrays[i][:] = i + 1
    assert [np.unique(arrays[i]).tolist() for i in range(3)] == [[1], [2], [3]]


def test_file_has_no_name_and_goes_at_the_end(folder):
  rows = _stream(_STRATEGIES['banded'], 50, 1).rows()
  next(rows)
  handles = _unnamed_files(folder)
  assert handles and not list(folder.iterdir())
  for handle in handles:
    assert stat.S_IMODE(handle.stat().st_mode) == 0o600
  rows.close()
  assert not _unnamed_files(folder)


def test_full_disk_is_told_before_the_first_round(folder, monkeypatch):
  def full(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(chunks.os, 'posix_fallocate', full)
  with pytest.raises(OSError, match='No space left'):
    next(_stream(_STRATEGIES['banded'], 50, 1).rows())
  assert not _unnamed_files(folder)


@pytest.mark.parametrize('bound', [0, -1])
def test_bound_that_is_no_size_is_refused(bound):
  with pytest.raises(ValueError, match=f'max_memory_bytes={bound}'):
    _stream(_STRATEGIES['banded'], 50, bound)


def test_tape_with_its_past_on_disk_gives_the_same_bits(folder):
  files = []
  for name, bound in (('memory', None), ('disk', 1)):
    tape = noise.Tape(
        folder / name, noise.Plan.of(_STRATEGIES['banded']), 50, _KEY,
        max_memory_bytes=bound)
    deadline = time.monotonic() + 30
    while not (tape.directory / '00000099.noise').exists():
      assert time.monotonic() < deadline
      time.sleep(0.01)
    files.append((tape.directory / '00000099.noise').read_bytes())
    tape.close()
  assert files[0] == files[1]


def _resident_bytes():
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return pages * os.sysconf('SC_PAGE_SIZE')


def test_resident_memory_is_that_of_a_chunk(folder):
  strategy = strategies.BandedToeplitz(64, 0.9**np.arange(64))
  grown = {}
  for bound in (1, None):
    before = _resident_bytes()
    # 64 rows of 2^20 coordinates: 268 MB, 17 MB a chunk.
    grown[bound] = max(
        _resident_bytes() - before
        for _ in _stream(strategy, 2**20, bound).rows())
  assert grown[1] < 120e6
  assert grown[None] > 240e6
