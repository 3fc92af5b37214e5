"""`bandmf observe`: sensitivity and epsilon of a participation log."""

from __future__ import annotations

import pathlib
from typing import Optional

import click

from tff_bandmf import _files, accounting, errors
from tff_bandmf.cli import options, output
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.plan import plan_json
from tff_bandmf.report import participation_log


@click.command()
@click.argument('log', type=click.Path())
@click.argument('file', type=click.Path())
@options.numbers(
  z_stddev='Stddev of z, if FILE is a strategy.  [default: from the plan]'
)
@options.clip
@options.numbers(
  delta='delta of the (epsilon, delta) guarantee.  [default: from the plan]'
)
@options.log_columns
@options.as_json
def observe(log, file, z_stddev, delta, clip, columns):
  """Shows the sensitivity and the epsilon of the rounds in a log.

  LOG is a CSV or Parquet file, or a folder of Parquet files, with the columns
  round and client; each row is one participation. FILE is a plan, a strategy
  file or a .npy file of C. The result is for exactly this log and needs no
  participation schema. The result holds if participation did not depend on
  private data.
  """
  participations = participation_log.ParticipationLog(log, **columns)
  plan = _plan(file)
  if plan is None:
    strategy, costs = output.load(file)[0], None
  else:
    if z_stddev is not None:
      raise errors.value_error(
        f'z_stddev={z_stddev}: the plan gives it; leave it out'
      )
    strategy, costs = plan.strategy, plan.schema.costs
    delta = plan.delta if delta is None else delta
    sampled = plan.sampled is not None and plan.sampled.population is None
    if plan.largest_cohort or not sampled:
      participations.check_sizes(plan.most_clients)
  observed = participations.observed(strategy, costs)
  assert observed.sensitivity is not None
  guarantee = None
  if plan is not None and plan.guarantee.noise_multiplier:
    guarantee = plan.guarantee.for_observed(observed)
  elif z_stddev is not None:
    guarantee = accounting.Guarantee(
      strategy,
      accounting.Logged(observed),
      z_stddev / clip / observed.sensitivity.value,
    )
  if guarantee is not None and delta is None:
    raise errors.value_error('delta=None: epsilon needs a delta; give --delta')
  planned = {}
  if plan is not None:
    planned = {
      'planned_sensitivity': plan.guarantee.sensitivity.value,
      'planned_epsilon': plan.guarantee.proved_epsilon(delta),
      'keeps_min_sep': observed.satisfies(plan.schema, plan.rounds),
    }
  sensitivity = guarantee.sensitivity if guarantee else observed.sensitivity
  values = {
    'clients': observed.clients,
    'participations': observed.participations,
    'rounds': strategy.rounds,
    'min_sep': observed.min_sep,
    'max_participations': observed.max_participations,
    'histogram': {str(k): count for k, count in observed.histogram.items()},
    'sensitivity': sensitivity.value,
    'sensitivity_method': observed.sensitivity.method,
    'noise_multiplier': guarantee and guarantee.noise_multiplier,
    'rho': guarantee and guarantee.rho,
    'epsilon': guarantee and guarantee.proved_epsilon(delta),
    'delta': delta,
    **planned,
  }
  output.warn(participations.alike)
  if guarantee is not None:
    output.warn_of_weak(values['epsilon'], delta)
  output.show_result(values)


def _plan(file: str) -> Optional[plan_lib.Plan]:
  """Returns the plan of a file; None if the file is not a plan."""
  path = pathlib.Path(file)
  if path.suffix != '.json' or not path.is_file():
    return None
  content = _files.read_json(path)
  if not isinstance(content, dict) or content.get('format') != plan_json.FORMAT:
    return None
  return plan_lib.Plan.load(path)
