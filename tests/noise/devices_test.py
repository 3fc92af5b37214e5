"""Tests of noise that is made on devices, and on several.

TensorFlow splits the CPU into logical devices only before it starts, so what
needs several runs in processes of its own: one a number of devices. The code
that works on devices does not know what they are; no GPU has run it.
"""

import functools
import json
import pathlib
import threading

import numpy as np
import processes
import pytest
import tensorflow as tf

from tff_bandmf import noise, strategies
from tff_bandmf.noise.producer import devices as devices_lib
from tff_bandmf.noise.producer import stream

pytestmark = pytest.mark.slow

_KEY = noise.Key.from_seed(23)
_ROUNDS = 64
_PIECE = 16
_DIMENSION = 112
_STRATEGIES = {
  'banded': strategies.BandedToeplitz(_ROUNDS, 0.8 ** np.arange(40)),
  'normalised': strategies.ColumnNormalized(
    strategies.BandedToeplitz(_ROUNDS, 0.8 ** np.arange(5))
  ),
  'inverse': strategies.BandedInverseSqrt(_ROUNDS, 6),
  'blt': strategies.Blt(_ROUNDS, [0.3, 0.2], [0.95, 0.6]),
  'tree': strategies.OnlineTree(_ROUNDS),
  'identity': strategies.Identity(_ROUNDS),
  'without buffers': strategies.Stamped(_ROUNDS, strategies.OnlineTree(1)),
}
# Their sums are exact, so no device changes a bit.
_EXACT = {'banded', 'normalised', 'tree', 'identity', 'without buffers'}


@functools.cache
def _rows(name, **kwargs):
  made = noise.Stream(
    _STRATEGIES[name].recursion(),
    3000.0,
    _DIMENSION,
    _KEY,
    backend='tensorflow' if 'devices' in kwargs else 'numpy',
    **kwargs,
  )
  return np.stack([y.copy() for y in made.rows() if y is not None])


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
  monkeypatch.setattr(stream, '_GRID', _PIECE)


def _make_on_devices(devices, path):
  """Saves the noise of all strategies, made on so many logical CPUs."""
  stream._GRID = _PIECE
  (cpu,) = tf.config.list_physical_devices('CPU')
  tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(devices)]
  )
  names = tuple(f'CPU:{i}' for i in range(devices))
  used = set()
  advance = devices_lib.Devices._advance_chunk

  def spy(self, i, block):
    with tf.device(self._devices[i % len(self._devices)]):
      used.add(tf.constant(0.0).device)
    return advance(self, i, block)

  devices_lib.Devices._advance_chunk = spy
  np.savez(path, **{name: _rows(name, devices=names) for name in _STRATEGIES})
  pathlib.Path(f'{path}.used').write_text(json.dumps(sorted(used)))


@pytest.fixture(scope='module')
def on_devices(tmp_path_factory):
  """Noise made on 2 and 4 devices, by (number, name)."""
  folder = tmp_path_factory.mktemp('devices')
  made = {}
  for devices in (2, 4):
    path = folder / f'{devices}.npz'
    process = processes.start(_make_on_devices, devices, path)
    process.join(300)
    assert process.exitcode == 0
    used = json.loads(pathlib.Path(f'{path}.used').read_text())
    assert len(used) == devices
    with np.load(path) as found:
      made[devices] = {name: found[name] for name in found.files}
  return made


@pytest.mark.parametrize('name', _STRATEGIES)
def test_any_number_of_devices_gives_the_same_bits(on_devices, name):
  # This process has one device, and no other.
  one = _rows(name, devices=('CPU:0',))
  two, four = (on_devices[devices][name] for devices in (2, 4))
  assert one.shape == (_ROUNDS, _DIMENSION)
  assert np.all(one.std(axis=1) > 900)
  assert np.array_equal(one, two)
  assert np.array_equal(one, four)


@pytest.mark.parametrize('name', _STRATEGIES)
def test_devices_make_the_noise_of_the_host(name):
  host = _rows(name)
  on_device = _rows(name, devices=('CPU:0',))
  if name in _EXACT:
    assert np.array_equal(on_device, host)
  else:
    # A cell that the last bit of a sum decides is one of 10^10.
    assert np.mean(on_device != host) < 1e-3
    assert np.abs(on_device - host).max() <= 1


@pytest.mark.parametrize('name', _STRATEGIES)
def test_shards_of_devices_give_the_same_bits(name):
  whole = _rows(name, devices=('CPU:0',))
  parts = [
    _rows(
      name,
      devices=('CPU:0',),
      coordinates=stream.shard(_DIMENSION, i, 3),
    )
    for i in range(3)
  ]
  assert np.array_equal(np.concatenate(parts, axis=1), whole)


def test_devices_multiply_in_float64(monkeypatch):
  """TensorFloat-32, which GPUs multiply float32 in, has 10 bits."""
  kinds = []
  matmul = tf.matmul

  def spy(a, b):
    kinds.append((a.dtype, b.dtype))
    return matmul(a, b)

  monkeypatch.setattr(tf, 'matmul', spy)
  devices_lib._window.cache_clear()
  devices_lib._buffers.cache_clear()
  for name in _STRATEGIES:
    _rows.__wrapped__(name, devices=('CPU:0',))
  assert set(kinds) == {(tf.float64, tf.float64)}


@pytest.mark.parametrize('backend', ['numpy', 'tensorflow'])
def test_stream_that_is_not_finished_stops_its_threads(backend):
  before = threading.active_count()
  made = noise.Stream(
    _STRATEGIES['banded'].recursion(), 9.0, _DIMENSION, _KEY, backend=backend
  )
  rows = made.rows()
  next(rows)
  threads = threading.active_count()
  assert (threads > before) == (backend == 'tensorflow')
  rows.close()
  assert threading.active_count() == before


def test_device_that_is_not_there_is_refused():
  with pytest.raises(ValueError, match='devices=GPU:7.*use /device:CPU:0'):
    _rows('banded', devices=('CPU:0', 'GPU:7'))


def test_devices_of_two_kinds_are_refused(monkeypatch):
  logical = tf.config.list_logical_devices()
  other = logical[0]._replace(name='/device:GPU:0', device_type='GPU')
  monkeypatch.setattr(
    tf.config, 'list_logical_devices', lambda: [*logical, other]
  )
  with pytest.raises(ValueError, match='several types'):
    _rows('banded', devices=('CPU:0', 'GPU:0'))
