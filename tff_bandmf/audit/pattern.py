"""Participation patterns of canaries with nearly the largest sensitivity.

| symbol | meaning                                                     |
|--------|-------------------------------------------------------------|
| X      | C^T C                                                       |
| pi     | rounds that a canary takes part in                          |
| s      | signs of its contributions, all along one coordinate        |

If the clipping norm is 1, a canary changes the product of C and the sums by
sum_{i in pi} s_i C[:, i]. The squared norm of this change is s^T X[pi, pi] s,
which is at most the squared sensitivity. If the pattern is not the worst, the
lower bounds on epsilon are smaller, and still hold.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import participation as participation_lib


@dataclasses.dataclass(frozen=True)
class Pattern:
  """Rounds in which a canary takes part, and signs of its contributions.

  Attributes:
    rounds: pi, [k] integers, ascending.
    signs: s, [k] float64, each 1.0 or -1.0.
    sensitivity: (s^T X[pi, pi] s)^(1/2), in units of the clipping norm.
  """

  rounds: np.ndarray
  signs: np.ndarray
  sensitivity: float


def worst(
  matrix: np.ndarray, participation: participation_lib.Participation
) -> Pattern:
  """Returns a pattern that the schema allows, with large sensitivity.

  The search compares all patterns in which neighbouring rounds are min_sep
  apart, by the sum of |X|[pi, pi]. If the schema allows other gaps, the search
  then replaces each round of the best pattern by the round that makes this sum
  largest.

  Args:
    matrix: C, [n, n] float64.
    participation: schema of participation.
  """
  rounds = len(matrix)
  gram = matrix.T @ matrix
  # The patterns of the typical schema have nearly the largest sensitivity that
  # a budget allows.
  participation = participation.typical
  count = participation.participations(rounds)
  min_sep = participation.min_sep or 1
  weights = np.abs(gram)

  def weight(chosen):
    return weights[np.ix_(chosen, chosen)].sum()

  chosen = max(
    (np.arange(first, rounds, min_sep)[:count] for first in range(rounds)),
    key=weight,
  )
  if not participation.evenly_spaced:
    _move_each(weights, chosen, min_sep)
  inner = gram[np.ix_(chosen, chosen)]
  # If both starts give the same value, `max` returns the alternating signs:
  # noise that repeats in several rounds hides contributions of equal signs.
  alternating = (-1.0) ** np.arange(len(chosen))
  signs = max(
    (_signs(inner, start) for start in (alternating, alternating**2)),
    key=lambda s: s @ inner @ s,
  )
  return Pattern(chosen, signs, float(np.sqrt(signs @ inner @ signs)))


def _move_each(weights: np.ndarray, chosen: np.ndarray, min_sep: int) -> None:
  """Replaces each round of `chosen`, in place, by the best round in its gap.

  Args:
    weights: |X|, [n, n] float64.
    chosen: pi, [k] integers, ascending.
    min_sep: least difference of two rounds of pi, >= 1.
  """
  for a in range(len(chosen)):
    low = chosen[a - 1] + min_sep if a else 0
    high = chosen[a + 1] - min_sep if a + 1 < len(chosen) else len(weights) - 1
    others = np.delete(chosen, a)
    between = np.arange(low, high + 1)
    gains = weights[between, between] + 2 * weights[:, others][between].sum(1)
    chosen[a] = between[np.argmax(gains)]


def _signs(inner: np.ndarray, start: np.ndarray) -> np.ndarray:
  """Returns signs from which no single change makes s^T inner s larger."""
  signs = start.copy()
  changed = True
  while changed:
    changed = False
    for a in range(len(signs)):
      pull = inner[a] @ signs - inner[a, a] * signs[a]
      if signs[a] * pull < -1e-12 * inner[a, a]:
        signs[a] = -signs[a]
        changed = True
  return signs
