"""Noise multipliers, zCDP and (epsilon, delta)."""

from tff_bandmf.accounting.b_min_sep import BMinSepSpec
from tff_bandmf.accounting.balls_in_bins import BallsInBinsSpec
from tff_bandmf.accounting.cyclic_poisson import (
  BandChoice,
  CyclicPoissonSpec,
  calibrate_cyclic_poisson,
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
from tff_bandmf.accounting.sampled import calibrate_sampled
from tff_bandmf.accounting.sampling import (
  ADD_REMOVE,
  B_MIN_SEP,
  BALLS_IN_BINS,
  CYCLIC_POISSON,
  ZERO_OUT,
)
from tff_bandmf.accounting.slack import CELLS, MAX_SLACK, Slack, Unproved
from tff_bandmf.accounting.spec import ADJACENCY, PrivacySpec, calibrate
