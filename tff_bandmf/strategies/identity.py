"""C = I: independent noise every round, DP-SGD and DP-FedAvg."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tff_bandmf import errors
from tff_bandmf.strategies import base


@dataclasses.dataclass(frozen=True)
class Identity(base.Strategy):
  """C = I, e_t = t + 1.

  >>> Identity(rounds=2052).prefix_errors()
  (1026.5, 2052.0)
  """

  family: ClassVar[str] = 'identity'
  rounds: int

  def __post_init__(self):
    rounds = errors.check_count(
        'rounds', self.rounds, 'give the number of rounds')
    object.__setattr__(self, 'rounds', rounds)

  @property
  def bands(self) -> int:
    return 1

  @property
  def coefficients(self) -> np.ndarray:
    """First column of C, [1] float64."""
    return np.ones(1)

  def band_rows(self, start: int, stop: int) -> np.ndarray:
    return np.ones((stop - start, 1))

  def prefix_errors(self) -> tuple[float, float]:
    return (self.rounds + 1) / 2, float(self.rounds)
