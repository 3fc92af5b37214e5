"""Tests of a tape on two hosts, which see each other's files late.

As on NFS, a host sees at once the names that it makes, those of others when it
looks anew, and what is in a file when it is opened. Locks do not reach the
other host here, as where NFS is mounted with `local_lock=all`.
"""

import contextlib
import os
import threading

import numpy as np
import pytest
import tapes

from tff_bandmf import noise
from tff_bandmf.noise import placements
from tff_bandmf.noise.tape import folder as tape_folder
from tff_bandmf.noise.tape import noise_server_tape as served_tape

_LOCKS = ('lock', 'reader')


class _LateView:
  """A folder as the other host sees it: at `path`, as old as `look` is."""

  def __init__(self, folder, path):
    self._folder = folder
    self.path = path
    self._seen = set()
    # An inode that was seen names no other file.
    self._kept = path.with_name(f'{path.name}-kept')
    self._kept.mkdir()
    path.mkdir(mode=0o700)
    self.look()

  def look(self):
    """Shows each side what the other one made and removed."""
    here, there = _files(self.path), _files(self._folder)
    removed = self._seen & (here ^ there)
    for each in removed:
      folder = self.path if each in here else self._folder
      (folder / each[0]).unlink(missing_ok=True)
    self._seen = here & there
    for made, source, target in (
      (here - there - removed, self.path, self._folder),
      (there - here - removed, self._folder, self.path),
    ):
      for each in made:
        with contextlib.suppress(FileExistsError, FileNotFoundError):
          os.link(source / each[0], target / each[0])
          os.link(source / each[0], self._kept / str(each[1]))
          self._seen.add(each)


def _files(folder):
  """Returns names and inodes."""
  return {
    (each.name, each.inode())
    for each in os.scandir(folder)
    if each.name not in _LOCKS and not each.name.endswith('.part')
  }


@pytest.fixture
def server(tmp_path):
  tape = tapes.make(tmp_path / 'tape', resume=True)
  tapes.noise_file(tape, 3)
  yield tape
  tape.close()


@pytest.fixture
def view(server, tmp_path):
  return _LateView(server.directory, tmp_path / 'view')


def _open(directory, start_round=0):
  return served_tape.ServedTape(
    placements.Served(directory, start_round),
    tapes.strategy().recursion(),
    tapes.Z_STEPS,
    tapes.DIMENSION,
  )


def test_round_waits_for_noise_that_is_seen_late(tmp_path):
  server = tapes.make(tmp_path / 'tape', resume=True, ahead_bytes=1)
  tapes.noise_file(server, 1)
  view = _LateView(server.directory, tmp_path / 'view')
  served = _open(view.path)
  tapes.release(served, 1)
  view.look()
  tapes.noise_file(server, 2)
  with tapes.refused('fell behind'):
    tapes.release(served, 2, timeout=0.1)
  threading.Timer(0.3, view.look).start()
  assert np.array_equal(tapes.release(served, 2), tapes.expected()[2])
  served.close()
  server.close()


def test_noise_that_is_seen_after_it_was_wiped_is_refused(server, view):
  tapes.release(server, 2)
  tapes.wait_until(lambda: server.reached == 2)
  served = _open(view.path)
  assert (view.path / '00000001.noise').exists()
  with tapes.refused('damaged'):
    tapes.release(served, 1)
  view.look()
  with tapes.refused('already used'):
    tapes.release(served, 1)
  served.close()


def test_noise_under_names_that_were_replaced_is_refused(server, view):
  served = _open(view.path)
  server.close()
  tape_folder.remove(server.directory)
  other = tapes.make(server.directory, key=noise.Key.from_seed(6), resume=True)
  tapes.noise_file(other, 0)
  view.look()
  with tapes.refused('another tape, shard or round'):
    tapes.release(served, 0)
  served.close()
  other.close()


def test_sum_of_a_round_that_is_over_elsewhere_is_refused(
  server, view, each_reader, monkeypatch
):
  here, elsewhere = _open(server.directory), _open(view.path)
  mark = each_reader._Folder.mark

  def mark_late(self, owner):
    # This round has its noise; then the other host goes two rounds on.
    monkeypatch.setattr(each_reader._Folder, 'mark', mark)
    tapes.release(here, 0)
    tapes.release(here, 1)
    tapes.wait_until(lambda: server.reached == 1)
    marked = mark(self, owner)
    view.look()
    return marked

  monkeypatch.setattr(each_reader._Folder, 'mark', mark_late)
  with tapes.refused('already used'):
    tapes.release(elsewhere, 0, np.ones(tapes.DIMENSION))
  here.close()
  elsewhere.close()


def test_reader_does_not_open_with_an_old_view(server, view, monkeypatch):
  tapes.release(server, 3)
  mark = tape_folder.mark

  def mark_and_look(*args):
    mark(*args)
    view.look()

  monkeypatch.setattr(tape_folder, 'mark', mark_and_look)
  with pytest.raises(ValueError, match='rounds below 3 were used'):
    _open(view.path, start_round=2)
  _open(view.path, start_round=3).close()


def test_server_that_resumes_with_an_old_view_serves_no_round_again(
  server, view
):
  served = _open(server.directory)
  first = tapes.release(served, 3)
  server.close()
  other = tapes.make(view.path, resume=True)
  assert other.start_round == 0
  tapes.noise_file(other, 3)
  view.look()
  with tapes.refused('already used'):
    tapes.release(served, 2)
  with tapes.refused('released another sum'):
    tapes.release(served, 3, np.ones(tapes.DIMENSION))
  assert np.array_equal(tapes.release(served, 3), first)

  def is_served():
    view.look()
    return other.reached == 3 and (server.directory / '00000004.noise').exists()

  tapes.wait_until(is_served)
  assert np.array_equal(tapes.release(served, 4), tapes.expected()[4])
  served.close()
  other.close()
