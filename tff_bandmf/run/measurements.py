"""The columns of `metrics.csv` that the run itself writes.

| column             | value after round t                                   |
|--------------------|-------------------------------------------------------|
| `round`            | t                                                     |
| `clients`          | number of clients in the cohort                       |
| `l2_norm_clip`     | released clip of round t + 1, if the clip adapts      |
| `fraction`         | released share of the updates whose norms are below   |
|                    | the clip, with noise, if the clip adapts              |
| `epsilon`          | epsilon of the first t + 1 rounds at the delta of the |
|                    | plan, see `Plan.spent`                                |
| `planned_epsilon`  | epsilon of all planned rounds; if cohorts are         |
|                    | sampled, this column replaces `epsilon`               |
| `clip`             | L2 norm to which updates are clipped                  |
| `noise_stddev`     | standard deviation of the noise in one coordinate of  |
|                    | the model, for the workload of the plan               |
| `seconds`          | duration of round t                                   |
| `memory_mib`       | largest memory that the process has used, in MiB      |

The columns from `epsilon` to `noise_stddev` follow from the plan, and cost no
privacy. The columns `clients`, `seconds` and `memory_mib` depend on the
clients, and the report lists them. If the clip adapts, the file lacks `clip`
and `noise_stddev`.
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
    released: names of the columns of values that an adaptive clip releases.
    columns: names of the columns of `metrics.csv`.
  """

  def __init__(self, plan: plan_lib.Plan):
    self._plan = plan
    self._began = time.perf_counter()
    adapts = clipping_norm.indicator_count(plan.l2_norm_clip)
    self.released = metrics.RELEASED * adapts
    self._epsilon = 'epsilon' if plan.sampled is None else 'planned_epsilon'
    self.columns = (
      'round',
      # PRIVACY: the size of a sampled cohort depends on whether a client is in
      # the cohort, and the guarantee does not cover this size. The public file
      # `metrics.csv` has no column for the size of a sampled cohort.
      # Guard:
      # run_sampling_test.test_sizes_of_sampled_cohorts_are_not_released.
      *(('clients',) if plan.sampled is None else ()),
      *self.released,
      self._epsilon,
      *(() if adapts else ('clip', 'noise_stddev')),
      # PRIVACY: amplification assumes that nobody knows the size of a sampled
      # cohort, and the duration and the memory of a round grow with this size.
      # `metrics.csv` of a run with sampled cohorts has neither.
      # Guard: run_metrics_test.test_sampled_run_shows_no_time_and_no_memory.
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
      cells[self._epsilon] = epsilon
    if not self.released:
      cells['clip'] = plan.clip
      if t < plan.rounds:
        cells['noise_stddev'] = float(self._noise[t])
    return cells
