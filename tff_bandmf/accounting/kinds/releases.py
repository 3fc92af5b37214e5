"""Releases of other programs on the same clients, for composition.

A user describes a release by its event, by (epsilon, delta), by rho, or by the
noise multiplier of a Gaussian query. The module turns the release into parts;
`poisson.composed_epsilon` convolves their privacy loss distributions. A rho has
no such distribution; composition converts it to an epsilon.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import attrs

from tff_bandmf import _checks, errors
from tff_bandmf.accounting.kinds import poisson
from tff_bandmf.accounting.methods import gaussian


@attrs.frozen(kw_only=True)
class Release:
  """A release on the same clients that this library did not make.

  The guarantee of the release must be for the same neighbouring data sets and
  the same unit of privacy as the runs with which the release is composed. The
  release may depend on outputs of the runs, and outputs of the runs may depend
  on the release. But the guarantee of the release must not depend on outputs of
  the runs.

  Attributes:
    name: name of the release in reports.
    epsilon: epsilon of an (epsilon, delta) guarantee, >= 0.
    delta: delta of this guarantee, in [0, 1).
    rho: rho of a zCDP guarantee, >= 0. The composed epsilon is an upper bound.
    noise_multiplier: standard deviation / sensitivity of a Gaussian query, > 0.
    event: `dp_accounting.DpEvent` made of Gaussian, Poisson-sampled Gaussian
      and Laplace events.

  Raises:
    ValueError: a value is out of range, or not exactly one of epsilon, rho,
      noise_multiplier and event is given.

  >>> Release(name='histogram', epsilon=0.5, delta=1e-9).parts()
  (Pair(epsilon=0.5, delta=1e-09),)
  """

  name: str = 'another release'
  epsilon: Optional[float] = None
  delta: float = 0.0
  rho: Optional[float] = None
  noise_multiplier: Optional[float] = None
  event: Any = None

  def __attrs_post_init__(self):
    for name in ('epsilon', 'delta', 'rho', 'noise_multiplier'):
      value = getattr(self, name)
      if value is not None:
        _checks.nonnegative(name, value, 'it is that of one release')
    values = self.epsilon, self.rho, self.noise_multiplier, self.event
    if sum(value is not None for value in values) != 1:
      raise errors.value_error(
        f'release={self.name}: must have exactly one of epsilon, rho, '
        'noise_multiplier and event; compose two guarantees as two releases'
      )
    if self.delta >= 1 or (self.delta and self.epsilon is None):
      raise errors.value_error(
        f'delta={self.delta}: must be below 1, and 0 without an epsilon; give '
        'both, or neither'
      )
    # PRIVACY: A release without noise has no guarantee, and neither has a
    # composition with it. Such a release is refused.
    # Guard: releases_test.test_release_without_a_guarantee_is_refused.
    if self.noise_multiplier == 0:
      raise errors.value_error(
        'noise_multiplier=0: a release without noise has no guarantee; leave '
        'it out if it stays private'
      )
    self.parts()  # Refuses events that are not supported.

  def parts(self) -> tuple[poisson.Mechanism, ...]:
    """Returns the mechanisms of the release; none for a rho."""
    if self.epsilon is not None:
      return (Pair(self.epsilon, self.delta),)
    if self.noise_multiplier is not None:
      return (poisson.Part(self.noise_multiplier),)
    return () if self.event is None else _parts(self.event, 1)

  @property
  def zcdp_rho(self) -> Optional[float]:
    """rho of zero-concentrated DP; None if no rho is proved."""
    rhos = [0.0 if self.rho is None else self.rho]
    for part in self.parts():
      if not isinstance(part, poisson.Part) or part.sampling_prob < 1:
        return None
      rhos.append(gaussian.zcdp_rho(part.whole_noise))
    return math.fsum(rhos)


@attrs.frozen
class Pair(poisson.Mechanism):
  """The worst mechanism with an (epsilon, delta) guarantee."""

  epsilon: float
  delta: float

  def distribution(self, interval):
    from dp_accounting.pld import common, privacy_loss_distribution

    return privacy_loss_distribution.from_privacy_parameters(
      common.DifferentialPrivacyParameters(self.epsilon, self.delta), interval
    )


@attrs.frozen
class Laplace(poisson.Mechanism):
  """Queries with Laplace noise.

  Attributes:
    parameter: scale of the noise / sensitivity in the L1 norm, > 0.
    compositions: number of queries.
  """

  parameter: float
  compositions: int = 1

  def distribution(self, interval):
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_laplace_mechanism(
      self.parameter,
      pessimistic_estimate=True,
      value_discretization_interval=interval,
    ).self_compose(self.compositions)


def _parts(event: Any, count: int) -> tuple[poisson.Mechanism, ...]:
  """Returns the mechanisms of an event that happens `count` times.

  Raises:
    ValueError: the event, or an event in it, is not supported.
  """
  import dp_accounting

  if isinstance(event, dp_accounting.NoOpDpEvent):
    return ()
  if isinstance(event, dp_accounting.ComposedDpEvent):
    return tuple(part for each in event.events for part in _parts(each, count))
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    return _parts(event.event, count * event.count)
  inner, prob = event, 1.0
  if isinstance(event, dp_accounting.PoissonSampledDpEvent):
    inner, prob = event.event, event.sampling_probability
  noise = float(getattr(inner, 'noise_multiplier', 0.0))
  # PRIVACY: If a mechanism had no noise, or were mistaken for another
  # mechanism, its guarantee would be false. Only Gaussian and Laplace noise is
  # accepted here.
  # Guard: releases_test.test_release_without_a_guarantee_is_refused.
  if 0 < noise < math.inf:
    if isinstance(inner, dp_accounting.GaussianDpEvent):
      return (poisson.Part(noise, float(prob), count),)
    if isinstance(event, dp_accounting.LaplaceDpEvent):
      return (Laplace(noise, count),)
  # PRIVACY: dp-accounting has events whose losses this module does not compute.
  # If they were left out, epsilon would be too small. They are refused.
  # Guard: releases_test.test_release_without_a_guarantee_is_refused.
  raise errors.value_error(
    f'event={type(event).__name__}: is not one of Gaussian with noise, '
    'Poisson-sampled Gaussian and Laplace events; give its epsilon and delta, '
    'or its rho'
  )
