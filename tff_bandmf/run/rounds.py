"""The rounds of a run, while they are open and when they are done."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional

import numpy as np


@dataclasses.dataclass(frozen=True)
class Done:
  """A round that is over, and on the disk.

  Attributes:
    round: t.
    cohort: [m] the clients that took part.
    state: of the process after it.
    metrics: of the process.
  """

  round: int
  cohort: np.ndarray
  state: Any
  metrics: Any


class Round:
  """A round that is open: recorded, and not yet finished.

  Attributes:
    index: t.
    cohort: [m] the clients that take part.
    refused: how many came and were not admitted.
    data: of the cohort, as `prepare` of `Run.rounds` gives it.
    finished: whether it is on the disk.
    updates: how many are in the sum; None before `finish`, or without noise.
    without_effect: those of the updates that were zero, or not finite and
      counted as zero; None as for `updates`.
  """

  def __init__(
    self,
    journal: Any,
    noised: Any,
    index: int,
    cohort: np.ndarray,
    *,
    refused: int = 0,
    data: Callable[[], Any] = lambda: None,
  ):
    """Takes the `Journal` and the `Noised` of the run."""
    self.index = index
    self.cohort = cohort
    self.refused = refused
    self.finished = False
    self.updates: Optional[int] = None
    self.without_effect: Optional[int] = None
    self._journal = journal
    self._noised = noised
    self._data = data

  @property
  def data(self) -> Any:
    return self._data()

  def attempt(self, function: Callable[[], Any]) -> Any:
    """Returns what a function gives; None if it burnt the round.

    It does where the round released before, and now was to release another sum:
    the model stays as it was, and the next round follows.

    Args:
      function: calls `next` of the process, or releases.
    """
    output = None
    with self._journal.attempting(self):
      output = function()
    return None if self._journal.is_burnt(self.index) else output

  def finish(
    self,
    state: Any,
    metrics: Any = None,
    shown: Optional[Mapping[str, Any]] = None,
  ) -> Any:
    """Returns the state, when it and the round are on the disk.

    Args:
      state: of the process, after the round.
      metrics: numbers in any structure, which have no noise: they stay in
        `private/`, and the report names them.
      shown: what goes to `metrics.csv`, for everybody: numbers by those of the
        columns that the run was opened with.

    Raises:
      ValueError: the round was finished before, or nothing was released in it.
    """
    shown = {**(shown or {}), **self._noised.released(self)}
    self._journal.finish(
      self,
      state,
      self._noised.z_stddev,
      shown,
      metrics,
      self._noised.flag(self),
    )
    return state

  def release(self, updates: Iterable[Any], like: Any) -> Any:
    """Returns the mean of updates with the noise of the round, without TFF.

    Updates are clipped as the plan says, summed exactly, and divided by its
    clients_per_round. It takes the place of `run.aggregator`.

    Args:
      updates: one of each client of the cohort, at most, in any order: float
        arrays in the structure of `like`. One at a time is in memory.
      like: what an update looks like, such as the weights: its structure,
        shapes and float types are those of the mean.

    Raises:
      ImportError: TensorFlow Privacy is not installed.
      ValueError: the round is not open or released another sum before, an
        update is not like `like`, or there are more than clients.
    """
    self._journal.check_open(self)
    clip = self._journal.l2_norm_clip
    mean = self._noised.release(self, updates, like, clip)
    # PRIVACY: a power cut before `finish` would let another sum follow what may
    # have been seen. Guard: run_test.test_mark_is_on_the_disk_before_the_mean.
    self._journal.sync()
    return mean
