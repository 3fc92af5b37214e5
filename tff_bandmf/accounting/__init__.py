"""Accounting: noise multipliers, zCDP and (epsilon, delta)."""

from tff_bandmf.accounting.composition import Composition, compose
from tff_bandmf.accounting.guarantee import Guarantee, calibrate
from tff_bandmf.accounting.kinds.b_min_sep_cohorts import BMinSep
from tff_bandmf.accounting.kinds.balls_in_bins_cohorts import BallsInBins
from tff_bandmf.accounting.kinds.cyclic_poisson_cohorts import CyclicPoisson
from tff_bandmf.accounting.kinds.known_kinds import (
  KINDS,
  from_dict,
  from_flags,
  needed_noise,
  sampled,
)
from tff_bandmf.accounting.kinds.logged_cohorts import Logged
from tff_bandmf.accounting.kinds.poisson import (
  poisson_delta,
  poisson_epsilon,
  poisson_noise_multiplier,
)
from tff_bandmf.accounting.kinds.releases import Release
from tff_bandmf.accounting.kinds.sampled_cohorts import ADD_REMOVE, Sampled
from tff_bandmf.accounting.kinds.samplers import Sampler
from tff_bandmf.accounting.methods.gaussian import (
  gaussian_delta,
  gaussian_epsilon,
  gaussian_noise_multiplier,
  zcdp_rho,
)
from tff_bandmf.accounting.methods.monte_carlo import Bound, Samples
