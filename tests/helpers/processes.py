"""Processes of tests, forked from one that has imported what they need.

Python has one server of forks a process, so its imports are named once. Where
each file named its own, the last that was collected decided for all.
"""

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from unittest import mock

_FORKED = multiprocessing.get_context('forkserver')
_FORKED.set_forkserver_preload(['preloaded'])


def start(target, *args, daemon=False):
  """Returns a process that runs the target, a function of a module."""
  # The server looks for `preloaded` where the tests do.
  with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
    forkserver.ensure_running()
  process = _FORKED.Process(target=target, args=args, daemon=daemon)
  process.start()
  return process


def to_files(folder):
  """Appends what this process prints to `out` and `err` in a folder."""
  for number, stream in ((1, 'out'), (2, 'err')):
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(os.open(os.path.join(folder, stream), flags), number)
