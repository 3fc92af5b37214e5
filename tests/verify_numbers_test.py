"""The numbers of the verifier are those of the library and of brute force."""

import functools
import json
import os

import brute_force
import families
import numpy as np
import pytest

from tff_bandmf import (
  accounting,
  participation,
  sensitivity,
  strategies,
)
from tff_bandmf import verify as verify_lib

_FRESH = bool(os.environ.get('BANDMF_FRESH_CASES'))
_CASES = 1000 if _FRESH else 100
_DELTA = 1e-5


def _rng(name):
  return np.random.default_rng(None if _FRESH else sum(name.encode()))


def _written(strategy, path):
  strategies.save(strategy, path)
  return json.loads(path.read_text())


def _rule(schema, n):
  """Returns gap, most rounds of a client, and whether rounds are gap apart."""
  if isinstance(schema, participation.Single):
    return n, 1, False
  gap = schema.min_sep
  most = min(schema.max_participations or n, -(-n // gap))
  return gap, most, isinstance(schema, participation.FixedEpoch)


def _random_schema(rng, n):
  gap = int(rng.integers(1, n + 1))
  most = int(rng.integers(1, n + 1)) if rng.random() < 0.5 else None
  return [
    participation.Single(),
    participation.FixedEpoch(gap, most),
    participation.MinSep(gap, most),
  ][rng.integers(3)]


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  """Gives rounds and family -> a strategy, and what its file says of it."""
  path = tmp_path_factory.mktemp('strategies') / 'c.json'

  @functools.cache
  def made(n):
    return {
      name: (strategy, _written(strategy, path))
      for name, strategy in families.made(n).items()
    }

  return lambda n, name: made(n)[name]


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(families.made(7)))
def test_100_runs_agree_with_the_library_and_brute_force(name, written):
  """Their sensitivity, and mu that epsilon follows from."""
  rng = _rng(name)
  for _ in range(_CASES):
    n = int(rng.integers(6, 11))
    strategy, content = written(n, name)
    c = verify_lib.matrix(content)
    schema = _random_schema(rng, n)
    rule = _rule(schema, n)
    arity = {'tree': 2, 'online-tree': -2}.get(name)
    lower, upper = verify_lib.sensitivity(c, *rule, arity)
    theirs = sensitivity.sensitivity(strategy, schema)
    assert upper >= brute_force.alike(c, schema) * (1 - 1e-12)
    assert lower <= upper and lower <= theirs.value * (1 + 1e-9)
    # What the library claims is confirmed.
    assert upper <= theirs.value * (1 + 1e-9)
    if theirs.method == 'exact':
      assert upper == pytest.approx(theirs.value, rel=1e-9)
    units, z = int(rng.integers(1, 4)), float(rng.uniform(1.5, 9))
    noise = z / (units * theirs.value)
    guarantee = accounting.Guarantee(
      strategy, schema, noise, clients_per_unit=units
    )
    claim = {
      'clients_per_unit': units,
      'z_stddev_per_clip': z,
    }
    run = verify_lib.mu_of(
      verify_lib.arithmetic(c), theirs.value, rule[1], claim
    )
    assert 1 / run == pytest.approx(guarantee.exact_noise, rel=5e-6)


@pytest.mark.parametrize('arity', [2, 3])
def test_heaviest_pattern_of_a_tree_is_that_of_brute_force(arity):
  for n in range(1, 13):
    c = verify_lib.tree(arity, n)
    for gap in range(1, n + 1):
      for most in {1, 2, -(-n // gap)}:
        if most * gap - gap < n:
          squared = verify_lib.heaviest(arity, n, gap, most)
          worst = brute_force.alike(c, participation.MinSep(gap, most))
          assert squared == pytest.approx(worst**2, rel=1e-9)


@pytest.mark.parametrize('name', sorted(families.made(7)))
def test_c_is_that_of_the_library(name, written):
  strategy, content = written(23, name)
  c = verify_lib.matrix(content)
  np.testing.assert_allclose(c, strategy.matrix(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_toeplitz_c_of_many_rounds_is_cut(tmp_path):
  """Its first rounds are those of any other number of rounds."""
  content = _written(strategies.Lti(10**6, 0.01), tmp_path / 'c.json')
  c = verify_lib.matrix(content)
  assert c.shape == (verify_lib.MOST_ROUNDS,) * 2
  expected = strategies.Lti(20, 0.01).matrix()
  np.testing.assert_allclose(c[:20, :20], expected, rtol=1e-12)


@pytest.mark.parametrize('name', sorted(families.made(7)))
def test_epsilon_agrees_to_the_printed_digit(name, written):
  rng = _rng(name)
  for _ in range(2 if not _FRESH else 100):
    n = int(rng.integers(6, 24))
    strategy, content = written(n, name)
    schema = _random_schema(rng, n)
    units, z = int(rng.integers(1, 4)), float(rng.uniform(1.5, 9))
    theirs = sensitivity.sensitivity(strategy, schema)
    guarantee = accounting.Guarantee(
      strategy,
      schema,
      z / (units * theirs.value),
      clients_per_unit=units,
    )
    c = verify_lib.matrix(content)
    _, most, _ = _rule(schema, n)
    claim = {
      'clients_per_unit': units,
      'z_stddev_per_clip': z,
    }
    run = verify_lib.mu_of(verify_lib.arithmetic(c), theirs.value, most, claim)
    with np.errstate(all='ignore'):
      mine = verify_lib.guarantee((run,), _DELTA)
    claimed = guarantee.proved_epsilon(_DELTA)
    if claimed is None:
      continue
    assert mine == pytest.approx(claimed, rel=2e-5)
    assert mine <= claimed * (1 + verify_lib.CLOSE)


@pytest.mark.parametrize('mu', [0.05, 0.7, 3.0, 30.0])
def test_gaussian_delta_is_rounded_up_by_little(mu):
  from scipy import special

  for epsilon in np.linspace(0.0, mu * mu / 2 + 6 * mu, 13):
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    log_ratio = epsilon + special.log_ndtr(-b) - special.log_ndtr(-a)
    true = special.ndtr(-a) * -np.expm1(log_ratio)
    mine = verify_lib.gaussian_delta(epsilon, mu)
    assert true * (1 - 1e-9) <= mine
    assert mine <= true * (1 + 1e-6) + 3e-12 * special.ndtr(-a)


@pytest.mark.filterwarnings('ignore:.*encountered')
@pytest.mark.parametrize('sigma, q', [(0.6, 0.2), (1.5, 0.05), (4.0, 0.5)])
def test_one_sampled_round_is_its_closed_form_and_not_less(sigma, q):
  from scipy import special

  def true(epsilon):
    # With the client, then without: where the loss exceeds epsilon.
    x = sigma**2 * np.log((np.exp(epsilon) - 1 + q) / q) + 0.5
    first = (1 - q - np.exp(epsilon)) * special.ndtr(-x / sigma)
    first += q * special.ndtr(-(x - 1) / sigma)
    if np.exp(-epsilon) <= 1 - q:
      return first
    x = sigma**2 * np.log((np.exp(-epsilon) - 1 + q) / q) + 0.5
    second = special.ndtr(x / sigma) * (1 - np.exp(epsilon) * (1 - q))
    second -= np.exp(epsilon) * q * special.ndtr((x - 1) / sigma)
    return max(first, second)

  for delta in (1e-3, 1e-8):
    profile = verify_lib.poisson_profile(sigma, q, 1, delta)
    epsilon = verify_lib.smallest(lambda e: profile(e) <= delta)  # noqa: B023
    for e in (0.5 * epsilon, epsilon, 2 * epsilon):
      assert true(e) <= profile(e) * (1 + 1e-9)
    assert true(0.99 * epsilon) >= delta


@pytest.mark.filterwarnings('ignore:.*encountered')
@pytest.mark.parametrize(
  'sigma, q, count, delta',
  [(1.938, 0.0263, 228, 1e-6), (3.0, 0.5, 40, 1e-5), (1.0, 0.01, 500, 1e-8)],
)
@pytest.mark.deep(but=('1.938', '3.0'))
def test_sampled_rounds_are_within_a_hundredth_of_the_library(
  sigma, q, count, delta
):
  claimed = accounting.poisson_epsilon(sigma, q, count, delta)
  profile = verify_lib.poisson_profile(sigma, q, count, delta)
  mine = verify_lib.smallest(lambda e: profile(e) <= delta)
  # The library's is rounded up on another grid.
  assert claimed * 0.999 < mine < claimed * 1.01
