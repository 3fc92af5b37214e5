"""The sensitivity of a strategy under a participation schema."""

from tff_bandmf.sensitivity import budget
from tff_bandmf.sensitivity.observed_sensitivity import (
  Observed,
  observed,
  of_clients,
)
from tff_bandmf.sensitivity.result import EXACT, UPPER_BOUND, Sensitivity
from tff_bandmf.sensitivity.sensitivity import rounding, sensitivity
