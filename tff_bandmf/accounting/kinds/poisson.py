"""Composed Poisson-sampled Gaussians: epsilon, delta and calibration.

| symbol | name here          | meaning                                      |
|--------|--------------------|----------------------------------------------|
| sigma  | `noise_multiplier` | stddev / sensitivity of one round            |
| q      | `sampling_prob`    | probability that a client is in a round      |
| T      | `compositions`     | number of rounds that are composed           |

The dominating pair of one round is

  (1 - q) N(0, sigma^2) + q N(1, sigma^2)   against   N(0, sigma^2).

The distributions of the privacy loss are composed in both directions of this
pair, and the larger epsilon or delta is claimed. dp-accounting computes these
distributions pessimistically: it rounds losses up to a grid. The width of the
grid follows from `_ACCURACY`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Optional

from tff_bandmf import _checks, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting.kinds import samplers
from tff_bandmf.accounting.methods import accountants, gaussian

if TYPE_CHECKING:
  from dp_accounting.pld import privacy_loss_distribution

# Largest relative increase of epsilon that the grid of losses should cause.
_ACCURACY = 1e-4
# Largest number of grid intervals for the losses of one round.
_MOST_INTERVALS = 50_000
# Probability mass that an FFT may lose for each composition: several times the
# largest measured value.
_FFT_ERROR = 4e-16
# Probability mass that each truncation of tails may lose.
_TAIL_MASS = 1e-15
# Largest relative distance of a calibrated epsilon below its target.
_CALIBRATION_WIDTH = 1e-5
# Least noise multiplier. Below this number, the privacy losses span too many
# intervals of a grid.
_LEAST_NOISE = 0.01


class Mechanism(abc.ABC):
  """A mechanism of a composition.

  Attributes:
    compositions: number of times that the mechanism runs.
    span: least width of grid intervals for its privacy losses, >= 0.
  """

  compositions: int = 1
  span: float = 0.0

  @abc.abstractmethod
  def distribution(
    self, interval: float
  ) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Returns the privacy losses on a grid, rounded up, in both directions."""


@dataclasses.dataclass(frozen=True)
class Part(Mechanism):
  """T Poisson-sampled Gaussians of a composition.

  Attributes:
    noise_multiplier: sigma, stddev / sensitivity of a round, >= 0.01.
    sampling_prob: q, in (0, 1]; 1 means no sampling.
    compositions: T, number of rounds, integer >= 1.
  """

  noise_multiplier: float
  sampling_prob: float = 1.0
  compositions: int = 1

  @property
  def whole_noise(self) -> float:
    """For q = 1: noise multiplier of one Gaussian with the same guarantee."""
    return self.noise_multiplier / math.sqrt(self.compositions)

  @property
  def span(self) -> float:  # type: ignore[override]
    """Least width of a grid interval.

    The losses of a round span at most 10 standard deviations, in at most
    `_MOST_INTERVALS` intervals.
    """
    widest = (10 + 0.5 / self.noise_multiplier) / self.noise_multiplier
    return widest / _MOST_INTERVALS

  def distribution(self, interval):
    from dp_accounting.pld import privacy_loss_distribution

    # PRIVACY: If losses were rounded down, or losses of only one direction were
    # composed, epsilon would be too small. `pessimistic_estimate` rounds losses
    # up, and dp-accounting composes both directions.
    # Guard: cyclic_poisson_test.test_one_composition_is_the_closed_form.
    return privacy_loss_distribution.from_gaussian_mechanism(
      self.noise_multiplier,
      pessimistic_estimate=True,
      value_discretization_interval=interval,
      sampling_prob=self.sampling_prob,
    ).self_compose(self.compositions, tail_mass_truncation=_TAIL_MASS)


class Poisson(accountants.Exact):
  """The accountant of T composed Poisson-sampled Gaussians.

  Attributes:
    sampling_prob: q, in (0, 1].
    compositions: T, number of rounds, integer >= 1.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    schema: participation_lib.Participation,
    sampling_prob: float,
    compositions: int,
  ):
    super().__init__(strategy, schema)
    self.sampling_prob = sampling_prob
    self.compositions = compositions

  def epsilon(self, noise, delta):
    part = Part(noise, self.sampling_prob, self.compositions)
    return composed_epsilon((part,), delta)

  def delta(self, noise, epsilon):
    return poisson_delta(noise, self.sampling_prob, self.compositions, epsilon)

  def noise_multiplier(self, epsilon, delta):
    return poisson_noise_multiplier(
      epsilon, delta, self.sampling_prob, self.compositions
    )

  def dp_event(self, noise_multiplier):
    import dp_accounting

    return dp_accounting.SelfComposedDpEvent(
      dp_accounting.PoissonSampledDpEvent(
        self.sampling_prob, dp_accounting.GaussianDpEvent(noise_multiplier)
      ),
      self.compositions,
    )


def poisson_epsilon(
  noise_multiplier: float, sampling_prob: float, compositions: int, delta: float
) -> float:
  """Returns epsilon of T Poisson-sampled Gaussians at `delta`, rounded up.

  Args:
    noise_multiplier: sigma, standard deviation / sensitivity of a round.
    sampling_prob: q, probability of a client in a round of its group.
    compositions: T, number of rounds of a group.
    delta: target delta, above the mass that rounding may lose, about 4e-16 T.

  Raises:
    ValueError: a value is out of range.

  >>> round(poisson_epsilon(1.93799, 9 * 6 / 2052, 228, 1e-6), 2)
  1.0
  """
  part = Part(noise_multiplier, sampling_prob, compositions)
  _check(part)
  return composed_epsilon((part,), delta)


def composed_epsilon(parts: Sequence[Mechanism], delta: float) -> float:
  """Returns epsilon of a composition at `delta`, rounded up.

  Epsilon is infinite if a noise multiplier is below 0.01.

  Args:
    parts: mechanisms that are composed. The function of the data in a part may
      depend on releases of earlier parts; sigma, q and T must not depend on
      releases.
    delta: target delta, above the mass that rounding may lose, about 4e-16
      times the number of compositions.

  Raises:
    ValueError: a value is out of range.
  """
  first, *others = parts
  if isinstance(first, Part) and first.sampling_prob == 1 and not others:
    return gaussian.gaussian_epsilon(first.whole_noise, delta)
  for part in parts:
    if isinstance(part, Part):
      if part.noise_multiplier < _LEAST_NOISE:
        return math.inf
      _check(part)
  total = sum(part.compositions for part in parts)
  # The interval depends on epsilon, and epsilon on the interval, so the loop
  # computes a fixed point. If the loop ended earlier, epsilon would jump
  # between neighbouring noise multipliers.
  previous, epsilon = math.inf, 16.0
  while abs(epsilon - previous) > 0.01 * epsilon:
    previous = epsilon
    epsilon = _epsilon(parts, delta, _interval(previous, total))
  return epsilon


def poisson_delta(
  noise_multiplier: float,
  sampling_prob: float,
  compositions: int,
  epsilon: float,
) -> float:
  """Returns delta of T Poisson-sampled Gaussians at `epsilon`, rounded up.

  Args:
    noise_multiplier: sigma, standard deviation / sensitivity of a round.
    sampling_prob: q, probability of a client in a round of its group.
    compositions: T, number of rounds of a group.
    epsilon: target epsilon, finite and >= 0.

  Raises:
    ValueError: a value is out of range.
  """
  part = Part(noise_multiplier, sampling_prob, compositions)
  _check(part)
  _checks.nonnegative('epsilon', epsilon, 'typical values are 0.1 to 20')
  if sampling_prob == 1:
    return gaussian.gaussian_delta(part.whole_noise, epsilon)
  # The interval changes delta more than epsilon, so it is smaller here than in
  # `composed_epsilon`.
  losses = _losses((part,), _interval(epsilon / 16, compositions))
  delta = float(losses.get_delta_for_epsilon(epsilon))
  return min(1.0, delta + _lost_mass((part,)))


def poisson_noise_multiplier(
  epsilon: float, delta: float, sampling_prob: float, compositions: int
) -> float:
  """Returns the least sigma for (epsilon, delta), rounded up.

  `poisson_epsilon` of the returned sigma is at most `epsilon`.

  Args:
    epsilon: target epsilon, > 0.
    delta: target delta, above the mass that rounding may lose, about 4e-16 T.
    sampling_prob: q, probability of a client in a round of its group.
    compositions: T, number of rounds of a group, ceil(rounds / groups).

  Raises:
    ValueError: a value is out of range.
    RuntimeError: the search did not converge.

  >>> round(poisson_noise_multiplier(1, 1e-6, 9 * 6 / 2052, 228), 3)
  1.939
  """
  _check(Part(1.0, sampling_prob, compositions))
  # Sampled clients never need more noise than clients in all T rounds.
  unamplified = gaussian.gaussian_noise_multiplier(epsilon, delta)
  unamplified *= math.sqrt(compositions)
  if sampling_prob == 1:
    return unamplified
  if sampling_prob * compositions <= delta:
    raise errors.value_error(
      f'delta={delta}: is no less than the probability that a client takes '
      f'part at all, {sampling_prob * compositions:g}: the claim holds without '
      'noise; ask for a smaller delta'
    )
  interval = _interval(16 * epsilon, compositions)

  def coarse(sigma):
    part = Part(sigma, sampling_prob, compositions)
    return _epsilon((part,), delta, interval)

  def exact(sigma):
    return poisson_epsilon(sigma, sampling_prob, compositions, delta)

  sigma = unamplified
  while coarse(sigma) < epsilon:
    sigma /= 1.5
  sigma = _solve(coarse, epsilon, sigma, width=1e-2)
  return _solve(exact, epsilon, sigma, width=_CALIBRATION_WIDTH)


def _solve(
  curve: Callable[[float], float], epsilon: float, sigma: float, width: float
) -> float:
  """Returns a sigma with (1 - width) epsilon <= curve(sigma) <= epsilon.

  Args:
    curve: decreasing function from sigma to epsilon.
    epsilon: target epsilon, > 0.
    sigma: start of the search.
    width: largest relative distance of the result below the target.

  Raises:
    RuntimeError: the search did not converge.
  """
  # The secant method suits, since ln epsilon is nearly linear in ln sigma.
  x, slope = math.log(sigma), -2.0
  previous: Optional[tuple[float, float]] = None
  aim = math.log(epsilon) - width / 2
  for _ in range(40):
    reached = curve(math.exp(x))
    # PRIVACY: The secant method may suggest a sigma that is too small, so that
    # its epsilon exceeds the target. A sigma is returned only if its epsilon
    # was computed and is at most the target.
    # Guard: cyclic_poisson_test.test_search_returns_no_noise_that_gives_more.
    if epsilon * (1 - width) <= reached <= epsilon:
      return math.exp(x)
    y = math.log(max(reached, 0.1 * epsilon))
    if previous is not None and (y < previous[1]) == (x > previous[0]):
      slope = min(-0.1, (y - previous[1]) / (x - previous[0]))
    previous = x, y
    x += max(-0.4, min(0.4, (aim - y) / slope))
  raise RuntimeError(
    errors.invalid(f'epsilon={epsilon}: no noise reaches it; use another one')
  )


def _check(part: Part) -> None:
  noise = part.noise_multiplier
  gaussian.check_noise_multiplier(noise)
  if noise < _LEAST_NOISE:
    raise errors.value_error(
      f'noise_multiplier={noise}: must be at least {_LEAST_NOISE}; use more'
    )
  samplers.check_prob(part.sampling_prob)
  _checks.count('compositions', part.compositions, 'give the rounds of a group')


def _interval(epsilon: float, compositions: int) -> float:
  """Returns a width of grid intervals at which epsilon is accurate.

  Intervals of width h add less than 1.5 T h^2 to epsilon. The factor 1.5 was
  measured and is not proved, but epsilon is an upper bound at any width.
  """
  return math.sqrt(_ACCURACY * max(epsilon, 1e-4) / (1.5 * compositions))


def _losses(
  parts: Sequence[Mechanism], interval: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
  """Returns the privacy loss distribution of a composition, rounded up.

  The result has both directions of the dominating pair, and its delta is the
  larger delta of the two directions.
  """
  # All parts share one grid.
  interval = max(interval, *(part.span for part in parts))
  losses = [part.distribution(interval) for part in parts]
  return functools.reduce(
    lambda first, second: first.compose(second, _TAIL_MASS), losses
  )


def _epsilon(
  parts: Sequence[Mechanism], delta: float, interval: float
) -> float:
  """Returns epsilon at `delta`, rounded up; see `composed_epsilon`."""
  _checks.positive('delta', delta, 'use less than 1 / population')
  lost = _lost_mass(parts)
  # PRIVACY: FFTs and truncation lose probability mass, so the delta computed
  # for an epsilon is too small, and epsilon at the target delta would be too
  # small. A bound of the lost mass is subtracted from the target delta.
  # Guard: cyclic_poisson_test.test_delta_below_rounding_is_refused.
  remaining = delta - lost
  if not 0 < remaining < 1:
    raise errors.value_error(
      f'delta={delta}: must be in ({lost:g}, 1); use less than 1 / population; '
      'rounding hides smaller ones'
    )
  return float(_losses(parts, interval).get_epsilon_for_delta(remaining))


def _lost_mass(parts: Sequence[Mechanism]) -> float:
  return sum(
    _TAIL_MASS + _FFT_ERROR * (part.compositions + 100) for part in parts
  )
