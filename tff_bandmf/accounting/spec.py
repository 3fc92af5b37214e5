"""What a run claims: strategy, participation, sensitivity, noise."""

from __future__ import annotations

import dataclasses
from typing import Any

import dp_accounting

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting import gaussian

# Two data sets are neighbours if one client's contributions are zero in one.
ADJACENCY = 'zero-out'


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
  """The guarantee of a whole run without amplification by sampling.

    z_stddev = noise_multiplier * sensitivity * clip
    rho = 1 / (2 noise_multiplier^2)

  It holds for the release of every round's noised sum, for one client, under
  zero-out adjacency, if no client takes part in more rounds, or closer
  together, than `participation` says, and if each client's contribution to a
  round has L2 norm at most the clipping norm.

  Attributes:
    strategy: C.
    participation: the schema that must be enforced.
    noise_multiplier: standard deviation of z over clip times sensitivity, what
      an accountant takes; 0 adds no noise and guarantees nothing.
    sensitivity: of `strategy` under `participation`, clip = 1.

  Raises:
    ValueError: `noise_multiplier` is negative or not finite.
  """

  strategy: strategies.Strategy
  participation: participation_lib.Participation
  noise_multiplier: float
  sensitivity: sensitivity_lib.Sensitivity = dataclasses.field(init=False)

  def __post_init__(self):
    # 0 is legal, for a run without noise.
    if self.noise_multiplier != 0:
      errors.check_positive(
          'noise_multiplier', self.noise_multiplier,
          'it is stddev(z) / (clip * sensitivity); 0 adds no noise')
    # Never a parameter, so that it cannot belong to another matrix.
    object.__setattr__(
        self, 'sensitivity',
        sensitivity_lib.sensitivity(self.strategy, self.participation))

  @property
  def z_stddev(self) -> float:
    """Standard deviation of z for clip = 1; multiply by the clipping norm."""
    return self.noise_multiplier * self.sensitivity.value

  @property
  def rho(self) -> float:
    """rho of zero-concentrated DP; infinite without noise."""
    if not self.noise_multiplier:
      return float('inf')
    return gaussian.zcdp_rho(self.noise_multiplier)

  def epsilon(self, delta: float) -> float:
    """Returns epsilon at `delta`, rounded up; infinite without noise."""
    if not self.noise_multiplier:
      return float('inf')
    return gaussian.gaussian_epsilon(self.noise_multiplier, delta)

  def dp_event(self) -> dp_accounting.DpEvent:
    """Returns the event of the whole run, for a dp-accounting accountant."""
    if not self.noise_multiplier:
      return dp_accounting.NonPrivateDpEvent()
    return dp_accounting.GaussianDpEvent(self.noise_multiplier)

  def to_dict(self) -> dict[str, Any]:
    """Returns the numbers of the claim under their JSON keys."""
    return {
        'family': self.strategy.family,
        'rounds': self.strategy.rounds,
        'bands': self.strategy.bands,
        **self.participation.to_dict(),
        'participations': self.participation.participations(
            self.strategy.rounds),
        'sensitivity': self.sensitivity.value,
        'sensitivity_method': self.sensitivity.method,
        'sensitivity_reason': self.sensitivity.reason,
        'noise_multiplier': self.noise_multiplier,
        'z_stddev_per_clip': self.z_stddev,
        'adjacency': ADJACENCY,
    }


def calibrate(
    strategy: strategies.Strategy,
    participation: participation_lib.Participation,
    epsilon: float,
    delta: float,
) -> PrivacySpec:
  """Returns the spec with the least noise that meets (epsilon, delta).

  Args:
    strategy: C.
    participation: the schema that must be enforced.
    epsilon: positive.
    delta: in [1e-50, 1).

  Raises:
    ValueError: a value out of range.
  """
  return PrivacySpec(
      strategy, participation,
      gaussian.gaussian_noise_multiplier(epsilon, delta))
