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
  ledger shows more or closer participations than that, for what was observed.
  The noise is that of `run.json`, which the ledger's measurement of every round
  must bear out. Files are compared with each other; against someone who edits
  all of them alike there is no defence here.

  Raises:
    ValueError: a file is missing, damaged or contradicts another.
  """
  run = files.read_run(directory)
  claim = run['claim']
  strategy = strategies.load(directory / files.STRATEGY_FILE)
  # Exactly `min_sep` apart is not recorded, so fixed epochs get the bound of
  # all patterns at least as far apart.
  planned = participation_lib.MinSep(
      claim['min_sep'], claim['max_participations'])
  spec = accounting.PrivacySpec(strategy, planned, claim['noise_multiplier'])
  # PRIVACY: the sensitivity is computed again, not read. Guards:
  # report_test.test_edited_claim_is_refused and
  # test_less_noise_measured_than_claimed_is_refused.
  if not math.isclose(
      spec.z_stddev, claim['z_stddev_per_clip'], rel_tol=1e-9):
    raise ValueError(
        errors.invalid(
            'z_stddev_per_clip', claim['z_stddev_per_clip'],
            f'{files.RUN_FILE} contradicts {files.STRATEGY_FILE}, which gives '
            f'{spec.z_stddev}', 'nothing can be claimed for a changed run'))
  with program.Ledger(directory / files.LEDGER_FILE, create=False) as ledger:
    observed = ledger.observed()
  z_stddev = spec.z_stddev * claim['l2_norm_clip']
  _check_ledger(observed, run, strategy, z_stddev)
  if files.read_result(directory) and observed.rounds < strategy.rounds:
    raise ValueError(
        errors.invalid(
            'rounds', observed.rounds,
            f'the run has ended, but its ledger has not all {strategy.rounds} '
            'rounds', 'nothing can be claimed without a whole ledger'))
  violated = (
      observed.max_participations > planned.participations(strategy.rounds)
      or (observed.min_sep is not None
          and observed.min_sep < planned.min_sep))
  if violated:
    spec = _weakened(spec, observed)
  delta = claim['delta']
  mean, largest = strategy.errors()
  return {
      **spec.to_dict(),
      'z_stddev': z_stddev,
      'measured_z_stddev': observed.z_stddev,
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


def _check_ledger(
    observed: program.Observed,
    run: dict[str, Any],
    strategy: strategies.Strategy,
    z_stddev: float,
) -> None:
  """Raises ValueError if the ledger cannot be that of the run."""
  nothing = 'nothing can be claimed for such a run'
  if observed.last_round >= strategy.rounds:
    raise ValueError(
        errors.invalid(
            'rounds', observed.last_round + 1,
            'the ledger goes further than the strategy supports, '
            f'{strategy.rounds}', nothing))
  if observed.last_client >= run['population']:
    raise ValueError(
        errors.invalid(
            'client', observed.last_client,
            f"the ledger has clients beyond the population={run['population']}",
            nothing))
  # The measurement is float32.
  if observed.z_stddev is not None and (
      observed.z_stddev < z_stddev * (1 - 1e-6)):
    raise ValueError(
        errors.invalid(
            'z_stddev', observed.z_stddev,
            f'a round measured less noise than the claim, {z_stddev}', nothing))


def _weakened(
    spec: accounting.PrivacySpec, observed: program.Observed
) -> accounting.PrivacySpec:
  """Returns the claim of the same noise under the observed participation."""
  planned = spec.participation
  rounds = spec.strategy.rounds
  min_sep = planned.min_sep
  if observed.min_sep is not None:
    min_sep = min(min_sep, observed.min_sep)
  seen = participation_lib.MinSep(
      min_sep,
      max(planned.participations(rounds), observed.max_participations))
  worse = accounting.PrivacySpec(spec.strategy, seen, spec.noise_multiplier)
  return accounting.PrivacySpec(
      spec.strategy, seen, spec.z_stddev / worse.sensitivity.value)


def _finite(value: float) -> Optional[float]:
  """Returns the value, or None (JSON null) for infinity: no guarantee."""
  return value if math.isfinite(value) else None
