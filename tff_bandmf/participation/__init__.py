"""Schemas: the rounds in which one client may take part.

| module        | purpose                                                     |
|---------------|-------------------------------------------------------------|
| `schemas`     | the rules, and the patterns of rounds that they allow       |
| `timers`      | min_sep from a timer of devices, or from rounds in between  |
| `feasibility` | whether a population can fill the cohorts of every round    |
"""

from tff_bandmf.participation.schemas import (
  NAMES,
  ZERO_OUT,
  Budget,
  Cohorts,
  Costs,
  FixedEpoch,
  MinSep,
  Participation,
  Single,
  check,
  check_cohorts,
  from_name,
)
from tff_bandmf.participation.timers import (
  min_sep_from_rounds_between,
  min_sep_from_timer,
)
