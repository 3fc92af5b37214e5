"""What the run of a plan says of itself in `run.json`."""

from __future__ import annotations

from tff_bandmf import report
from tff_bandmf.program import plan as plan_lib
from tff_bandmf.program import run_record

# At which a plan without one is reported.
_DELTA = 1e-6


def of(plan: plan_lib.Plan) -> run_record.RunRecord:
  """Returns what the run of a plan says of itself, before its first round."""
  return run_record.RunRecord(
    claim={
      **plan.guarantee.to_dict(),
      'delta': plan.delta or _DELTA,
      'l2_norm_clip': plan.clip,
      'clients_per_round': plan.clients_per_round,
    },
    config=plan.request(),
    unit_of_privacy='one client',
    data='not stated',
    released='the model after every round',
    not_covered=[],
    side_releases=[],
    enforced={
      'min_sep': plan.cohorts.schema.min_sep,
      'max_participations': plan.cohorts.schema.max_participations,
      'by': 'the run: it draws cohorts, or admits clients',
    },
    clipped_by='the run',
    noise_key='the operating system',
    versions=report.versions(),
    code_sha256=report.code_digest(),
  )
