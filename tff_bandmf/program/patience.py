"""How long a worker is waited for, and who hears of it.

A process that was stopped, or a machine that swaps, says nothing and closes
nothing: what waits for it would wait for ever.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Callable, Optional

_NOTICE_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Patience:
  """How long to wait for one computation of a worker.

  Attributes:
    limit_seconds: then the worker is given up; None waits for ever.
    say: gets one line that names the worker, when there is no result yet after
      `notice_seconds`; None says nothing.
    notice_seconds: when.
  """

  limit_seconds: Optional[float] = None
  say: Optional[Callable[[str], None]] = None
  notice_seconds: float = _NOTICE_SECONDS

  @contextlib.contextmanager
  def waiting(
    self, describe: Callable[[], str], give_up: Callable[[str], None]
  ) -> Iterator[None]:
    """Watches over a `with` block that waits.

    Args:
      describe: returns who is waited for, and what is known of it.
      give_up: called in another thread when the limit is over, with a line that
        says so; has to make the block end.
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
    if self.say is not None and (limit is None or notice < limit):
      if over.wait(notice):
        return
      line = describe()
      if over.is_set():
        return
      self.say(f'No result for {notice:.0f} s: {line}.')
      limit = None if limit is None else limit - notice
    if limit is None or over.wait(limit):
      return
    line = describe()
    if not over.is_set():
      give_up(
        f'{line}: no result within {self.limit_seconds:g} s, the limit of a '
        'computation; look at that process, or give more time '
        '(--round-timeout)'
      )


# Waits for ever, without a word.
FOREVER = Patience()
