"""Tests of checkpoints: whole or refused, private, and only the latest."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_bandmf import _files
from tff_bandmf.run_files import checkpoints as checkpoints_lib

_HEAD = '0123456789abcdef' * 4


def _state(value=0.0):
  return tff.learning.templates.LearningAlgorithmState(
    tff.learning.models.ModelWeights(
      (np.full((3, 2), value, np.float32), np.zeros(0, np.float32)), ()
    ),
    (),
    (),
    collections.OrderedDict(round=np.int64(5), key=np.arange(2)),
    (np.float64(value),),
  )


@pytest.fixture
def checkpoints(tmp_path):
  return checkpoints_lib.Checkpoints(tmp_path / 'private')


def test_state_comes_back_to_the_bit(checkpoints):
  checkpoints.save(_state(0.1), 3, _HEAD)
  assert checkpoints.latest() == 3
  found, head = checkpoints.load(3, _state())
  assert head == _HEAD
  assert type(found) is type(_state())
  expected = _state(0.1)
  for one, other in zip(
    found.global_model_weights.trainable,
    expected.global_model_weights.trainable,
  ):
    np.testing.assert_array_equal(one, other)
    assert one.dtype == other.dtype
  assert found.finalizer == expected.finalizer
  np.testing.assert_array_equal(
    found.aggregator['key'], expected.aggregator['key']
  )


def test_only_the_last_two_are_kept_and_only_their_owner_reads_them(
  checkpoints, tmp_path
):
  for t in (3, 6, 9, 12):
    checkpoints.save(_state(t), t, _HEAD)
  files = sorted((tmp_path / 'private').iterdir())
  assert [path.name for path in files] == ['00000009.npz', '00000012.npz']
  assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
  assert (tmp_path / 'private').stat().st_mode & 0o777 == 0o700


def test_file_that_was_not_finished_does_not_count(checkpoints, tmp_path):
  checkpoints.save(_state(), 3, _HEAD)
  (tmp_path / 'private' / '00000006.part').write_bytes(b'half')
  assert checkpoints.latest() == 3
  checkpoints.save(_state(), 6, _HEAD)
  assert checkpoints.latest() == 6


def test_kill_while_an_old_one_is_wiped_leaves_none_of_zeros(
  checkpoints, tmp_path, monkeypatch
):
  def killed(path):
    path.write_bytes(bytes(path.stat().st_size))
    raise SystemExit

  for t in (3, 6):
    checkpoints.save(_state(t), t, _HEAD)
  monkeypatch.setattr(_files, 'wipe', killed)
  with pytest.raises(SystemExit):
    checkpoints.save(_state(9), 9, _HEAD)
  found = sorted((tmp_path / 'private').glob('*.npz'))
  assert [path.stem for path in found] == ['00000006', '00000009']
  for path in found:
    checkpoints_lib.read(path)
  # `folder.locked` removes it.
  (rest,) = (tmp_path / 'private').glob(f'*{_files.PART}')
  assert not any(rest.read_bytes())


def test_no_checkpoint_is_round_0(checkpoints):
  assert checkpoints.latest() == 0


def test_every_flipped_bit_is_told_in_one_line_that_names_the_file(
  checkpoints, tmp_path
):
  checkpoints.save(_state(), 3, _HEAD)
  path = tmp_path / 'private' / '00000003.npz'
  whole = path.read_bytes()
  # Before, 3 % of them gave a traceback, or an error without a name. The step
  # has no divisor in common with 8, so that every bit of a byte is flipped.
  for bit in range(0, 8 * len(whole), 3):
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=f'^checkpoint={path}: is dam') as got:
      checkpoints.load(3, _state())
    assert '\n' not in str(got.value)
  for content in whole[:-30], whole + b'x', b'', whole[:40]:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f'{path}: is damaged'):
      checkpoints.load(3, _state())


def test_checkpoint_of_another_model_is_refused(checkpoints):
  checkpoints.save(_state(), 3, _HEAD)
  other = _state()._replace(aggregator=())
  with pytest.raises(ValueError, match='another model'):
    checkpoints.load(3, other)
