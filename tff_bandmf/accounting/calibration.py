"""Calibration: the least noise that gives a privacy guarantee."""

from __future__ import annotations

from tff_bandmf import participation as participation_lib
from tff_bandmf import strategies
from tff_bandmf.accounting import guarantee as guarantee_lib
from tff_bandmf.accounting.methods import gaussian, monte_carlo


def calibrate(
  strategy: strategies.Strategy,
  cohorts: participation_lib.Cohorts,
  *,
  epsilon: float,
  delta: float,
  samples: monte_carlo.Samples = guarantee_lib.SAMPLES,
  clients_per_unit: int = 1,
) -> guarantee_lib.Guarantee:
  """Returns the guarantee with the least noise that meets (epsilon, delta).

  If delta is bounded by random samples, the noise is only nearly the least.

  **Formal guarantee.** Assumptions: the run meets the conditions of `Guarantee`
  and of docs/reference/arithmetic.md. Statement: `claim(delta).epsilon` of the
  result is at most `epsilon`, and the released bits of the run are
  (epsilon, delta)-DP for one unit of privacy. If delta is bounded by random
  samples, this holds except with probability `samples.failure_probability` over
  the samples, and `claim(delta)` is the bound that the search confirmed.
  Source: the theorems of docs/reference/arithmetic.md for the released bits,
  the modules of `accounting.kinds` and `accounting.methods` for real numbers.

  Args:
    strategy: strategy matrix C.
    cohorts: enforced participation schema, or kind of sampling.
    epsilon: target epsilon of the whole run, > 0, at most 70 at a `delta` of
      1e-6.
    delta: target delta of the whole run, in (0, 1).
    samples: options for claims that need random samples. With more samples, the
      noise is smaller.
    clients_per_unit: largest number of clients of one unit of privacy, >= 1.

  Raises:
    ValueError: a value is out of range, or no guarantee is proved for the
      strategy and the cohorts.
  """
  gaussian.check_epsilon(epsilon)
  gaussian.check_delta(delta)
  guarantee = guarantee_lib.Guarantee(
    strategy, cohorts, 1.0, samples=samples, clients_per_unit=clients_per_unit
  )
  noise_multiplier, claim = guarantee.accountant.calibrate(
    epsilon, delta, samples
  )
  return guarantee.with_noise(noise_multiplier, claim, delta)
