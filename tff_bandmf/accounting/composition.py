"""The guarantee of several runs on the same clients.

| symbol    | name here              | meaning                               |
|-----------|------------------------|---------------------------------------|
| mu_i      | 1 / `noise_multiplier` | of the i-th run in real numbers       |
| alpha_i,  | of `slack.Slack`       | what the arithmetic of the i-th costs |
| beta_i    |                        |                                       |

Neighbours are data sets that differ in one unit of privacy, in all runs alike.
The computation of a run may depend on earlier releases, and its
noise, its rounds and who takes part may not. Then

| runs                          | together                                     |
|-------------------------------|----------------------------------------------|
| whose schema is enforced, or  | one Gaussian, mu^2 = sum mu_i^2: exact       |
| that a log shows              |                                              |
| of cyclic Poisson sampling    | losses add: their distributions are          |
| too                           | convolved, rounded up                        |
| of another sampling           | epsilons add, each at its share of delta, or |
|                               | nothing counts on chance, where that is      |
|                               | less: an upper bound                         |

Computed releases are near exact ones in one run after the other, so

    computed(E) <= e^(sum alpha_i) exact(E) + sum beta_i

and the same the other way round: alphas and betas add (`slack.together`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Optional, Protocol, Union

from tff_bandmf import _files, errors
from tff_bandmf.accounting import guarantee
from tff_bandmf.accounting.arithmetic import slack as slack_lib
from tff_bandmf.accounting.kinds import kinds, poisson
from tff_bandmf.accounting.methods import accountants, gaussian, monte_carlo

EXACT = 'exact'
CONVOLVED = 'losses convolved, rounded up'
UPPER_BOUND = 'upper_bound'

# Rounding of a sum of squares and its root, several times.
_ROUNDING = 1e-14
# More than this of delta never goes to the arithmetic.
_MOST_SLACK = 0.5


@dataclasses.dataclass(frozen=True)
class Composition:
  """The guarantee of several runs together.

  Attributes:
    guarantees: one guarantee for each run.
    run_ids: the name that tells each run from others; None where it has none.
  """

  guarantees: tuple[guarantee.Guarantee, ...]
  run_ids: tuple[Optional[str], ...]

  @property
  def adjacency(self) -> str:
    """Which data sets are neighbours."""
    return self.guarantees[0].cohorts.adjacency

  @property
  def method(self) -> str:
    """How runs are composed: exact, losses convolved, or an upper bound."""
    parts = [_part(each) for each in self.guarantees]
    if None in parts:
      return UPPER_BOUND
    sampled = [part for part in parts if part and part.sampling_prob < 1]
    return CONVOLVED if sampled else EXACT

  @property
  def rho(self) -> Optional[float]:
    """rho of zero-concentrated DP, the sum; None where a run has none."""
    rhos = [each.rho for each in self.guarantees if each.rho is not None]
    if len(rhos) < len(self.guarantees):
      return None
    return math.fsum(rhos) * (1 + _ROUNDING)

  def claim(self, delta: float) -> monte_carlo.Bound:
    """Returns an epsilon that holds at `delta`, and what it is made of.

    Runs that compose by their losses get one share of delta, and every other
    run one; epsilons and deltas of the shares add. Where it gives less, runs
    are composed by what holds without chance instead.

    Raises:
      ValueError: a value out of range.
      Unproved: the slack of a run exceeds its `max_slack`.
    """
    gaussian.check_delta(delta)
    if len(self.guarantees) == 1:
      return self.guarantees[0].claim(delta)
    composed = [each for each in self.guarantees if _part(each)]
    others = [each for each in self.guarantees if not _part(each)]
    # PRIVACY: deltas of the shares add up to delta. Guard:
    # composition_test.test_runs_of_any_sampling_get_the_sum_of_their_shares.
    share = delta / (bool(composed) + len(others))
    bounds = [each.claim(share) for each in others]
    if composed:
      bounds.append(_claim(composed, share))
    if others:
      try:
        certain = _claim([*composed, *map(_without_chance, others)], delta)
      except ValueError:
        # So little noise proves nothing without chance.
        certain = None
      if certain and certain.epsilon <= sum(each.epsilon for each in bounds):
        return certain
    return monte_carlo.Bound(
      epsilon=math.fsum(each.epsilon for each in bounds) * (1 + _ROUNDING),
      estimate=math.fsum(each.estimate for each in bounds),
      upper=math.fsum(each.upper for each in bounds),
      failure_probability=math.fsum(
        each.failure_probability for each in bounds
      ),
      samples=max(each.samples for each in bounds),
      seed=next((each.seed for each in bounds if each.seed is not None), None),
      slack_epsilon=math.fsum(each.slack_epsilon for each in bounds),
      slack_delta=math.fsum(each.slack_delta for each in bounds),
    )

  def epsilon(self, delta: float) -> float:
    """Returns epsilon at `delta`, rounded up.

    Raises:
      ValueError: for the reasons of `claim`.
    """
    return self.claim(delta).epsilon

  def to_dict(self, delta: float) -> _files.JsonObject:
    """Returns the numbers of the composition under their JSON keys."""
    return {
      'composition': self.method,
      'rho': self.rho,
      **self.claim(delta).to_dict(),
      'delta': delta,
      'adjacency': self.adjacency,
    }


class HasGuarantee(Protocol):
  """An object with a guarantee, such as a `Plan` or a `Run`."""

  @property
  def guarantee(self) -> Union[guarantee.Guarantee, Composition]:
    """The guarantee."""


def compose(
  runs: Iterable[Union[guarantee.Guarantee, Composition, HasGuarantee]],
) -> Composition:
  """Returns what several runs on the same clients guarantee together.

  It is about whoever is in all runs; a client that is in fewer has more. A run
  that several compositions have, such as one that two others come after, counts
  once if its claim is the same in all.

  Args:
    runs: guarantees, compositions, or what has one of them as `guarantee`, such
      as a `Plan` or a `Run`.

  Raises:
    ValueError: there are none, one has no noise, or their adjacencies or units
      of privacy differ.

  >>> from tff_bandmf import participation, strategies
  >>> one = guarantee.calibrate(
  ...     strategies.BandedSqrt(8, 2), participation.MinSep(4),
  ...     epsilon=1.0, delta=1e-6)
  >>> round(compose([one, one]).epsilon(1e-6), 2)
  1.46
  """
  pairs: dict[object, tuple[Optional[str], guarantee.Guarantee]] = {}
  for run in runs:
    part: Any = getattr(run, 'guarantee', run)
    if not isinstance(part, Composition):
      part = Composition((part,), (None,))
    for run_id, each in zip(part.run_ids, part.guarantees):
      # PRIVACY: two runs may have equal guarantees, and both count: only what
      # has the name and the noise of a run that is counted is that run. Guard:
      # composition_test.test_named_run_counts_once_and_others_each_time.
      same = run_id, each.noise_multiplier, each.cohorts
      pairs[len(pairs) if run_id is None else same] = run_id, each
  guarantees = tuple(each for _, each in pairs.values())
  if not guarantees:
    raise errors.value_error('runs=none: are to be composed; give one or more')
  for each in guarantees:
    # PRIVACY: what has no noise has no guarantee, with others or alone. Guard:
    # composition_test.test_run_without_noise_is_refused.
    if not each.noise_multiplier:
      raise errors.value_error(
        'noise_multiplier=0: a run without noise guarantees nothing, and so do '
        'all together; leave it out only if its releases stay private'
      )
  units = sorted({each.clients_per_unit for each in guarantees})
  # PRIVACY: what protects one client of a unit leaves the others. Guard:
  # composition_test.test_mixed_units_are_refused.
  if len(units) > 1:
    raise errors.value_error(
      f'clients_per_unit={" and ".join(map(str, units))}: must be the same in '
      'all runs; state all runs for units of the same size'
    )
  adjacencies = sorted({each.cohorts.adjacency for each in guarantees})
  # PRIVACY: neighbours of one run are not those of another. Guard:
  # composition_test.test_mixed_adjacencies_are_refused.
  if len(adjacencies) > 1:
    raise errors.value_error(
      f'adjacency={" and ".join(adjacencies)}: must be the same in all runs; '
      'state all runs for one of them'
    )
  return Composition(guarantees, tuple(run_id for run_id, _ in pairs.values()))


def _part(run: guarantee.Guarantee) -> Optional[poisson.Part]:
  """Returns a run in real numbers as losses; None where only samples bound."""
  accountant = run.accountant
  if isinstance(accountant, accountants.Gaussian):
    return poisson.Part(run.exact_noise)
  if isinstance(accountant, poisson.Poisson):
    return poisson.Part(
      run.exact_noise, accountant.sampling_prob, accountant.compositions
    )
  return None


def _without_chance(run: guarantee.Guarantee) -> guarantee.Guarantee:
  """Returns what holds whatever cohorts are drawn."""
  sampled = kinds.sampled(run.cohorts)
  return run if sampled is None else run.under(sampled.always)


def _claim(runs: list[guarantee.Guarantee], delta: float) -> monte_carlo.Bound:
  """Returns the claim of runs whose losses compose, at their share of delta."""
  largest = min(_MOST_SLACK, math.fsum(each.cost.max_slack for each in runs))
  parts = _merged([_part(each) for each in runs])
  # At least that of what is left of delta.
  bound = poisson.composed_epsilon(parts, (1 - largest) * delta)
  slack = slack_lib.together(
    [each.cost.slack(bound, delta / len(runs)) for each in runs],
    bound,
    delta,
    largest,
  )
  epsilon = poisson.composed_epsilon(parts, slack.exact_delta) + slack.epsilon
  return monte_carlo.Bound.certain(
    epsilon, slack.exact_delta, slack.epsilon, slack.delta
  )


def _merged(parts: list[Optional[poisson.Part]]) -> tuple[poisson.Part, ...]:
  """Returns the parts, those that are Gaussians as one."""
  present = [part for part in parts if part is not None]
  whole = [part for part in present if part.sampling_prob == 1]
  rest = tuple(part for part in present if part.sampling_prob < 1)
  if not whole:
    return rest
  # PRIVACY: squares of mu add, and not what noise there is on average. Guard:
  # composition_test.test_gaussian_runs_compose_exactly.
  mu = math.sqrt(
    math.fsum(part.compositions / part.noise_multiplier**2 for part in whole)
  )
  return (poisson.Part(1 / (mu * (1 + _ROUNDING))), *rest)
