"""The sensitivity of a strategy under a participation schema."""

from tff_bandmf.sensitivity.sensitivity import (
    EXACT,
    UPPER_BOUND,
    Sensitivity,
    sensitivity,
)
