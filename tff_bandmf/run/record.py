"""What the run of a plan says of itself in `run.json`."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Optional, Union

from tff_bandmf import errors, report
from tff_bandmf.noise import key as key_lib
from tff_bandmf.program import plan as plan_lib
from tff_bandmf.program import plan_file, run_record


def named(
  directory: pathlib.Path,
  after: Sequence[Union[str, os.PathLike]],
  plan: plan_lib.Plan,
) -> Optional[list[dict[str, str]]]:
  """Returns how a run names those that it comes after; None without any.

  Args:
    directory: of the run.
    after: folders of the others.
    plan: of the run.

  Raises:
    ValueError: one is not a run, is this one, or has other neighbours.
  """
  found, claim = [], plan.guarantee.to_dict()
  for other in map(pathlib.Path, after):
    if other.resolve() == directory.resolve():
      raise errors.value_error(
        'after', other, 'is the run itself', 'name those before it'
      )
    run = run_record.RunRecord.read(other)
    for name in ('clients_per_unit', 'adjacency'):
      # Before any round: no report could claim anything for both.
      there = run.claim.get(name, claim[name])
      if there != claim[name]:
        raise errors.value_error(
          name,
          claim[name],
          f'is {there} in {other}, which this run comes after',
          'plan runs on the same clients for the same neighbours',
        )
    found.append(
      {'run': os.path.relpath(other, directory), 'run_id': str(run.run_id)}
    )
  return found or None


def of(
  plan: plan_lib.Plan, sampling_key: Optional[key_lib.Key] = None
) -> run_record.RunRecord:
  """Returns what the run of a plan says of itself, before its first round.

  Args:
    plan: of the run.
    sampling_key: that draws the cohorts; None where none does.
  """
  drawn = plan.sampled
  enforced = plan.cohorts.schema if drawn is None else drawn.always
  simulated, setting = None, None
  if plan.simulated is not None and plan.delta is not None:
    epsilon = plan.simulated.epsilon(plan.delta)
    simulated = {
      'clients_per_round': plan.stands_for,
      'noise_multiplier': plan.simulated.noise_multiplier,
      'epsilon': epsilon,
    }
    # PRIVACY: no figure of the larger cohort stands where a claim about this
    # run would. Guard: run_test.test_simulated_run_says_that_it_is_one.
    setting = (
      f'SIMULATED: {plan.clients_per_round} clients a round stand for '
      f'{plan.stands_for}, with the noise of the mean that those would get. '
      f'They would have epsilon={epsilon:.6g}; this run has not, and protects '
      'nobody'
    )
  return run_record.RunRecord.of_plan(
    plan,
    # What was sampled is sampled again with its seed.
    {} if drawn is None else {'bound': plan.bound},
    config=plan_file.request(plan),
    enforced={
      'min_sep': enforced.min_sep,
      'max_participations': enforced.max_participations,
      'by': 'the run: it draws cohorts, or admits clients'
      if drawn is None
      else 'the run: it draws cohorts by a secret key of their own',
    },
    clipped_by='the run',
    noise_key='the operating system',
    setting=setting,
    simulated=simulated,
    versions=report.versions(),
    code_sha256=report.code_digest(),
    sampling_key_id=None
    if sampling_key is None
    else f'{sampling_key.identify(b"sampling"):016x}',
  )
