"""Tests of noise whose past is on disk."""

import contextlib
import ctypes
import errno
import gc
import os
import pathlib
import stat

import numpy as np
import pytest

from tff_bandmf import noise, strategies
from tff_bandmf.noise.producer import past_noise, stream

_KEY = noise.Key.from_seed(3)
_BANDED = strategies.BandedToeplitz(100, 0.8 ** np.arange(40))


def _stream(strategy, dimension, max_memory_bytes):
  return noise.Stream(
    strategy.recursion(),
    1000.0,
    dimension,
    _KEY,
    memory=stream.Memory(max_memory_bytes),
  )


def _unnamed_files(folder):
  """Returns the open files of this process that had a name in the folder."""
  found = []
  for path in pathlib.Path('/proc/self/fd').iterdir():
    # Another thread may close the file.
    with contextlib.suppress(FileNotFoundError):
      if os.readlink(path).startswith(f'{folder}/'):
        found.append(path)
  return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.setattr(past_noise.tempfile, 'tempdir', str(tmp_path))
  return tmp_path


def test_file_is_used_above_the_bound_only(folder):
  for bound, files in [(4 * 3 * 40, 0), (4 * 3 * 40 - 1, 1), (None, 0)]:
    with contextlib.closing(past_noise.Chunks(3, [16, 16, 8], np.int32, bound)):
      assert len(_unnamed_files(folder)) == files


@pytest.mark.parametrize('bound', [None, 1])
def test_arrays_start_at_zero_and_keep_what_is_written(folder, bound):
  sizes = [16, 16, 8]
  with contextlib.closing(
    past_noise.Chunks(3, sizes, np.int32, bound)
  ) as arrays:
    for i, count in enumerate(sizes):
      assert arrays[i].shape == (3, count) and not np.any(arrays[i])
      arrays[i][:] = i + 1
    assert [np.unique(arrays[i]).tolist() for i in range(3)] == [[1], [2], [3]]


def test_file_has_no_name_and_goes_at_the_end(folder):
  rows = _stream(_BANDED, 50, 1).rows()
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

  monkeypatch.setattr(past_noise.os, 'posix_fallocate', full)
  with pytest.raises(OSError, match='No space left'):
    next(_stream(_BANDED, 50, 1).rows())
  assert not _unnamed_files(folder)


def test_too_little_memory_is_told_before_the_first_round(monkeypatch):
  assert 1e6 < past_noise._available_bytes() < 1e16
  monkeypatch.setattr(past_noise, '_available_bytes', lambda: 1e3)
  with pytest.raises(ValueError, match='memory=0.0 GB: is free, but'):
    next(_stream(_BANDED, 50, None).rows())


@pytest.mark.parametrize('bound', [0, -1])
def test_bound_that_is_no_size_is_refused(bound):
  with pytest.raises(ValueError, match=f'max_memory_bytes={bound}'):
    _stream(_BANDED, 50, bound)


def _resident_bytes():
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return pages * os.sysconf('SC_PAGE_SIZE')


@pytest.mark.slow
def test_resident_memory_is_that_of_a_chunk(folder):
  strategy = strategies.BandedToeplitz(64, 0.9 ** np.arange(64))
  grown = {}
  for bound in (1, None):
    # Otherwise the memory of earlier tests may be freed, or used, meanwhile.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _resident_bytes()
    # 63 rows of 2^19 coordinates: 132 MB, 2 MB a chunk.
    grown[bound] = max(
      _resident_bytes() - before for _ in _stream(strategy, 2**19, bound).rows()
    )
  assert grown[1] < 60e6
  assert grown[None] > 90e6
