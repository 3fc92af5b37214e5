"""Tests of what an aggregator does to updates and says about them."""

import collections
import contextlib
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import (
  accounting,
  aggregator,
  noise,
  participation,
  strategies,
)
from tff_bandmf.noise import generator, placements

_ROUNDS = 4
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5])
_SENSITIVITY = np.sqrt(2 * (1 + 1 / 4))
_CLIENTS, _CLIP, _MULTIPLIER = 4.0, 2.0, 0.5
_KEY = noise.Key.from_seed(3)
_SPECS = collections.OrderedDict(
  kernel=tf.TensorSpec([3], tf.float32), bias=tf.TensorSpec([2], tf.float32)
)


def _factory(l2_norm_clip=_CLIP, **kwargs):
  return aggregator.dp_aggregator(
    **{
      'noise_multiplier': _MULTIPLIER,
      'clients_per_round': _CLIENTS,
      'l2_norm_clip': l2_norm_clip,
      'strategy': _STRATEGY,
      'participation': participation.MinSep(2),
      'noise': placements.Tape(key=_KEY),
      'largest_cohort': 9,
      **kwargs,
    }
  )


def _process(factory):
  return factory.create(
    tff.types.to_type(
      tf.nest.map_structure(
        lambda spec: tff.TensorType(
          spec.dtype.as_numpy_dtype, spec.shape.as_list()
        ),
        _SPECS,
      )
    )
  )


def _update(kernel, bias):
  return collections.OrderedDict(
    kernel=np.array(kernel, np.float32), bias=np.array(bias, np.float32)
  )


def _flat(update):
  return np.concatenate([update['kernel'], update['bias']])


def _first_noise(z_stddev):
  """Returns y_0 of a sum, kernel before bias."""
  y = z_stddev * generator.Generator(_KEY).rows(0, 1, 0, 5)[0]
  # Leaves come in the order of their names.
  return np.concatenate([y[2:], y[:2]])


_FINE = _update([0.5, -0.5, 0.5], [0.5, 0.0])
_LARGE = _update([30.0, 0.0, 0.0], [0.0, 40.0])
_HUGE = _update([0.0, 0.0, 900.0], [0.0, 0.0])
_BROKEN = _update([0.0, np.nan, 0.0], [1.0, 0.0])


def test_clips_by_layer_bound_the_layers_and_scale_the_noise(runtime):
  clips = {'kernel': 3.0, 'bias': 4.0}
  with _factory(clips) as factory:
    process = _process(factory)
    output = process.next(process.initialize(), [_FINE, _LARGE])
    assert factory.l2_norm_clip == 5.0
    assert factory.guarantee.z_stddev_per_clip == pytest.approx(
      _MULTIPLIER * _SENSITIVITY
    )
  z_stddev = _MULTIPLIER * _SENSITIVITY * 5.0
  assert output.measurements['free']['z_stddev'] == pytest.approx(z_stddev)
  clipped = np.array([3.0, 0.0, 0.0, 0.0, 4.0])
  np.testing.assert_allclose(
    _CLIENTS * _flat(output.result),
    _flat(_FINE) + clipped + _first_noise(z_stddev),
    atol=2e-4,
  )


def test_update_above_the_zeroing_norm_counts_as_zero(runtime):
  with _factory(zeroing_norm=500.0, measure_clients=True) as factory:
    process = _process(factory)
    output = process.next(
      process.initialize(), [_FINE, _LARGE, _HUGE, _BROKEN, _BROKEN, _FINE]
    )
  assert output.measurements['not_private'] == {
    'non_finite_count': 2,
    'zeroed_count': 1,
    'clipped_count': 1,
  }
  z_stddev = _MULTIPLIER * _SENSITIVITY * _CLIP
  np.testing.assert_allclose(
    _CLIENTS * _flat(output.result),
    2 * _flat(_FINE) + _CLIP / 50 * _flat(_LARGE) + _first_noise(z_stddev),
    atol=2e-4,
  )


def test_only_what_is_free_is_measured(runtime):
  """Unless asked for, nothing that is measured depends on updates."""
  measured = []
  for updates in ([_FINE] * 3, [_HUGE, _BROKEN], []):
    with _factory(zeroing_norm=500.0) as factory:
      process = _process(factory)
      measured.append(process.next(process.initialize(), updates).measurements)
  assert list(measured[0]) == ['free']
  assert measured[0]['free']['round'] == 1
  assert measured[0] == measured[1] == measured[2]


def test_tape_says_how_many_rounds_are_ready(runtime, tmp_path):
  with _factory(noise=placements.Tape(tmp_path / 'tape')) as factory:
    process = _process(factory)
    state = process.initialize()
    for t in range(_ROUNDS):
      # The producer is done before long: it makes all rounds of so few.
      deadline = time.monotonic() + 60
      while (
        len(list((tmp_path / 'tape').glob('*.noise'))) < _ROUNDS - t
        and time.monotonic() < deadline
      ):
        time.sleep(0.01)
      output = process.next(state, [_FINE])
      state = output.state
      assert output.measurements['free']['rounds_ahead'] == _ROUNDS - 1 - t


@pytest.mark.parametrize('clients', [0, 1, 9])
@pytest.mark.deep(but=('[0]', '[9]'))
def test_any_number_of_clients_is_divided_by_the_same(runtime, clients):
  with _factory() as factory:
    process = _process(factory)
    result = process.next(process.initialize(), [_FINE] * clients).result
  np.testing.assert_allclose(
    _flat(result),
    (clients * _flat(_FINE) + _first_noise(_MULTIPLIER * _SENSITIVITY * _CLIP))
    / _CLIENTS,
    atol=1e-5,
  )


@contextlib.contextmanager
def _secure_runtime():
  """TFF's test runtime, which can sum securely; its worker is ours to end."""
  context = tff.framework.get_context_stack().current
  before = {child.pid for child in psutil.Process().children()}
  try:
    tff.backends.test.set_sync_test_cpp_execution_context()
    yield
  finally:
    left = [
      child for child in psutil.Process().children() if child.pid not in before
    ]
    # TFF ends its worker with SIGTERM, waits for it, and may wait for ever.
    for child in left:
      child.kill()
    tff.framework.set_default_context(context)
    psutil.wait_procs(left, timeout=60)
  assert not [child for child in left if child.is_running()]


def test_secure_sum_is_the_plain_one_to_the_bit(runtime):
  updates = [_FINE, _LARGE, _BROKEN, _FINE]
  results = []
  with _secure_runtime():
    with _factory(secure_sum=True) as factory:
      process = _process(factory)
      state = process.initialize()
      output = process.next(state, updates)
      results.append(output.result)
      with pytest.raises(Exception, match='largest_cohort=9; give'):
        process.next(state, [_LARGE] * 10)
      # So many as the range was made for, all in one direction.
      process.next(output.state, [_update([2, 0, 0], [0, 0])] * 9)
    bits = factory.lattice.clip_bits
  assert list(output.measurements) == ['free']
  # Finer than here, as many bits would be left without the shift of the sum.
  with _factory() as factory:
    process = _process(factory)
    assert factory.lattice.clip_bits in (bits, bits + 1)
    plain = process.next(process.initialize(), updates).result
  step = _CLIP / 2**bits / _CLIENTS
  np.testing.assert_allclose(
    _flat(results[0]), _flat(plain), rtol=0, atol=10 * step + 1e-6
  )


def test_secure_sum_of_integers_is_exact(runtime):
  """Without noise: what comes out is the sum of the rounded records."""
  updates = [_FINE, _update([1e-7, -0.3, 0.7], [1e-3, -1.1]), _LARGE]
  with (
    _secure_runtime(),
    _factory(secure_sum=True, noise_multiplier=0.0) as factory,
  ):
    process = _process(factory)
    result = process.next(process.initialize(), updates).result
    bits = factory.lattice.clip_bits
  clipped = [x * min(1, _CLIP / np.linalg.norm(x)) for x in map(_flat, updates)]
  step = _CLIP / 2**bits
  expected = sum(np.rint(x / step) for x in clipped) * step / _CLIENTS
  np.testing.assert_allclose(_flat(result), expected, atol=5 * step + 1e-7)


def test_clients_are_not_measured_past_a_secure_sum():
  with pytest.raises(ValueError, match='measure_clients=True'):
    _factory(secure_sum=True, measure_clients=True)


def _estimated():
  return tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
    initial_estimate=1.0,
    target_quantile=0.5,
    learning_rate=1.0,
    secure_estimation=True,
  )


@pytest.mark.parametrize('adaptive', ['l2_norm_clip', 'zeroing_norm'])
def test_adaptive_bounds_are_refused(adaptive):
  with pytest.raises(TypeError, match=f'{adaptive}='):
    _factory(**{adaptive: _estimated()})


def test_sampled_cohorts_are_no_schema():
  with pytest.raises(TypeError, match='participation=.*BallsInBins'):
    _factory(participation=accounting.BallsInBins(4))
