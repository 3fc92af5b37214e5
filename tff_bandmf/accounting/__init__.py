"""Noise multipliers, zCDP and (epsilon, delta)."""

from tff_bandmf.accounting.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    zcdp_rho,
)
from tff_bandmf.accounting.spec import ADJACENCY, PrivacySpec, calibrate
