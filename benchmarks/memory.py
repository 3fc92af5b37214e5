"""The memory of a process."""

from __future__ import annotations

import pathlib
import re
from typing import Union


def peak_bytes(process: Union[int, str] = 'self') -> int:
  """Returns the peak memory of a process, in bytes.

  The peak is counted from the last `reset`, or from the start of the process.
  `ru_maxrss` is not used, because it includes the peak of the parent process.

  Args:
    process: process ID, or 'self' for this process.
  """
  return resident_bytes(process, 'VmHWM')


def resident_bytes(
  process: Union[int, str] = 'self', name: str = 'VmRSS'
) -> int:
  """Returns the resident memory of a process, in bytes.

  Args:
    process: process ID, or 'self' for this process.
    name: name of the kind of memory in /proc, such as 'RssShmem'.
  """
  status = pathlib.Path(f'/proc/{process}/status').read_text()
  return 1024 * int(re.findall(rf'{name}:\s+(\d+) kB', status)[0])


def reset() -> int:
  """Resets the peak memory of this process; returns its present bytes."""
  pathlib.Path('/proc/self/clear_refs').write_text('5')
  return peak_bytes()
