"""The epsilons of a plan for cohorts that are worse than planned."""

from __future__ import annotations

import math
from typing import Optional

from tff_bandmf import accounting, participation

# Fractions of the planned min_sep for which epsilon is computed.
_SHARES = (0.9, 0.5)


def epsilons(
  guarantee: accounting.Guarantee, delta: Optional[float]
) -> dict[str, Optional[float]]:
  """Returns {text: epsilon}; the text names the difference from the plan.

  An epsilon is None if it is not proved.

  Args:
    guarantee: guarantee for the planned cohorts.
    delta: delta of the claim; if None, the result is {}.
  """
  if delta is None or not guarantee.noise_multiplier:
    return {}
  return {
    text: guarantee.for_cohorts(schema).proved_epsilon(delta)
    for text, schema in _worse(guarantee.cohorts, guarantee.strategy.rounds)
  }


def _worse(
  cohorts: participation.Cohorts, rounds: int
) -> list[tuple[str, participation.Participation]]:
  """Returns pairs of a text and a schema that is worse than the plan's."""
  # A `Budget` fixes neither a min_sep nor a number of rounds, so there is no
  # value to make worse.
  if not cohorts.is_enforced or isinstance(cohorts, participation.Budget):
    return []
  schema = cohorts.schema
  k = schema.participations(rounds)
  worse: list[tuple[str, participation.Participation]] = []
  if schema.min_sep is not None:
    shares = {math.floor(share * schema.min_sep) for share in _SHARES} - {0}
    most = schema.max_participations
    worse += [
      (f'min_sep {least}', participation.MinSep(least, most))
      for least in sorted(shares, reverse=True)
    ]
  if k < rounds:
    # The k gaps between k + 1 rounds of a client sum to at most `rounds` - 1.
    least = min(schema.separation(rounds), (rounds - 1) // k)
    worse.append(
      (f'{k + 1} participations', participation.MinSep(least, k + 1))
    )
  return worse
