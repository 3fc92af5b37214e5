"""`bandmf plan`: what a run will do, guarantee and cost."""

from __future__ import annotations

import os
import time

import click

from tff_bandmf import errors, strategies
from tff_bandmf.cli import options, output
from tff_bandmf.program import mechanism as mechanism_lib
from tff_bandmf.program import plan as plan_lib


@click.command()
@click.option(
  '--rounds', required=True, type=options.INTEGER, help='Rounds of the run.'
)
@click.option(
  '--clients-per-round',
  required=True,
  type=options.INTEGER,
  help='Expected clients of a round; its mean divides by this.',
)
@click.option(
  '--largest-cohort',
  type=options.INTEGER,
  help='Most clients of a round.  [default: --clients-per-round; what sampled '
  'cohorts do not exceed]',
)
@click.option(
  '--population', type=options.INTEGER, help='Clients to draw from.'
)
@options.participation
@options.amplification
@options.sampling_prob
@click.option(
  '--mechanism',
  default=mechanism_lib.BEST,
  show_default=True,
  help='A family, a strategy file, a .npy file of C, or the best that fits.',
)
@options.parameters
@click.option(
  '--memory-copies',
  default=8,
  show_default=True,
  type=options.INTEGER_OR_ZERO,
  help='Model copies that the noise may keep.',
)
@click.option('--epsilon', type=options.NUMBER, help='epsilon at delta.')
@click.option('--delta', type=options.NUMBER, help='delta at epsilon.')
@click.option(
  '--noise-multiplier',
  type=options.NUMBER_OR_ZERO,
  help='In place of --epsilon and --delta; 0 claims nothing.',
)
@click.option(
  '--l2-norm-clip',
  required=True,
  type=options.NUMBER,
  help='Largest norm of a clipped update.',
)
@options.adaptive_clip
@options.workload
@options.objective
@options.dimension
@click.option(
  '--clients-per-unit',
  default=1,
  show_default=True,
  type=options.INTEGER,
  help='Clients that a unit of privacy has at most, such as the devices of a '
  'person.',
)
@click.option('--out', type=click.Path(), help='File to write.')
@options.as_json
def plan(
  rounds,
  clients_per_round,
  largest_cohort,
  population,
  participation,
  min_sep,
  max_participations,
  amplification,
  sampling_prob,
  mechanism,
  memory_copies,
  epsilon,
  delta,
  noise_multiplier,
  l2_norm_clip,
  workload,
  objective,
  dimension,
  clients_per_unit,
  out,
  as_json,
  **parameters,
):
  """Plans a run: mechanism, noise, guarantee, and what they cost.

  Without --mechanism the families that fit in --memory-copies are compared.
  With --amplification cyclic-poisson and --population bands, mechanism and
  sampling probability are chosen together; the other kinds take --min-sep.
  """
  started = time.perf_counter()
  if out is not None:
    output.check_out(out)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  l2_norm_clip = options.clip_of(l2_norm_clip, parameters)
  given = {
    name: value for name, value in parameters.items() if value is not None
  }
  chosen = mechanism
  if mechanism in strategies.FAMILIES:
    chosen = mechanism_lib.Mechanism(mechanism, **given)
  elif given:
    name, value = next(iter(given.items()))
    raise errors.value_error(
      name,
      value,
      'is of a family, and none is named',
      'give --mechanism FAMILY',
    )
  found = plan_lib.Plan(
    rounds=rounds,
    clients_per_round=clients_per_round,
    cohorts=options.cohorts(
      amplification=amplification,
      sampling_prob=sampling_prob,
      participation=participation,
      min_sep=min_sep,
      max_participations=max_participations,
      population=population,
    ),
    l2_norm_clip=l2_norm_clip,
    epsilon=epsilon,
    delta=delta,
    noise_multiplier=noise_multiplier,
    mechanism=chosen,
    memory_copies=memory_copies,
    largest_cohort=largest_cohort,
    workload=workload,
    objective=objective,
    dimension=dimension,
    clients_per_unit=clients_per_unit,
  )
  with output.progress('searching the mechanism') as told:
    found.search(told)
  if population is not None:
    found.check_population(population)
  if epsilon is not None and delta is not None:
    output.warn_of_weak(epsilon, delta)
  if out is not None:
    found.save(out)
  if as_json:
    record = {
      **found.to_dict(),
      'population': population,
      'seconds': time.perf_counter() - started,
    }
    output.show(record, as_json)
  else:
    with output.progress('looking at worse cohorts'):
      text = str(found)
    click.echo(text)
  return output.DONE
