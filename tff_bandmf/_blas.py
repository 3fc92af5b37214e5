"""The number of threads of BLAS, which computes NumPy's matrix products."""

from __future__ import annotations

import contextlib
import functools

# Loads all BLAS libraries, so `threadpoolctl` finds them.
import scipy.linalg  # noqa: F401
import threadpoolctl


def one_thread() -> contextlib.AbstractContextManager:
  """Returns a context in which BLAS computes in one thread.

  The products of this library are small. With several threads, idle threads
  would take processor time from the rest of the program, and rounding would
  depend on the number of threads.
  """
  return _libraries().limit(limits=1, user_api='blas')


@functools.cache
def _libraries() -> threadpoolctl.ThreadpoolController:
  # The search for the libraries takes some milliseconds.
  return threadpoolctl.ThreadpoolController()
