"""Databases for ledgers: SQLite files and a server of PostgreSQL."""

import contextlib
import glob
import os
import pathlib
import pwd
import random
import shutil
import signal
import subprocess
import tempfile
import time

import pytest


def binaries():
  """Returns the folder of PostgreSQL's server programs, or None."""
  server = shutil.which('postgres')
  found = (
    [os.path.realpath(server)]
    if server
    else sorted(glob.glob('/usr/lib/postgresql/*/bin/postgres'))
  )
  return pathlib.Path(found[-1]).parent if found else None


def _started(programs, directory, data, user):
  """Returns the process of a server that answers.

  A server may end during its start if other servers start at the same time. It
  is then started again.
  """
  log = directory / 'log'
  for _ in range(3):
    with open(log, 'wb') as output:
      process = subprocess.Popen(
        [
          programs / 'postgres',
          '-D',
          data,
          '-k',
          directory,
          '-c',
          'listen_addresses=',
          '-c',
          'synchronous_commit=off',
        ],
        cwd=directory,
        stdout=output,
        stderr=output,
        **user,
      )
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline:
      ready = subprocess.run(
        [programs / 'pg_isready', '-h', directory],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        **user,
      )
      if not ready.returncode:
        return process
      time.sleep(0.05)
    process.kill()
    process.wait()
  raise AssertionError(log.read_text())


@contextlib.contextmanager
def server(programs):
  """Runs a server on a socket in a private folder; yields URL and process."""
  directory = pathlib.Path(tempfile.mkdtemp(prefix='bandmf-pg-'))
  # The server refuses to run as root, so `nobody` runs it.
  user = {}
  if os.geteuid() == 0:
    nobody = pwd.getpwnam('nobody')
    user = dict(user=nobody.pw_uid, group=nobody.pw_gid)
    shutil.chown(directory, **user)
  quiet = dict(
    cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user
  )
  data = directory / 'data'
  try:
    subprocess.run(
      [programs / 'initdb', '--no-sync', '-A', 'trust', '-U', 'bandmf', data],
      check=True,
      **quiet,
    )
    process = _started(programs, directory, data, user)
    try:
      yield f'postgresql+psycopg2://bandmf@/postgres?host={directory}', process
    finally:
      # SIGINT is PostgreSQL's fast shutdown, which does not wait for clients.
      process.send_signal(signal.SIGINT)
      process.wait(180)
  finally:
    shutil.rmtree(directory)


def schema(url, tmp_path):
  """Returns the arguments of a ledger in a new, empty schema of a server.

  Args:
    url: URL that `server` yields.
    tmp_path: folder of the ledger's key.
  """
  psycopg2 = pytest.importorskip('psycopg2')
  name = f'test_{random.SystemRandom().getrandbits(64):x}'
  connection = psycopg2.connect(url.replace('+psycopg2', ''))
  connection.autocommit = True
  connection.cursor().execute(f'CREATE SCHEMA {name}')
  connection.close()
  return dict(
    url=f'{url}&options=-csearch_path%3D{name}',
    key_file=tmp_path / 'private' / 'ledger.key',
  )
