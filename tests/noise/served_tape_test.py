"""Tests of what training makes of the folders of noise servers."""

import json
import threading

import numpy as np
import pytest
import tapes

from tff_bandmf import noise, strategies
from tff_bandmf.noise import placements
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import noise_server_tape as served_tape

_ROUNDS = 30
_DIMENSION = 100
_KEY = noise.Key.from_seed(31)
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, 0.8 ** np.arange(9))
_RECURSION = _STRATEGY.recursion()


@pytest.fixture(autouse=True)
def _small_grid(monkeypatch):
  monkeypatch.setattr(stream, '_GRID', 16)


@pytest.fixture
def serve(tmp_path):
  """Starts what a server runs; by default the first of two shards."""
  made = []

  def start(name, index=0, shards=2, **kwargs):
    made.append(
      tapes.make(
        tmp_path / name,
        _STRATEGY,
        resume=True,
        coordinates=stream.shard(_DIMENSION, index, shards),
        **{'key': _KEY, 'dimension': _DIMENSION, **kwargs},
      )
    )
    return made[-1]

  yield start
  for tape in made:
    tape.close()


def _open(
  servers,
  recursion=_RECURSION,
  dimension=_DIMENSION,
  z_steps=tapes.Z_STEPS,
  start_round=0,
):
  return served_tape.ServedTape(
    placements.Served([server.directory for server in servers], start_round),
    recursion,
    z_steps,
    dimension,
  )


def _expected():
  return tapes.expected(_STRATEGY, _DIMENSION, _KEY)


@pytest.mark.slow
@pytest.mark.parametrize('shards', [1, 2, 5])
def test_shards_are_read_as_one_tape(serve, shards):
  servers = [serve(str(i), i, shards) for i in range(shards)]
  # In any order.
  served = _open(servers[::-1])
  assert served.dimension == _DIMENSION
  assert served.tape_id == servers[0].tape_id
  expected = _expected()
  for t in range(_ROUNDS):
    assert np.array_equal(tapes.release(served, t), expected[t])
  served.close()
  served.close()
  for tape in servers:
    # Left to their servers.
    assert (tape.directory / f'{_ROUNDS - 1:08d}.noise').exists()
    tape.close()
    assert not list(tape.directory.glob('*.noise'))


def test_noise_is_that_of_a_tape_of_this_process(serve, tmp_path):
  served = _open([serve('0', 0, 1)])
  own = tapes.make(tmp_path / 'own', _STRATEGY, dimension=_DIMENSION, key=_KEY)
  assert served.dimension == own.dimension
  assert (served.tape_id, served.z_steps) == (own.tape_id, own.z_steps)
  assert np.array_equal(served.recursion.row_norms, own.recursion.row_norms)
  own.close()
  served.close()


def test_one_sum_is_released_by_all_shards(serve):
  servers = [serve(str(i), i, 2) for i in range(2)]
  served = _open(servers)
  total = np.arange(_DIMENSION)
  first = tapes.release(served, 0, total)
  # Of one shard alone the sum differs.
  for changed in (0, _DIMENSION - 1):
    other = total.copy()
    other[changed] += 1
    with tapes.refused('released another sum'):
      tapes.release(served, 0, other)
  assert np.array_equal(tapes.release(served, 0, total), first)
  # A process that was killed between the marks of two shards goes on.
  for path in servers[1].directory.glob('00000000-*.reached'):
    path.unlink()
  with tapes.refused('released another sum'):
    tapes.release(served, 0, total + 1)
  assert np.array_equal(tapes.release(served, 0, total), first)
  served.close()


@pytest.mark.parametrize('start_round', [-1, _ROUNDS + 1])
def test_start_out_of_range_is_refused(serve, start_round):
  said = f'start_round={start_round}: '
  with pytest.raises(ValueError, match=said):
    _open([serve('0', 0, 1)], start_round=start_round)


def test_start_round_moves_the_servers_on(serve):
  servers = [serve(str(i), i, 2, ahead_bytes=1) for i in range(2)]
  served = _open(servers, start_round=17)
  assert np.array_equal(tapes.release(served, 17), _expected()[17])
  with tapes.refused('already used'):
    tapes.release(served, 16)
  # Rounds that were skipped leave no file.
  for tape in servers:
    tapes.wait_until((tape.directory / '00000018.noise').exists)
    tapes.wait_until(
      lambda tape=tape: (
        min(int(path.stem) for path in tape.directory.glob('*.noise')) == 17
      )
    )
  served.close()


def test_rounds_that_were_used_are_not_served_again(serve):
  servers = [serve(str(i), i, 2) for i in range(2)]
  served = _open(servers)
  tapes.release(served, 6)
  served.close()
  with pytest.raises(ValueError, match='start_round=5: .*6'):
    _open(servers, start_round=5)
  _open(servers, start_round=6).close()


def test_key_of_a_run_that_is_over_serves_no_other(serve):
  tape = serve('0', 0, 1)
  served = _open([tape])
  tapes.release(served, _ROUNDS - 1)
  served.close()
  tape.close()
  with pytest.raises(ValueError, match=f'rounds below {_ROUNDS - 1} were used'):
    _open([serve('0', 0, 1)])


def test_second_reader_is_refused(serve):
  servers = [serve(str(i), i, 2) for i in range(2)]
  first = _open(servers)
  with pytest.raises(ValueError, match='noise_server=.*: .*another run'):
    _open(servers)
  tapes.release(first, 0)
  first.close()
  second = _open(servers)
  tapes.release(second, 0)
  second.close()


@pytest.mark.parametrize(
  'name, arguments',
  [
    ('strategy', {'recursion': strategies.Identity(_ROUNDS).recursion()}),
    ('parameters', {'dimension': _DIMENSION - 1}),
    ('z_steps', {'z_steps': np.nextafter(tapes.Z_STEPS, 0)}),
  ],
)
def test_other_noise_than_trained_for_is_refused(serve, name, arguments):
  servers = [serve(str(i), i, 2) for i in range(2)]
  with pytest.raises(ValueError, match=f'^{name}='):
    _open(servers, **arguments)
  # A refusal keeps nobody off.
  _open(servers).close()


@pytest.mark.parametrize('chosen', [[0], [1], [0, 0], [1, 1]])
def test_missing_shards_are_refused(serve, chosen):
  servers = [serve(str(i), i, 2) for i in range(2)]
  with pytest.raises(ValueError, match='noise_server=.*: .*100 coordinates'):
    _open([servers[i] for i in chosen])


def test_shards_that_overlap_are_refused(serve):
  servers = [serve('whole', 0, 1), serve('half', 1, 2)]
  with pytest.raises(ValueError, match='noise_server=.*: .*100 coordinates'):
    _open(servers)


def test_shards_of_two_tapes_are_refused(serve):
  servers = [serve('0', 0, 2), serve('1', 1, 2, key=noise.Key.from_seed(32))]
  with pytest.raises(ValueError, match='noise_server=.*: .*keys'):
    _open(servers)


def test_folder_without_server_is_refused(tmp_path):
  with pytest.raises(ValueError, match='noise_server=.*: .*noise-server'):
    served_tape.ServedTape(
      placements.Served(tmp_path), _RECURSION, tapes.Z_STEPS, _DIMENSION
    )
  assert not list(tmp_path.iterdir())


def test_tape_of_a_training_process_is_not_served(tmp_path):
  own = tapes.make(tmp_path / 'own', _STRATEGY, dimension=_DIMENSION)
  with pytest.raises(ValueError, match='noise_server=.*: .*noise-server'):
    _open([own])
  own.close()


@pytest.mark.parametrize(
  'change',
  [
    {'version': 2},
    {'format': 'other'},
    {'z_steps': '1000.0'},
    {'served': 1},
    {'more': 1},
    {'tape_id': None},
  ],
)
def test_description_of_another_release_is_refused(serve, change):
  tape = serve('0', 0, 1)
  path = tape.directory / 'tape.json'
  content = {**json.loads(path.read_text()), **change}
  path.write_text(
    json.dumps(
      {name: value for name, value in content.items() if value is not None}
    )
  )
  with pytest.raises(ValueError, match='tape.json: .*tff_bandmf.tape'):
    _open([tape])


@pytest.mark.parametrize('content', ['', '[]', '{', '{}', '1', '\x00'])
def test_damaged_description_is_refused(serve, content):
  tape = serve('0', 0, 1)
  (tape.directory / 'tape.json').write_text(content)
  with pytest.raises(ValueError, match='tape.json: .*tff_bandmf.tape'):
    _open([tape])


def test_one_bad_shard_fails_the_round_and_marks_none(serve):
  servers = [serve(str(i), i, 2) for i in range(2)]
  served = _open(servers)
  path = servers[1].directory / '00000003.noise'
  tapes.wait_until(path.exists)
  content = path.read_bytes()
  path.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
  with tapes.refused('damaged'):
    tapes.release(served, 3)
  for tape in servers:
    assert list(tape.directory.glob('*.reached')) == [
      tape.directory / '00000000.reached'
    ]
  assert np.array_equal(tapes.release(served, 0), _expected()[0])
  served.close()


def test_round_waits_for_the_last_shard(serve):
  servers = [serve(str(i), i, 2) for i in range(2)]
  served = _open(servers)
  path = tapes.noise_file(servers[1], 0)
  away = path.with_name('away')
  path.rename(away)
  threading.Timer(0.3, away.rename, [path]).start()
  assert np.array_equal(tapes.release(served, 0), _expected()[0])
  tapes.noise_file(servers[0], 2).unlink()
  with tapes.refused('fell behind'):
    tapes.release(served, 2, timeout=0.2)
  served.close()
