"""Random uses of one key file against the rule, use by use."""

import contextlib
import os

import numpy as np
import pytest

from tff_bandmf.noise import key_use

_DIMENSION = 8


def _use(rng, folder):
  """Returns a random use: tape ID, coordinates and folder of the tape."""
  first, last = np.sort(rng.choice(_DIMENSION + 1, 2, replace=False)).tolist()
  # Most uses are of one tape, or the first of another would end the sequence.
  tape_id = 7 if rng.random() < 0.9 else 8
  return tape_id, range(first, last), folder / rng.choice(['a', 'b', 'a b'])


def _overlap(one, other):
  return bool(set(one) & set(other))


def test_coordinates_serve_one_tape_in_one_folder(tmp_path):
  """Any part of them in another folder is refused, and no other use is."""
  rng = np.random.default_rng(0)
  outcomes = []
  for i in range(25):
    recorded = []
    for _ in range(8):
      tape_id, coordinates, folder = use = _use(rng, tmp_path)
      allowed = all(
        tape_id == before
        and (folder == other or not _overlap(coordinates, used))
        for before, used, other in recorded
      )
      outcomes.append(allowed)
      if not allowed:
        with pytest.raises(ValueError, match='has served'):
          key_use.KeyUse(tmp_path / f'key-{i}', *use)
        continue
      with contextlib.closing(key_use.KeyUse(tmp_path / f'key-{i}', *use)) as u:
        u.record()
      recorded.append(use)
  assert 50 < sum(outcomes) < len(outcomes) - 50


def test_coordinates_are_made_by_one_process_at_a_time(tmp_path):
  rng = np.random.default_rng(1)
  outcomes = []
  for i in range(60):
    with contextlib.ExitStack() as stack:
      made = []
      for _ in range(4):
        _, coordinates, folder = _use(rng, tmp_path)
        use = tmp_path / f'key-{i}', 7, coordinates, folder
        free = not any(_overlap(coordinates, other) for other in made)
        outcomes.append(free)
        if free:
          stack.enter_context(contextlib.closing(key_use.KeyUse(*use)))
          made.append(coordinates)
        else:
          with pytest.raises(ValueError, match='another noise-server makes'):
            key_use.KeyUse(*use)
  assert 60 < sum(outcomes) < len(outcomes) - 60


def test_use_that_another_process_recorded_first_is_refused(tmp_path):
  """Both began before either recorded."""
  for i, tape_id in enumerate((7, 8)):
    with contextlib.ExitStack() as stack:
      first, second = (
        stack.enter_context(contextlib.closing(key_use.KeyUse(*use)))
        for use in (
          (tmp_path / f'key-{i}', 7, range(4), tmp_path / 'a'),
          (tmp_path / f'key-{i}', tape_id, range(4, 8), tmp_path / 'b'),
        )
      )
      first.record()
      if tape_id == 7:
        second.record()
      else:
        with pytest.raises(ValueError, match='has served another noise'):
          second.record()


def test_use_is_on_the_disk_before_noise_is_made(tmp_path, monkeypatch):
  """After a power cut, a server in another folder would know nothing of it."""
  synced, to_disk = [], os.fsync

  def fsync(handle):
    to_disk(handle)
    synced.append(path.read_text())

  path = tmp_path / 'key.use'
  monkeypatch.setattr(os, 'fsync', fsync)
  with contextlib.closing(
    key_use.KeyUse(tmp_path / 'key', 7, range(2, 5), tmp_path / 'a')
  ) as use:
    use.record()
  assert synced == [f'7 2 3 {tmp_path / "a"}\n']
