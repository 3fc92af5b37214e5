"""C = I: independent noise every round, DP-SGD and DP-FedAvg."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf import workloads
from tff_bandmf.strategies import families, toeplitz


@attrs.frozen(slots=False)
class Identity(toeplitz.BandedC):
  """C = I; for prefix sums e_t = t + 1.

  >>> Identity(rounds=2052).errors()
  (1026.5, 2052.0)
  """

  family: ClassVar[str] = 'identity'
  bands: ClassVar[int] = 1

  @property
  def coefficients(self) -> np.ndarray:
    return np.ones(1)

  def errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> tuple[float, float]:
    if workload != workloads.PREFIX:
      return super().errors(workload)
    return (self.rounds + 1) / 2, float(self.rounds)


FAMILIES = (families.Family(Identity, 'I, DP-FedAvg', memory=families.NOTHING),)
