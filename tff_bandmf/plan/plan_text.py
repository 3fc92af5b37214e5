"""The text of a plan, for `print(plan)`; its numbers are rounded up."""

from __future__ import annotations

import math
from typing import Any, Optional

from tff_bandmf import accounting, clips, sensitivity, strategies


def text(plan: Any) -> str:
  """Returns the lines of text of a plan."""
  guarantee = plan.guarantee
  lines = [
    f'{plan.rounds} rounds of {plan.clients_per_round} clients{_most(plan)}, '
    f'{who(plan)}',
    f'claim: {_claim(guarantee, plan.delta)}',
  ]
  if plan.simulated is not None:
    lines.append(
      f'stands for {plan.stands_for} clients a round, which would have: '
      f'{_claim(plan.simulated, plan.delta)}'
    )
  if plan.unamplified is not None:
    lines.append(
      'without amplification: '
      f'{_claim(plan.unamplified, plan.delta)}; sampling amplifies where the '
      'run draws cohorts in secret, and nobody else can tell who takes part'
    )
  exact = guarantee.sensitivity.method.replace('_', ' ')
  lines += [
    f'noise: z_stddev {rounded_up(plan.z_stddev)} = noise multiplier '
    f'{rounded_up(guarantee.noise_multiplier)} * sensitivity '
    f'{rounded_up(guarantee.sensitivity.value)} ({exact}) * clip'
    f'{_delta_words(plan)}',
    f'mechanism: {_mechanism_words(plan.strategy)}; its noise keeps '
    f'{plan.strategy.noise_copies} copies of the model',
  ]
  if isinstance(plan.l2_norm_clip, clips.AdaptiveClip):
    lines.append(f'clip: {_clip_words(plan, plan.l2_norm_clip)}')
  if guarantee.noise_multiplier:
    lines.append(f'error: {_errors(plan)}')
  ratio = plan.noise_to_signal(plan.dimension)
  if ratio is not None:
    lines.append(
      f'noise to signal: {rounded_up(ratio)} for {plan.dimension} coordinates, '
      'if all updates of all rounds had one direction'
    )
    lines += filter(None, [drowned(plan, plan.dimension)])
  if plan.found.runners_up:
    others = ', '.join(
      f'{family} {rounded_up(rmse)}' for family, rmse in plan.found.runners_up
    )
    lines.append(f'runners-up by rmse: {others}')
  lines += [
    f'left out: {family}: {reason}'
    for family, reason in plan.found.left_out.items()
  ]
  worse = '; '.join(
    f'{case}: {"not proved" if epsilon is None else rounded_up(epsilon)}'
    for case, epsilon in plan.what_if().items()
  )
  if worse:
    lines.append(f'epsilon if cohorts turn out otherwise: {worse}')
  return '\n'.join(lines)


def drowned(plan: Any, dimension: Optional[int]) -> Optional[str]:
  """Returns a warning if noise exceeds the largest possible signal, or None."""
  ratio = plan.noise_to_signal(dimension)
  if ratio is None or ratio <= 1:
    return None
  return (
    f'WARNING: the noise drowns the updates: it is {rounded_up(ratio)} times '
    f'what {plan.clients_per_round} clients a round can move {dimension} '
    'coordinates at most; take more clients a round, more rounds, a larger '
    'epsilon or a smaller model'
  )


def _most(plan: Any) -> str:
  unknown = plan.sampled is not None and plan.sampled.population is None
  if unknown or plan.most_clients == plan.clients_per_round:
    return ''
  return f' (at most {plan.most_clients})'


def who(plan: Any) -> str:
  """Returns the kind of the cohorts, and the most rounds of one client."""
  (_, kind), *values = plan.guarantee.cohorts.to_dict().items()
  cohorts = ' '.join(
    [kind, *(f'{name}={value}' for name, value in values if value is not None)]
  )
  if plan.sampled is not None:
    return cohorts
  k = plan.cohorts.schema.participations(plan.rounds)
  most = f'{cohorts}: a client is in at most {k} round{"s" * (k > 1)}'
  if plan.clients_per_unit == 1:
    return most
  return (
    f'{most}, a unit of privacy has at most {plan.clients_per_unit} clients'
  )


def _claim(guarantee: accounting.Guarantee, delta: Optional[float]) -> str:
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


def _errors(plan: Any) -> str:
  """Returns the error, compared with the error of independent noise."""
  schema = plan.cohorts.schema
  identity = strategies.Identity(plan.rounds)
  mean, _ = identity.errors(plan.workload)
  # For an enforced schema the noise multiplier does not depend on C.
  other = (
    plan.guarantee.noise_multiplier
    * plan.clients_per_unit
    * sensitivity.sensitivity(identity, schema).value
    * clips.growth(plan.l2_norm_clip)
    * math.sqrt(mean)
  )
  shown = f'rmse {rounded_up(plan.rmse)} at clip 1'
  if plan.sampled is None:
    shown += (
      f'; independent noise (DP-FedAvg) has {rounded_up(other)}, '
      f'{other / plan.rmse:.2f} times as much'
    )
  return shown


def _delta_words(plan: Any) -> str:
  growth = clips.growth(plan.l2_norm_clip)
  return f' * {rounded_up(growth)}, for the indicator' * (growth > 1)


def _clip_words(plan: Any, adaptive: clips.AdaptiveClip) -> str:
  """Returns how the clip adapts, and the noise of the fraction it follows."""
  until = '' if adaptive.until is None else f' until round {adaptive.until}'
  noise = (
    plan.z_stddev_at_1
    * float(plan.strategy.recursion().row_norms.max())
    / (adaptive.fraction_weight * plan.clients_per_round)
  )
  return (
    f'begins at {clips.to_json(adaptive.initial)} and follows the '
    f'{adaptive.quantile:g}-quantile of the norms{until}; the noise of a '
    f"round's fraction has at most stddev {rounded_up(noise)}"
  )


def _mechanism_words(strategy: strategies.Strategy) -> str:
  size = (
    f'{strategy.buffers} buffers'
    if strategy.buffers
    else f'{strategy.inverse_bands or strategy.bands} bands'
  )
  return f'{strategy.family}, {size}'


def rounded_up(value: float) -> str:
  """Returns a number rounded up to four digits."""
  if not value or not math.isfinite(value):
    return f'{value:g}'
  unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
  return f'{math.ceil(value / unit - 1e-9) * unit:.4g}'
