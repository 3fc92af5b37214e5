"""The epsilons of a plan if cohorts turn out worse than planned."""

from __future__ import annotations

import math
from typing import Any, Optional

from tff_bandmf import accounting
from tff_bandmf import participation as participation_lib

# Fractions of the planned min_sep for which epsilon is computed.
_SHARES = (0.9, 0.5)


def epsilons(plan: Any) -> dict[str, Optional[float]]:
  """Returns epsilon by a text that names the difference; see `Plan.what_if`."""
  if plan.delta is None or not plan.guarantee.noise_multiplier:
    return {}
  return {
    text: plan.guarantee.under(schema).proved_epsilon(plan.delta)
    for text, schema in _worse(plan)
  }


def _worse(plan: Any) -> list[tuple[str, participation_lib.Participation]]:
  """Returns pairs of a text and a schema that is worse than the plan's."""
  schema = plan.cohorts.schema
  if accounting.sampled(plan.cohorts):
    return []
  k = schema.participations(plan.rounds)
  found: list[tuple[str, participation_lib.Participation]] = []
  if schema.min_sep is not None:
    shares = {math.floor(share * schema.min_sep) for share in _SHARES} - {0}
    most = schema.max_participations
    found += [
      (f'min_sep {least}', participation_lib.MinSep(least, most))
      for least in sorted(shares, reverse=True)
    ]
  if k < plan.rounds:
    # The k + 1 rounds of one client have k gaps.
    least = min(schema.separation(plan.rounds), (plan.rounds - 1) // k)
    found.append(
      (f'{k + 1} participations', participation_lib.MinSep(least, k + 1))
    )
  return found
