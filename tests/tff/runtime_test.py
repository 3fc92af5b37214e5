"""Tests that the TFF worker ends with its block, whatever ends the block."""

import asyncio
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf.tff import runtime as runtime_lib

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# Seconds that no test waits.
_FOREVER = 600


def _workers(process=None):
  return [
    child
    for child in (process or psutil.Process()).children()
    if 'worker_binary' in ' '.join(child.cmdline())
  ]


@pytest.fixture
def fresh(runtime):
  """Nothing of ours runs but the session's worker; its context comes back."""
  context = tff.framework.get_context_stack().current
  known = _workers()
  assert len(known) == 1
  # TFF's own, which starts no worker before it is used.
  tff.backends.native.set_sync_local_cpp_execution_context()
  yield known
  tff.framework.set_default_context(context)
  assert _workers() == known


@tff.tensorflow.computation(np.int64)
def _add_one(x):
  return x + 1


def test_worker_is_gone_after_the_block(fresh):
  with runtime_lib.local_runtime(concurrency=1):
    (worker,) = [each for each in _workers() if each not in fresh]
    assert _add_one(1) == 2
  assert not worker.is_running()
  # No other worker is started behind the caller's back.
  with pytest.raises(ValueError, match='closed channel'):
    _add_one(1)


def test_block_gives_back_the_block_around_it(runtime):
  with runtime_lib.local_runtime(concurrency=1):
    assert _add_one(1) == 2
  assert _add_one(2) == 3


def test_worker_is_gone_after_an_exception(fresh):
  with pytest.raises(ZeroDivisionError):
    with runtime_lib.local_runtime(concurrency=1):
      (worker,) = [each for each in _workers() if each not in fresh]
      raise ZeroDivisionError
  assert not worker.is_running()


def test_worker_that_was_killed_is_an_error_and_no_endless_retry(fresh):
  with runtime_lib.local_runtime(concurrency=1):
    (worker,) = [each for each in _workers() if each not in fresh]
    assert _add_one(1) == 2
    worker.kill()
    with pytest.raises(RuntimeError, match='exit status -9'):
      _add_one(2)


def _be_impatient():
  """Shortens the waits for a worker that has answered.

  A worker that runs may take seconds where many processes run.
  """
  link = tff.framework.get_context_stack().current.link
  link.wait_policy = dataclasses.replace(
    link.wait_policy, limit_seconds=4.0, notice_seconds=1.0
  )


def test_worker_that_is_stopped_is_named_and_ends_the_computation(fresh):
  said = []
  wait_policy = runtime_lib.WaitPolicy(on_slow=said.append)
  with mock.patch.object(runtime_lib, '_PROBE_SECONDS', 1.0):
    with runtime_lib.local_runtime(concurrency=1, wait_policy=wait_policy):
      (worker,) = [each for each in _workers() if each not in fresh]
      assert _add_one(1) == 2
      assert not said
      _be_impatient()
      worker.send_signal(signal.SIGSTOP)
      for _ in range(2):
        with pytest.raises(
          RuntimeError, match=f'process {worker.pid}.*is stopped'
        ) as caught:
          _add_one(2)
        assert '\n' not in str(caught.value)
      # What gave nothing in time is not asked again.
      assert len(said) == 1
      assert f'process {worker.pid}' in said[0] and '1 s' in said[0]
      worker.send_signal(signal.SIGCONT)


def test_frozen_worker_of_the_readme_is_named_on_standard_error(fresh, capfd):
  """It was waited for in silence, for ever: nobody had asked for a line."""
  with mock.patch.object(runtime_lib, '_PROBE_SECONDS', 1.0):
    with runtime_lib.local_runtime(concurrency=1):
      (worker,) = [each for each in _workers() if each not in fresh]
      assert _add_one(1) == 2
      # gRPC may write lines of its own there.
      assert 'worker' not in capfd.readouterr().err
      _be_impatient()
      worker.send_signal(signal.SIGSTOP)
      with pytest.raises(RuntimeError, match='is stopped'):
        _add_one(2)
      worker.send_signal(signal.SIGCONT)
  (line,) = [
    line for line in capfd.readouterr().err.splitlines() if 'No result' in line
  ]
  assert f'process {worker.pid}' in line
  assert '1 s' in line and 'kill -CONT' in line


def test_busy_worker_is_not_taken_for_a_stopped_one(fresh):
  said = []

  def on_slow(line):
    said.append(line)
    (worker,) = [each for each in _workers() if each not in fresh]
    worker.kill()

  wait_policy = runtime_lib.WaitPolicy(None, on_slow, notice_seconds=0.5)

  @tff.tensorflow.computation
  def busy():
    end = tf.timestamp() + _FOREVER
    return tf.while_loop(
      lambda n: tf.timestamp() < end, lambda n: [n + 1], [tf.constant(0)]
    )

  with runtime_lib.local_runtime(concurrency=1, wait_policy=wait_policy):
    with pytest.raises(RuntimeError, match='exit status -9'):
      busy()
  (line,) = said
  assert 'may just be busy' in line


@pytest.mark.filterwarnings('error', 'ignore:os.fork')
def test_block_ends_without_a_traceback(fresh, capfd):
  with runtime_lib.local_runtime(concurrency=1):
    pass
  time.sleep(0.5)
  out, err = capfd.readouterr()
  assert not out and 'Traceback' not in err


def test_worker_that_does_not_start_is_an_error(fresh, monkeypatch, tmp_path):
  monkeypatch.setattr(runtime_lib.tff, 'folder', lambda: tmp_path)
  binary = tmp_path / 'data' / 'worker_binary'
  binary.parent.mkdir()
  binary.write_text('#!/bin/sh\nexit 3\n')
  binary.chmod(0o755)
  with pytest.raises(RuntimeError, match='exit status 3'):
    with runtime_lib.local_runtime():
      pass


def test_initialize_without_clients_works(runtime):
  process = tff.aggregators.SumFactory().create(tff.TensorType(np.float32))
  assert process.initialize() == ()
  assert process.next((), [1.0, 2.0]).result == 3.0


def test_results_and_errors_come_back(runtime):
  @tff.tensorflow.computation(np.int32)
  def check(x):
    with tf.control_dependencies([tf.debugging.Assert(x > 0, ['too small'])]):
      return tf.identity(x)

  assert check(3) == 3
  with pytest.raises(Exception, match='too small'):
    check(-1)
  assert check(4) == 4


# First a Ctrl-C in the middle of a computation, then a SIGKILL.
_PROGRAM = """
import signal, sys, psutil
# What a shell starts in the background ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
import tensorflow as tf, tensorflow_federated as tff
from tff_bandmf.tff import runtime

@tff.tensorflow.computation
def busy():
  end = tf.timestamp() + 60
  return tf.while_loop(
      lambda n: tf.timestamp() < end, lambda n: [n + 1], [tf.constant(0)])

for _ in range(2):
  try:
    with runtime.local_runtime(concurrency=1):
      worker, = psutil.Process().children()
      print(worker.pid, flush=True)
      busy()
  except KeyboardInterrupt:
    print('interrupted', worker.is_running(), flush=True)
"""


def test_worker_is_gone_after_ctrl_c_and_after_a_kill():
  program = subprocess.Popen(
    [sys.executable, '-c', _PROGRAM],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
    start_new_session=True,
  )
  try:
    worker = psutil.Process(int(program.stdout.readline()))
    _wait_until_busy(worker)
    # To the whole group, as a terminal does.
    os.killpg(program.pid, signal.SIGINT)
    assert program.stdout.readline() == 'interrupted False\n'
    assert not worker.is_running()

    worker = psutil.Process(int(program.stdout.readline()))
    _wait_until_busy(worker)
    program.kill()
    psutil.wait_procs([worker], timeout=60)
    assert not worker.is_running()
    # The pipe closes: nobody holds it open.
    assert program.stdout.read() == ''
  finally:
    program.kill()
    program.wait()
    program.stdout.close()


def _wait_until_busy(worker):
  deadline = time.monotonic() + _FOREVER
  while worker.cpu_times().user < 0.5:
    assert time.monotonic() < deadline
    time.sleep(0.05)


def test_coroutine_of_an_interrupted_caller_is_cancelled(runtime):
  """Ctrl-C in a notebook must not leave a round running in a thread."""
  ends = []

  async def forever():
    # The caller may come to its wait a moment later.
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
      await asyncio.sleep(_FOREVER)
    finally:
      ends.append(tff.framework.get_context_stack().current)

  # A process that a shell starts in the background ignores the signal.
  handler = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    with pytest.raises(KeyboardInterrupt):
      runtime_lib.run_coroutine(forever())
  finally:
    signal.signal(signal.SIGINT, handler)
  # It ran in the context of its caller.
  assert ends == [tff.framework.get_context_stack().current]
