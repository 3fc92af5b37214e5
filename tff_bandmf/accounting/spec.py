"""What a run claims: strategy, participation, sensitivity, noise."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Optional

import dp_accounting

from tff_bandmf import _checks, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting import gaussian
from tff_bandmf.accounting import slack as slack_lib

# Two data sets are neighbours if one client's contributions are zero in one.
ADJACENCY = 'zero-out'


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
  """The guarantee of a whole run without amplification by sampling.

    z_stddev = noise_multiplier * sensitivity * clip
    rho = 1 / (2 noise_multiplier^2), but for what cut weights cost

  It holds for the release of every round's noised sum, for one client, under
  zero-out adjacency, if no client takes part in more rounds, or closer
  together, than `participation` says, and if each client's contribution to a
  round has L2 norm at most the clipping norm.

  Attributes:
    strategy: C.
    participation: the schema that must be enforced.
    noise_multiplier: standard deviation of z over clip times sensitivity, what
      an accountant takes; 0 adds no noise and guarantees nothing.
    dimension: d of the model; None for all whose runs have at most 2^33
      values that are compared.
    max_slack: epsilon, and part of delta, that the arithmetic may cost before
      a claim is refused.
    sensitivity: of `strategy` under `participation`, clip = 1.

  Raises:
    ValueError: `noise_multiplier` is negative or not finite.
  """

  strategy: strategies.Strategy
  participation: participation_lib.Participation
  noise_multiplier: float
  dimension: Optional[int] = None
  max_slack: float = slack_lib.MAX_SLACK
  sensitivity: sensitivity_lib.Sensitivity = dataclasses.field(init=False)

  def __post_init__(self):
    # 0 is legal, for a run without noise.
    if self.noise_multiplier != 0:
      _checks.positive(
        'noise_multiplier',
        self.noise_multiplier,
        'it is stddev(z) / (clip * sensitivity); 0 adds no noise',
      )
    # Never a parameter, so that it cannot belong to another matrix.
    object.__setattr__(
      self,
      'sensitivity',
      sensitivity_lib.sensitivity(self.strategy, self.participation),
    )

  @property
  def z_stddev(self) -> float:
    """Standard deviation of z for clip = 1; multiply by the clipping norm."""
    return self.noise_multiplier * self.sensitivity.value

  @property
  def rho(self) -> float:
    """rho of zero-concentrated DP; infinite without noise."""
    if not self.noise_multiplier:
      return float('inf')
    # PRIVACY: cut weights have another sensitivity, in real numbers too.
    # Guard: slack_test.test_rho_is_that_of_the_cut_weights.
    return gaussian.zcdp_rho(self._exact_noise)

  @functools.cached_property
  def cost(self) -> slack_lib.Cost:
    """What the arithmetic of the run costs."""
    return slack_lib.Cost.of(
      self.strategy,
      self.participation.participations(self.strategy.rounds),
      sampled=False,
      dimension=self.dimension,
      max_slack=self.max_slack,
    )

  def slack(self, delta: float) -> slack_lib.Slack:
    """Returns what the arithmetic costs of `delta`, and adds to epsilon.

    Raises:
      ValueError: a value out of range, or there is no noise.
      Unproved: the cost exceeds `max_slack`.
    """
    gaussian.check_delta(delta)
    return self.cost.slack(
      self._exact_epsilon(self.cost.least_delta(delta)), delta
    )

  def epsilon(self, delta: float) -> float:
    """Returns epsilon at `delta`, rounded up; infinite without noise.

    It is that of the released bits: the epsilon of real numbers at the
    `exact_delta` of `slack`, and the slack.

    Raises:
      ValueError: a value out of range.
      Unproved: the slack exceeds `max_slack`.
    """
    if not self.noise_multiplier:
      return float('inf')
    # PRIVACY: the accountant speaks of real numbers, the release has others.
    # Guard: slack_test.test_epsilon_includes_the_arithmetic.
    slack = self.slack(delta)
    return self._exact_epsilon(slack.exact_delta) + slack.epsilon

  def profile(self, epsilons: Sequence[float], delta: float) -> list[float]:
    """Returns delta at each epsilon, rounded up, that of the released bits.

    Args:
      epsilons: at least 0.
      delta: about the least that is asked for; what the arithmetic costs is
        that of one claim for all.

    Raises:
      ValueError: a value out of range, or there is no noise.
      Unproved: the slack exceeds `max_slack`.
    """
    slack = self.cost.slack(max(epsilons), delta)
    return [
      slack.below(epsilon)
      + slack.total(
        gaussian.gaussian_delta(self._exact_noise, slack.exact_epsilon(epsilon))
      )
      for epsilon in epsilons
    ]

  @property
  def _exact_noise(self) -> float:
    """The noise multiplier, for the sensitivity of the cut weights."""
    return self.noise_multiplier / self.cost.more_noise(self.sensitivity.value)

  def _exact_epsilon(self, delta: float) -> float:
    """Returns epsilon of the run in real numbers."""
    return gaussian.gaussian_epsilon(self._exact_noise, delta)

  def dp_event(self) -> dp_accounting.DpEvent:
    """Returns the event of the whole run, for a dp-accounting accountant.

    It is that of real numbers: `slack` is not in it.
    """
    if not self.noise_multiplier:
      return dp_accounting.NonPrivateDpEvent()
    return dp_accounting.GaussianDpEvent(self._exact_noise)

  def to_dict(self) -> dict[str, Any]:
    """Returns the numbers of the claim under their JSON keys."""
    return {
      'family': self.strategy.family,
      'rounds': self.strategy.rounds,
      'bands': self.strategy.bands,
      **self.participation.to_dict(),
      'participations': self.participation.participations(self.strategy.rounds),
      'sensitivity': self.sensitivity.value,
      'sensitivity_method': self.sensitivity.method,
      'sensitivity_reason': self.sensitivity.reason,
      'noise_multiplier': self.noise_multiplier,
      'z_stddev_per_clip': self.z_stddev,
      'dimension': self.dimension,
      'max_slack': self.max_slack,
      'adjacency': ADJACENCY,
    }


def calibrate(
  strategy: strategies.Strategy,
  participation: participation_lib.Participation,
  epsilon: float,
  delta: float,
  dimension: Optional[int] = None,
  max_slack: float = slack_lib.MAX_SLACK,
) -> PrivacySpec:
  """Returns the spec with the least noise that meets (epsilon, delta).

  Args:
    strategy: C.
    participation: the schema that must be enforced.
    epsilon: positive, above what the arithmetic costs.
    delta: in [1e-50, 1), above what the arithmetic costs.
    dimension: as in `PrivacySpec`.
    max_slack: as in `PrivacySpec`.

  Raises:
    ValueError: a value out of range, or the slack exceeds `max_slack`.
  """
  # Checks what is given.
  exact = gaussian.gaussian_noise_multiplier(epsilon, delta)
  spec = PrivacySpec(strategy, participation, exact, dimension, max_slack)
  slack = spec.cost.slack(epsilon, delta)
  target = slack_lib.less(epsilon, slack)
  more = spec.cost.more_noise(spec.sensitivity.value)
  while True:
    spec = dataclasses.replace(
      spec,
      noise_multiplier=more
      * gaussian.gaussian_noise_multiplier(target, slack.exact_delta),
    )
    excess = spec.epsilon(delta) - epsilon
    # PRIVACY: what is returned was seen to meet epsilon.
    # Guard: slack_test.test_calibrate_meets_epsilon.
    if excess <= 0:
      return spec
    target -= 2 * excess
