"""The numbers from which a reader's browser recomputes a claim.

The browser recomputes only claims without amplification, for which one run, or
several runs together, are one Gaussian release. For sampled cohorts, the claim
without amplification is for the participation schema that every draw satisfies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

import numpy as np

from tff_bandmf import _files, accounting, strategies
from tff_bandmf.report import claim as claim_lib
from tff_bandmf.report import document
from tff_bandmf.strategies import base

# Values of delta at which a page states epsilon.
DELTAS = (1e-5, 1e-6, 1e-8, 1e-10, 1e-12)
# Largest number of coefficients of C that a page contains.
_MOST = 4096


def numbers(
  runs: Sequence[tuple[str, claim_lib.Claim]],
  alone: int,
  together: Optional[_files.JsonObject],
  public: bool = False,
) -> Optional[_files.JsonObject]:
  """Returns the input of `browser_check.js`.

  The result is None if a run has no noise, or if a claim has no proved epsilon.
  In a composition, a run counts with all its planned rounds.

  Args:
    runs: pairs of a run's name and its claim, at least one; several runs are
      composed.
    alone: number of the first runs whose own claims are recomputed.
    together: epsilon and delta of all runs together; None for one run.
    public: whether epsilon and rho have three digits and are rounded up, and
      the claim of all runs leads.
  """
  guarantees = [
    (name, claim.whole if together else claim.held) for name, claim in runs
  ]
  claims = []
  for place, (name, claim) in enumerate(runs[:alone]):
    epsilon = claim.claimed.proved_epsilon(claim.delta)
    title = name if public else 'this run'
    if guarantees[place][1] is not claim.held:
      place = len(guarantees)
      guarantees.append((f'{name}, the rounds so far', claim.held))
    amplified = epsilon if claim.amplified else None
    claims.append((title, [place], claim.delta, amplified))
  if together:
    title = 'all runs together' if public else 'together with earlier runs'
    chance = any(claim.amplified for _, claim in runs)
    amplified = together['epsilon'] if chance else None
    places = list(range(len(runs)))
    claims.insert(
      0 if public else 1, (title, places, together['delta'], amplified)
    )
  if not all(guarantee.noise_multiplier for _, guarantee in guarantees):
    return None
  rows = []
  for title, places, delta, amplified in claims:
    composed = accounting.compose(guarantees[i][1] for i in places)
    epsilon, rho = composed.epsilon(delta), composed.rho
    if not math.isfinite(epsilon):
      return None
    if public:
      epsilon, rho, amplified = map(document.three, (epsilon, rho, amplified))
    rows.append(
      {
        'name': title,
        'runs': places,
        'delta': delta,
        'epsilon': epsilon,
        'rho': rho,
        'amplified': amplified,
      }
    )
  return {
    'digits': 3 if public else 17,
    'runs': [_run(name, guarantee) for name, guarantee in guarantees],
    'claims': rows,
  }


def _run(name: str, guarantee: accounting.Guarantee) -> document.CheckedRun:
  """Returns the numbers of one run, unrounded."""
  return document.select(
    document.CheckedRun,
    {
      'min_sep': None,
      'max_participations': None,
      **guarantee.to_dict(),
      'name': name,
      'sensitivity_error': guarantee.accountant.error,
      'normalized': guarantee.strategy.structure == base.NORMALIZED_TOEPLITZ,
      'series': _series(guarantee.strategy),
    },
  )


def _series(strategy: strategies.Strategy) -> Optional[_files.JsonObject]:
  """Returns the numbers that define a Toeplitz C.

  The result is None if C is not Toeplitz or has more than `_MOST` numbers.
  """
  series = strategy.series()
  if series is None or any(np.size(value) > _MOST for value in series.values()):
    return None
  return {name: np.asarray(value).tolist() for name, value in series.items()}
