"""What a run may claim: planned, checked against what was observed."""

from __future__ import annotations

import math
import pathlib
from typing import Any, Optional

from tff_bandmf import accounting, errors, program, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.report import files


def established(directory: pathlib.Path) -> dict[str, Any]:
  """Returns the numbers of the claim, computed again from the run's files.

  The sensitivity is taken for what was planned and enforced or, where the
  ledger shows more or closer participations than that, for what was observed;
  the noise is what was really added (`z_stddev`), so the claim can only become
  weaker.

  Raises:
    ValueError: a file is missing, damaged or contradicts another.
  """
  run = files.read_run(directory)
  claim = run['claim']
  strategy = strategies.load(directory / files.STRATEGY_FILE)
  planned = participation_lib.from_name(
      claim['participation'], claim['min_sep'], claim['max_participations'])
  spec = accounting.PrivacySpec(strategy, planned, claim['noise_multiplier'])
  # PRIVACY: run.json was written by the run; nothing in it is believed that
  # can be computed. Guard: report_test.test_edited_claim_is_refused.
  if not math.isclose(spec.z_stddev, claim['z_stddev'], rel_tol=1e-9):
    raise ValueError(
        errors.invalid(
            'z_stddev', claim['z_stddev'],
            f'{files.RUN_FILE} contradicts {files.STRATEGY_FILE}, which gives '
            f'{spec.z_stddev}', 'nothing can be claimed for a changed run'))
  with program.Ledger(directory / files.LEDGER_FILE, create=False) as ledger:
    observed = ledger.observed()
  if observed.rounds > strategy.rounds:
    raise ValueError(
        errors.invalid(
            'rounds', observed.rounds,
            f'the ledger has more than the strategy supports, '
            f'{strategy.rounds}', 'nothing can be claimed for such a run'))
  violated = (
      observed.max_participations > planned.participations(strategy.rounds)
      or (observed.min_sep is not None and planned.min_sep is not None
          and observed.min_sep < planned.min_sep))
  if violated:
    spec = _weakened(spec, observed)
  delta = claim['delta']
  mean, largest = strategy.prefix_errors()
  return {
      **spec.to_dict(),
      'z_stddev': claim['z_stddev'],
      'mean_error': mean,
      'max_error': largest,
      'rmse': spec.sensitivity.value * math.sqrt(mean),
      'max_rmse': spec.sensitivity.value * math.sqrt(largest),
      'rho': _finite(spec.rho),
      'epsilon': _finite(spec.epsilon(delta)),
      'delta': delta,
      'l2_norm_clip': claim['l2_norm_clip'],
      'clients_per_round': claim['clients_per_round'],
      'strategy_sha256': strategy.digest(),
      'planned': {
          'rounds': strategy.rounds,
          'min_sep': planned.min_sep,
          'participations': planned.participations(strategy.rounds),
      },
      'observed': {
          'rounds': observed.rounds,
          'rounds_finished': observed.finished,
          'clients': observed.clients,
          'min_cohort': observed.min_cohort,
          'max_cohort': observed.max_cohort,
          'min_sep': observed.min_sep,
          'participations': observed.max_participations,
      },
      'violated': violated,
  }


def _weakened(
    spec: accounting.PrivacySpec, observed: program.Observed
) -> accounting.PrivacySpec:
  """Returns the claim of the same noise under the observed participation."""
  planned = spec.participation
  rounds = spec.strategy.rounds
  separations = [
      b for b in (planned.min_sep, observed.min_sep) if b is not None]
  seen = participation_lib.MinSep(
      min(separations, default=1),
      max(planned.participations(rounds), observed.max_participations))
  worse = accounting.PrivacySpec(spec.strategy, seen, spec.noise_multiplier)
  return accounting.PrivacySpec(
      spec.strategy, seen, spec.z_stddev / worse.sensitivity.value)


def _finite(value: float) -> Optional[float]:
  """Returns the value, or None (JSON null) for infinity: no guarantee."""
  return value if math.isfinite(value) else None
