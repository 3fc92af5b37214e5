"""Noise multipliers, zCDP and (epsilon, delta)."""

from tff_bandmf.accounting.bins_cohorts import BallsInBins
from tff_bandmf.accounting.cohorts import (
  KINDS,
  Cohorts,
  bands_to_compare,
  check,
  completed,
  expecting,
  from_dict,
  from_flags,
  of_claim,
  sampled,
)
from tff_bandmf.accounting.composition import Composition, compose
from tff_bandmf.accounting.cyclic_cohorts import CyclicPoisson
from tff_bandmf.accounting.gaussian import (
  gaussian_delta,
  gaussian_epsilon,
  gaussian_noise_multiplier,
  zcdp_rho,
)
from tff_bandmf.accounting.guarantee import Guarantee, calibrate
from tff_bandmf.accounting.logged_cohorts import Logged
from tff_bandmf.accounting.min_sep_cohorts import BMinSep
from tff_bandmf.accounting.monte_carlo import Bound, Samples
from tff_bandmf.accounting.poisson import (
  poisson_delta,
  poisson_epsilon,
  poisson_noise_multiplier,
)
from tff_bandmf.accounting.sampled_cohorts import ADD_REMOVE, Sampled
from tff_bandmf.accounting.samplers import Sampler
from tff_bandmf.accounting.slack import CELLS, MAX_SLACK, Slack, Unproved
