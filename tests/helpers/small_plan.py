"""A plan of 60 rounds, which takes no time to make."""

import tff_bandmf


def make(**changes):
  """Returns the plan with other arguments."""
  return tff_bandmf.Plan(
    **{
      'rounds': 60,
      'clients_per_round': 10,
      'cohorts': tff_bandmf.MinSep(12),
      'epsilon': 4.0,
      'delta': 1e-6,
      'l2_norm_clip': 0.5,
      'mechanism': 'banded-sqrt',
      **changes,
    }
  )
