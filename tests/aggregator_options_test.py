"""Tests of what an aggregator does to updates and says about them."""

import collections
import contextlib
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import aggregator, noise, participation, strategies
from tff_bandmf.aggregator import summing

_ROUNDS = 4
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5])
_SENSITIVITY = np.sqrt(2 * (1 + 1 / 4))
_CLIENTS, _CLIP, _MULTIPLIER, _SEED = 4.0, 2.0, 0.5, 3
_SPECS = collections.OrderedDict(
    kernel=tf.TensorSpec([3], tf.float32), bias=tf.TensorSpec([2], tf.float32))


def _factory(l2_norm_clip=_CLIP, specs=_SPECS, **kwargs):
  return aggregator.correlated_noise_aggregator(
      kwargs.pop('noise_multiplier', _MULTIPLIER), _CLIENTS, l2_norm_clip,
      specs, _SEED, strategy=_STRATEGY, participation=participation.MinSep(2),
      **kwargs)


def _process(factory, specs=_SPECS):
  return factory.create(tff.types.to_type(tf.nest.map_structure(
      lambda spec: tff.TensorType(
          spec.dtype.as_numpy_dtype, spec.shape.as_list()), specs)))


def _update(kernel, bias):
  return collections.OrderedDict(
      kernel=np.array(kernel, np.float32), bias=np.array(bias, np.float32))


def _flat(update):
  return np.concatenate([update['kernel'], update['bias']])


def _first_noise(z_stddev):
  """Returns y_0 of a sum, kernel before bias."""
  words = tf.constant(noise.Key.from_seed(_SEED).words())
  y = z_stddev * noise.standard_normal(words, 0, 0, 5).numpy()
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
    assert factory.spec.z_stddev == pytest.approx(_MULTIPLIER * _SENSITIVITY)
  z_stddev = _MULTIPLIER * _SENSITIVITY * 5.0
  assert output.measurements['free']['z_stddev'] == pytest.approx(z_stddev)
  clipped = np.array([3.0, 0.0, 0.0, 0.0, 4.0])
  np.testing.assert_allclose(
      _CLIENTS * _flat(output.result),
      _flat(_FINE) + clipped + _first_noise(z_stddev), atol=2e-5)


def test_update_above_the_zeroing_norm_counts_as_zero(runtime):
  with _factory(zeroing_norm=500.0, measure_clients=True) as factory:
    process = _process(factory)
    output = process.next(
        process.initialize(), [_FINE, _LARGE, _HUGE, _BROKEN, _BROKEN, _FINE])
  assert output.measurements['not_private'] == {
      'non_finite_count': 2, 'zeroed_count': 1, 'clipped_count': 1}
  z_stddev = _MULTIPLIER * _SENSITIVITY * _CLIP
  np.testing.assert_allclose(
      _CLIENTS * _flat(output.result),
      2 * _flat(_FINE) + _CLIP / 50 * _flat(_LARGE) + _first_noise(z_stddev),
      atol=2e-5)


def test_only_what_is_free_is_measured(runtime):
  """Unless asked for, nothing that is measured depends on updates."""
  measured = []
  for updates in ([_FINE] * 3, [_HUGE, _BROKEN], []):
    with _factory(zeroing_norm=500.0) as factory:
      process = _process(factory)
      measured.append(
          process.next(process.initialize(), updates).measurements)
  assert list(measured[0]) == ['free']
  assert measured[0]['free']['round'] == 1
  assert measured[0] == measured[1] == measured[2]


def test_tape_says_how_many_rounds_are_ready(runtime, tmp_path):
  with _factory(
      noise_placement='tape', tape_directory=tmp_path / 'tape') as factory:
    process = _process(factory)
    state = process.initialize()
    for t in range(_ROUNDS):
      # The producer is done before long: it makes all rounds of so few.
      deadline = time.monotonic() + 60
      while len(list((tmp_path / 'tape').glob(
          '*.noise'))) < _ROUNDS - t and time.monotonic() < deadline:
        time.sleep(0.01)
      output = process.next(state, [_FINE])
      state = output.state
      assert output.measurements['free']['rounds_ahead'] == _ROUNDS - 1 - t


@pytest.mark.parametrize('clients', [0, 1, 9])
def test_any_number_of_clients_is_divided_by_the_same(runtime, clients):
  with _factory() as factory:
    process = _process(factory)
    result = process.next(process.initialize(), [_FINE] * clients).result
  np.testing.assert_allclose(
      _flat(result),
      (clients * _flat(_FINE)
       + _first_noise(_MULTIPLIER * _SENSITIVITY * _CLIP)) / _CLIENTS,
      atol=1e-5)


@contextlib.contextmanager
def _secure_runtime():
  """TFF's test runtime, which can sum securely; its worker is ours to end."""
  context = tff.framework.get_context_stack().current
  before = {child.pid for child in psutil.Process().children()}
  try:
    tff.backends.test.set_sync_test_cpp_execution_context()
    yield
  finally:
    left = [child for child in psutil.Process().children()
            if child.pid not in before]
    # TFF ends its worker with SIGTERM, waits for it, and may wait for ever.
    for child in left:
      child.kill()
    tff.framework.set_default_context(context)
    psutil.wait_procs(left, timeout=10)
  assert not [child for child in left if child.is_running()]


def _rounded_up(dimension, step, norm):
  """Returns an update of this norm that rounding to steps makes longer."""
  middle = np.floor(norm / np.sqrt(dimension) / step) + 0.5
  return (np.full(dimension, middle * step)
          * (norm / (np.sqrt(dimension) * middle * step)) + 0.001 * step)


def test_secure_sum_keeps_the_norm(runtime):
  """In one runtime: what is summed, and the norm it has after rounding."""
  bound = 1e4
  step = 2 * bound / (2**32 - 1)
  dimension = 2000
  specs = tf.TensorSpec([dimension], tf.float64)
  coarse = tff.aggregators.SecureSumFactory(bound, -bound)
  added = np.sqrt(dimension) * step / 2
  assert added <= summing.norm_added(coarse, dimension, None) <= 1.01 * added
  # Just above the margin that clipping leaves in any case.
  assert added > 2e-6 * _CLIP
  update = _rounded_up(dimension, step, _CLIP - 1.002 * added)
  norms = {}
  with _secure_runtime():
    for stated in (None, 0.0):
      with _factory(
          specs=specs, record_aggregation_factory=coarse, noise_multiplier=0.0,
          record_norm_added=stated) as factory:
        process = _process(factory, specs)
        state = process.initialize()
        norms[stated] = [
            _CLIENTS * np.linalg.norm(process.next(state, [each]).result)
            for each in (update, update * (1 + 0.9 * added / _CLIP))]
        assert factory.l2_norm_clip == _CLIP
    fine = tff.aggregators.SecureSumFactory(_CLIP, -_CLIP)
    with _factory(record_aggregation_factory=fine) as factory:
      process = _process(factory)
      output = process.next(process.initialize(), [_FINE, _LARGE, _BROKEN])
  assert max(norms[None]) <= _CLIP
  assert max(norms[0.0]) > _CLIP
  np.testing.assert_allclose(
      _CLIENTS * _flat(output.result),
      _flat(_FINE) + _CLIP / 50 * _flat(_LARGE)
      + _first_noise(_MULTIPLIER * _SENSITIVITY * _CLIP), atol=1e-5)
  assert list(output.measurements) == ['free']


def _estimated():
  return tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
      initial_estimate=1.0, target_quantile=0.5, learning_rate=1.0,
      secure_estimation=True)


def test_secure_sum_that_adapts_is_refused():
  with pytest.raises(ValueError, match='SecureSumFactory: .*constant floats'):
    _factory(record_aggregation_factory=tff.aggregators.SecureSumFactory(
        _estimated()))


@pytest.mark.parametrize('bounds', [(2.0, 1.0), (-1.0, -2.0)])
def test_secure_sum_without_zero_is_refused(bounds):
  with pytest.raises(ValueError, match='must hold 0'):
    _factory(
        record_aggregation_factory=tff.aggregators.SecureSumFactory(*bounds))


def test_secure_sum_that_is_too_coarse_is_refused():
  coarse = tff.aggregators.SecureSumFactory(1e12, -1e12)
  with pytest.raises(ValueError, match='l2_norm_clip=2.0: must exceed'):
    _factory(record_aggregation_factory=coarse)


def test_sum_of_unknown_norm_is_refused_until_its_norm_is_stated(runtime):
  unknown = tff.aggregators.zeroing_factory(
      1e3, tff.aggregators.SumFactory())
  with pytest.raises(ValueError, match='norm of a record is not known'):
    _factory(record_aggregation_factory=unknown)
  for stated, error in [(-1.0, ValueError), (np.nan, ValueError),
                        ('none', TypeError)]:
    with pytest.raises(error, match='record_norm_added'):
      _factory(record_aggregation_factory=unknown, record_norm_added=stated)
  for stated in (0.0, 0.25):
    with _factory(
        record_aggregation_factory=unknown, record_norm_added=stated,
        noise_multiplier=0.0) as factory:
      process = _process(factory)
      result = process.next(process.initialize(), [_LARGE]).result
    assert np.linalg.norm(_flat(result)) * _CLIENTS == pytest.approx(
        _CLIP - stated, rel=1e-5)


@pytest.mark.parametrize('summed', [
    tff.aggregators.SecureSumFactory(_CLIP, -_CLIP),
    tff.aggregators.zeroing_factory(1e3, tff.aggregators.SumFactory())])
def test_clients_are_not_measured_past_a_sum_that_hides_them(summed):
  with pytest.raises(ValueError, match='measure_clients=True'):
    _factory(
        record_aggregation_factory=summed, record_norm_added=0.0,
        measure_clients=True)


@pytest.mark.parametrize('adaptive', ['l2_norm_clip', 'zeroing_norm'])
def test_adaptive_bounds_are_refused(adaptive):
  with pytest.raises(TypeError, match=f'{adaptive}=.*one is a release'):
    _factory(**{adaptive: _estimated()})
