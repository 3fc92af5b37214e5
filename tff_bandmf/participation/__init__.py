"""Participation schemas: how often, and how far apart, a client takes part."""

from tff_bandmf.participation.schemas import (
  FixedEpoch,
  MinSep,
  Participation,
  Single,
  from_name,
  min_sep_from_rounds_between,
  rounds_between_from_min_sep,
)
