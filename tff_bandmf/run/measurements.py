"""The columns of `metrics.csv` that follow from the plan and the process.

| column             | value after round t                                   |
|--------------------|-------------------------------------------------------|
| `epsilon`          | epsilon of the first t + 1 rounds at the delta of the |
|                    | plan, see `Plan.spent`                                |
| `planned_epsilon`  | epsilon of all planned rounds; if cohorts are         |
|                    | sampled, this column replaces `epsilon`               |
| `clip`             | L2 norm to which updates are clipped                  |
| `noise_stddev`     | standard deviation of the noise in one coordinate of  |
|                    | the model, for the workload of the plan               |
| `seconds`          | duration of round t                                   |
| `memory_mib`       | largest memory that the process has used, in MiB      |

The first four columns follow from the plan, and cost no privacy. The last two
depend on the clients, and the report lists them. If the clip adapts, there is
no `clip` and no `noise_stddev`: `l2_norm_clip` has the clip of the next round.
"""

from __future__ import annotations

import functools
import resource
import time

import numpy as np

from tff_bandmf import clipping_norm
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.run_files import metrics


class Measurements:
  """Measures the rounds of a run.

  Attributes:
    columns: names of the columns of `metrics.csv`.
  """

  def __init__(self, plan: plan_lib.Plan):
    self._plan = plan
    self._adaptive = clipping_norm.indicator_count(plan.l2_norm_clip) > 0
    self._began = time.perf_counter()
    # PRIVACY: amplification assumes that nobody knows the size of a sampled
    # cohort, and the duration and the memory of a round grow with this size.
    # `metrics.csv` of a run with sampled cohorts has neither.
    # Guard: run_metrics_test.test_sampled_run_shows_no_time_and_no_memory.
    self.columns = (
      'epsilon' if plan.sampled is None else 'planned_epsilon',
      *(() if self._adaptive else ('clip', 'noise_stddev')),
      *(metrics.BY_COHORT if plan.sampled is None else ()),
    )

  @functools.cached_property
  def _noise(self) -> np.ndarray:
    """Standard deviation of the noise in the model, [planned rounds]."""
    plan = self._plan
    errors = plan.planned_strategy.per_query_errors(plan.workload)
    return plan.z_stddev / plan.clients_per_round * np.sqrt(errors)

  def start(self) -> None:
    """Notes that a round starts."""
    self._began = time.perf_counter()

  def cells(self, t: int) -> dict[str, float]:
    """Returns {column: number} for round t, which began at the last `start`."""
    plan, epsilon = self._plan, self._plan.spent(t + 1)
    cells = {
      'seconds': time.perf_counter() - self._began,
      'memory_mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if epsilon is not None:
      cells[self.columns[0]] = epsilon
    if not self._adaptive:
      cells['clip'] = plan.clip
      if t < plan.rounds:
        cells['noise_stddev'] = float(self._noise[t])
    return cells
