"""Tests of what the arithmetic adds to the claims of runs."""

import dataclasses
import math

import pytest
import scipy.special

from tff_bandmf.accounting import arithmetic, slack

_ndtr = scipy.special.ndtr

_BASE = arithmetic.Arithmetic(
  cells=2**30,
  rho=2.0,
  shift=2.0**-36,
  feedback=100.0,
  rounds=1000,
  dimension=2**20,
)


# lattice width, rho, epsilon, delta: slack_epsilon, two digits.
_NUMBERS = [
  (16, 2, 8, 1e-6, 3.8e-4),
  (16, 2, 8, 1e-12, 4.6e-4),
  (16, 2, 1, 1e-12, 4.2e-4),
  (16, 10, 8, 1e-12, 9.9e-4),
  (17, 2, 8, 1e-6, 7.4e-4),
  (17, 2, 8, 1e-12, 9.0e-4),
  (17, 2, 1, 1e-12, 8.2e-4),
  (17, 10, 8, 1e-12, 2.0e-3),
  (20, 2, 8, 1e-6, 5.8e-3),
  (20, 2, 8, 1e-12, 7.0e-3),
  (20, 2, 1, 1e-12, 6.4e-3),
  (20, 10, 8, 1e-12, 1.6e-2),
]


@pytest.mark.parametrize(('power', 'rho', 'epsilon', 'delta', 'cost'), _NUMBERS)
def test_slack_of_runs(power, rho, epsilon, delta, cost):
  sums = arithmetic.Arithmetic(
    cells=2**33,
    rho=rho,
    cell_width=2.0**-power,
    shift=0.0,
    feedback=100.0,
    rounds=2048,
    dimension=2**22,
  )
  found = slack.slack((sums,), epsilon, delta, largest=0.1)
  assert 0.95 * cost < found.epsilon < 1.02 * cost
  if found.epsilon <= 1.8e-3:
    assert found.delta < 1e-3 * delta


def test_claim_is_tight_where_its_parts_are():
  # Two values; each of the three inequalities of the proof is an equality.
  alpha, beta, epsilon, delta = 0.004, 1e-6, 0.7, 1e-3
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(arithmetic.Arithmetic, 'closeness', lambda *_: alpha)
    patch.setattr(arithmetic.Arithmetic, 'accidents', beta)
    sums = dataclasses.replace(_BASE, cells=1)
    found = slack.slack((sums,), epsilon, delta, largest=0.5)
  guess = 2.0**-6
  weight = 1 + math.exp(epsilon + guess)
  beta = beta + 1e-4 * delta / weight
  ideal_far = 0.1
  far = math.exp(-alpha) * (ideal_far - beta)
  ideal_near = math.exp(epsilon) * ideal_far + found.exact_delta
  near = math.exp(alpha) * ideal_near + beta
  claimed = math.exp(epsilon + found.epsilon) * far + (
    found.exact_delta + found.delta
  )
  assert near <= claimed * (1 + 1e-12)
  # Nothing that it adds is idle.
  assert claimed - near < 1e-3 * beta


def test_accidents_are_part_of_delta():
  sums = dataclasses.replace(_BASE, cells=2**33, rho=1.0)
  # |y| and |m| beyond 12 in 2^33 cells, and a self-test that fails.
  tails = 2 * 2 * 2.0**33 * float(_ndtr(-12.0))
  assert sums.accidents > tails + 1e-24
  assert sums.closeness(sums.accidents) == math.inf
  assert sums.closeness(2 * sums.accidents) < math.inf
  # Their cost is that of every event: e^epsilon.
  assert slack.slack((sums,), 1.0, 1e-16).delta > tails * (1 + math.e)
  with pytest.raises(ValueError, match='proves no epsilon=8 at so small'):
    slack.slack((sums,), 8.0, 1e-19)
  with pytest.raises(ValueError, match='use a larger delta'):
    slack.slack((sums,), 1.0, 1e-21)


@pytest.mark.parametrize(
  'worse',
  [
    {'cells': 2**31},
    {'rho': 3.0},
    {'shift': 2.0**-33},
    {'cell_width': 2.0**-18},
    {'dimension': 10},
    {'feedback': 1e9},
    {'words': arithmetic.Words(spacing=2.0**-48)},
    {'words': arithmetic.Words(extended_spacing=2.0**-100)},
    {'words': arithmetic.Words(unit=2.0**-52)},
  ],
)
def test_slack_grows_with(worse):
  base = slack.slack((_BASE,), 4.0, 1e-8)
  other = dataclasses.replace(_BASE, **worse)
  found = slack.slack((other,), 4.0, 1e-8, largest=0.9)
  assert found.epsilon > base.epsilon
  both = slack.slack((_BASE, other), 4.0, 1e-8, largest=0.9)
  assert both.epsilon == pytest.approx(found.epsilon, rel=1e-9)


def test_slack_grows_with_epsilon_and_falls_with_delta():
  base = slack.slack((_BASE,), 4.0, 1e-8)
  assert slack.slack((_BASE,), 5.0, 1e-8).epsilon > base.epsilon
  smaller = slack.slack((_BASE,), 4.0, 1e-9)
  assert smaller.epsilon > base.epsilon
  assert smaller.exact_delta < base.exact_delta
  moved = slack.slack((_BASE,), 4.0, 1e-8, moved=1e-5)
  assert moved.epsilon > base.epsilon + 2e-5


def test_words_without_extension_prove_nothing():
  words = arithmetic.Words(extended_spacing=2.0**-64)
  bare = dataclasses.replace(_BASE, words=words)
  with pytest.raises(ValueError, match='proves no epsilon'):
    slack.slack((bare,), 4.0, 1e-8, largest=0.9)


def test_large_slack_has_to_be_asked_for():
  wide = dataclasses.replace(_BASE, cell_width=2.0**-26)
  with pytest.raises(ValueError, match='more than 0.01 must be asked for'):
    slack.slack((wide,), 4.0, 1e-8)
  assert slack.slack((wide,), 4.0, 1e-8, largest=0.9).epsilon > 0.01
