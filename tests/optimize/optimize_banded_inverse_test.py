"""Tests of the optimiser of banded inverses."""

import numpy as np
import pytest

from tff_bandmf import (
  optimize,
  participation,
  sensitivity,
  strategies,
  workloads,
)
from tff_bandmf.optimize import banded_inverse, solver

pytestmark = pytest.mark.slow

_SCHEMA = participation.MinSep(342, 6)


def _loss(strategy, schema, workload, objective):
  """Returns error by a dense matrix times squared sensitivity."""
  n = strategy.rounds
  decoder = workload.matrix(n) @ np.linalg.inv(strategy.matrix())
  errors = (decoder**2).sum(1)
  error = errors.mean() if objective == 'mean' else errors.max()
  return error * sensitivity.sensitivity(strategy, schema).value ** 2


# Published optimisers reach 137.28, 95.12 and 84.16 with the sensitivity of
# coefficients that fall from the first on.
@pytest.mark.parametrize(
  ('bands', 'published', 'best'),
  [(4, 137.28, 129.727525), (64, 84.16, 84.077943)],
)
def test_optimum_is_below_the_published_one(bands, published, best):
  found = banded_inverse.optimize_banded_inverse(
    solver.Problem(2052, _SCHEMA), bands
  )
  assert found.converged and found.strategy.inverse_bands == bands
  assert found.loss <= best * (1 + 1e-7) < published


def test_two_bands_are_the_swept_dp_cgd():
  best = banded_inverse.optimize_banded_inverse(
    solver.Problem(300, participation.MinSep(60)), 2
  )
  swept = optimize.optimize('dp-cgd', 300, participation.MinSep(60))
  assert best.loss == pytest.approx(swept.loss, rel=1e-8)


def test_one_band_is_the_identity():
  best = banded_inverse.optimize_banded_inverse(
    solver.Problem(30, participation.MinSep(10)), 1
  )
  assert best.converged and best.loss == pytest.approx(15.5 * 3)


@pytest.mark.parametrize(
  ('workload', 'objective'),
  [
    (workloads.PREFIX, 'max'),
    (workloads.Workload(momentum=0.9), 'max'),
    (workloads.Workload(momentum=0.9, warmup=0.1, cooldown=0.3), 'mean'),
    (workloads.Workload(warmup=0.1, cooldown=0.3), 'max'),
  ],
  ids=str,
)
def test_loss_is_the_dense_one_and_below_the_neighbours(workload, objective):
  schema = participation.MinSep(20, 3)
  best = banded_inverse.optimize_banded_inverse(
    solver.Problem(60, schema, workload, objective), 4
  )
  assert best.converged
  assert best.loss == pytest.approx(
    _loss(best.strategy, schema, workload, objective), rel=1e-9
  )
  rng = np.random.default_rng(0)
  # A norm stands for the maximum of errors with learning rates.
  tolerance = 1e-9 if workload.is_toeplitz or objective == 'mean' else 1e-3
  for size in (1e-3, 1e-2):
    for _ in range(5):
      moved = best.strategy.inverse_coefficients.copy()
      moved[1:] += size * rng.normal(size=3)
      loss = _loss(
        strategies.BandedInverse(60, moved), schema, workload, objective
      )
      assert loss >= best.loss * (1 - tolerance)


def test_optimum_at_many_rounds_is_below_the_closed_form():
  schema = participation.MinSep(4_000, 5)
  best = banded_inverse.optimize_banded_inverse(
    solver.Problem(20_000, schema), 8
  )
  root = strategies.BandedInverseSqrt(20_000, 8)
  mean, _ = root.errors()
  value = sensitivity.sensitivity(root, schema).value
  assert best.loss < 0.8 * mean * value**2


def test_search_that_is_interrupted_returns_the_best_so_far():
  losses = []

  def callback(loss):
    losses.append(loss)
    if len(losses) == 3:
      raise KeyboardInterrupt

  best = banded_inverse.optimize_banded_inverse(
    solver.Problem(300, participation.MinSep(60), callback=callback), 4
  )
  assert len(losses) == 3 and not best.converged


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((10, 11, _SCHEMA), 'bands=11: .*rounds=10'),
    ((10, 0, _SCHEMA), 'bands=0: .*least'),
    (
      (10, 2, _SCHEMA, workloads.PREFIX, 'median'),
      'objective=median: .*known',
    ),
    (
      (10_000, 2, _SCHEMA, workloads.Workload(warmup=0.1)),
      'rounds=10000: .*4096',
    ),
  ],
)
def test_bad_input_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    rounds, bands, *others = arguments
    problem = solver.Problem(rounds, *others)
    banded_inverse.optimize_banded_inverse(problem, bands)


def test_more_bands_are_never_worse_with_little_separation():
  losses = [
    banded_inverse.optimize_banded_inverse(
      solver.Problem(20, participation.MinSep(1)), bands
    ).loss
    for bands in (1, 2, 4, 8)
  ]
  for fewer, more in zip(losses, losses[1:]):
    assert more <= fewer * (1 + 1e-12)
