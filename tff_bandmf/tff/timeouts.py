"""Time limits for results of a worker.

A worker whose process was stopped, or whose machine swaps, sends nothing and
keeps its connection open. A program that waits for the worker's result would
wait for ever, without a message. A `WaitPolicy` writes a message after a
minute. It can set a limit: a longer wait ends with an error.

  WaitPolicy(limit_seconds=600)   # message after 1 minute, error after 10
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Callable, Optional

from tff_bandmf import errors


@dataclasses.dataclass(frozen=True)
class WaitPolicy:
  """Time limits for one computation of a worker.

  Attributes:
    limit_seconds: longest time without a result, in seconds, > 0. A longer wait
      ends with an error. If None, there is no limit.
    on_slow: function of one line of text, which names the worker. The default
      writes the line to standard error.
    notice_seconds: time without a result, in seconds, > 0; then `on_slow` is
      called. If `limit_seconds` is not larger, `on_slow` is never called.
  """

  limit_seconds: Optional[float] = None
  on_slow: Callable[[str], None] = errors.notice
  notice_seconds: float = 60.0

  @contextlib.contextmanager
  def waiting(
    self, describe: Callable[[], str], give_up: Callable[[str], None]
  ) -> Iterator[None]:
    """Applies the time limits to a `with` block that waits for a worker.

    Args:
      describe: function that returns the name and the state of the worker.
      give_up: function that is called in another thread when the limit is
        exceeded, with one line of explanation. It must make the block end.
    """
    over = threading.Event()
    thread = threading.Thread(
      target=self._watch, args=(over, describe, give_up), daemon=True
    )
    thread.start()
    try:
      yield
    finally:
      over.set()

  def _watch(self, over: threading.Event, describe, give_up) -> None:
    limit = self.limit_seconds
    notice = self.notice_seconds
    if limit is None or notice < limit:
      if over.wait(notice):
        return
      line = describe()
      if over.is_set():
        return
      self.on_slow(f'No result for {notice:.0f} s: {line}.')
      limit = None if limit is None else limit - notice
    if limit is None or over.wait(limit):
      return
    line = describe()
    if not over.is_set():
      give_up(
        f'{line}: no result within {self.limit_seconds:g} s, the limit of a '
        'computation; look at the process, or raise the limit'
      )


# The policy without a limit; it writes a line to standard error after a minute.
WAIT_FOREVER = WaitPolicy()
