"""Noise multipliers, zCDP and (epsilon, delta)."""

from tff_bandmf.accounting.gaussian import gaussian_delta
from tff_bandmf.accounting.gaussian import gaussian_epsilon
from tff_bandmf.accounting.gaussian import gaussian_noise_multiplier
from tff_bandmf.accounting.gaussian import zcdp_rho
from tff_bandmf.accounting.spec import ADJACENCY
from tff_bandmf.accounting.spec import calibrate
from tff_bandmf.accounting.spec import PrivacySpec
