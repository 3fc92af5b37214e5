"""The numbers from which a reader's browser recomputes a claim.

The browser recomputes only claims without amplification, for which one run, or
several runs together, are one Gaussian release. For sampled cohorts, the claim
without amplification is for the participation schema that every draw satisfies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Optional

import numpy as np

from tff_bandmf import _files, accounting, strategies
from tff_bandmf.strategies import base

# Values of delta at which a page states epsilon.
DELTAS = (1e-5, 1e-6, 1e-8, 1e-10, 1e-12)
# Largest number of coefficients of C that a page contains.
_MOST = 4096


def numbers(
  runs: Sequence[tuple[str, accounting.Guarantee]],
  claims: Sequence[tuple[str, Sequence[int], float, Optional[float]]],
  rounded: Optional[Callable[[Optional[float]], Optional[float]]] = None,
) -> Optional[_files.JsonObject]:
  """Returns the input of `browser_check.js`.

  The result is None if a run has no noise, or if a claim has no proved epsilon.

  Args:
    runs: pairs of a run's name and its guarantee without amplification.
    claims: the claims of the page; the first is the claim in its row `epsilon`.
      A claim has a name, the indices of its runs in `runs`, delta, and the
      amplified epsilon, which is None if the claim is not amplified.
    rounded: function that rounds epsilon and rho up. If None, they keep all
      digits.
  """
  if not all(guarantee.noise_multiplier for _, guarantee in runs):
    return None
  rows = []
  for name, positions, delta, amplified in claims:
    together = accounting.compose(runs[i][1] for i in positions)
    epsilon, rho = together.epsilon(delta), together.rho
    if not math.isfinite(epsilon):
      return None
    rows.append(
      {
        'name': name,
        'runs': list(positions),
        'delta': delta,
        'epsilon': rounded(epsilon) if rounded else epsilon,
        'rho': rounded(rho) if rounded else rho,
        'amplified': amplified,
      }
    )
  return {
    'digits': 3 if rounded else 17,
    'runs': [_run(name, guarantee) for name, guarantee in runs],
    'claims': rows,
  }


def _run(name: str, guarantee: accounting.Guarantee) -> _files.JsonObject:
  """Returns the numbers of one run, unrounded."""
  stated = guarantee.to_dict()
  return {
    'name': name,
    **{
      key: stated.get(key)
      for key in (
        'family',
        'rounds',
        'participation',
        'min_sep',
        'max_participations',
        'clients_per_unit',
        'sensitivity',
        'noise_multiplier',
        'z_stddev_per_clip',
      )
    },
    # Bound of the relative error of the sensitivity, from rounding.
    'sensitivity_error': guarantee.accountant.error,
    'normalized': guarantee.strategy.structure == base.NORMALIZED_TOEPLITZ,
    'series': _series(guarantee.strategy),
  }


def _series(strategy: strategies.Strategy) -> Optional[_files.JsonObject]:
  """Returns the numbers that define a Toeplitz C.

  The result is None if C is not Toeplitz or has more than `_MOST` numbers.
  """
  series = strategy.series()
  if series is None or any(np.size(value) > _MOST for value in series.values()):
    return None
  return {name: np.asarray(value).tolist() for name, value in series.items()}
