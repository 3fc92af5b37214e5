"""The guarantee of several runs on the same clients.

Neighbouring data sets differ in one unit of privacy, the same unit in all runs.
The training of a run may depend on releases of earlier runs. The noise
multiplier, the rounds and the cohorts of a run must not depend on releases.

| cohorts of the runs           | composition                                  |
|-------------------------------|----------------------------------------------|
| enforced, or read from a log  | one Gaussian, mu^2 = sum mu_i^2, where mu_i  |
|                               | is 1 / `exact_noise` of run i: exact         |
| some by cyclic Poisson        | distributions of the privacy losses are      |
|                               | convolved, rounded up                        |
| some sampled by another rule  | an upper bound: sum of epsilons, each at a   |
|                               | share of delta; or composition without       |
|                               | amplification, if its epsilon is smaller     |

A Gaussian query of another program is composed like a run. Laplace noise and a
release with (epsilon, delta) are composed by their privacy losses. Releases of
which only rho is known get a share of delta, and the result is an upper bound.

Each run may stop, so delta includes tau of the module `stop_probability` for
each run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Optional, Protocol, Union

from tff_bandmf import _checks, _files, errors
from tff_bandmf.accounting import guarantee
from tff_bandmf.accounting.kinds import known_kinds, poisson, releases
from tff_bandmf.accounting.methods import accountants, gaussian, monte_carlo
from tff_bandmf.accounting.methods import stop_probability as stops

EXACT = 'exact'
CONVOLVED = 'losses convolved, rounded up'
UPPER_BOUND = 'upper_bound'

# Relative allowance for the rounding errors of sums and square roots.
_ROUNDING = 1e-14


@dataclasses.dataclass(frozen=True)
class Composition:
  """The guarantee of several runs together.

  Attributes:
    guarantees: one guarantee for each run.
    run_ids: unique ID of each run; None for a run without an ID.
    releases: releases of other programs on the same clients.
  """

  guarantees: tuple[guarantee.Guarantee, ...]
  run_ids: tuple[Optional[str], ...]
  releases: tuple[releases.Release, ...] = ()

  @property
  def adjacency(self) -> str:
    """Adjacency of data sets: zero-out or add-remove, the same in all runs."""
    return self.guarantees[0].cohorts.adjacency

  @property
  def method(self) -> str:
    """Method of composition: exact, losses convolved, or an upper bound."""
    parts = [*map(_part, self.guarantees), *_parts(self.releases)]
    rhos = any(each.rho is not None for each in self.releases)
    if None in parts or rhos:
      return UPPER_BOUND
    return EXACT if all(_is_gaussian(part) for part in parts) else CONVOLVED

  @property
  def rho(self) -> Optional[float]:
    """rho of zero-concentrated DP; None if some part has no proved rho."""
    every = [each.rho for each in self.guarantees]
    every += [each.zcdp_rho for each in self.releases]
    rhos = [rho for rho in every if rho is not None]
    if len(rhos) < len(every):
      return None
    return math.fsum(rhos) * (1 + _ROUNDING)

  # PRIVACY: If a run or a release were left out, or if two claims used the same
  # share of delta, the joint epsilon would be too small. Each run and release
  # is in exactly one claim, and the shares of the claims sum to delta.
  # Guards:
  # composition_test.test_runs_of_any_sampling_get_the_sum_of_their_shares,
  # composition_test.test_gaussian_runs_compose_exactly,
  # composition_test.test_claims_of_random_compositions_add_up,
  # releases_test.test_release_counts_where_no_run_is_amplified and
  # releases_test.test_releases_beside_sampled_runs_count_in_every_way.
  def claim(self, delta: float) -> monte_carlo.Bound:
    """Returns a claim at `delta`.

    All runs and releases whose privacy losses can be convolved get one share of
    delta together. Each other run gets one share, and all releases with a rho
    get one share together. The epsilons at these shares are added. If the
    composition without amplification has a smaller epsilon, the claim has this
    epsilon instead.

    Raises:
      ValueError: a value is out of range.
    """
    gaussian.check_delta(delta)
    if len(self.guarantees) == 1 and not self.releases:
      return self.guarantees[0].claim(delta)
    composed = [each for each in self.guarantees if _part(each)]
    others = [each for each in self.guarantees if not _part(each)]
    known = _parts(self.releases)
    rhos = [each.rho for each in self.releases if each.rho is not None]
    # PRIVACY: Delta of the composition is the sum of the deltas of its claims.
    # If each claim had the whole `delta`, this sum would exceed `delta`. Each
    # claim gets an equal share of `delta`.
    # Guard:
    # composition_test.test_runs_of_any_sampling_get_the_sum_of_their_shares.
    share = delta / (bool(composed or known) + len(others) + bool(rhos))
    bounds = [each.claim(share) for each in others]
    if composed or known:
      bounds.append(_claim(composed, known, share))
    if rhos:
      bounds.append(_of_rho(math.fsum(rhos), share))
    if others:
      portion = delta / (1 + bool(rhos))
      try:
        certain = [
          _claim([*composed, *map(_without_chance, others)], known, portion),
          *([_of_rho(math.fsum(rhos), portion)] if rhos else []),
        ]
      except ValueError:
        # The noise is too small for a claim without amplification.
        certain = bounds
      if _epsilon(certain) <= _epsilon(bounds):
        bounds = certain
    if len(bounds) == 1:
      return bounds[0]
    return monte_carlo.Bound(
      epsilon=_epsilon(bounds),
      estimate=math.fsum(each.estimate for each in bounds),
      upper=math.fsum(each.upper for each in bounds),
      failure_probability=math.fsum(
        each.failure_probability for each in bounds
      ),
      samples=max(each.samples for each in bounds),
      seed=next((each.seed for each in bounds if each.seed is not None), None),
    )

  def epsilon(self, delta: float) -> float:
    """Returns epsilon at `delta`, rounded up.

    Raises:
      ValueError: `delta` is out of range.
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
  runs: Iterable[
    Union[guarantee.Guarantee, Composition, HasGuarantee, releases.Release]
  ],
) -> Composition:
  """Returns the joint guarantee of several runs on the same clients.

  The composition protects a client that is in all runs; a client in fewer runs
  has a stronger guarantee. Several compositions may contain one run, such as
  the pre-training of two fine-tuned models. The run counts once if it has the
  same ID, strategy, noise multiplier, cohorts and unit in all of them.

  Args:
    runs: guarantees, compositions, or objects whose attribute `guarantee` is
      either of these, such as a `Plan` or a `Run`; and each `Release` of
      another program. At least one of them is a run.

  Raises:
    ValueError: there is no run, a run has no noise, or the adjacencies or the
      units of privacy of the runs differ.

  >>> from tff_bandmf import accounting, participation, strategies
  >>> one = accounting.calibrate(
  ...     strategies.BandedSqrt(8, 2), participation.MinSep(4),
  ...     epsilon=1.0, delta=1e-6)
  >>> round(compose([one, one]).epsilon(1e-6), 2)
  1.45
  """
  pairs: dict[object, tuple[Optional[str], guarantee.Guarantee]] = {}
  others: list[releases.Release] = []
  for run in _checks.instance('runs', runs, Iterable, 'give a list'):
    if isinstance(run, releases.Release):
      others.append(run)
      continue
    part: Any = getattr(run, 'guarantee', run)
    if not isinstance(part, Composition):
      _checks.instance('runs', part, guarantee.Guarantee, 'give runs or plans')
      part = Composition((part,), (None,))
    # PRIVACY: If the releases of a composition in `runs` were lost, the joint
    # epsilon would be too small. These releases are added to the others.
    # Guards: releases_test.test_release_counts_where_no_run_is_amplified and
    # releases_test.test_releases_beside_sampled_runs_count_in_every_way.
    others += part.releases
    for run_id, each in zip(part.run_ids, part.guarantees):
      # PRIVACY: If two different runs with equal guarantees counted as one run,
      # epsilon would be too small. Guarantees count as one run only if they
      # have the same run ID, strategy, noise multiplier, cohorts and unit.
      # Guard:
      # composition_test.test_named_run_counts_once_and_others_each_time.
      settings = each.noise_multiplier, each.cohorts, each.clients_per_unit
      same = run_id, each.strategy.digest(), *settings
      pairs[len(pairs) if run_id is None else same] = run_id, each
  guarantees = tuple(each for _, each in pairs.values())
  if not guarantees:
    raise errors.value_error('runs=none: must not be empty; give a run')
  # PRIVACY: A run without noise has no guarantee, so a composition with it has
  # none, and any finite epsilon would be false. Such a run is refused.
  # Guard: composition_test.test_run_without_noise_is_refused.
  if not all(each.noise_multiplier for each in guarantees):
    raise errors.value_error(
      'noise_multiplier=0: a run without noise has no guarantee, and neither '
      'has a composition with it; leave it out if its releases stay private'
    )
  # PRIVACY: A guarantee for one client does not hold for a unit of several
  # clients, so epsilon would be too small for the larger unit. Guarantees about
  # different pairs of neighbouring data sets do not compose, so the sum of
  # their epsilons proves nothing. Runs with different units or different
  # adjacencies are refused.
  # Guards: composition_test.test_mixed_units_are_refused and
  # composition_test.test_mixed_adjacencies_are_refused.
  for name, values in (
    ('clients_per_unit', {str(each.clients_per_unit) for each in guarantees}),
    ('adjacency', {each.cohorts.adjacency for each in guarantees}),
  ):
    if len(values) > 1:
      raise errors.value_error(
        f'{name}={" and ".join(sorted(values))}: must be the same in all runs; '
        'state all runs for one of them'
      )
  run_ids = tuple(run_id for run_id, _ in pairs.values())
  return Composition(guarantees, run_ids, tuple(others))


def _part(run: guarantee.Guarantee) -> Optional[poisson.Part]:
  """Returns the mechanism of a run in real numbers, for composition.

  The result is None for a run whose delta is bounded by random samples.
  """
  accountant = run.accountant
  if isinstance(accountant, accountants.Gaussian):
    return poisson.Part(run.exact_noise)
  if isinstance(accountant, poisson.Poisson):
    return poisson.Part(
      run.exact_noise, accountant.sampling_prob, accountant.compositions
    )
  return None


def _without_chance(run: guarantee.Guarantee) -> guarantee.Guarantee:
  """Returns the guarantee that holds for every possible draw of cohorts."""
  sampled = known_kinds.sampled(run.cohorts)
  return run if sampled is None else run.for_cohorts(sampled.worst_case_schema)


def _parts(others: Iterable[releases.Release]) -> tuple[poisson.Mechanism, ...]:
  """Returns the mechanisms of releases of which more than rho is known."""
  return tuple(part for each in others for part in each.parts())


def _is_gaussian(part: Optional[poisson.Mechanism]) -> bool:
  return isinstance(part, poisson.Part) and part.sampling_prob == 1


def _of_rho(rho: float, delta: float) -> monte_carlo.Bound:
  """Returns the claim at `delta` of a mechanism of which only rho is known.

  The epsilon is a bound; no epsilon that follows from rho alone is exact.
  """
  import dp_accounting

  orders = [1 + 2 ** (i / 8) for i in range(-64, 128)]
  divergences = [rho * order for order in orders]
  epsilon, _ = dp_accounting.rdp.compute_epsilon(orders, divergences, delta)
  return monte_carlo.Bound.certain(epsilon * (1 + _ROUNDING), delta)


# PRIVACY: Epsilons of runs on the same clients add up, and their maximum would
# be too small. The sum is rounded up.
# Guard: composition_test.test_claims_of_random_compositions_add_up.
def _epsilon(bounds: Iterable[monte_carlo.Bound]) -> float:
  return math.fsum(each.epsilon for each in bounds) * (1 + _ROUNDING)


def _claim(
  runs: list[guarantee.Guarantee],
  known: tuple[poisson.Mechanism, ...],
  delta: float,
) -> monte_carlo.Bound:
  """Returns the claim at `delta` of runs and of mechanisms of other releases.

  Args:
    runs: runs that `_part` can represent.
    known: mechanisms of other releases, which never stop.
    delta: delta of the claim.
  """
  whole: list[poisson.Part] = []
  parts: list[poisson.Mechanism] = []
  for part in (*map(_part, runs), *known):
    if isinstance(part, poisson.Part) and part.sampling_prob == 1:
      whole.append(part)
    elif part is not None:
      parts.append(part)
  if whole:
    # PRIVACY: Several Gaussian releases together reveal more than each alone.
    # If they were merged into one release with the mean of their noise
    # multipliers, epsilon would be too small. The squares of mu are added,
    # which is exact.
    # Guard: composition_test.test_gaussian_runs_compose_exactly.
    mu = math.sqrt(
      math.fsum(part.compositions / part.noise_multiplier**2 for part in whole)
    )
    parts.insert(0, poisson.Part(1 / (mu * (1 + _ROUNDING))))
  # PRIVACY: Each run may stop. If epsilon did not count the stops of all runs,
  # it would be too small. Epsilon is computed at `delta` minus a share that
  # covers the stops of all runs.
  # Guard: composition_test.test_stops_of_all_runs_are_counted.
  for share in stops.SHARES:
    epsilon = poisson.composed_epsilon(parts, (1 - share) * delta)
    if stops.suffices(share, epsilon, delta, len(runs)):
      return monte_carlo.Bound.certain(epsilon, delta)
  return monte_carlo.UNPROVED
