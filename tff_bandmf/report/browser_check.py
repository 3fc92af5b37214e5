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
# Name, indices of runs, delta and amplified epsilon of a claim.
_Claim = tuple[str, list[int], float, Optional[float]]


def of_runs(
  runs: Sequence[tuple[str, claim_lib.Claim]],
  alone: int,
  together: Optional[_files.JsonObject],
  public: bool = False,
) -> Optional[_files.JsonObject]:
  """Returns the `numbers` of the claims of a page.

  In a composition, a run counts with all its planned rounds.

  Args:
    runs: pairs of a run's name and its claim, at least one; several runs are
      composed.
    alone: number of runs, from the first on, whose own claims are recomputed.
    together: epsilon and delta of all runs together; None for one run.
    public: whether the page is public; then the claim of all runs comes first.
  """
  guarantees = [
    (name, claim.whole if together else claim.unamplified)
    for name, claim in runs
  ]
  claims: list[_Claim] = []
  for place, (name, claim) in enumerate(runs[:alone]):
    if guarantees[place][1] is not claim.unamplified:
      place = len(guarantees)
      guarantees.append((f'{name}, the rounds so far', claim.unamplified))
    epsilon = claim.claimed.proved_epsilon(claim.delta)
    amplified = epsilon if claim.amplified else None
    title = name if public else 'this run'
    claims.append((title, [place], claim.delta, amplified))
  if together:
    title = 'all runs together' if public else 'together with earlier runs'
    chance = any(claim.amplified for _, claim in runs)
    amplified = together['epsilon'] if chance else None
    whole = (title, list(range(len(runs))), together['delta'], amplified)
    claims.insert(0 if public else 1, whole)
  return numbers(guarantees, claims, public)


def numbers(
  runs: Sequence[tuple[str, accounting.Guarantee]],
  claims: Sequence[_Claim],
  public: bool = False,
) -> Optional[_files.JsonObject]:
  """Returns the input of `browser_check.js`.

  The result is None if a run has no noise, or if a claim has no proved epsilon.

  Args:
    runs: pairs of a run's name and its guarantee without amplification.
    claims: the claims; the first one is in the row `epsilon` of the page. A
      claim has a name, the indices of its runs in `runs`, delta, and the
      amplified epsilon, which is None if the claim is not amplified.
    public: whether epsilon and rho have three digits and are rounded up.
  """
  if not all(guarantee.noise_multiplier for _, guarantee in runs):
    return None
  rows = []
  for name, places, delta, amplified in claims:
    together = accounting.compose(runs[i][1] for i in places)
    epsilon = together.epsilon(delta)
    if not math.isfinite(epsilon):
      return None
    figures = {'epsilon': epsilon, 'rho': together.rho, 'amplified': amplified}
    if public:
      figures = {key: document.three(each) for key, each in figures.items()}
    rows.append({'name': name, 'runs': places, 'delta': delta, **figures})
  return {
    'digits': 3 if public else 17,
    'runs': [_run(name, guarantee) for name, guarantee in runs],
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
