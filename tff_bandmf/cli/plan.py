"""`bandmf plan`: makes the plan of a run."""

from __future__ import annotations

import time
from typing import Any

import click

from tff_bandmf import errors, strategies
from tff_bandmf.cli import options, output
from tff_bandmf.plan import mechanism as mechanism_lib
from tff_bandmf.plan import plan as plan_lib


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
@options.l2_norm_clip
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
  who,
  amplification,
  sampling_prob,
  population,
  parameters,
  out,
  as_json,
  **fields,
):
  """Plans a run: mechanism, noise, guarantee, and what they cost.

  Without --mechanism the families that fit in --memory-copies are compared.
  With --amplification cyclic-poisson and --population bands, mechanism and
  sampling probability are chosen together; the other kinds take --min-sep.
  """
  started = time.perf_counter()
  if out is not None:
    output.check_out(out)
  for name, other in (('epsilon', 'delta'), ('delta', 'epsilon')):
    if fields[name] is None and fields[other] is not None:
      raise errors.value_error(
        f'{name}=None: bandmf plan needs it with {other}; give --{name}'
      )
  mechanism: Any = fields.pop('mechanism')
  if mechanism in strategies.FAMILIES:
    mechanism = mechanism_lib.Mechanism(mechanism, **parameters)
  elif parameters:
    name, value = next(iter(parameters.items()))
    raise errors.value_error(
      f'{name}={value}: is of a family, and none is named; give --mechanism '
      'FAMILY'
    )
  planned = plan_lib.Plan(
    cohorts=who.cohorts(amplification, sampling_prob, population=population),
    mechanism=mechanism,
    **fields,
  )
  with output.progress('searching the mechanism') as step:
    planned.search(step)
  if population is not None:
    planned.check_population(population)
  if planned.epsilon is not None and planned.delta is not None:
    output.warn_of_weak(planned.epsilon, planned.delta)
  if out is not None:
    planned.save(out)
  if as_json:
    record = {
      **planned.to_dict(),
      'population': population,
      'seconds': time.perf_counter() - started,
    }
    output.show(record, as_json=True)
  else:
    with output.progress('looking at worse cohorts'):
      text = str(planned)
    click.echo(text)
  return output.DONE
