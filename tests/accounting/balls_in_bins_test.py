"""Tests of amplification by balls-in-bins sampling, and of sampled deltas."""

import dataclasses
import math

import attrs
import numpy as np
import pytest

from tff_bandmf import accounting, participation, sensitivity, strategies
from tff_bandmf.accounting.kinds import balls_in_bins
from tff_bandmf.accounting.methods import importance, monte_carlo

_MATRIX = np.array(
  [
    [1.0, 0, 0, 0, 0],
    [0.6, 1.2, 0, 0, 0],
    [0.3, 0.5, 0.9, 0, 0],
    [0.2, 0.3, 0.5, 1.0, 0],
    [0.0, 0.2, 0.0, 0.4, 0.7],
  ]
)
_SAMPLES = 100_000


def _exact_delta(gram, z_stddev, epsilon, points=91):
  """Returns delta of the mixture of bins, integrated on a grid."""
  # Only inner products matter: means in as many dimensions as there are bins.
  means = np.linalg.cholesky(gram) / z_stddev
  axes = [
    np.linspace(min(0, m.min()) - 7, max(0, m.max()) + 7, points)
    for m in means.T
  ]
  volume = math.prod(axis[1] - axis[0] for axis in axes)
  y = np.stack(np.meshgrid(*axes, indexing='ij'), -1).reshape(-1, len(axes))

  def density(mean):
    return np.exp(-((y - mean) ** 2).sum(-1) / 2) / (2 * math.pi) ** (
      len(axes) / 2
    )

  p = sum(density(mean) for mean in means) / len(means)
  q = density(np.zeros(len(axes)))
  scale = math.exp(epsilon)
  return volume * max(
    np.maximum(p - scale * q, 0).sum(), np.maximum(q - scale * p, 0).sum()
  )


def _spec(noise_multiplier=1.0, bins=3, matrix=_MATRIX, samples=None):
  return accounting.Guarantee(
    strategies.Dense(matrix),
    accounting.BallsInBins(bins),
    noise_multiplier,
    samples=samples or _samples(0),
  )


def _gram(spec):
  return balls_in_bins.bin_gram(spec.strategy, spec.cohorts.bins)


def _samples(seed, count=_SAMPLES, failure_probability=1e-6):
  return accounting.Samples(count, failure_probability, seed)


@pytest.mark.parametrize('bins', [1, 2, 3, 5])
def test_gram_is_that_of_the_bins(bins):
  sums = np.stack([_MATRIX[:, j::bins].sum(1) for j in range(bins)], 1)
  spec = _spec(bins=bins)
  np.testing.assert_allclose(_gram(spec), sums.T @ sums, rtol=1e-14)
  worst = sensitivity.sensitivity(spec.strategy, participation.FixedEpoch(bins))
  assert spec.sensitivity.value == pytest.approx(worst.value, rel=1e-12)
  assert spec.z_stddev_per_clip == (
    spec.noise_multiplier * spec.sensitivity.value
  )


def test_gram_is_added_up_in_blocks(monkeypatch):
  whole = balls_in_bins.bin_gram(strategies.Dense(_MATRIX), 3)
  monkeypatch.setattr(balls_in_bins, '_BLOCK_ENTRIES', 10)
  parts = balls_in_bins.bin_gram(strategies.Dense(_MATRIX), 3)
  np.testing.assert_allclose(parts, whole, rtol=1e-14)


@pytest.mark.parametrize('bins', [2, 3])
@pytest.mark.parametrize(
  ('noise_multiplier', 'epsilon'),
  [(0.4, 4.0), (1.0, 0.5), (1.0, 2.0), (3.0, 0.2), (3.0, 0.0)],
)
def test_bound_covers_the_true_delta(bins, noise_multiplier, epsilon):
  # 1e-6: one false alarm in a million runs, each.
  spec = _spec(noise_multiplier, bins, samples=_samples(1))
  exact = _exact_delta(_gram(spec), spec.z_stddev_per_clip, epsilon)
  found = spec.claim_at(epsilon)
  assert exact * 0.999 <= found.upper <= 1.35 * exact + 3e-4
  assert found.estimate == pytest.approx(exact, rel=0.25, abs=2e-5)
  assert found.total <= accounting.gaussian_delta(noise_multiplier, epsilon)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('noise_multiplier', 'epsilon', 'low_estimates', 'copies'),
  [(0.5, 3.0, 90, None), (1.0, 0.3, 30, None), (1.0, 0.3, 65, 4)],
)
@pytest.mark.deep(but=('65-4',))
def test_bound_fails_as_rarely_as_stated(
  monkeypatch, noise_multiplier, epsilon, low_estimates, copies
):
  """A bound of failure probability 0.2 fails in about 60 of 300 runs at most.

  More than 90 binomial failures have a probability of 1e-5. That the samples
  are few enough for an average alone to fail more often is seen, too.
  """
  spec = _spec(noise_multiplier, 2)
  mixture = spec.accountant.mixture(noise_multiplier)
  exact = _exact_delta(_gram(spec), spec.z_stddev_per_clip, epsilon, points=801)
  if copies:
    tilt = importance.Tilt(copies, copies - 1.0)
    direction = importance.remove(
      mixture, epsilon, tilt, mixture.log_normalizer(tilt)
    )
    monkeypatch.setattr(importance, 'removes', lambda *_: [direction])
  found = [
    monte_carlo.delta_bound(
      mixture, epsilon, monte_carlo.Options(500, 0.2, seed)
    )
    for seed in range(300)
  ]
  assert sum(bound.upper < exact for bound in found) <= 90
  assert sum(bound.estimate < exact for bound in found) > low_estimates


def test_weights_do_not_change_the_mean():
  """The values of any gamma average to one delta, and respect their bound."""
  spec = _spec(0.6, 3)
  mixture = spec.accountant.mixture(0.6)
  exact = _exact_delta(_gram(spec), spec.z_stddev_per_clip, 1.5)
  rng = np.random.default_rng(0)
  directions = importance.removes(mixture, 1.5)
  assert len(directions) >= 3
  for direction in directions:
    x = direction.draw(rng, _SAMPLES)
    assert x.min() >= 0
    assert x.max() <= direction.bound
    # 5 standard deviations: one false alarm in a million.
    assert abs(x.mean() - exact) <= 5 * x.std() / math.sqrt(len(x)) + 1e-6


def test_rough_losses_drop_no_value_above_0():
  """With epsilon = -infinity, or infinity if added, no L is rough."""
  gram = 0.8 * np.eye(40) + 0.1
  mixture = balls_in_bins.BallsInBinsMixture(gram, 1.0)
  tilt = importance.Tilt(3, 2.6)
  drawn = [
    mixture.remove(tilt, epsilon)(np.random.default_rng(1), 5000)
    for epsilon in (0.7, -math.inf)
  ]
  positive = drawn[1][0] > 0.7
  assert 50 < positive.sum() < 4000
  for rough, exact in zip(*drawn):
    np.testing.assert_allclose(rough[positive], exact[positive], rtol=1e-13)
  added = [
    mixture.sample_add(np.random.default_rng(1), 5000, 3.0, epsilon)[0]
    for epsilon in (0.3, -math.inf)
  ]
  positive = added[1] < -0.3
  assert 50 < positive.sum() < 4000
  np.testing.assert_allclose(added[0][positive], added[1][positive], rtol=1e-13)
  for rough, exact in ((drawn[0][0], drawn[1][0]), added):
    # The error is far below the margin that is left for it.
    assert np.abs(rough - exact).max() < balls_in_bins._ROUGH / 1000


def test_added_client_is_sampled_where_it_matters():
  """Far in the tail, where plain samples of Q would all be 0."""
  gram = np.array([[4.0, 3.9], [3.9, 4.0]])
  mixture = balls_in_bins.BallsInBinsMixture(gram, 2.0)
  rng = np.random.default_rng(0)
  direction = importance.add(mixture, 3.0)
  x = direction.draw(rng, _SAMPLES)
  assert x.max() <= direction.bound < 0.1
  # The two bins are nearly one, so delta is nearly that of a Gaussian.
  exact = accounting.gaussian_delta(1.0, 3.0)
  assert x.mean() == pytest.approx(exact, rel=0.1)


def test_one_bin_is_the_run_without_amplification():
  found = _spec(2.0, bins=1, samples=_samples(3)).claim_at(1.0)
  exact = accounting.gaussian_delta(2.0, 1.0)
  assert exact < found.total < 1.01 * exact
  assert found.failure_probability == 0
  sampled = monte_carlo.delta_bound(
    _spec(2.0, bins=1).accountant.mixture(2.0),
    1.0,
    monte_carlo.Options(_SAMPLES, 1e-6, 3),
  )
  assert sampled.estimate == pytest.approx(exact, rel=0.05)
  assert sampled.upper > exact


def test_claim_without_amplification_is_said_in_one_line(capsys):
  """Two bins of nearly equal means: there is little that sampling amplifies."""
  matrix, samples = np.tril(np.ones((40, 40))), _samples(0, 100, 4.9e-6)
  claim = _spec(1.0, bins=2, matrix=matrix, samples=samples).claim(1e-5)
  assert claim.seed is None
  assert claim.epsilon == pytest.approx(
    accounting.gaussian_epsilon(1.0, 1e-5), rel=1e-6
  )
  calibrated = accounting.calibrate(
    strategies.Dense(matrix),
    accounting.BallsInBins(2),
    epsilon=1.0,
    delta=1e-5,
    samples=samples,
  )
  assert calibrated.noise_multiplier == pytest.approx(
    accounting.gaussian_noise_multiplier(1.0, 1e-5), rel=1e-6
  )
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 2
  assert all(line.startswith('samples=100: ') for line in lines)
  # With one bin nothing is amplified, and no line is needed.
  alone = _spec(2.0, bins=1, matrix=matrix, samples=samples)
  assert alone.claim(1e-5).seed is None
  assert not capsys.readouterr().err


def test_total_counts_the_failure_probability():
  spec = _spec(1.0, samples=_samples(4, 10_000, 1e-4))
  found = spec.claim_at(1.0)
  assert found.failure_probability == 1e-4
  assert found.total == found.upper + 1e-4
  bound = _calibrated(1.0, 1e-2, _samples(4, _SAMPLES, 1e-4)).claim(1e-2)
  assert bound.failure_probability == 1e-4
  assert bound.upper + 1e-4 <= 1e-2
  with pytest.raises(ValueError, match='failure_probability=.*delta='):
    _spec(1.0, samples=_samples(4, 10_000, 0.006)).epsilon(1e-2)


def _calibrated(epsilon, delta, samples):
  return accounting.calibrate(
    strategies.Dense(_MATRIX),
    accounting.BallsInBins(3),
    epsilon=epsilon,
    delta=delta,
    samples=samples,
  )


@pytest.mark.slow
@pytest.mark.parametrize('near', [None, 0.02, 50.0])
@pytest.mark.parametrize(('epsilon', 'delta'), [(1.0, 1e-2), (4.0, 1e-3)])
@pytest.mark.deep(but=('1.0-0.01-None', '4.0-0.001-0.02', '1.0-0.01-50.0'))
def test_calibrated_noise_meets_the_true_delta(epsilon, delta, near):
  """Also if the estimate at which the search begins is far off."""
  samples = dataclasses.replace(_samples(5), near=near)
  spec = _calibrated(epsilon, delta, samples)
  assert spec.claim(delta).total <= delta
  assert spec.epsilon(delta) == epsilon
  exact = _exact_delta(_gram(spec), spec.z_stddev_per_clip, epsilon)
  assert 0.5 * delta <= exact <= delta
  assert spec.noise_multiplier < accounting.gaussian_noise_multiplier(
    epsilon, delta
  )
  # Other noise is another claim.
  less = attrs.evolve(spec, noise_multiplier=0.9 * spec.noise_multiplier)
  assert less.epsilon(delta) > epsilon


def test_epsilon_meets_the_true_delta():
  spec = _spec(1.0, samples=_samples(6))
  found = spec.claim(1e-2)
  assert found.total <= 1e-2
  exact = _exact_delta(_gram(spec), spec.z_stddev_per_clip, found.epsilon)
  assert 0.5e-2 <= exact <= 1e-2
  assert found.epsilon < accounting.gaussian_epsilon(1.0, 1e-2)


def test_seed_repeats_the_bound():
  def found(seed):
    return _spec(1.0, samples=_samples(seed, 5000)).claim_at(1.0)

  assert found(7) == found(7) != found(8)
  drawn = found(None)
  assert drawn == found(drawn.seed)
  # A claim of one guarantee is sampled once.
  spec = _spec(1.0, samples=_samples(None, 5000))
  assert spec.claim(1e-2) is spec.claim(1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('epsilon', 'rmse', 'gamma'), [(8, 30.52, 2.6), (2, 49.44, 3.7)]
)
@pytest.mark.deep(but=('2-49',))
def test_published_noise_is_confirmed(epsilon, rmse, gamma):
  """[DPCGD26, Table 4]: 3900 rounds, 10 epochs, delta = 1e-5, BISR, 2 bands.

  The published noise is a little too small; 3% more is enough.
  """
  rounds, bins = 3900, 390
  strategy = strategies.BandedInverseSqrt(rounds, 2)
  gram = balls_in_bins.bin_gram(strategy, bins)
  weights = np.full(rounds, 0.5)
  weights[0] = 1
  mean_error = (rounds - np.arange(rounds)) @ weights**2 / rounds
  for factor, enough in ((0.995, False), (1.03, True)):
    mixture = balls_in_bins.BallsInBinsMixture(
      gram, factor * rmse / math.sqrt(mean_error)
    )
    tilt = importance.Tilt(1, gamma - 1)
    loss, tilted, log_product = mixture.remove(tilt, epsilon)(
      np.random.default_rng(9), 20_000
    )
    weight = np.exp(log_product + loss - tilted)
    x = np.maximum(1 - np.exp(epsilon - loss), 0) * weight
    margin = 5 * x.std() / math.sqrt(len(x))
    assert (x.mean() + margin < 1e-5) if enough else (x.mean() - margin > 1e-5)


def test_negative_entries_are_refused():
  matrix = _MATRIX.copy()
  matrix[3, 1] = -1e-3
  with pytest.raises(ValueError, match='strategy=entry -0.001: .*negative'):
    _spec(matrix=matrix)


def test_more_bins_than_rounds_are_refused():
  with pytest.raises(ValueError, match='bins=6: .*rounds'):
    _spec(bins=6)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ((10, 1.0), 'failure_probability=1.0: .*below'),
    ((10, 0.0), 'failure_probability=0.0: .*positive'),
    ((0, 0.5), 'samples=0: .*least'),
  ],
)
def test_samples_out_of_range_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    accounting.Samples(*options)
