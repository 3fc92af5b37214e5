"""What the tests share: a quiet TensorFlow, one TFF runtime, `bandmf`."""

import json
import os

# Before anything imports TensorFlow.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

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
