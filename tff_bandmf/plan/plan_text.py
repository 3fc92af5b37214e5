"""Parts of the text of a plan, for `print(plan)`.

Noise, errors and the numbers of a claim, except delta, are rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Optional

from tff_bandmf import accounting, clipping_norm, participation, strategies
from tff_bandmf.plan import request as request_lib


def cohorts(
  request: request_lib.Request, cohorts: participation.Cohorts
) -> str:
  """Returns the kind of cohorts and their values.

  If a schema is enforced, the text also has the largest number of rounds of a
  client, and the largest number of clients of a unit of privacy.

  Args:
    request: the request of the plan.
    cohorts: the cohorts of the plan's guarantee, with values that the search
      added, such as a sampling probability.
  """
  (_, kind), *values = cohorts.to_dict().items()
  text = ' '.join(
    [kind, *(f'{name}={value}' for name, value in values if value is not None)]
  )
  if not cohorts.is_enforced:
    return text
  k = cohorts.schema.participations(request.rounds)
  most = f'{text}: a client is in at most {k} round{"s" * (k > 1)}'
  if request.clients_per_unit == 1:
    return most
  return (
    f'{most}, a unit of privacy has at most {request.clients_per_unit} clients'
  )


def budget(schema: participation.Budget, clients_per_round: int) -> str:
  """Returns the cost of a round and the largest number of rounds, as text.

  Args:
    schema: the `Budget`, with its costs.
    clients_per_round: expected number of clients of a round.
  """
  costs = schema.known_costs
  share = int(costs.table[:, 0].max()) / costs.limit
  return (
    f'a round costs a client {share:.4g} of its budget, and more near its '
    f'earlier rounds; a round of {clients_per_round} clients costs '
    f'{share * clients_per_round:.4g} budgets or more; the run may stop early, '
    f'or continue to {schema.horizon} rounds, at the same claim'
  )


def claim(guarantee: accounting.Guarantee, delta: Optional[float]) -> str:
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


def clip(
  adaptive: clipping_norm.AdaptiveClip,
  guarantee: accounting.Guarantee,
  clients: int,
) -> str:
  """Returns the rule of an adaptive clip, and the noise of its fraction.

  The clipping fraction is the noisy share of a round's updates whose norm is
  below the clip.

  Args:
    adaptive: the clip of the plan.
    guarantee: the guarantee of the run.
    clients: number of clients, >= 1; the sum is divided by this number to get
      the mean.
  """
  until = '' if adaptive.until is None else f' until round {adaptive.until}'
  noise = (
    guarantee.z_stddev_per_clip
    * clipping_norm.record_factor(adaptive)
    * float(guarantee.strategy.recursion().row_norms.max())
    / (adaptive.fraction_weight * clients)
  )
  return (
    f'begins at {clipping_norm.to_json(adaptive.initial)} and follows the '
    f'{adaptive.quantile:g}-quantile of the norms{until}; the noise of a '
    f"round's fraction has at most stddev {rounded_up(noise)}"
  )


def left_out(reasons: Mapping[str, str]) -> list[str]:
  """Returns the lines on families that were not compared.

  A family that requires a parameter from the user has no line, since a search
  compares such a family only if the user names the family.

  Args:
    reasons: maps the name of a family to the reason.
  """
  known = strategies.families.known()
  return [
    f'left out: {family}: {reason}'
    for family, reason in reasons.items()
    if family not in known
    or not any(each.required for each in known[family].parameters)
  ]


def mechanism(strategy: strategies.Strategy, copies: int) -> str:
  """Returns the family of a strategy, its size, and the cost of its noise.

  Args:
    strategy: strategy matrix C.
    copies: number of copies of the model that the noise keeps, >= 0.
  """
  size = (
    f'{strategy.buffers} buffers'
    if strategy.buffers
    else f'{strategy.inverse_bands or strategy.bands} bands'
  )
  normals = strategy.normals(copies)
  time = '' if normals == 1 else f', and draws {normals:g} normals a round'
  return (
    f'{strategy.family}, {size}; its noise keeps {copies} copies of the '
    f'model{time}'
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
