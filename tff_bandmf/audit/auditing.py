"""An empirical lower bound on the epsilon of a run, next to the claimed one."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Callable, Optional

import numpy as np
import scipy.linalg

from tff_bandmf import _checks, _files, accounting, errors
from tff_bandmf.audit import bounds, pattern

if TYPE_CHECKING:
  from tff_bandmf.audit import canaries as canaries_lib

_FEWEST_CANARIES = 20


@dataclasses.dataclass(frozen=True)
class Audit:
  """The result of trials with canaries for one claim.

  Attributes:
    claimed_epsilon: at `delta`.
    gaussian_bound: on epsilon, from below, that takes the noise to be Gaussian.
    clopper_pearson_bound: the same without that assumption.
    delta: delta of (epsilon, delta), in (0, 1).
    confidence: with which both bounds hold.
    trials_inside: trials with a canary that the bounds are from.
    trials_outside: trials without.
    pattern: rounds in which a canary takes part.
    attained_sensitivity: sensitivity that the pattern attains, in clipping
      norms.
  """

  claimed_epsilon: float
  gaussian_bound: float
  clopper_pearson_bound: float
  delta: float
  confidence: float
  trials_inside: int
  trials_outside: int
  pattern: tuple[int, ...]
  attained_sensitivity: float

  @property
  def holds(self) -> bool:
    """Whether no bound is above the claim.

    A true claim gives False with probability 1 - `confidence` at most.
    """
    return self.claimed_epsilon >= max(
      self.gaussian_bound, self.clopper_pearson_bound
    )

  def to_dict(self) -> _files.JsonObject:
    """Returns the fields and `holds`, JSON values."""
    return {
      **dataclasses.asdict(self),
      'pattern': list(self.pattern),
      'holds': self.holds,
    }


def audit(
  guarantee: accounting.Guarantee,
  delta: float,
  canaries: int = 2000,
  runs: int = 2,
  confidence: float = 0.95,
  make_factory: Optional[canaries_lib.MakeFactory] = None,
  seed: Optional[int] = None,
  on_round: Optional[Callable[[], object]] = None,
) -> Audit:
  """Returns lower bounds on epsilon, from runs of TFF's aggregation process.

  A trial is one coordinate of the update in one run. Either one client, with
  the whole of its clipping norm along this coordinate, takes part in the rounds
  of the worst pattern that the schema allows, or no client touches it: the two
  data sets that zero-out adjacency compares. The attacker knows C, the pattern
  and every other client, and sees all the rounds. It makes the noise white,
  W = C R of the releases R, and scores a trial by

    s = m^T S^-1 w,  m = sum_{i in pi} s_i C[:, i],

  the best test where the rows of W have covariance S. Half of the trials give S
  and the threshold, so noise that is weak in any direction, because it repeats
  for one, gives itself away; the other half are scored.

  The bounds rest on trials being independent. Canaries are clients of their
  own, so each spends a clipping norm of its own, and no coordinate has two of
  them. Left is that noise is independent between coordinates and runs. No
  attacker here compares coordinates: noise that all of a run share lets all
  scores agree, and is found, but noise that a few share is not, though it
  cancels in their differences; and the bounds have less confidence than stated.

  TFF's execution context has to be set; see `tff.runtime.local_runtime`.

  Args:
    guarantee: the claim.
    delta: delta of (epsilon, delta), in (0, 1).
    canaries: clients of a run, each of them a trial, half of which give S; as
      many coordinates are without.
    runs: independent runs, each with noise of its own.
    confidence: that both bounds are below the true epsilon.
    make_factory: function that returns the aggregator, called with
      `clients_per_round`, `l2_norm_clip` and `largest_cohort` for each run,
      which must have noise of its own. None makes the one that the claim is
      for: `aggregator.dp_aggregator` with what `guarantee` says and a key from
      the operating system.
    seed: seed of all randomness but the noise, >= 0; None draws one.
    on_round: is called after every round.

  Raises:
    TypeError: a value of the wrong kind.
    ValueError: a value out of range, or the claim is none.
  """
  # TensorFlow Federated takes seconds to import, and bounds do not need it.
  from tff_bandmf import aggregator
  from tff_bandmf.audit import canaries as canaries_lib

  _checks.count('runs', runs, 'give 1 or more')
  if _checks.count('canaries', canaries, 'give 1000 or so') < _FEWEST_CANARIES:
    raise errors.value_error(
      f'canaries={canaries}: must be at least {_FEWEST_CANARIES}; give 1000 or '
      'so'
    )
  if not 0 < confidence < 1:
    raise errors.value_error(
      f'confidence={confidence}: must be in (0, 1); give 0.95'
    )
  if not guarantee.noise_multiplier:
    raise errors.value_error(
      'noise_multiplier=0: guarantees nothing to audit; add noise'
    )
  claimed = guarantee.epsilon(delta)
  if make_factory is None:
    make_factory = functools.partial(
      aggregator.dp_aggregator,
      guarantee.noise_multiplier,
      strategy=guarantee.strategy,
      participation=guarantee.cohorts.schema,
    )
  matrix = guarantee.strategy.matrix()
  worst = pattern.worst(matrix, guarantee.cohorts.schema)
  moved = matrix[:, worst.rounds] @ worst.signs
  generator = np.random.default_rng(seed)
  seen, unseen = [], []
  for _ in range(runs):
    whitened = matrix @ canaries_lib.released(
      make_factory,
      guarantee.strategy.rounds,
      worst,
      canaries,
      2 * canaries,
      generator,
      on_round or (lambda: None),
    )
    seen.append(whitened[:, :canaries])
    unseen.append(whitened[:, canaries:])
  # [n, trials]; every other trial goes to one half.
  inside, outside = np.hstack(seen), np.hstack(unseen)
  weights = _filter(moved, inside[:, ::2], outside[:, ::2])
  inside, outside = weights @ inside, weights @ outside
  # Each bound misses with half of what both may.
  miss = (1 - confidence) / 2
  threshold = bounds.best_threshold(inside[::2], outside[::2], delta, miss)
  inside, outside = inside[1::2], outside[1::2]
  return Audit(
    claimed,
    bounds.gaussian(inside, outside, delta, miss),
    bounds.clopper_pearson(inside, outside, threshold, delta, miss),
    delta,
    confidence,
    len(inside),
    len(outside),
    tuple(worst.rounds.tolist()),
    worst.sensitivity,
  )


def _filter(
  moved: np.ndarray, inside: np.ndarray, outside: np.ndarray
) -> np.ndarray:
  """Returns S^-1 m, with S drawn towards a multiple of the identity.

  Args:
    moved: m, [n] float64.
    inside: whitened trials with a canary, [n, trials] float64.
    outside: the same without.

  Returns:
    [n] float64.
  """
  centered = np.hstack(
    [each - each.mean(1, keepdims=True) for each in (inside, outside)]
  )
  rounds, trials = centered.shape
  covariance = centered @ centered.T / trials
  # n trials say little about n x n covariances, and many say all.
  share = rounds / (rounds + trials)
  covariance *= 1 - share
  covariance[np.diag_indices(rounds)] += (
    share / (1 - share) * np.trace(covariance) / rounds
  )
  return scipy.linalg.solve(covariance, moved, assume_a='pos')
