"""Participation patterns of canaries, near the worst that a schema allows.

| symbol | meaning                                                     |
|--------|-------------------------------------------------------------|
| X      | C^T C                                                       |
| pi     | rounds that a canary takes part in                          |
| s      | signs of its contributions, all along one coordinate        |

A canary of clipping norm 1 moves C times the sums by sum_{i in pi} s_i C[:, i].
The squared norm of this is s^T X[pi, pi] s, at most the squared sensitivity.
With a pattern that is not the worst an audit is weaker, but its bounds hold.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tff_bandmf import participation as participation_lib


@dataclasses.dataclass(frozen=True)
class Pattern:
  """The rounds of a canary and the signs of its contributions.

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
  """Returns the worst pattern found among those that the schema allows.

  The search compares all patterns with gaps of min_sep. If the schema allows
  other gaps, it then moves each participation to the round where it adds the
  most.

  Args:
    matrix: C, [n, n] float64.
    participation: the schema.
  """
  rounds = len(matrix)
  gram = matrix.T @ matrix
  # Patterns of the typical schema have nearly the largest cost of a budget.
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
  # If both are equally heavy, alternating signs are taken: noise that repeats
  # in several rounds hides contributions of one sign.
  alternating = (-1.0) ** np.arange(len(chosen))
  signs = max(
    (_signs(inner, start) for start in (alternating, alternating**2)),
    key=lambda s: s @ inner @ s,
  )
  return Pattern(chosen, signs, float(np.sqrt(signs @ inner @ signs)))


def _move_each(weights: np.ndarray, chosen: np.ndarray, min_sep: int) -> None:
  """Moves each round of `chosen`, in place, to the round of largest weight."""
  for a in range(len(chosen)):
    low = chosen[a - 1] + min_sep if a else 0
    high = chosen[a + 1] - min_sep if a + 1 < len(chosen) else len(weights) - 1
    others = np.delete(chosen, a)
    places = np.arange(low, high + 1)
    gains = weights[places, places] + 2 * weights[:, others][places].sum(1)
    chosen[a] = places[np.argmax(gains)]


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
