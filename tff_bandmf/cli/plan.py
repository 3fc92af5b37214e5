"""`bandmf plan`: makes the plan of a run."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Optional

import attrs
import click
import numpy as np

from tff_bandmf import errors, participation, sensitivity, strategies
from tff_bandmf.cli import options, output
from tff_bandmf.plan import mechanism as mechanism_lib
from tff_bandmf.plan import plan as plan_lib

# Maps an argument of a plan to the flags that give it. Each other argument has
# one flag, of the same name.
_FLAGS = {
  **options.COMBINED,
  'cohorts': (*options.COMBINED['who'], 'amplification', 'sampling_prob'),
  'mechanism': ('mechanism', *options.COMBINED['parameters']),
}


def _read(ctx: click.Context, param: click.Parameter, path: Optional[str]):
  """Returns the plan of a file, whose values replace missing flags."""
  if path is None:
    return None
  is_json = pathlib.Path(path).suffix == '.json'
  load = plan_lib.Plan.load if is_json else plan_lib.Plan.from_toml
  planned = load(path)
  # Without these values, required flags would be missing.
  ctx.default_map = {
    'rounds': planned.rounds,
    'clients_per_round': planned.clients_per_round,
    'l2_norm_clip': 1.0,
  }
  return planned


@click.command()
@click.option(
  '--from',
  'source',
  type=click.Path(),
  is_eager=True,
  callback=_read,
  help='File with the arguments of the plan, in TOML, or plan.json. A flag '
  'replaces the value of the file.',
)
@options.switch(
  '--print-toml',
  'Print the arguments of the plan for --from, and search nothing.',
)
@options.rounds
@options.integer(
  '--clients-per-round',
  'Expected number of clients of a round; the sum of a round is divided by it.',
  required=True,
)
@options.integer(
  '--largest-cohort',
  'Largest number of clients of a round.  [default: --clients-per-round; '
  'for sampled cohorts, a size that a run exceeds with probability 1e-40]',
)
@options.integer(
  '--population', 'Number of clients from which cohorts are drawn.'
)
@options.participation
@options.amplification
@options.sampling_prob
@click.option(
  '--mechanism',
  default=mechanism_lib.BEST,
  help='A family, a strategy file, a .npy file of C, or best: the family with '
  'the least error that fits in --memory-copies.',
)
@options.parameters
@options.memory_copies(
  '8 where families or numbers of bands are compared, else no limit'
)
@options.number(
  '--epsilon', 'epsilon of the (epsilon, delta) guarantee of the whole run.'
)
@options.number(
  '--delta', 'delta of the (epsilon, delta) guarantee of the whole run.'
)
@click.option(
  '--noise-multiplier',
  type=options.NUMBER_OR_ZERO,
  help='Standard deviation of z divided by clip * sensitivity, instead of '
  '--epsilon; --delta then asks for its epsilon. With 0, the plan claims '
  'nothing.',
)
@options.l2_norm_clip
@options.number(
  '--zeroing-norm',
  'Largest absolute value of the coordinates of an update; an update '
  'beyond it becomes zero.',
)
@options.workload
@options.objective
@options.integer(
  '--dimension',
  'Number of parameters of the model, to compare noise and updates.',
)
@options.integer(
  '--clients-per-unit',
  'Largest number of clients that belong to one unit of privacy, such as '
  'the devices of a person.',
  default=1,
)
@options.integer(
  '--stands-for',
  'Number of clients in a round of a larger run that this run simulates; '
  '--epsilon and --delta are then the claim of the larger run.',
)
@options.path(
  '--arrivals',
  'Log of check-ins, CSV or Parquet with the columns round and client, on '
  'which admission by --min-sep and by budget are compared.',
)
@options.log_columns
@options.path('--out', 'File to write.')
@options.as_json
def plan(
  source,
  who,
  amplification,
  sampling_prob,
  population,
  parameters,
  columns,
  out,
  **fields,
):
  """Plans a run: its mechanism, noise, guarantee and error.

  Without --mechanism, the families that fit in --memory-copies are compared.
  With --amplification cyclic-poisson and --population, the bands, the mechanism
  and the sampling probability are chosen together. The other kinds of
  amplification need --min-sep.
  """
  if out is not None:
    output.check_out(out)
  arrivals, print_toml = fields.pop('arrivals'), fields.pop('print_toml')
  fields['mechanism'] = _mechanism(fields['mechanism'], parameters)
  if source is not None:
    fields = {name: fields[name] for name in fields if _is_given(name)}
  if source is None or _is_given('cohorts'):
    fields['cohorts'] = who.cohorts(
      amplification, sampling_prob, population=population
    )
  planned = (
    plan_lib.Plan(**fields)
    if source is None
    else attrs.evolve(source, **fields)
  )
  if print_toml:
    click.echo(planned.to_toml())
    return
  if arrivals is not None:
    _check_rule(planned, arrivals)
  if population is not None:
    planned.check_population(population, 'population')
  with output.progress('searching the mechanism') as step:
    planned.search(step)
  if population is not None:
    # The first check did not know the costs of a `Budget`, which follow from C.
    planned.check_population(population, 'population')
  if planned.epsilon is not None and planned.delta is not None:
    output.warn_of_weak(planned.epsilon, planned.delta)
  compared = {}
  if arrivals is not None:
    compared['arrivals'] = _compared(planned, arrivals, columns)
  if out is not None:
    planned.save(out)
  if output.as_json():
    output.show_result(
      {**planned.to_dict(), 'population': population, **compared}
    )
  else:
    with output.progress('looking at worse cohorts'):
      text = str(planned)
    click.echo(text)
    if planned.result.for_sampling:
      click.echo('C is optimised for the noise of sampled cohorts')
    for name, counts in compared.get('arrivals', {}).items():
      click.echo(
        f'arrivals by {name}: {counts["clients"]} clients took part '
        f'{counts["participations"]} times; {counts["short"]} of '
        f'{counts["rounds"]} cohorts could not be filled; '
        f'{counts["turned_away"]} check-ins were turned away'
      )


def _is_given(name: str) -> bool:
  """Returns whether the command line has a flag of an argument of the plan."""
  source = click.get_current_context().get_parameter_source
  return any(
    source(flag) is click.core.ParameterSource.COMMANDLINE
    for flag in _FLAGS.get(name, (name,))
  )


def _mechanism(name: str, parameters: dict[str, Any]) -> Any:
  """Returns the mechanism of a plan from --mechanism and parameters."""
  if name in strategies.FAMILIES and parameters:
    return mechanism_lib.Mechanism(name, **parameters)
  for parameter, value in parameters.items():
    raise errors.value_error(
      f'{parameter}={value}: is a parameter of a family, but --mechanism names '
      'no family; give --mechanism FAMILY'
    )
  return name


def _check_rule(plan: plan_lib.Plan, log: str) -> None:
  """Raises ValueError if the plan does not admit by min_sep or by budget."""
  kinds = (participation.MinSep, participation.Budget)
  if not isinstance(plan.cohorts, kinds):
    raise errors.value_error(
      f'arrivals={log}: needs a plan that admits clients by min_sep or by '
      'budget; give --min-sep without --amplification'
    )


def _compared(
  plan: plan_lib.Plan, log: str, columns: dict[str, str]
) -> dict[str, dict[str, Any]]:
  """Replays a log of check-ins under admission by min_sep and by budget.

  Returns {name of the rule: values of its `arrivals.AdmissionCounts`}.
  """
  from tff_bandmf.cohorts import arrivals as arrivals_lib
  from tff_bandmf.report import participation_log

  schema = plan.schema
  arrivals = participation_log.ParticipationLog(log, **columns)
  if arrivals.alike is not None:
    output.warn(arrivals.alike)
  if arrivals.rounds > plan.rounds:
    raise errors.value_error(
      f'arrivals={log}: has {arrivals.rounds} rounds, more than '
      f'--rounds={plan.rounds}; plan at least as many rounds'
    )
  parts = list(arrivals.parts())
  if isinstance(schema, participation.Budget):
    budget = schema
  else:
    assert schema.min_sep is not None
    budget = participation.Budget(schema.min_sep, schema.max_participations)
  _, by_budget = sensitivity.budget.for_horizon(budget, plan.planned_strategy)
  return {
    rule.name: dataclasses.asdict(
      arrivals_lib.admission_counts(
        np.concatenate([rounds for rounds, _ in parts]),
        np.concatenate([clients for _, clients in parts]),
        rule.schema,
        planned_rounds=plan.rounds,
        cohort_size=plan.clients_per_round,
      )
    )
    for rule in (schema.reference_schema, by_budget)
  }
