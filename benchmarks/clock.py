"""A clock that both sides read."""

from __future__ import annotations

import time


class Clock:
  """Starts when it is made.

  CPU seconds of all threads of the process are what a busy machine leaves
  comparable.
  """

  def __init__(self):
    self._began = time.perf_counter(), time.process_time()

  def read(self, times: int = 1) -> dict[str, float]:
    """Returns the seconds since then, over how often something was done."""
    return {
      'seconds': (time.perf_counter() - self._began[0]) / times,
      'cpu_seconds': (time.process_time() - self._began[1]) / times,
    }
