"""What the tests share: a quiet TensorFlow, one TFF runtime, `bandmf`."""

import json
import os

# Before anything imports TensorFlow.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import databases
import pytest


@pytest.fixture(scope='session')
def runtime():
  """TFF's execution context with a worker that ends with the session."""
  from tff_bandmf.program import runtime as runtime_lib

  with runtime_lib.local_runtime(concurrency=2):
    yield


@pytest.fixture
def run(capsys):
  """Runs `bandmf`; returns (exit status, standard output, standard error)."""

  def call(*arguments):
    from tff_bandmf.cli import main as main_lib

    status = main_lib.main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err

  return call


@pytest.fixture
def run_json(run):
  """Runs `bandmf --json`; returns the object, and checks that it is one."""

  def refuse(constant):
    raise AssertionError(f'{constant} is no JSON')

  def call(*arguments):
    status, out, error = run(*arguments, '--json')
    assert (status, error) == (0, '')
    return json.loads(out, parse_constant=refuse)

  return call


@pytest.fixture(scope='session')
def postgresql():
  """Gives the URL of a PostgreSQL server."""
  programs = databases.binaries()
  if programs is None:
    pytest.skip('PostgreSQL is not installed (Debian: postgresql)')
  with databases.server(programs) as (url, _):
    yield url


@pytest.fixture(params=['sqlite', 'postgresql'])
def place(request, tmp_path):
  """Gives the arguments of an empty ledger."""
  if request.param == 'sqlite':
    return dict(place=str(tmp_path / 'ledger.sqlite'))
  return databases.schema(request.getfixturevalue('postgresql'), tmp_path)
