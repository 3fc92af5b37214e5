"""An empirical lower bound on the epsilon of a run, next to the claimed one."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from typing import Callable, Optional

import numpy as np
import scipy.linalg

from tff_bandmf import _checks, _files, accounting, errors
from tff_bandmf.audit import bounds, pattern
from tff_bandmf.audit import canaries as canaries_lib

_FEWEST_CANARIES = 20


@dataclasses.dataclass(frozen=True)
class Audit:
  """The result of trials with canaries for one claim.

  Attributes:
    claimed_epsilon: epsilon of the claim at `delta`.
    gaussian_bound: lower bound on epsilon that assumes Gaussian noise.
    clopper_pearson_bound: lower bound on epsilon without that assumption.
    delta: delta of (epsilon, delta), in (0, 1).
    confidence: probability that both bounds are below the true epsilon.
    trials_inside: number of scored trials with a canary.
    trials_outside: number of scored trials without a canary.
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
    """Returns the attributes and `holds` as JSON values."""
    return {
      **dataclasses.asdict(self),
      'pattern': list(self.pattern),
      'holds': self.holds,
    }


def has_tff() -> bool:
  """Returns whether TensorFlow Federated is installed."""
  return importlib.util.find_spec('tensorflow_federated') is not None


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
  """Returns lower bounds on epsilon, from runs of the aggregation.

  A trial is one coordinate of the update in one run. In one half of the trials
  one client, a canary, takes part in the rounds of the worst pattern that the
  schema allows, with its whole clipping norm along this coordinate. In the
  other half no client contributes to the coordinate. These are the two data
  sets that zero-out adjacency compares. The attacker knows C, the pattern and
  every other client, and sees the releases R of all rounds. It makes the noise
  white, W = C R. A trial is a column w of W, and its score is

    m^T S^-1 w,  m = sum_i sign_i C[:, i] over the rounds i of the pattern,

  where sign_i is the sign of the canary's update in round i, so that m is what
  a canary adds to w. This is the best test if columns of W have covariance S.
  One half of the trials is used to estimate S and the threshold, the other half
  is scored. So the attack finds noise that is weak in one direction, such as
  noise that repeats.

  The bounds assume independent trials. Each canary is a client with its own
  clipping norm, and no coordinate has two canaries, so trials are independent
  if noise is independent between coordinates and runs. The attacker does not
  compare coordinates. It finds noise that all coordinates of a run share,
  because all scores are then equal. It does not find noise that a few
  coordinates share, and then the bounds have less confidence than stated.

  Where TensorFlow Federated is installed its aggregation process is run, and
  its execution context has to be set; see `tff.runtime.local_runtime`. Else
  `query.NoisyMean` is run, the aggregation of `Round.release`.

  Args:
    guarantee: the claim.
    delta: delta of (epsilon, delta), in (0, 1).
    canaries: number of canaries in a run, each in one trial; there are as many
      trials without a canary.
    runs: number of independent runs, each with its own noise.
    confidence: probability that both bounds are below the true epsilon.
    make_factory: function that returns the aggregator, called with
      `clients_per_round`, `l2_norm_clip` and `largest_cohort` for each run,
      which must have noise of its own. None makes the aggregator that the
      claim describes: `aggregator.dp_aggregator` or `query.NoisyMean`, with the
      parameters of `guarantee` and a key from the operating system.
    seed: seed of all randomness but the noise, >= 0; None draws one.
    on_round: function that is called after every round.

  Raises:
    TypeError: a value has the wrong type.
    ValueError: a value is out of range, or `guarantee` claims nothing.
  """
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
  open_run = functools.partial(canaries_lib.in_numpy, guarantee)
  if make_factory is None and has_tff():
    # TensorFlow Federated takes seconds to import.
    from tff_bandmf import aggregator

    make_factory = functools.partial(
      aggregator.dp_aggregator,
      guarantee.noise_multiplier,
      strategy=guarantee.strategy,
      participation=guarantee.cohorts.schema,
    )
  if make_factory is not None:
    open_run = functools.partial(canaries_lib.in_tff, make_factory)
  matrix = guarantee.strategy.matrix()
  worst = pattern.worst(matrix, guarantee.cohorts.schema)
  moved = matrix[:, worst.rounds] @ worst.signs
  generator = np.random.default_rng(seed)
  seen, unseen = [], []
  for _ in range(runs):
    whitened = matrix @ canaries_lib.released(
      open_run,
      guarantee.strategy.rounds,
      worst,
      canaries,
      2 * canaries,
      generator,
      on_round or (lambda: None),
    )
    seen.append(whitened[:, :canaries])
    unseen.append(whitened[:, canaries:])
  # [n, trials]: even columns estimate S and the threshold, odd ones are scored.
  inside, outside = np.hstack(seen), np.hstack(unseen)
  weights = _filter(moved, inside[:, ::2], outside[:, ::2])
  inside, outside = weights @ inside, weights @ outside
  # Each of the two bounds may exceed epsilon with this probability.
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
  """Returns S^-1 m, with S shrunk towards a multiple of the identity.

  Args:
    moved: m, [n] float64.
    inside: whitened trials with a canary, [n, trials] float64.
    outside: whitened trials without a canary, [n, trials] float64.

  Returns:
    [n] float64.
  """
  centered = np.hstack(
    [each - each.mean(1, keepdims=True) for each in (inside, outside)]
  )
  rounds, trials = centered.shape
  covariance = centered @ centered.T / trials
  # Weight of the identity: with few trials the estimate of S is poor.
  share = rounds / (rounds + trials)
  covariance *= 1 - share
  covariance[np.diag_indices(rounds)] += (
    share / (1 - share) * np.trace(covariance) / rounds
  )
  return scipy.linalg.solve(covariance, moved, assume_a='pos')
