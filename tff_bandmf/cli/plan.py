"""`bandmf plan`: what a run will do, guarantee and cost."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Optional, Union

import click

from tff_bandmf import clips, errors, strategies, workloads
from tff_bandmf.cli import options, output
from tff_bandmf.program import mechanism as mechanism_lib
from tff_bandmf.program import plan as plan_lib


@dataclasses.dataclass(frozen=True)
class _Flags:
  rounds: int
  clients_per_round: int
  largest_cohort: Optional[int]
  population: Optional[int]
  who: options.Participants
  amplification: str
  sampling_prob: Optional[float]
  mechanism: str
  parameters: dict[str, Any]
  memory_copies: int
  epsilon: Optional[float]
  delta: Optional[float]
  noise_multiplier: Optional[float]
  l2_norm_clip: Union[float, clips.AdaptiveClip]
  workload: workloads.Workload
  objective: str
  dimension: Optional[int]
  clients_per_unit: int
  out: Optional[str]
  as_json: bool


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
def plan(**values):
  """Plans a run: mechanism, noise, guarantee, and what they cost.

  Without --mechanism the families that fit in --memory-copies are compared.
  With --amplification cyclic-poisson and --population bands, mechanism and
  sampling probability are chosen together; the other kinds take --min-sep.
  """
  started = time.perf_counter()
  flags = _Flags(**values)
  if flags.out is not None:
    output.check_out(flags.out)
  mechanism: Any = flags.mechanism
  if mechanism in strategies.FAMILIES:
    mechanism = mechanism_lib.Mechanism(mechanism, **flags.parameters)
  elif flags.parameters:
    name, value = next(iter(flags.parameters.items()))
    raise errors.value_error(
      name,
      value,
      'is of a family, and none is named',
      'give --mechanism FAMILY',
    )
  found = plan_lib.Plan(
    rounds=flags.rounds,
    clients_per_round=flags.clients_per_round,
    cohorts=flags.who.cohorts(
      flags.amplification, flags.sampling_prob, population=flags.population
    ),
    l2_norm_clip=flags.l2_norm_clip,
    epsilon=flags.epsilon,
    delta=flags.delta,
    noise_multiplier=flags.noise_multiplier,
    mechanism=mechanism,
    memory_copies=flags.memory_copies,
    largest_cohort=flags.largest_cohort,
    workload=flags.workload,
    objective=flags.objective,
    dimension=flags.dimension,
    clients_per_unit=flags.clients_per_unit,
  )
  with output.progress('searching the mechanism') as told:
    found.search(told)
  if flags.population is not None:
    found.check_population(flags.population)
  if flags.epsilon is not None and flags.delta is not None:
    output.warn_of_weak(flags.epsilon, flags.delta)
  if flags.out is not None:
    found.save(flags.out)
  if flags.as_json:
    record = {
      **found.to_dict(),
      'population': flags.population,
      'seconds': time.perf_counter() - started,
    }
    output.show(record, as_json=True)
  else:
    with output.progress('looking at worse cohorts'):
      text = str(found)
    click.echo(text)
  return output.DONE
