"""Participation patterns of nearly the largest sensitivity, for canaries.

| symbol | meaning                                                     |
|--------|-------------------------------------------------------------|
| X      | C^T C                                                       |
| pi     | rounds that a canary takes part in                          |
| s      | signs of its contributions, all along one coordinate        |

Let row t of S be the sum of the updates of round t. If the clipping norm is 1,
a canary changes C S by sum_{i in pi} s_i C[:, i] in one coordinate. The squared
norm of this change is s^T X[pi, pi] s, which is at most the squared
sensitivity. If the norm is smaller than the sensitivity, the lower bounds of an
audit on epsilon still hold, but they are smaller than they could be.
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

  For each first round, the search takes the longest pattern in which successive
  rounds are exactly min_sep apart. The search chooses the pattern with the
  largest sum of |X|[pi, pi]. If the schema also allows larger gaps, the search
  then moves the rounds of the pattern, one by one, to increase this sum.

  Args:
    matrix: C, [n, n] float64.
    participation: schema of participation.
  """
  rounds = len(matrix)
  gram = matrix.T @ matrix
  # For a `Budget`, the property `reference_schema` is a `MinSep` schema, whose
  # patterns have nearly the largest sensitivity that the budget allows. For any
  # other schema, it is the schema itself.
  participation = participation.reference_schema
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
  # If both starts lead to equal sums, `max` returns the signs from the
  # alternating start. These signs also find an aggregator that adds the same
  # noise in two rounds: in the difference of the rounds the noise cancels, and
  # contributions of opposite signs remain.
  alternating = (-1.0) ** np.arange(len(chosen))
  signs = max(
    (_signs(inner, start) for start in (alternating, alternating**2)),
    key=lambda s: s @ inner @ s,
  )
  return Pattern(chosen, signs, float(np.sqrt(signs @ inner @ signs)))


def _move_each(weights: np.ndarray, chosen: np.ndarray, min_sep: int) -> None:
  """Moves each round of `chosen`, in place, between its two neighbours.

  Each round moves to the round for which the sum of |X|[pi, pi] is largest.

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
  """Returns signs s for which no change of one sign increases s^T inner s.

  Args:
    inner: X[pi, pi], [k, k] float64.
    start: first signs of the search, [k] float64, each 1.0 or -1.0.
  """
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
