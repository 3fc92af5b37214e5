"""Tests of what an aggregator takes, and what it refuses."""

import collections
import inspect
import threading

import numpy as np
import pytest
import small_aggregator as small
import tensorflow_federated as tff

from tff_bandmf import aggregator
from tff_bandmf.noise import placements


def _tape_threads():
  return [t for t in threading.enumerate() if t.name == 'tff_bandmf tape']


@pytest.mark.parametrize('option', ['secure_sum', 'measure_clients'])
def test_groups_are_not_hidden_or_measured(option):
  with small.factory_of(**{option: True}) as factory:
    with pytest.raises(ValueError, match=f'{option}=True: is for updates of'):
      factory.create_for_sums(small.TYPE)


def test_noise_is_on_a_tape_unless_the_state_is_asked_for():
  with small.factory_of(noise=None) as factory:
    assert factory.noise == placements.Tape()


def test_spec_is_the_claim():
  with small.factory_of() as factory:
    spec = factory.guarantee
  assert spec.noise_multiplier == small.MULTIPLIER
  assert spec.sensitivity.value == pytest.approx(small.SENSITIVITY)
  assert spec.cohorts == small.PARTICIPATION


def test_leading_arguments_are_those_of_tff():
  theirs = list(inspect.signature(tff.learning.dp_aggregator).parameters)
  ours = inspect.signature(aggregator.dp_aggregator).parameters
  assert [
    name
    for name, each in ours.items()
    if each.kind is each.POSITIONAL_OR_KEYWORD
  ] == theirs[:2]


def test_call_of_tff_names_the_clip():
  with pytest.raises(TypeError, match="'l2_norm_clip'"):
    aggregator.dp_aggregator(1.0, 3)
  # What stands third there is zeroing, not a clip.
  with pytest.raises(TypeError, match='positional'):
    aggregator.dp_aggregator(1.0, 3, True)


@pytest.mark.parametrize(
  'clip',
  [
    None,
    tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
      initial_estimate=1.0, target_quantile=0.5, learning_rate=0.2
    ),
  ],
)
def test_adaptive_clip_is_refused(clip):
  with pytest.raises(
    TypeError, match='l2_norm_clip.*noise of the run; give a norm'
  ):
    small.factory_of(l2_norm_clip=clip)


@pytest.mark.parametrize(
  'kwargs, error, match',
  [
    ({'noise': 'tape'}, TypeError, 'noise=str: is not a placement'),
    ({'noise': small.KEY}, TypeError, 'noise=Key: is not a placement'),
    ({'l2_norm_clip': 0.0}, ValueError, 'l2_norm_clip=0.0'),
    ({'l2_norm_clip': -1.0}, ValueError, 'l2_norm_clip=-1.0'),
    ({'l2_norm_clip': True}, TypeError, 'l2_norm_clip=True'),
    ({'l2_norm_clip': {'kernel': True}}, TypeError, 'l2_norm_clip=True'),
    ({'clients_per_round': 0}, ValueError, 'clients_per_round=0'),
    ({'clients_per_round': True}, TypeError, 'clients_per_round=True'),
    ({'largest_cohort': 0}, ValueError, 'largest_cohort=0'),
    ({'largest_cohort': 4.5}, TypeError, 'largest_cohort=4.5'),
    ({'noise_multiplier': -0.1}, ValueError, 'noise_multiplier=-0.1'),
    ({'noise_multiplier': float('nan')}, ValueError, 'noise_multiplier=nan'),
    ({'noise_multiplier': True}, TypeError, 'noise_multiplier=True'),
    ({'strategy': np.eye(3)}, TypeError, 'strategy'),
    ({'participation': 3}, TypeError, 'participation=3'),
    (
      {'noise': placements.Tape(key=small.KEY, start_round=small.ROUNDS + 1)},
      ValueError,
      'start_round=7',
    ),
    ({'zeroing_norm': 0.0}, ValueError, 'zeroing_norm=0.0'),
    ({'clip': 1.0}, TypeError, 'clip'),
  ],
)
def test_bad_argument_is_refused(kwargs, error, match):
  threads = _tape_threads()
  with pytest.raises(error, match=match):
    small.factory_of(**kwargs)
  assert _tape_threads() == threads


@pytest.mark.parametrize(
  'kwargs, error, match',
  [
    ({'largest_cohort': 2**30}, ValueError, 'largest_cohort'),
    ({'l2_norm_clip': {'kernel': 1.0}}, ValueError, 'outer structure'),
  ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(kwargs, error, match):
  threads = _tape_threads()
  with small.factory_of(**kwargs) as factory:
    with pytest.raises(error, match=match):
      factory.create(small.TYPE)
  assert _tape_threads() == threads


def test_update_of_integers_is_refused_by_name():
  with small.factory_of() as factory:
    with pytest.raises(TypeError, match=r'update\[step\].*int32'):
      factory.create(
        tff.to_type(
          collections.OrderedDict(kernel=(np.float32, [2]), step=np.int32)
        )
      )


def test_producer_of_a_tape_ends_with_the_factory():
  before = _tape_threads()
  with small.factory_of() as factory:
    factory.create(small.TYPE)
    assert len(_tape_threads()) == len(before) + 1
  assert _tape_threads() == before
