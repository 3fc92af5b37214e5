"""How much memory a process had."""

from __future__ import annotations

import pathlib
import re
from typing import Union


def peak_bytes(process: Union[int, str] = 'self') -> int:
  """Returns the most bytes in memory that a process ever had, or since `reset`.

  `ru_maxrss` would be that of the process that started it, if that had more.
  """
  status = pathlib.Path(f'/proc/{process}/status').read_text()
  return 1024 * int(re.findall(r'VmHWM:\s+(\d+) kB', status)[0])


def reset() -> int:
  """Forgets the peak of this process and returns bytes in memory now."""
  pathlib.Path('/proc/self/clear_refs').write_text('5')
  return peak_bytes()
