"""Noise multipliers, zCDP and (epsilon, delta)."""

from tff_bandmf.accounting.b_min_sep import BMinSepSpec, calibrate_b_min_sep
from tff_bandmf.accounting.balls_in_bins import (
    BallsInBinsSpec,
    calibrate_balls_in_bins,
)
from tff_bandmf.accounting.cyclic_poisson import (
    BandChoice,
    CyclicPoissonSpec,
    choose_bands,
    cyclic_sampling_prob,
)
from tff_bandmf.accounting.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    zcdp_rho,
)
from tff_bandmf.accounting.monte_carlo import DeltaBound
from tff_bandmf.accounting.poisson import (
    cyclic_poisson_noise_multiplier,
    poisson_delta,
    poisson_epsilon,
)
from tff_bandmf.accounting.sampling import (
    ADD_REMOVE,
    B_MIN_SEP,
    BALLS_IN_BINS,
    CYCLIC_POISSON,
    ZERO_OUT,
)
from tff_bandmf.accounting.spec import ADJACENCY, PrivacySpec, calibrate
