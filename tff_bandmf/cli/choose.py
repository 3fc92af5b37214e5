"""`bandmf choose`: ranks the mechanisms that fit in memory."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Optional

import click

from tff_bandmf import accounting, choosing, errors, participation, strategies
from tff_bandmf.cli import options, output

# Columns of the table, besides the family.
_COSTS = ('bands', 'buffers', 'parameters', 'memory_copies', 'normals')
_ERRORS = ('z_stddev', 'rmse', 'max_rmse')


def _families(ctx, param, value: Optional[str]) -> tuple[str, ...]:
  """Returns the families of a comma-separated value; all if it is None."""
  if value is None:
    return tuple(strategies.FAMILIES)
  return tuple(
    name
    if pathlib.Path(name).suffix
    else options.FAMILY.convert(name, param, ctx)
    for name in value.split(',')
  )


def _picture(ctx, param, value: Optional[str]) -> Optional[str]:
  """Returns the name of a picture file, after a check that it can be written.

  Raises:
    ImportError: Matplotlib is not installed.
    ValueError: Matplotlib writes no files with this ending.
  """
  del ctx, param
  if value is None:
    return None
  with errors.importing('a plot'):
    from tff_bandmf import _figures

  endings = _figures.Figure().canvas.get_supported_filetypes()
  if pathlib.Path(value).suffix[1:] not in endings:
    raise errors.value_error(
      f'plot={value}: must end in one of .{", .".join(sorted(endings))}; name '
      'it such as errors.png'
    )
  return value


@click.command()
@options.rounds
@options.participation
@options.epsilon
@options.delta
@options.memory_copies('any number')
@options.amplification
@options.workload
@options.objective
@click.option(
  '--families',
  metavar='NAMES',
  callback=_families,
  help='Families and strategy files to compare, separated by commas.  '
  '[default: all families]',
)
@click.option(
  '--plot',
  metavar='FILE',
  callback=_picture,
  help='Also draw the errors, by family and by memory, into FILE, such as '
  'errors.png or errors.svg.',
)
@options.as_json
def choose(rounds, who, epsilon, delta, workload, plot, **flags):
  """Ranks the families that fit in memory by their error at epsilon.

  rmse is the root mean square error, over all rounds, that the noise at
  (epsilon, delta) adds to a coordinate of the model, for clip = 1. With cyclic
  Poisson sampling, --max-participations is the expected number of rounds of a
  client, and only powers of two are compared as numbers of bands. normals is
  the number of normals that the noise draws for a coordinate in a round: more
  than 1 where it keeps no past normals.
  """
  target = choosing.Target(epsilon, delta)
  cohorts = _cohorts(who, rounds)
  with output.progress('comparing families', len(flags['families'])) as step:
    ranking = choosing.choose(
      rounds, cohorts, target, workload=workload, progress=step, **flags
    )
  if plot is not None:
    ranking.plot().savefig(plot)
  output.warn_of_weak(epsilon, delta)
  choices = [_values(choice, workload, target) for choice in ranking.choices]
  left_out, kind = ranking.left_out, who.amplification
  if output.as_json():
    output.show_result(
      {'amplification': kind, 'choices': choices, 'left_out': left_out}
    )
    return
  rows = [
    {
      'family': values['name'],
      **{name: values[name] for name in _COSTS + _ERRORS},
    }
    for values in choices
  ]
  click.echo(output.table(rows))
  if accounting.needed_noise(cohorts, rounds, epsilon, delta):
    click.echo('C is optimised for the noise of sampled cohorts')
  for each in ranking.choices:
    if not each.converged:
      click.echo(f'not converged: {each.name}: a better strategy may exist')
  for family, reason in left_out.items():
    click.echo(f'left out: {family}: {reason}')


def _cohorts(who: options.Participants, rounds: int) -> participation.Cohorts:
  """Returns the cohorts for which families are compared.

  Raises:
    ValueError: families are not compared for the kind of sampling, or a flag is
      missing or does not go with it.
  """
  if who.amplification in (
    options.NO_AMPLIFICATION,
    accounting.BallsInBins.name,
  ):
    return who.cohorts()
  if who.amplification != accounting.CyclicPoisson.name:
    raise errors.value_error(
      f'amplification={who.amplification}: is not compared between families; '
      'use none, cyclic-poisson or balls-in-bins, or bandmf calibrate for one '
      'strategy'
    )
  who.refuse(
    ('min_sep', 'participation', 'apart', 'horizon'),
    'cyclic Poisson sampling, in which the rounds of a client are random',
  )
  if who.max_participations is None:
    raise errors.value_error(
      'max_participations=None: cyclic Poisson sampling needs it; give the '
      'expected number of rounds of a client'
    )
  # On average a client joins k of n rounds if, in each round, k of n clients
  # are expected.
  return accounting.CyclicPoisson(
    population=rounds, clients_per_round=who.max_participations
  )


def _values(choice, workload, target):
  """Returns the values of a choice by name."""
  guarantee = choice.guarantee
  return {
    'name': choice.name,
    **output.describe(
      choice.strategy,
      guarantee.cohorts.schema,
      workload=workload,
      sensitivity=guarantee.sensitivity,
    ),
    'memory_copies': choice.copies,
    'normals': choice.normals,
    'noise_multiplier': guarantee.noise_multiplier,
    'z_stddev': guarantee.z_stddev_per_clip,
    'sampling_prob': getattr(guarantee.cohorts, 'sampling_prob', None),
    **dataclasses.asdict(target),
    'rmse': choice.rmse,
    'max_rmse': choice.max_rmse,
    'converged': choice.converged,
  }
