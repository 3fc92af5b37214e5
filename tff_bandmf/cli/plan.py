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
  'cohorts': options.COMBINED['who'],
  'mechanism': ('mechanism', *options.COMBINED['parameters']),
}


def _read(ctx: click.Context, param: click.Parameter, path: Optional[str]):
  """Returns the plan of a file, whose values replace missing flags."""
  if path is None:
    return None
  # Without default values, required flags would be missing.
  required = ('rounds', 'clients_per_round', 'l2_norm_clip')
  ctx.default_map = dict.fromkeys(required, 1)
  is_json = pathlib.Path(path).suffix == '.json'
  return plan_lib.Plan.load(path) if is_json else plan_lib.Plan.from_toml(path)


@click.command()
@click.option(
  '--from',
  'base',
  type=click.Path(),
  is_eager=True,
  callback=_read,
  help='File with the arguments of the plan, in TOML, or plan.json. A flag '
  'replaces the value of the file.',
)
@options.switches(
  print_toml='Print the arguments of the plan for --from, and search nothing.'
)
@options.rounds
@options.integers(
  clients_per_round='Expected clients of a round, the divisor of its sum.',
  required=True,
)
@options.integers(
  largest_cohort='Largest number of clients of a round.  [default: '
  '--clients-per-round; for sampled cohorts, a size that a run exceeds with '
  'probability 1e-40]',
  population='Number of clients from which cohorts are drawn.',
)
@options.participation
@options.amplification
@options.sampling_prob
@options.typed(
  str,
  mechanism='A family, a strategy file, a .npy file of C, or best: the family '
  'with the least error that fits in --memory-copies.',
  default=mechanism_lib.BEST,
)
@options.parameters
@options.memory_copies(
  '8 where families or numbers of bands are compared, else no limit'
)
@options.numbers(
  epsilon='epsilon of the (epsilon, delta) guarantee of the whole run.',
  delta='delta of the (epsilon, delta) guarantee of the whole run.',
)
@options.typed(
  options.NUMBER_OR_ZERO,
  noise_multiplier='Standard deviation of z divided by clip * sensitivity, '
  'instead of --epsilon; --delta then asks for its epsilon. With 0, the plan '
  'claims nothing.',
)
@options.l2_norm_clip
@options.numbers(
  zeroing_norm='Updates with a coordinate of larger magnitude become zero.'
)
@options.workload
@options.objective
@options.integers(
  dimension='Number of parameters of the model, to compare noise and updates.'
)
@options.integers(
  clients_per_unit='Largest number of clients that belong to one unit of '
  'privacy, such as the devices of a person.',
  default=1,
)
@options.integers(
  stands_for='Number of clients in a round of a larger run that this run '
  'simulates; --epsilon and --delta are then the claim of the larger run.'
)
@options.paths(
  arrivals='Log of check-ins, CSV or Parquet with the columns round and '
  'client, on which admission by --min-sep and by budget are compared.'
)
@options.log_columns
@options.paths(out='File to write.')
@options.as_json
def plan(
  base,
  print_toml,
  who,
  population,
  parameters,
  arrivals,
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
  fields['mechanism'] = _mechanism(fields['mechanism'], parameters)
  if base is not None:
    fields = {name: fields[name] for name in fields if _is_given(name)}
  if base is None or _is_given('cohorts'):
    fields['cohorts'] = who.cohorts(population=population)
  planned = attrs.evolve(base, **fields) if base else plan_lib.Plan(**fields)
  if print_toml:
    click.echo(planned.to_toml())
    return
  kinds = participation.MinSep, participation.Budget
  if arrivals is not None and not isinstance(planned.cohorts, kinds):
    raise errors.value_error(
      f'arrivals={arrivals}: needs a plan that admits clients by min_sep or by '
      'budget; give --min-sep without --amplification'
    )
  if population is not None:
    planned.check_population(population, 'population')
  with output.progress('searching the mechanism') as step:
    planned.search(step)
  if population is not None:
    # The first check did not know the costs of a `Budget`, which follow from C.
    planned.check_population(population, 'population')
  if planned.epsilon is not None and planned.delta is not None:
    output.warn_of_weak(planned.epsilon, planned.delta)
  extra: dict[str, Any] = {'population': population}
  if arrivals is not None:
    extra['arrivals'] = _compared(planned, arrivals, columns)
  if out is not None:
    planned.save(out)
  if output.as_json():
    output.show_result({**planned.to_dict(), **extra})
  else:
    with output.progress('looking at worse cohorts'):
      text = str(planned)
    click.echo(text)
    if planned.result.for_sampling:
      click.echo('C is optimised for the noise of sampled cohorts')
    for name, counts in extra.get('arrivals', {}).items():
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
  output.warn(arrivals.alike)
  if arrivals.rounds > plan.rounds:
    raise errors.value_error(
      f'arrivals={log}: has {arrivals.rounds} rounds, more than '
      f'--rounds={plan.rounds}; plan at least as many rounds'
    )
  rounds, clients = map(np.concatenate, zip(*arrivals.parts()))
  if isinstance(schema, participation.Budget):
    budget = schema
  else:
    assert schema.min_sep is not None
    budget = participation.Budget(schema.min_sep, schema.max_participations)
  _, by_budget = sensitivity.budget.for_horizon(budget, plan.planned_strategy)
  return {
    rule.name: dataclasses.asdict(
      arrivals_lib.admission_counts(
        rounds,
        clients,
        rule.schema,
        planned_rounds=plan.rounds,
        cohort_size=plan.clients_per_round,
      )
    )
    for rule in (schema.reference_schema, by_budget)
  }
