"""Amplification by cyclic Poisson sampling, for banded strategies.

| symbol | name here       | meaning                                         |
|--------|-----------------|-------------------------------------------------|
| n      | `rounds`        | rounds of the strategy C                        |
| m      | `population`    | clients                                         |
| B      | `cohort_size`   | expected clients a round                        |
| g      | `groups`        | groups of clients, at least the bands of C      |
| q      | `sampling_prob` | probability of a client in a round of its group |
| T      | `compositions`  | rounds of a group, ceil(n / g)                  |
| kappa  | `column_norm`   | largest column norm of C                        |
| sigma  |                 | standard deviation of z over clip times kappa   |

Clients are split once into g groups of m / g, without a look at their data.
Round t is open to group t mod g alone, and each client of it takes part with
probability q, independently of everything else, so that

  q = g B / m        (not B / m: a group is open once in g rounds)

Columns of C that are g >= bands apart share no row, so a client's rounds touch
disjoint parts of C x + z, each a Gaussian of sensitivity kappa at most
[BandMF23, Thm 4 and 5]:

  the run is T compositions of the Poisson-sampled Gaussian of sigma

for any signs of C and gradients that adapt to what was released (`poisson`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Optional

import dp_accounting

from tff_bandmf import _checks, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting import gaussian, poisson
from tff_bandmf.accounting import sampling as sampling_lib
from tff_bandmf.accounting import slack as slack_lib


def cyclic_sampling_prob(
  population: int, cohort_size: float, groups: int
) -> float:
  """Returns q, the probability of a client in a round of its group.

    q = groups * cohort_size / population

  Args:
    population: m, clients in all groups together.
    cohort_size: B, expected clients a round.
    groups: g, at least the bands of the strategy.

  Raises:
    ValueError: a value out of range, or a group is smaller than a cohort.

  >>> cyclic_sampling_prob(population=2052, cohort_size=6, groups=9)
  0.02631578947368421
  """
  _checks.count('population', population, 'give the number of clients')
  _checks.positive('cohort_size', cohort_size, 'clients a round')
  _checks.count('groups', groups, 'at least the bands of the strategy')
  # PRIVACY: only one group in `groups` is open in a round.
  # Guard: cyclic_poisson_test.test_sampling_prob_is_that_within_the_group.
  sampling_prob = groups * cohort_size / population
  if sampling_prob > 1:
    raise ValueError(
      errors.invalid(
        'groups',
        groups,
        f'a group has {population / groups:g} clients, fewer than '
        f'cohort_size={cohort_size}',
        'use fewer bands or smaller cohorts',
      )
    )
  return sampling_prob


@dataclasses.dataclass(frozen=True)
class CyclicPoissonSpec:
  """The guarantee of a run whose cohorts are drawn by cyclic Poisson sampling.

    z_stddev = noise_multiplier * column_norm * clip

  It holds for the release of every round's noised sum, for one client, if its
  contribution to a round has L2 norm at most the clipping norm, and if cohorts
  are drawn as the module says, by secret randomness: nobody who sees the
  release may know who took part.

  Attributes:
    strategy: C.
    population: m; under add-remove adjacency, a number that is public.
    cohort_size: B, expected clients a round.
    noise_multiplier: sigma, standard deviation of z over clip times the largest
      column norm of C.
    sampling: how cohorts really come about; must be `cyclic-poisson`.
    groups: g; 0 for as many as C has bands.
    adjacency: `zero-out` or `add-remove`.
    dimension: as in `PrivacySpec`.
    max_slack: as in `PrivacySpec`.

  Raises:
    ValueError: a value out of range, C has more bands than there are groups,
      another sampling, or another adjacency.
  """

  strategy: strategies.Strategy
  population: int
  cohort_size: float
  noise_multiplier: float
  sampling: str
  groups: int = 0
  adjacency: str = sampling_lib.ZERO_OUT
  dimension: Optional[int] = None
  max_slack: float = slack_lib.MAX_SLACK
  column_norm: float = dataclasses.field(init=False)

  def __post_init__(self):
    sampling_lib.check_sampling(self.sampling, sampling_lib.CYCLIC_POISSON)
    sampling_lib.check_adjacency(self.adjacency)
    _checks.positive(
      'noise_multiplier',
      self.noise_multiplier,
      'it is stddev(z) / (clip * column_norm)',
    )
    if self.groups == 0:
      object.__setattr__(self, 'groups', self.strategy.bands)
    _checks.count('groups', self.groups, 'at least the bands')
    # PRIVACY: columns nearer than `bands` overlap, and rounds of a client
    # would no longer be compositions.
    # Guard: cyclic_poisson_test.test_more_bands_than_groups_are_refused.
    if self.strategy.bands > self.groups:
      raise ValueError(
        errors.invalid(
          'groups',
          self.groups,
          f'must be at least the bands={self.strategy.bands} of C',
          'use a strategy with fewer bands',
        )
      )
    if self.groups > self.strategy.rounds:
      raise ValueError(
        errors.invalid(
          'groups',
          self.groups,
          f'must not exceed the rounds={self.strategy.rounds}',
          'a group without a round never takes part',
        )
      )
    cyclic_sampling_prob(self.population, self.cohort_size, self.groups)
    norm = sensitivity_lib.sensitivity(
      self.strategy, participation_lib.Single()
    )
    object.__setattr__(self, 'column_norm', norm.value)

  @property
  def sampling_prob(self) -> float:
    """q, the probability of a client in a round of its group."""
    return cyclic_sampling_prob(self.population, self.cohort_size, self.groups)

  @property
  def compositions(self) -> int:
    """T, the rounds of a group, ceil(rounds / groups)."""
    return -(-self.strategy.rounds // self.groups)

  @property
  def z_stddev(self) -> float:
    """Standard deviation of z for clip = 1; multiply by the clipping norm."""
    return self.noise_multiplier * self.column_norm

  @functools.cached_property
  def cost(self) -> slack_lib.Cost:
    """What the arithmetic of the run costs."""
    # A round of a client touches rows that no other round of it does.
    return slack_lib.Cost.of(
      self.strategy,
      1,
      sampled=True,
      dimension=self.dimension,
      max_slack=self.max_slack,
    )

  def slack(self, delta: float) -> slack_lib.Slack:
    """Returns what the arithmetic costs of `delta`, and adds to epsilon.

    Raises:
      ValueError: the cost exceeds `max_slack`.
    """
    gaussian.check_delta(delta)
    return self.cost.slack(
      self._exact_epsilon(self.cost.least_delta(delta)), delta
    )

  def epsilon(self, delta: float) -> float:
    """Returns epsilon at `delta`, rounded up, that of the released bits."""
    slack = self.slack(delta)
    # PRIVACY: as in `PrivacySpec`.
    # Guard: slack_test.test_amplified_epsilon_includes_the_arithmetic.
    return self._exact_epsilon(slack.exact_delta) + slack.epsilon

  def delta(self, epsilon: float) -> float:
    """Returns delta at `epsilon`, rounded up, that of the released bits."""
    # Less than what is returned.
    exact = poisson.poisson_delta(*self._rounds, epsilon)
    slack = self.cost.slack(epsilon, exact)
    return slack.below(epsilon) + slack.total(
      poisson.poisson_delta(*self._rounds, slack.exact_epsilon(epsilon))
    )

  def _exact_epsilon(self, delta: float) -> float:
    return poisson.poisson_epsilon(*self._rounds, delta)

  @property
  def _rounds(self) -> tuple[float, float, int]:
    """(sigma of the cut weights, q, T)."""
    return (
      self.noise_multiplier / self.cost.more_noise(self.column_norm),
      self.sampling_prob,
      self.compositions,
    )

  def dp_event(self) -> dp_accounting.DpEvent:
    """Returns the event of the whole run, for a dp-accounting accountant.

    It is that of real numbers: `slack` is not in it.
    """
    sigma, prob, compositions = self._rounds
    return dp_accounting.SelfComposedDpEvent(
      dp_accounting.PoissonSampledDpEvent(
        prob, dp_accounting.GaussianDpEvent(sigma)
      ),
      compositions,
    )

  def to_dict(self) -> dict[str, Any]:
    """Returns the numbers of the claim under their JSON keys."""
    return {
      'family': self.strategy.family,
      'rounds': self.strategy.rounds,
      'bands': self.strategy.bands,
      'amplification': self.sampling,
      'population': self.population,
      'cohort_size': self.cohort_size,
      'groups': self.groups,
      'sampling_prob': self.sampling_prob,
      'compositions': self.compositions,
      'column_norm': self.column_norm,
      'noise_multiplier': self.noise_multiplier,
      'z_stddev_per_clip': self.z_stddev,
      'adjacency': self.adjacency,
    }


def calibrate_cyclic_poisson(
  spec: CyclicPoissonSpec, epsilon: float, delta: float
) -> CyclicPoissonSpec:
  """Returns the spec with the least noise that meets (epsilon, delta).

  Args:
    spec: of the run, with any noise.
    epsilon: positive, above what the arithmetic costs.
    delta: above what rounding may lose, about 4e-16 T, and what the arithmetic
      costs.

  Raises:
    ValueError: a value out of range, or the slack exceeds `max_slack`.
    RuntimeError: the search did not converge.
  """
  _checks.positive('epsilon', epsilon, 'typical values are 0.1 to 20')
  gaussian.check_delta(delta)
  slack = spec.cost.slack(epsilon, delta)
  target = slack_lib.less(epsilon, slack)
  more = spec.cost.more_noise(spec.column_norm)
  while True:
    spec = dataclasses.replace(
      spec,
      noise_multiplier=more
      * poisson.cyclic_poisson_noise_multiplier(
        target, slack.exact_delta, spec.sampling_prob, spec.compositions
      ),
    )
    excess = spec.epsilon(delta) - epsilon
    if excess <= 0:
      return spec
    target -= 2 * excess


@dataclasses.dataclass(frozen=True)
class BandChoice:
  """A number of bands and what it costs.

  Attributes:
    bands: b_hat, as many groups.
    sampling_prob: q, of a client in a round of its group.
    compositions: T.
    noise_multiplier: sigma, rounded up.
    rmse: sigma times the error at sigma = 1.
  """

  bands: int
  sampling_prob: float
  compositions: int
  noise_multiplier: float
  rmse: float


def choose_bands(
  rmse: Mapping[int, float],
  rounds: int,
  population: int,
  cohort_size: float,
  epsilon: float,
  delta: float,
) -> tuple[BandChoice, ...]:
  """Returns the numbers of bands by their rmse at (epsilon, delta), best first.

  More bands have less error at the same sigma but leave fewer clients to
  sample from. Those whose groups are smaller than a cohort are left out.

  Args:
    rmse: for each number of bands, largest column norm times the root of the
      mean (or max) error, sigma = 1.
    rounds: n.
    population: m, clients.
    cohort_size: B, expected clients a round.
    epsilon: positive.
    delta: in (0, 1).

  Raises:
    ValueError: a value out of range, or no number of bands is possible.
  """
  choices = []
  for bands, error in rmse.items():
    if bands * cohort_size > population:
      continue
    prob = cyclic_sampling_prob(population, cohort_size, bands)
    compositions = -(-rounds // bands)
    noise = poisson.cyclic_poisson_noise_multiplier(
      epsilon, delta, prob, compositions
    )
    choices.append(BandChoice(bands, prob, compositions, noise, noise * error))
  if not choices:
    raise ValueError(
      errors.invalid(
        'bands',
        sorted(rmse),
        f'every group is smaller than cohort_size={cohort_size}',
        'offer fewer bands',
      )
    )
  return tuple(sorted(choices, key=lambda choice: choice.rmse))
