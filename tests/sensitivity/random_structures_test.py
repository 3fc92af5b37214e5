"""Sensitivities of random C under random schemas against all patterns."""

import numpy as np
import pytest
import random_structures

from tff_bandmf import participation, sensitivity
from tff_bandmf.sensitivity import gram, toeplitz, tree

_CLOSE = 1 + 1e-11
_CASES = 150


def _case(rng, name):
  """Returns a random C, a random schema, and the rounds that it allows."""
  min_sep = int(rng.integers(1, 5))
  rounds = int(rng.integers(1, 5 * min_sep + 9))
  bands = int(rng.integers(1, rounds + 1))
  if rng.random() < 0.5:
    # Columns of a client overlap with its next one alone.
    least, most = min(min_sep, rounds), min(2 * min_sep, rounds)
    bands = int(rng.integers(least, most + 1))
  most = int(rng.integers(1, 6)) if rng.random() < 0.5 else None
  if rng.random() < 0.5:
    schema = participation.MinSep(min_sep, most)
    sets = random_structures.separated(rounds, min_sep)
  else:
    schema = participation.FixedEpoch(min_sep, most)
    sets = random_structures.evenly_spaced(rounds, min_sep)
  strategy = random_structures.MATRICES[name](rng, rounds, bands)
  return strategy, schema, sets[sets.sum(1) <= (most or rounds)]


@pytest.mark.parametrize('quick', [True, False])
@pytest.mark.parametrize('name', random_structures.MATRICES)
def test_random_patterns_never_exceed_the_sensitivity(name, quick, monkeypatch):
  # Blocks of X are shorter than C.
  monkeypatch.setattr(gram, '_LEAST_ROWS', 3)
  if not quick:
    # As if rounds were too many for what is exact.
    for module, limit in (
      (toeplitz, '_QUICK_GRAM'),
      (toeplitz, '_QUICK_LAGS'),
      (tree, '_QUICK_LAGS'),
      (tree, '_QUICK_TABLE'),
    ):
      monkeypatch.setattr(module, limit, 1)
  rng = np.random.default_rng([*name.encode(), quick])
  for _ in range(_CASES):
    strategy, schema, sets = _case(rng, name)
    x = random_structures.gram(strategy)
    largest = random_structures.sums(sets, x).max()
    bound = sensitivity.sensitivity(strategy, schema)
    case = strategy, schema, bound, largest
    assert bound.value**2 * _CLOSE >= largest, case
    if bound.method == sensitivity.EXACT:
      assert bound.value**2 <= largest * _CLOSE, case
