"""The rounds of a run, under the rule of its ledger.

The ledger is the journal: a round is in it, with its cohort, before it runs,
and the digest of its release after. What a crash leaves behind is replayed with
that very cohort. A replay that does not give that very release, to the bit, is
not released: the round is burnt, and the model stays as it was.

PRIVACY: one round's noise never meets two sums. Guards:
rounds_test.test_replay_that_differs_burns_the_round and
training_test.test_killed_runs_end_as_undisturbed_ones.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from typing import Any, Callable, Optional

import numpy as np

from tff_bandmf import aggregator
from tff_bandmf.program import checkpoints, cohorts
from tff_bandmf.program import ledger as ledger_lib

# Fails only where something outside of the run keeps failing.
_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True)
class Done:
  """A round that is over.

  Attributes:
    state: of the learning process after it.
    cohort: [m] who took part.
    metrics: of the learning process; None if the round is burnt.
  """

  state: Any
  cohort: np.ndarray
  metrics: Optional[Any]


class Rounds:
  """Runs the rounds of a learning process, one after the other."""

  def __init__(
    self,
    process: Any,
    sampler: cohorts.CohortSampler,
    datasets: Callable[[int, np.ndarray], Any],
    ledger: ledger_lib.Ledger,
    start: int = 0,
  ):
    """Prepares the first round.

    Args:
      process: `tff.learning.templates.LearningProcess` of the run.
      sampler: of the cohorts.
      datasets: gives the data of (round, cohort); called in another thread,
        one round ahead.
      ledger: of the run.
      start: the first round.
    """
    self._process = process
    self._sampler = sampler
    self._datasets = datasets
    self._ledger = ledger
    self._history = ledger.history(sampler.clients, before=start)
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._next = start
    self._prepare()

  def __enter__(self) -> Rounds:
    return self

  def __exit__(self, *exc_info) -> None:
    self._thread.shutdown(cancel_futures=True)

  def _prepare(self) -> None:
    """Draws the next cohort, and has its data made meanwhile."""
    if self._next == self._sampler.rounds:
      return
    self._cohort = self._sampler.sample(self._next, self._history)
    self._data = self._thread.submit(self._datasets, self._next, self._cohort)

  def run(self, state: Any) -> Done:
    """Returns the next round, which ran or is burnt.

    Args:
      state: of the learning process before it.
    """
    t, cohort, data = self._next, self._cohort, self._data
    self._history.record(t, cohort)
    self._next = t + 1
    self._prepare()
    past = self._ledger.attempts(t)
    if any(attempt.outcome == 'abandoned' for attempt in past):
      return self._burn(t, state, cohort)
    output = self._attempt(t, state, cohort, data.result())
    result = checkpoints.digest(output.state)
    if any(attempt.result not in (None, result) for attempt in past):
      return self._burn(t, state, cohort)
    measured = output.metrics['aggregator']['free']
    self._ledger.finish_round(
      t,
      float(measured['z_stddev']),
      result,
      noise_checked=bool(measured['noise_checked']),
    )
    return Done(output.state, cohort, output.metrics)

  def _attempt(self, t: int, state: Any, cohort, data):
    """Returns the output of a round, tried again where TFF fails."""
    for failed in range(1, _ATTEMPTS + 1):
      # PRIVACY: durable before the round, so a crash cannot hide it.
      # Guard: rounds_test.test_round_is_in_the_ledger_before_it_runs.
      self._ledger.start_round(t, cohort)
      try:
        return self._process.next(state, data)
      except Exception:
        self._ledger.fail_round(t)
        if failed == _ATTEMPTS:
          raise

  def _burn(self, t: int, state: Any, cohort) -> Done:
    """Returns the state after a round of which nothing is released."""
    self._ledger.abandon_round(t)
    skipped = aggregator.skip_round(state.aggregator)
    return Done(state._replace(aggregator=skipped), cohort, None)
