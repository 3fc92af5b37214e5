"""Tests of noise that is made on devices, on several, and in shards.

TensorFlow splits the CPU into logical devices only before it starts, so what
needs several runs in processes of its own: one a number of devices. The code
that places work on devices does not know what they are; no GPU has run it.
"""

import json
import multiprocessing
import pathlib
import re
import threading

import numpy as np
import pytest
import tensorflow as tf

from tff_bandmf import noise, strategies
from tff_bandmf.noise import places, stream, tape_folder, tape_reader

_KEY = noise.Key.from_seed(23)
_ROUNDS = 64
_CHUNK = 16
_DIMENSION = 112
_STRATEGIES = {
    'banded': strategies.BandedToeplitz(_ROUNDS, 0.8**np.arange(40)),
    'normalised': strategies.ColumnNormalized(
        strategies.BandedToeplitz(_ROUNDS, 0.8**np.arange(5))),
    'inverse': strategies.BandedInverseSqrt(_ROUNDS, 6),
    'blt': strategies.Blt(_ROUNDS, [0.3, 0.2], [0.95, 0.6]),
    'tree': strategies.OnlineTree(_ROUNDS),
    'identity': strategies.Identity(_ROUNDS),
    'without buffers': strategies.Stamped(_ROUNDS, strategies.OnlineTree(1)),
}
_GENERATORS = (noise.PHILOX, noise.AES_CTR)
# A tree's rows of z, of many numbers, take long to trace on every device.
_ON_DEVICES = [
    *((name, noise.PHILOX) for name in _STRATEGIES if name != 'tree'),
    ('banded', noise.AES_CTR)]
# Import TensorFlow once; it has not started where processes are forked.
_PROCESSES = multiprocessing.get_context('forkserver')
_PROCESSES.set_forkserver_preload(['tff_bandmf.noise'])


def _rows(name, generator=noise.PHILOX, **kwargs):
  made = stream.Stream(
      noise.Plan.of(_STRATEGIES[name]), _DIMENSION, _KEY, generator, **kwargs)
  return np.stack([y.copy() for y in made.rows() if y is not None])


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
  monkeypatch.setattr(stream, '_CHUNK', _CHUNK)


def _make_on_devices(devices, path):
  """Saves the noise of all strategies, made on so many logical CPUs."""
  stream._CHUNK = _CHUNK
  cpu, = tf.config.list_physical_devices('CPU')
  tf.config.set_logical_device_configuration(
      cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(devices)])
  names = [f'CPU:{i}' for i in range(devices)]
  used = set()
  advance = places.Devices._advance_chunk

  def spy(self, i, block):
    with tf.device(self._devices[i % len(self._devices)]):
      used.add(tf.constant(0.0).device)
    return advance(self, i, block)

  places.Devices._advance_chunk = spy
  np.savez(path, used=len(used), **{
      f'{name} {generator}': _rows(name, generator, devices=names)
      for name, generator in _ON_DEVICES})
  pathlib.Path(f'{path}.used').write_text(json.dumps(sorted(used)))


@pytest.fixture(scope='module')
def on_devices(tmp_path_factory):
  """Noise made on 1, 2 and 4 devices, by (number, name and generator)."""
  folder = tmp_path_factory.mktemp('devices')
  made = {}
  for devices in (1, 2, 4):
    path = folder / f'{devices}.npz'
    process = _PROCESSES.Process(
        target=_make_on_devices, args=(devices, path))
    process.start()
    process.join(300)
    assert process.exitcode == 0
    used = json.loads(pathlib.Path(f'{path}.used').read_text())
    assert len(used) == devices
    with np.load(path) as found:
      made[devices] = {name: found[name] for name in found.files}
  return made


@pytest.mark.parametrize('name, generator', _ON_DEVICES)
def test_any_number_of_devices_gives_the_same_bits(on_devices, name, generator):
  one, two, four = (
      on_devices[devices][f'{name} {generator}'] for devices in (1, 2, 4))
  assert one.shape == (_ROUNDS, _DIMENSION) and np.all(one.std(axis=1) > 0.3)
  assert np.array_equal(one, two)
  assert np.array_equal(one, four)
  # This process has one device, and no other.
  assert np.array_equal(one, _rows(name, generator, devices=['CPU:0']))


@pytest.mark.parametrize('generator', _GENERATORS)
@pytest.mark.parametrize('name', _STRATEGIES)
def test_devices_differ_from_the_host_by_rounding_only(name, generator):
  host = _rows(name, generator, devices=())
  assert np.array_equal(host, _rows(name, generator))
  on_device = _rows(name, generator, devices=['CPU:0'])
  # Of the largest y of a round, which all that it is made of are below.
  ulp = np.spacing(np.abs(host).max(axis=1, keepdims=True))
  assert np.max(np.abs(on_device - host) / ulp) <= 8


@pytest.mark.parametrize('devices', [(), ('CPU:0',)])
@pytest.mark.parametrize('shards', [2, 7])
@pytest.mark.parametrize('name', _STRATEGIES)
def test_any_sharding_gives_the_same_bits(name, shards, devices):
  whole = _rows(name, devices=devices)
  parts = [
      _rows(name, devices=devices,
            coordinates=stream.shard(_DIMENSION, i, shards))
      for i in range(shards)]
  assert np.array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize('dimension', [1, 15, 16, 17, 100, 160])
def test_shards_are_all_coordinates_once_in_whole_chunks(dimension):
  chunks = -(-dimension // _CHUNK)
  for shards in range(1, chunks + 1):
    parts = [stream.shard(dimension, i, shards) for i in range(shards)]
    assert [c for part in parts for c in part] == list(range(dimension))
    assert all(part.start % _CHUNK == 0 for part in parts)
    sizes = [-(-len(part) // _CHUNK) for part in parts]
    assert max(sizes) - min(sizes) <= 1
  with pytest.raises(ValueError, match=f'shards={chunks + 1}.*at most'):
    stream.shard(dimension, 0, chunks + 1)


@pytest.mark.parametrize('index, shards', [(-1, 2), (2, 2), (0, 0)])
def test_shard_that_is_none_is_refused(index, shards):
  with pytest.raises(ValueError, match='shards?='):
    stream.shard(_DIMENSION, index, shards)


@pytest.mark.parametrize('coordinates', [
    range(8, 32), range(0, 24), range(0), range(0, 128), range(-16, 16),
    range(0, 32, 2)])
def test_coordinates_off_the_chunks_are_refused(coordinates):
  with pytest.raises(ValueError, match='whole chunks of 16'):
    _rows('banded', coordinates=coordinates)


def _write_shard(folder, index, shards):
  stream._CHUNK = _CHUNK
  tape = noise.Tape(
      folder / str(index), noise.Plan.of(_STRATEGIES['banded']), _DIMENSION,
      _KEY, coordinates=stream.shard(_DIMENSION, index, shards), resume=True)
  while not (folder / 'stop').exists():
    tape._stop.wait(0.02)
  tape.close()


def test_two_processes_give_the_bits_of_one(tmp_path):
  processes = [
      _PROCESSES.Process(target=_write_shard, args=(tmp_path, i, 2))
      for i in range(2)]
  for process in processes:
    process.start()
  expected = _rows('banded')
  try:
    shards = []
    for i in range(2):
      coordinates = stream.shard(_DIMENSION, i, 2)
      shards.append(tape_folder.Shard(
          tmp_path / str(i), coordinates.start, len(coordinates)))
    for shard in shards:
      while not (shard.directory / f'{0:08d}.reached').exists():
        assert all(process.is_alive() for process in processes)
    tape_id = noise.Plan.of(_STRATEGIES['banded']).identify(
        _KEY, _DIMENSION, noise.PHILOX)
    for t in range(_ROUNDS):
      y = tape_reader.read(
          shards, tf.constant(tape_id), tf.constant(t, tf.int64), 60.0)
      assert np.array_equal(y, expected[t])
  finally:
    (tmp_path / 'stop').touch()
    for process in processes:
      process.join(60)
  assert [process.exitcode for process in processes] == [0, 0]


def test_devices_multiply_in_float64(monkeypatch):
  """TensorFloat-32, which GPUs multiply float32 in, has 10 bits."""
  kinds = []
  matmul = tf.matmul

  def spy(a, b):
    kinds.append((a.dtype, b.dtype))
    return matmul(a, b)

  monkeypatch.setattr(tf, 'matmul', spy)
  for name in _STRATEGIES:
    _rows(name, devices=['CPU:0'])
  assert set(kinds) == {(tf.float64, tf.float64)}


@pytest.mark.parametrize('place', [places.Devices, places.Host])
def test_stream_that_is_not_finished_stops_its_threads(place):
  before = threading.active_count()
  devices = ['CPU:0'] if place is places.Devices else ()
  made = stream.Stream(
      noise.Plan.of(_STRATEGIES['banded']), _DIMENSION, _KEY, devices=devices)
  rows = made.rows()
  next(rows)
  threads = threading.active_count()
  assert (threads > before) == bool(devices)
  rows.close()
  assert threading.active_count() == before


def test_device_that_is_not_there_is_refused():
  with pytest.raises(ValueError, match='devices=GPU:7.*use /device:CPU:0'):
    _rows('banded', devices=['CPU:0', 'GPU:7'])


def test_devices_of_two_kinds_are_refused(monkeypatch):
  logical = tf.config.list_logical_devices()
  other = logical[0]._replace(name='/device:GPU:0', device_type='GPU')
  monkeypatch.setattr(
      tf.config, 'list_logical_devices', lambda: [*logical, other])
  with pytest.raises(ValueError, match='several types'):
    _rows('banded', devices=['CPU:0', 'GPU:0'])


def test_host_is_taken_where_there_is_no_gpu():
  made = stream.Stream(noise.Plan.of(_STRATEGIES['blt']), _DIMENSION, _KEY)
  gpus = tf.config.list_logical_devices('GPU')
  assert made.kind == ('GPU' if gpus else 'host')


def test_file_of_another_shard_is_refused(tmp_path):
  tapes = [
      noise.Tape(
          tmp_path / str(i), noise.Plan.of(_STRATEGIES['banded']), 64, _KEY,
          coordinates=stream.shard(64, i, 2))
      for i in range(2)]
  assert tapes[0].tape_id == tapes[1].tape_id
  first, second = (tape.shards[0] for tape in tapes)
  # Both have 32 coordinates: only the header tells them apart.
  swapped = [
      tape_folder.Shard(second.directory, first.first, first.count),
      tape_folder.Shard(first.directory, second.first, second.count)]
  round_index = tf.constant(0, tf.int64)
  tape_id = tf.constant(tapes[0].tape_id)
  with pytest.raises(
      tf.errors.InvalidArgumentError, match=re.escape('another tape, shard')):
    tape_reader.read(swapped, tape_id, round_index, 60.0)
  y = tape_reader.read([first, second], tape_id, round_index, 60.0)
  assert y.shape == [64]
  for tape in tapes:
    tape.close()
