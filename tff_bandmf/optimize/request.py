"""What to optimise, and what a strategy is worth for it."""

from __future__ import annotations

import dataclasses
from typing import Optional

from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf import workloads
from tff_bandmf.optimize import solver


@dataclasses.dataclass(frozen=True)
class Request:
  """What to optimise, for whom; None where it is to be chosen.

  Attributes:
    family: a name of `strategies.FAMILIES`.
    rounds: n.
    participation: the schema whose sensitivity counts.
    workload: A.
    objective: `MEAN` or `MAX` over the per-query errors.
    bands: diagonals of C; of C^-1 for a banded-inverse family.
    buffers: of a BLT.
    alpha: of a fractional family.
    lambda_: of DP-CGD.
    nu: of LTI.
    constant: of inverse-plus-constant.
    b0: of robust Toeplitz, the least min_sep expected.
    arity: of a tree.
    block_rounds: of a stamped strategy.
    block_family: of the block of a stamped strategy.
    column_normalize: columns of unit norm; None is yes for `banded`, else no.
    noise_copies: model copies that the noise may keep; None is any number.
    max_evaluations: of an optimiser.
    callback: called with the loss reached, now and then.
  """

  family: str
  rounds: int
  participation: participation_lib.Participation
  workload: workloads.Workload = workloads.PREFIX
  objective: str = solver.MEAN
  bands: Optional[int] = None
  buffers: Optional[int] = None
  alpha: Optional[float] = None
  lambda_: Optional[float] = None
  nu: Optional[float] = None
  constant: Optional[float] = None
  b0: Optional[int] = None
  arity: Optional[int] = None
  block_rounds: Optional[int] = None
  block_family: Optional[str] = None
  column_normalize: Optional[bool] = None
  noise_copies: Optional[int] = None
  max_evaluations: int = solver.MAX_EVALUATIONS
  callback: Optional[solver.Callback] = None


def evaluated(
  strategy: solver.StrategyT,
  request: Request,
  evaluations: int = 0,
  converged: bool = True,
) -> solver.Optimized[solver.StrategyT]:
  """Returns `strategy` with its loss for what `request` asks."""
  mean, largest = strategy.errors(request.workload)
  sensitivity = sensitivity_lib.sensitivity(strategy, request.participation)
  error = mean if request.objective == solver.MEAN else largest
  return solver.Optimized(
    strategy, error * sensitivity.value**2, evaluations, converged
  )
