"""What the tests share: a quiet TensorFlow and one TFF runtime."""

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
