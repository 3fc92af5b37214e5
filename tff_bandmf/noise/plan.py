"""How a block of rounds of y = C^-1 z follows from z and past y."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.linalg

from tff_bandmf import errors, strategies


@dataclasses.dataclass(frozen=True, eq=False)
class ToeplitzPlan:
  """The recursion of a banded Toeplitz C, for one round or many at once.

    c_0 y_t = z_t - sum_{s=1..bands-1} c_s y_{t-s},   y_t = 0 for t < 0

  For rounds t .. t + m - 1, with T the m x m lower-triangular block of C on
  its diagonal and H the m x (bands - 1) block to the left of it,

    Y = T^-1 Z - T^-1 H Y_past

  so a block of m rounds reads the past once. All placements of the noise use
  this one definition, m = 1 inside a round.

  Attributes:
    coefficients: [bands] float64, first column of C.
  """

  coefficients: np.ndarray

  @classmethod
  def of(cls, strategy: strategies.Strategy) -> ToeplitzPlan:
    """Returns the plan of `strategy`.

    Raises:
      TypeError: the family has no streaming plan.
    """
    if isinstance(strategy, (strategies.Identity, strategies.BandedToeplitz)):
      return cls(strategy.coefficients)
    raise TypeError(
        errors.invalid(
            'family', strategy.family, 'has no streaming noise',
            'use identity or banded-toeplitz'))

  @property
  def memory(self) -> int:
    """Rounds of past y that the next round needs: bands - 1."""
    return len(self.coefficients) - 1

  def block(self, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the matrices (P, Q) of Y = P Z - Q Y_past.

    Args:
      rounds: m.

    Returns:
      P [m, m] and Q [m, bands - 1], float32, computed in float64 and cast
      once. Row 0 of Z and Y is the earliest round; row 0 of Y_past the latest.
    """
    padded = np.concatenate([self.coefficients, np.zeros(rounds)])
    triangle = np.tril(scipy.linalg.toeplitz(padded[:rounds]))
    # Row r, column s: the lag from round t + r back to round t - 1 - s.
    lags = 1 + np.add.outer(np.arange(rounds), np.arange(self.memory))
    past = padded[lags]
    solved = scipy.linalg.solve_triangular(
        triangle, np.concatenate([np.eye(rounds), past], 1), lower=True)
    return (
        solved[:, :rounds].astype(np.float32),
        solved[:, rounds:].astype(np.float32),
    )
