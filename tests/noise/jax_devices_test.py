"""Tests of noise that JAX makes, on one device and on several.

JAX splits the CPU into devices only before it starts, so that is in a process
of its own. The other tests take the devices that JAX has, of any kind.
"""

import functools
import os
import subprocess
import sys
from unittest import mock

import jax
import numpy as np
import pytest
import tapes

from tff_bandmf import noise, strategies
from tff_bandmf.noise import jax_generator
from tff_bandmf.noise.producer import jax_devices, stream

pytestmark = pytest.mark.slow

_KEY = noise.Key.from_seed(23)
_ROUNDS = 64
_PIECE = 16
# Few shapes, each of which is compiled.
_DIMENSION = 60
_STRATEGIES = {
  'banded': strategies.BandedToeplitz(_ROUNDS, 0.8 ** np.arange(20)),
  'wide': strategies.BandedToeplitz(_ROUNDS, 0.8 ** np.arange(30)),
  'normalised': strategies.ColumnNormalized(
    strategies.BandedToeplitz(_ROUNDS, 0.8 ** np.arange(5))
  ),
  'inverse': strategies.BandedInverseSqrt(_ROUNDS, 5),
  'long inverse': strategies.BandedInverse(_ROUNDS, 0.7 ** np.arange(30)),
  'blt': strategies.Blt(_ROUNDS, [0.3, 0.2], [0.95, 0.6]),
  'tree': strategies.OnlineTree(_ROUNDS),
  'identity': strategies.Identity(_ROUNDS),
}


def _rows(name, dimension=_DIMENSION, **kwargs):
  made = noise.Stream(
    _STRATEGIES[name].recursion(), 3000.0, dimension, _KEY, **kwargs
  )
  return np.stack([y.copy() for y in made.rows() if y is not None])


@functools.cache
def _made(name):
  return _rows(name, backend='jax')


def _small_pieces():
  return (
    mock.patch.object(stream, '_GRID', _PIECE),
    mock.patch.object(jax_devices, '_width', lambda *_: _PIECE),
  )


@pytest.fixture(autouse=True)
def _pieces():
  grid, width = _small_pieces()
  with grid, width:
    yield


def _make_on_devices(path):
  """Saves the noise of strategies, made on all devices."""
  grid, width = _small_pieces()
  # Compiled for every device, and tried in the other process.
  sound = mock.patch.object(jax_devices, 'check')
  with grid, width, sound:
    made = {
      name: _rows(name, backend='jax') for name in ('banded', 'blt', 'inverse')
    }
  np.savez(path, **made)
  print(len(jax.devices()))


def test_any_number_of_devices_gives_the_same_bits(tmp_path):
  path = tmp_path / 'made.npz'
  flag = '--xla_force_host_platform_device_count=4'
  found = subprocess.run(
    [sys.executable, __file__, str(path)],
    env={
      **os.environ,
      'XLA_FLAGS': flag,
      'JAX_PLATFORMS': 'cpu',
      # Another program gives the same bits, too, and is compiled faster.
      'JAX_DISABLE_MOST_OPTIMIZATIONS': '1',
      'PYTHONPATH': os.pathsep.join(sys.path),
    },
    stdout=subprocess.PIPE,
    timeout=300,
    check=True,
  )
  assert int(found.stdout) == 4
  with np.load(path) as on_devices:
    for name in on_devices.files:
      assert np.array_equal(on_devices[name], _made(name)), name


@pytest.mark.parametrize('name', _STRATEGIES)
def test_devices_make_the_noise_of_the_host(name):
  host, on_device = _rows(name), _made(name)
  assert on_device.dtype == np.int32 and on_device.shape == host.shape
  assert host.std(axis=1).min() > 900
  assert np.array_equal(on_device, host)


@pytest.mark.parametrize('name', ['banded', 'blt', 'inverse'])
@pytest.mark.deep(but=('blt',))
def test_shards_and_chunks_give_the_same_bits(monkeypatch, name):
  whole = _made(name)
  monkeypatch.setattr(jax_devices, '_width', lambda *_: 2 * _PIECE)
  parts = [
    _rows(name, backend='jax', coordinates=stream.shard(_DIMENSION, i, 2))
    for i in range(2)
  ]
  assert np.array_equal(np.concatenate(parts, axis=1), whole)


def test_devices_multiply_in_float64(monkeypatch):
  """TensorFloat-32, which GPUs multiply float32 in, has 10 bits."""
  seen = []
  matmul = jax_devices.jnp.matmul

  def spy(a, b, precision):
    seen.append((a.dtype, b.dtype, precision))
    return matmul(a, b, precision=precision)

  monkeypatch.setattr(jax_devices.jnp, 'matmul', spy)
  rows = np.zeros((5, 24), np.int32)
  with jax_generator.precise():
    jax_devices._advanced.lower(
      rows,
      np.ones((5, 24)),
      (np.eye(5), np.eye(5), np.ones(5)),
      np.ones(5),
      0,
      program=(jax_devices._past_y, 5),
      few=2,
    )
  highest = jax.lax.Precision.HIGHEST
  assert set(seen) == {(np.dtype(float), np.dtype(float), highest)}


@pytest.mark.parametrize('wrong', ['product', 'normals', 'NaN'])
def test_device_that_is_not_exact_is_refused(monkeypatch, wrong):
  device = jax.devices()[0]
  if wrong == 'normals':
    monkeypatch.setattr(jax_generator, 'is_exact', lambda _: False)
  elif wrong == 'NaN':
    # As of a compiler that turns "not below" into "at least".
    monkeypatch.setattr(
      jax_devices, '_rounded', lambda v, error: (v, v, abs(v - v) >= 0.5)
    )
  else:
    # As of three products of half the bits each.
    monkeypatch.setattr(
      jax_devices,
      '_product',
      lambda weights, rows: weights @ rows.astype(float) * (1 + 2.0**-40),
    )
  with pytest.raises(RuntimeError, match='does not compute the noise as exact'):
    jax_devices.check.__wrapped__(device)


def test_key_is_in_no_program():
  """Programs may be kept on disk; constants are in them."""
  made = noise.Stream(
    _STRATEGIES['blt'].recursion(), 9.0, _DIMENSION, _KEY, backend='jax'
  )
  with made._maker() as maker:
    (key,) = maker._keys
  with jax_generator.precise():
    program = jax_devices._draw.lower(key, 3, 2, np.ones(4), 16).as_text()
  words = jax_generator.key_words(_KEY)
  for word in (*words, *words.view(np.int32)):
    assert str(word) not in program and f'{word:08X}' not in program.upper()


def test_noise_out_of_range_is_refused():
  for strategy, z_steps in (
    (strategies.Identity(4), 2.0**31),
    (strategies.BandedToeplitz(200, [1.0, 1.2]), 2.0**16),
    (strategies.DpCgd(4, 0.5), 2.0**31),
  ):
    made = noise.Stream(
      strategy.recursion(), z_steps, _DIMENSION, _KEY, backend='jax'
    )
    with pytest.raises(OverflowError, match='left its range'):
      list(made.rows())


def test_programs_of_users_keep_their_32_bits():
  made = noise.Stream(
    _STRATEGIES['blt'].recursion(), 9.0, _DIMENSION, _KEY, backend='jax'
  )
  for _ in made.rows():
    assert jax.numpy.zeros(1).dtype == np.float32
    break


def test_device_that_is_not_there_is_refused():
  device = jax.local_devices()[0]
  name = f'{device.platform}:{device.id}'
  with pytest.raises(ValueError, match=f'devices=abacus:7.*use {name}'):
    _rows('banded', backend='jax', devices=(name, 'abacus:7'))


def test_devices_of_two_kinds_are_refused(monkeypatch):
  other = mock.Mock(platform='abacus', id=0, device_kind='another')
  devices = [*jax.local_devices(), other]
  monkeypatch.setattr(jax, 'local_devices', lambda: devices)
  with pytest.raises(ValueError, match='several kinds'):
    _rows('banded', backend='jax')


def test_tape_goes_on_with_another_backend(tmp_path):
  expected = tapes.expected()
  tape = tapes.make(tmp_path / 'tape', resume=True, backend='jax')
  for t in range(3):
    assert np.array_equal(tapes.release(tape, t), expected[t])
  tape.close()
  tape = tapes.make(tmp_path / 'tape', resume=True)
  assert tape.start_round == 2
  for t in range(2, tapes.ROUNDS):
    assert np.array_equal(tapes.release(tape, t), expected[t])
  tape.close()


if __name__ == '__main__':
  _make_on_devices(sys.argv[1])
