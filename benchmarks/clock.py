"""A clock of wall-clock and CPU seconds, for benchmarks of any library."""

from __future__ import annotations

import time


class Clock:
  """A clock that starts when it is created.

  CPU seconds count all threads of the process, and remain comparable on a busy
  machine.
  """

  def __init__(self):
    self._began = time.perf_counter(), time.process_time()

  def read(self, times: int = 1) -> dict[str, float]:
    """Returns wall-clock and CPU seconds since the start, divided by `times`.

    Args:
      times: number of repetitions of the measured work, >= 1.
    """
    return {
      'seconds': (time.perf_counter() - self._began[0]) / times,
      'cpu_seconds': (time.process_time() - self._began[1]) / times,
    }
