"""A clock for both sides of `side_by_side`."""

from __future__ import annotations

import time


class Clock:
  """A clock that starts when it is created.

  It also reads the CPU seconds of all threads of the process, which remain
  comparable on a busy machine.
  """

  def __init__(self):
    self._began = time.perf_counter(), time.process_time()

  def read(self, times: int = 1) -> dict[str, float]:
    """Returns the seconds since the start, divided by `times`."""
    return {
      'seconds': (time.perf_counter() - self._began[0]) / times,
      'cpu_seconds': (time.process_time() - self._began[1]) / times,
    }
