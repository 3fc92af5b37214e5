"""The text of a plan, for `print(plan)`.

Noise, errors and the numbers of a claim, except delta, are rounded up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional

from tff_bandmf import (
  accounting,
  clipping_norm,
  participation,
  sensitivity,
  strategies,
)

if TYPE_CHECKING:
  from tff_bandmf.plan import plan as plan_lib


def text(plan: plan_lib.Plan) -> str:
  """Returns the text of a plan."""
  guarantee, strategy = plan.guarantee, plan.strategy
  sampled, budget = plan.sampled, plan.schema
  unknown = sampled is not None and sampled.population is None
  most = ''
  if not unknown and plan.most_clients != plan.clients_per_round:
    most = f' (at most {plan.most_clients})'
  lines = [
    f'{plan.rounds} rounds of {plan.clients_per_round} clients{most}, '
    + cohorts(plan, guarantee.cohorts),
    f'claim: {_claim(guarantee, plan.delta)}',
  ]
  if plan.simulated is not None:
    lines.append(
      f'stands for {plan.stands_for} clients a round, which would have: '
      + _claim(plan.simulated, plan.delta)
    )
  if plan.unamplified is not None:
    lines.append(
      f'without amplification: {_claim(plan.unamplified, plan.delta)}; '
      'sampling amplifies if the run draws cohorts in secret, and nobody else '
      'knows the cohorts'
    )
  growth = clipping_norm.record_factor(plan.l2_norm_clip)
  exact = guarantee.sensitivity.method.replace('_', ' ')
  size = f'{strategy.inverse_bands or strategy.bands} bands'
  normals = strategy.normals(plan.copies)
  lines += [
    f'noise: z_stddev {rounded_up(plan.z_stddev)} = noise multiplier '
    f'{rounded_up(guarantee.noise_multiplier)} * sensitivity '
    f'{rounded_up(guarantee.sensitivity.value)} ({exact}) * clip'
    + f' * {rounded_up(growth)}, for the indicator'
    * (growth > 1),
    f'mechanism: {strategy.family}, '
    + (f'{strategy.buffers} buffers' if strategy.buffers else size)
    + f'; its noise keeps {plan.copies} copies of the model'
    + f', and draws {normals:g} normals a round' * (normals != 1),
  ]
  if isinstance(plan.l2_norm_clip, clipping_norm.AdaptiveClip):
    lines.append(f'clip: {_clip(plan, plan.l2_norm_clip)}')
  if guarantee.noise_multiplier:
    lines.append(f'error: rmse {rounded_up(plan.rmse)} at clip 1')
    if sampled is None:
      independent = _independent_rmse(plan)
      lines[-1] += (
        f'; independent noise (DP-FedAvg) has {rounded_up(independent)}, '
        f'{independent / plan.rmse:.2f} times as much'
      )
  ratio = plan.noise_to_signal(plan.dimension)
  if ratio is not None:
    lines.append(
      f'noise to signal: {rounded_up(ratio)} for {plan.dimension} '
      'coordinates, if all updates of all rounds had one direction'
    )
    lines += filter(None, [plan.warning(plan.dimension)])
  runners_up = ', '.join(
    f'{family} {rounded_up(rmse)}' for family, rmse in plan.result.runners_up
  )
  if runners_up:
    lines.append(f'runners-up by rmse: {runners_up}')
  known = strategies.families.known()
  for family, reason in plan.result.left_out.items():
    # A search compares a family that requires a parameter only if the user
    # names the family. So such a family has no line.
    parameters = known[family].parameters if family in known else ()
    if not any(each.required for each in parameters):
      lines.append(f'left out: {family}: {reason}')
  if isinstance(budget, participation.Budget):
    costs, clients = budget.known_costs, plan.clients_per_round
    share = int(costs.table[:, 0].max()) / costs.limit
    lines.append(
      f'budget: a round costs a client {share:.4g} of its budget, and more '
      f'near its earlier rounds; a round of {clients} clients costs '
      f'{share * clients:.4g} budgets or more; the run may stop early, or '
      f'continue to {budget.horizon} rounds, at the same claim'
    )
  worse = '; '.join(
    f'{case}: {"not proved" if epsilon is None else rounded_up(epsilon)}'
    for case, epsilon in plan.what_if().items()
  )
  if worse:
    lines.append(f'epsilon if cohorts turn out otherwise: {worse}')
  return '\n'.join(lines)


def cohorts(plan: plan_lib.Plan, cohorts: participation.Cohorts) -> str:
  """Returns the kind of cohorts and their values.

  If a schema is enforced, the text also has the largest number of rounds of a
  client, and the largest number of clients of a unit of privacy.

  Args:
    plan: the plan.
    cohorts: the cohorts of the plan's guarantee, with values that the search
      added, such as a sampling probability.
  """
  (_, kind), *values = cohorts.to_dict().items()
  text = ' '.join(
    [kind, *(f'{name}={value}' for name, value in values if value is not None)]
  )
  if not cohorts.is_enforced:
    return text
  k = cohorts.schema.participations(plan.rounds)
  most = f'{text}: a client is in at most {k} round{"s" * (k > 1)}'
  if plan.clients_per_unit == 1:
    return most
  return (
    f'{most}, a unit of privacy has at most {plan.clients_per_unit} clients'
  )


def _claim(guarantee: accounting.Guarantee, delta: Optional[float]) -> str:
  """Returns the claim of a guarantee at `delta`, with adjacency and rho."""
  if not guarantee.noise_multiplier:
    return 'none, there is no noise'
  rho = '' if guarantee.rho is None else f', rho {rounded_up(guarantee.rho)}'
  if delta is None:
    return f'{guarantee.cohorts.adjacency}{rho}; no delta was given'
  epsilon = guarantee.proved_epsilon(delta)
  if epsilon is None:
    return f'none: so little noise proves no epsilon at delta {delta:g}'
  return (
    f'({rounded_up(epsilon)}, {delta:g})-DP, {guarantee.cohorts.adjacency}{rho}'
  )


def _clip(plan: plan_lib.Plan, clip: clipping_norm.AdaptiveClip) -> str:
  """Returns the rule of an adaptive clip, and the noise of its fraction.

  The clipping fraction is the noisy share of a round's updates whose norm is
  below the clip.
  """
  until = '' if clip.until is None else f' until round {clip.until}'
  noise = (
    plan.z_stddev_at_1
    * float(plan.strategy.recursion().row_norms.max())
    / (clip.fraction_weight * plan.clients_per_round)
  )
  return (
    f'begins at {clipping_norm.to_json(clip.initial)} and follows the '
    f'{clip.quantile:g}-quantile of the norms{until}; the noise of a '
    f"round's fraction has at most stddev {rounded_up(noise)}"
  )


def _independent_rmse(plan: plan_lib.Plan) -> float:
  """Returns the error of C = I at the claim of an enforced schema."""
  identity, schema = strategies.Identity(plan.rounds), plan.cohorts.schema
  mean, _ = identity.errors(plan.workload)
  # For an enforced schema, the noise multiplier does not depend on C.
  return (
    plan.guarantee.noise_multiplier
    * plan.clients_per_unit
    * sensitivity.sensitivity(identity, schema.reference_schema).value
    * clipping_norm.record_factor(plan.l2_norm_clip)
    * math.sqrt(mean)
  )


def rounded_up(value: float) -> str:
  """Returns a number rounded up to four significant digits, as text.

  If a value exceeds a multiple of its last digit by less than 1e-9 of this
  digit, the excess counts as a rounding error and is not rounded up.
  """
  if not value or not math.isfinite(value):
    return f'{value:g}'
  unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
  return f'{math.ceil(value / unit - 1e-9) * unit:.4g}'
