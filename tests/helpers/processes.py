"""Processes for tests, forked from a server that has imported large modules.

A Python process has one fork server. So this file alone names the modules that
the server imports.
"""

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from unittest import mock

_FORKED = multiprocessing.get_context('forkserver')
_FORKED.set_forkserver_preload(['preloaded'])


def start_server():
  """Starts the server, if it does not run."""
  # The server needs the path of the tests to find the module `preloaded`.
  with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
    forkserver.ensure_running()


def start(target, *args, daemon=False):
  """Returns a process that runs the target, a function of a module."""
  start_server()
  process = _FORKED.Process(target=target, args=args, daemon=daemon)
  process.start()
  return process


def to_files(folder):
  """Appends standard output and error of this process to files of a folder.

  The names of the files are `out` and `err`.
  """
  for number, stream in ((1, 'out'), (2, 'err')):
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(os.open(os.path.join(folder, stream), flags), number)
