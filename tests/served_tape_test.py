"""Tests of what training makes of the folders of noise servers."""

import json
import os
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tff_bandmf import noise, strategies
from tff_bandmf.noise import source as source_lib
from tff_bandmf.noise import stream

_ROUNDS = 30
_DIMENSION = 100
_KEY = noise.Key.from_seed(31)
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, 0.8**np.arange(9))
_PLAN = noise.Plan.of(_STRATEGY)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
  monkeypatch.setattr(stream, '_CHUNK', 16)


@pytest.fixture
def serve(tmp_path):
  """Starts what a server runs; by default the first of two shards."""
  tapes = []

  def start(name, index=0, shards=2, **kwargs):
    arguments = {
        'plan': _PLAN, 'dimension': _DIMENSION, 'key': _KEY, **kwargs}
    tapes.append(noise.Tape(
        tmp_path / name, resume=True,
        coordinates=stream.shard(arguments['dimension'], index, shards),
        **arguments))
    return tapes[-1]

  yield start
  for tape in tapes:
    tape.close()


def _open(tapes, plan=_PLAN, dimension=_DIMENSION, generator=noise.PHILOX,
          start_round=0):
  return noise.ServedTape(
      [tape.directory for tape in tapes], plan, dimension, generator,
      start_round)


def _next(served, t):
  source = noise.TapeSource(served)
  return source.next(source.initial_state(), tf.constant(t, tf.int64))[0]


def _expected():
  made = stream.Stream(_PLAN, _DIMENSION, _KEY)
  return np.stack([y.copy() for y in made.rows() if y is not None])


def _wait_until(condition):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline, 'timed out'
    time.sleep(0.01)


@pytest.mark.parametrize('shards', [1, 2, 5])
def test_shards_are_read_as_one_tape(serve, shards):
  tapes = [serve(str(i), i, shards) for i in range(shards)]
  # In any order.
  served = _open(tapes[::-1])
  assert served.dimension == _DIMENSION
  assert served.tape_id == tapes[0].tape_id
  expected = _expected()
  for t in range(_ROUNDS):
    assert np.array_equal(_next(served, t), expected[t])
  served.close()
  served.close()
  for tape in tapes:
    # Left to their servers.
    assert (tape.directory / f'{_ROUNDS - 1:08d}.noise').exists()
    tape.close()
    assert not list(tape.directory.glob('*.noise'))


def test_state_is_that_of_a_tape_of_this_process(serve, tmp_path):
  served = noise.TapeSource(_open([serve('0', 0, 1)]))
  own = noise.TapeSource(noise.Tape(tmp_path / 'own', _PLAN, _DIMENSION, _KEY))
  assert served.placement == own.placement == 'tape'
  assert served.dimension == own.dimension
  assert served.initial_state() == own.initial_state()
  own.close()
  served.close()


def test_start_round_moves_the_servers_on(serve):
  tapes = [serve(str(i), i, 2, ahead_bytes=1) for i in range(2)]
  served = _open(tapes, start_round=17)
  assert np.array_equal(_next(served, 17), _expected()[17])
  with pytest.raises(tf.errors.InvalidArgumentError, match='already used'):
    _next(served, 16)
  # Rounds that were skipped leave no file.
  for tape in tapes:
    _wait_until((tape.directory / '00000018.noise').exists)
    _wait_until(lambda tape=tape: min(
        int(path.stem) for path in tape.directory.glob('*.noise')) == 17)
  served.close()


def test_rounds_that_were_used_are_not_served_again(serve):
  tapes = [serve(str(i), i, 2) for i in range(2)]
  served = _open(tapes)
  _next(served, 6)
  served.close()
  with pytest.raises(ValueError, match='start_round=5: rounds below 6 were'):
    _open(tapes, start_round=5)
  _open(tapes, start_round=6).close()


def test_key_of_a_run_that_is_over_serves_no_other(serve):
  tape = serve('0', 0, 1)
  served = _open([tape])
  _next(served, _ROUNDS - 1)
  served.close()
  tape.close()
  with pytest.raises(ValueError, match=f'rounds below {_ROUNDS - 1} were used'):
    _open([serve('0', 0, 1)])


def test_second_reader_is_refused(serve):
  tapes = [serve(str(i), i, 2) for i in range(2)]
  first = _open(tapes)
  with pytest.raises(ValueError, match='is read by another run'):
    _open(tapes)
  _next(first, 0)
  first.close()
  second = _open(tapes)
  _next(second, 0)
  second.close()


@pytest.mark.parametrize('name, arguments', [
    ('strategy', {'plan': noise.Plan.of(strategies.Identity(_ROUNDS))}),
    ('parameters', {'dimension': _DIMENSION - 1}),
    ('generator', {'generator': noise.AES_CTR})])
def test_other_noise_than_trained_for_is_refused(serve, name, arguments):
  tapes = [serve(str(i), i, 2) for i in range(2)]
  with pytest.raises(ValueError, match=f'^{name}='):
    _open(tapes, **arguments)
  # A refusal keeps nobody off.
  _open(tapes).close()


@pytest.mark.parametrize('chosen', [[0], [1], [0, 0], [1, 1]])
def test_missing_shards_are_refused(serve, chosen):
  tapes = [serve(str(i), i, 2) for i in range(2)]
  with pytest.raises(ValueError, match='must be shards of 100 coordinates'):
    _open([tapes[i] for i in chosen])


def test_shards_that_overlap_are_refused(serve):
  tapes = [serve('whole', 0, 1), serve('half', 1, 2)]
  with pytest.raises(ValueError, match='must be shards of 100 coordinates'):
    _open(tapes)


@pytest.mark.parametrize('other', [
    {'key': noise.Key.from_seed(32)}, {'devices': ['CPU:0']}])
def test_shards_of_two_tapes_are_refused(serve, other):
  tapes = [serve('0', 0, 2), serve('1', 1, 2, **other)]
  with pytest.raises(ValueError, match='several keys or kinds of device'):
    _open(tapes)


def test_folder_without_server_is_refused(tmp_path):
  with pytest.raises(ValueError, match='start bandmf noise-server'):
    noise.ServedTape([tmp_path], _PLAN, _DIMENSION, noise.PHILOX)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('change', [
    {'version': 1}, {'format': 'other'}, {'more': 1}, {'tape_id': None}])
def test_description_of_another_release_is_refused(serve, change):
  tape = serve('0', 0, 1)
  path = tape.directory / 'tape.json'
  content = {**json.loads(path.read_text()), **change}
  path.write_text(json.dumps(
      {name: value for name, value in content.items() if value is not None}))
  with pytest.raises(ValueError, match='tape.json: is no tff_bandmf.tape'):
    _open([tape])


@pytest.mark.parametrize('content', ['', '[]', '{', '{}', '1', '\x00'])
def test_damaged_description_is_refused(serve, content):
  tape = serve('0', 0, 1)
  (tape.directory / 'tape.json').write_text(content)
  with pytest.raises(ValueError, match='tape.json: is no tff_bandmf.tape'):
    _open([tape])


def test_one_bad_shard_fails_the_round_and_marks_none(serve):
  tapes = [serve(str(i), i, 2) for i in range(2)]
  served = _open(tapes)
  path = tapes[1].directory / '00000003.noise'
  _wait_until(path.exists)
  content = path.read_bytes()
  path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
  with pytest.raises(tf.errors.InvalidArgumentError, match='damaged'):
    _next(served, 3)
  for tape in tapes:
    assert list(tape.directory.glob('*.reached')) == [
        tape.directory / '00000000.reached']
  assert np.array_equal(_next(served, 0), _expected()[0])
  served.close()


def test_round_waits_for_the_last_shard(serve, monkeypatch):
  tapes = [serve(str(i), i, 2) for i in range(2)]
  served = _open(tapes)
  path = tapes[1].directory / '00000000.noise'
  _wait_until(path.exists)
  away = path.with_name('away')
  path.rename(away)
  threading.Timer(0.3, away.rename, [path]).start()
  assert np.array_equal(_next(served, 0), _expected()[0])
  os.unlink(tapes[0].directory / '00000002.noise')
  monkeypatch.setattr(source_lib, '_TAPE_TIMEOUT_SECONDS', 0.2)
  with pytest.raises(tf.errors.InvalidArgumentError, match='fell behind'):
    _next(served, 2)
  served.close()
