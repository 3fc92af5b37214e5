"""Tests of TFF's aggregation process with a clip that follows a quantile."""

import collections
import functools

import numpy as np
import pytest
import tapes
import tensorflow_federated as tff

import tff_bandmf
from tff_bandmf import accounting, aggregator, noise, participation, strategies
from tff_bandmf.audit import canaries, pattern
from tff_bandmf.noise import placements

_KEY = noise.Key.from_seed(8)
_STRATEGY = strategies.BandedToeplitz(4, [1.0, 0.5])
_TYPE = tff.to_type(
  collections.OrderedDict(a=(np.float32, [3]), b=(np.float32, [2]))
)
_ADAPTIVE = tff_bandmf.AdaptiveClip({'a': 0.3, 'b': 0.4}, rate=1.0, until=3)
_SIZES = (0.1, 0.2, 5.0)


def _factory(placement, noise_multiplier=0.4, **kwargs):
  return aggregator.dp_aggregator(
    noise_multiplier,
    4,
    l2_norm_clip=_ADAPTIVE,
    strategy=_STRATEGY,
    participation=participation.MinSep(2),
    noise=placement,
    **kwargs,
  )


def _update(size):
  return collections.OrderedDict(
    a=np.full(3, size, np.float32), b=np.full(2, -size, np.float32)
  )


def _ran(factory):
  """Returns the outputs of all rounds."""
  outputs = []
  with factory:
    process = factory.create(_TYPE)
    state = process.initialize()
    for _ in range(_STRATEGY.rounds):
      outputs.append(process.next(state, list(map(_update, _SIZES))))
      state = outputs[-1].state
  return outputs


def test_every_place_gives_the_same_noise_and_the_same_clips(runtime, tmp_path):
  factory = _factory(placements.Tape(key=_KEY), measure_clients=True)
  in_state = _ran(factory)
  on_tape = _ran(_factory(placements.Tape(key=_KEY)))
  # A noise server knows of no clip.
  server = tapes.make(
    tmp_path / 'noise',
    _STRATEGY,
    resume=True,
    key=_KEY,
    dimension=6,
    z_steps=factory.lattice.z_steps,
  )
  served = _ran(_factory(placements.Served(str(server.directory))))
  server.close()
  for one, other in zip(in_state * 2, on_tape + served):
    np.testing.assert_array_equal(one.result['a'], other.result['a'])
    assert one.measurements['released'] == other.measurements['released']
    assert one.measurements['free']['z_stddev'] == pytest.approx(
      factory.z_stddev
    )
  assert factory.l2_norm_clip == pytest.approx(0.5 * (1 + 0.14**2) ** 0.5)
  assert list(on_tape[0].measurements) == ['free', 'released']
  path = [one.measurements['released'] for one in in_state]
  clips = [0.5, *(one['l2_norm_clip'] for one in path)]
  for t in range(4):
    moved = np.exp(-(path[t]['fraction'] - 0.5)) if t < 3 else 1.0
    assert clips[t + 1] == pytest.approx(clips[t] * moved, rel=1e-12)
    # What is above the clip of its round was clipped.
    share = clips[t] / 0.5
    above = sum(
      size * 3**0.5 > 0.3 * share or size * 2**0.5 > 0.4 * share
      for size in _SIZES
    )
    counted = in_state[t].measurements['not_private']['clipped_count']
    assert counted == above
  assert len(set(clips)) == 4


def test_run_without_noise_is_the_clipped_mean(runtime):
  """Layers move by one factor."""
  outputs = _ran(_factory(placements.Tape(), 0.0))
  share = 1.0
  for output in outputs[:3]:
    for name, count, clip in (('a', 3, 0.3), ('b', 2, -0.4)):
      sums = sum(
        min(size, abs(clip) * share / count**0.5) * np.sign(clip)
        for size in _SIZES
      )
      np.testing.assert_allclose(output.result[name], sums / 4, rtol=1e-4)
    # Three clients of the four that the fraction is over.
    below = sum(
      size * 3**0.5 < 0.3 * share and size * 2**0.5 < 0.4 * share
      for size in _SIZES
    )
    released = output.measurements['released']
    assert released['fraction'] == 0.5 + (below - 1.5) / 4
    share = released['l2_norm_clip'] / 0.5


def test_audit_follows_the_clip(runtime):
  """Without noise a canary is seen to give the clip of each of its rounds."""

  def make(l2_norm_clip, **kwargs):
    return aggregator.dp_aggregator(
      0.0,
      l2_norm_clip=tff_bandmf.AdaptiveClip(l2_norm_clip, rate=2.0),
      strategy=_STRATEGY,
      participation=participation.MinSep(2),
      **kwargs,
    )

  seen = canaries.released(
    functools.partial(canaries.in_tff, make),
    4,
    pattern.Pattern(np.array([0, 2]), np.array([1.0, -1.0]), 1.0),
    20,
    np.random.default_rng(0),
    lambda: None,
  )
  expected = np.zeros((4, 40))
  expected[0, :20], expected[2, :20] = 1.0, -1.0
  np.testing.assert_allclose(seen, expected, atol=1e-4)


@pytest.mark.parametrize('secure', [False, True])
def test_nothing_leaves_past_the_release(secure):
  with _factory(placements.Tape(key=_KEY), secure_sum=secure) as factory:
    assert aggregator.check_process(factory.create(_TYPE)) == []


def test_claim_is_that_of_a_constant_clip():
  factory = _factory(placements.Tape())
  plain = accounting.Guarantee(_STRATEGY, participation.MinSep(2), 0.4)
  assert factory.guarantee == plain
