"""`bandmf plan`: makes the plan of a run."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from tff_bandmf import errors, participation, sensitivity, strategies
from tff_bandmf.cli import options, output
from tff_bandmf.plan import mechanism as mechanism_lib
from tff_bandmf.plan import plan as plan_lib


@click.command()
@options.rounds
@click.option(
  '--clients-per-round',
  required=True,
  type=options.INTEGER,
  help='Expected number of clients of a round; the sum of a round is divided '
  'by it.',
)
@click.option(
  '--largest-cohort',
  type=options.INTEGER,
  help='Largest number of clients of a round.  [default: --clients-per-round; '
  'for sampled cohorts, a size that a run exceeds with probability 1e-40]',
)
@click.option(
  '--population',
  type=options.INTEGER,
  help='Number of clients from which cohorts are drawn.',
)
@options.participation
@options.amplification
@options.sampling_prob
@click.option(
  '--mechanism',
  default=mechanism_lib.BEST,
  show_default=True,
  help='A family, a strategy file, a .npy file of C, or best: the family with '
  'the least error that fits in --memory-copies.',
)
@options.parameters
@options.memory_copies(
  '8 where families or numbers of bands are compared, else no limit'
)
@click.option(
  '--epsilon',
  type=options.NUMBER,
  help='epsilon of the (epsilon, delta) guarantee of the whole run.',
)
@click.option(
  '--delta',
  type=options.NUMBER,
  help='delta of the (epsilon, delta) guarantee of the whole run.',
)
@click.option(
  '--noise-multiplier',
  type=options.NUMBER_OR_ZERO,
  help='Standard deviation of z divided by clip * sensitivity, instead of '
  '--epsilon; --delta then asks for its epsilon. With 0, the plan claims '
  'nothing.',
)
@options.l2_norm_clip
@click.option(
  '--zeroing-norm',
  type=options.NUMBER,
  help='Largest absolute value of the coordinates of an update; an update '
  'beyond it becomes zero.',
)
@options.workload
@options.objective
@click.option(
  '--dimension',
  type=options.INTEGER,
  help='Number of parameters of the model, to compare noise and updates.',
)
@click.option(
  '--clients-per-unit',
  default=1,
  show_default=True,
  type=options.INTEGER,
  help='Largest number of clients that belong to one unit of privacy, such as '
  'the devices of a person.',
)
@click.option(
  '--stands-for',
  type=options.INTEGER,
  help='Number of clients in a round of a larger run that this run simulates; '
  '--epsilon and --delta are then the claim of the larger run.',
)
@click.option(
  '--arrivals',
  type=click.Path(),
  help='Log of check-ins, CSV or Parquet with the columns round and client, on '
  'which admission by --min-sep and by budget are compared.',
)
@options.log_columns
@click.option('--out', type=click.Path(), help='File to write.')
@options.as_json
def plan(
  who,
  amplification,
  sampling_prob,
  population,
  parameters,
  arrivals,
  out,
  as_json,
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
  columns = {
    name: fields.pop(name) for name in ('round_column', 'client_column')
  }
  mechanism: Any = fields.pop('mechanism')
  if mechanism in strategies.FAMILIES:
    mechanism = mechanism_lib.Mechanism(mechanism, **parameters)
  elif parameters:
    name, value = next(iter(parameters.items()))
    raise errors.value_error(
      f'{name}={value}: is a parameter of a family, but --mechanism names no '
      'family; give --mechanism FAMILY'
    )
  planned = plan_lib.Plan(
    cohorts=who.cohorts(amplification, sampling_prob, population=population),
    mechanism=mechanism,
    **fields,
  )
  if arrivals is not None:
    _check_rule(planned, arrivals)
  if population is not None:
    planned.check_population(population, 'population')
  with output.progress('searching the mechanism') as step:
    planned.search(step)
  if population is not None:
    # The costs of a budget follow from the C that the search chose.
    planned.check_population(population, 'population')
  if planned.epsilon is not None and planned.delta is not None:
    output.warn_of_weak(planned.epsilon, planned.delta)
  compared = None if arrivals is None else _compared(planned, arrivals, columns)
  if out is not None:
    planned.save(out)
  if as_json:
    record = {
      **planned.to_dict(),
      'population': population,
      **({} if compared is None else {'arrivals': compared}),
      'seconds': output.seconds(),
    }
    output.show(record, as_json=True)
  else:
    with output.progress('looking at worse cohorts'):
      text = str(planned)
    click.echo(text)
    if planned.result.for_sampling:
      click.echo('C is optimised for the noise of sampled cohorts')
    for name, counts in (compared or {}).items():
      click.echo(
        f'arrivals by {name}: {counts["clients"]} clients took part '
        f'{counts["participations"]} times; {counts["short"]} of '
        f'{counts["rounds"]} cohorts could not be filled; '
        f'{counts["turned_away"]} check-ins were turned away'
      )
  return output.DONE


def _check_rule(plan: plan_lib.Plan, log: str) -> None:
  """Raises ValueError unless clients are admitted by min_sep or by budget."""
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
    rule.name: arrivals_lib.admission_counts(
      np.concatenate([rounds for rounds, _ in parts]),
      np.concatenate([clients for _, clients in parts]),
      rule.schema,
      planned_rounds=plan.rounds,
      cohort_size=plan.clients_per_round,
    ).to_dict()
    for rule in (schema.reference_schema, by_budget)
  }
