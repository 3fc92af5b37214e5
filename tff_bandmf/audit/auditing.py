"""Empirical lower bounds on the epsilon of a run, next to its claim."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from typing import Callable, Optional

import numpy as np
import scipy.linalg

from tff_bandmf import _checks, _files, accounting, errors
from tff_bandmf.audit import canaries as canaries_lib
from tff_bandmf.audit import epsilon_bounds, pattern

_FEWEST_CANARIES = 20


@dataclasses.dataclass(frozen=True)
class Audit:
  """The result of an audit with canaries; see `audit`.

  Attributes:
    claimed_epsilon: claimed epsilon at `delta`, >= 0.
    gaussian_bound: lower bound on epsilon, >= 0; valid for Gaussian noise.
    clopper_pearson_bound: lower bound on epsilon, >= 0; valid for any noise.
    delta: delta of (epsilon, delta), in (0, 1).
    confidence: least probability, in (0, 1), that neither bound exceeds the
      true epsilon.
    trials_inside: number of scored trials with a canary.
    trials_outside: number of scored trials without a canary.
    pattern: rounds in which a canary takes part, from 0, ascending.
    attained_sensitivity: norm of m, in clipping norms; see `audit` for m.
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
    """Whether neither bound is above the claimed epsilon.

    If the claim is true, this is False with probability at most
    1 - `confidence`.
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
  one client, a canary, takes part in the rounds of the pattern that
  `pattern.worst` finds, and contributes its whole clipping norm to this
  coordinate. In the other half, only a client whose updates are known
  contributes to this coordinate. Zero-out adjacency compares exactly these two
  cases. The attacker knows C, the pattern and the updates of all clients but
  the canary, and sees the releases of all rounds. Let R be the released sums
  less the known updates, in clipping norms. The attacker computes W = C R,
  whose noise is white if the claim is true. A trial is a column w of W, and its
  score is

    m^T S^-1 w,  m = sum_i sign_i C[:, i] over the rounds i of the pattern,

  where sign_i is the sign of the canary's update in round i. So a canary adds m
  to w. If the columns of W are Gaussian with covariance S, no score gives a
  better test. S and the threshold are estimated from one half of the trials,
  and the bounds follow from the scores of the other half. Because S is
  estimated, the attack finds noise that is small in one direction, such as
  noise that repeats.

  The bounds assume independent trials. No coordinate has two canaries, so
  trials are independent if the noise is independent between coordinates and
  between runs. The attacker does not compare coordinates. If all coordinates of
  a run have the same noise, all scores with a canary are equal, and all scores
  without a canary are equal, so the attack finds this error. If only a few
  coordinates have the same noise, the attack does not find it, and the
  confidence of the bounds is smaller than stated.

  If `make_factory` is given or TensorFlow Federated (TFF) is installed, the
  audit runs TFF's aggregation process, and the caller has to set an execution
  context; see `tff.runtime.local_runtime`. Else the audit runs
  `query.NoisyMean`, the aggregation of `Round.release`.

  Args:
    guarantee: the claim.
    delta: delta of (epsilon, delta), in (0, 1).
    canaries: number of canaries in a run, >= 20. Each is one trial, and a run
      has the same number of trials without a canary.
    runs: number of independent runs, >= 1.
    confidence: least probability, in (0, 1), that neither bound exceeds the
      true epsilon.
    make_factory: function that returns a TFF factory with new noise. It is
      called once per run, with the keywords `clients_per_round`, `l2_norm_clip`
      and `largest_cohort`. If None, the audit runs `aggregator.dp_aggregator`
      or `query.NoisyMean` with the parameters of `guarantee` and a key from the
      operating system.
    seed: seed of the canaries' coordinates and of the known client's updates,
      >= 0; if None, it is drawn.
    on_round: function that is called after every round.

  Raises:
    TypeError: a value has the wrong type.
    ValueError: a value is out of range, or `guarantee` has no noise.
  """
  _checks.count('runs', runs, 'give 1 or more')
  _checks.count('canaries', canaries, 'give 1000 or so', _FEWEST_CANARIES)
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
  on_round = on_round or (lambda: None)
  whitened = [
    matrix
    @ canaries_lib.released(
      open_run, len(matrix), worst, canaries, generator, on_round
    )
    for _ in range(runs)
  ]
  # [n, trials]: columns 0, 2, ... estimate S and the threshold, and columns 1,
  # 3, ... give the bounds.
  inside = np.hstack([each[:, :canaries] for each in whitened])
  outside = np.hstack([each[:, canaries:] for each in whitened])
  weights = _filter(moved, inside[:, ::2], outside[:, ::2])
  inside, outside = weights @ inside, weights @ outside
  # Largest probability with which each bound exceeds the true epsilon.
  miss = (1 - confidence) / 2
  threshold = epsilon_bounds.best_threshold(
    inside[::2], outside[::2], delta, miss
  )
  inside, outside = inside[1::2], outside[1::2]
  return Audit(
    claimed,
    epsilon_bounds.gaussian(inside, outside, delta, miss),
    epsilon_bounds.clopper_pearson(inside, outside, threshold, delta, miss),
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
  # Weight of the identity. It is larger for fewer trials, because the estimate
  # of S then has a larger error.
  share = rounds / (rounds + trials)
  covariance *= 1 - share
  covariance[np.diag_indices(rounds)] += (
    share / (1 - share) * np.trace(covariance) / rounds
  )
  return scipy.linalg.solve(covariance, moved, assume_a='pos')
