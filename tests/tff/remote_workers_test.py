"""Tests of workers elsewhere: dealt to all, in order, and no endless wait."""

import contextlib
import os
import signal
import threading
import time
from unittest import mock

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf.tff import remote_workers
from tff_bandmf.tff import runtime as runtime_lib


@tff.tensorflow.computation(np.int64, np.int64)
def _work(shared, member):
  """A member above 100 takes that many milliseconds."""
  end = tf.timestamp() + tf.cast(member - 100, tf.float64) / 1000
  spins = tf.while_loop(
    lambda n: tf.timestamp() < end, lambda n: [n + 1], [np.int64(0)]
  )[0]
  return shared * 1000 + member + 0 * spins


@tff.federated_computation(
  tff.FederatedType(np.int64, tff.SERVER),
  tff.FederatedType(np.int64, tff.CLIENTS),
)
def _map(shared, members):
  return tff.federated_map(_work, (tff.federated_broadcast(shared), members))


@pytest.fixture
def two(runtime):
  """Two workers and the processes of them."""
  with (
    runtime_lib.worker(1) as (first, _),
    runtime_lib.worker(1) as (second, victim),
    remote_workers.connected(
      [f'localhost:{first}', f'localhost:{second}']
    ) as workers,
  ):
    yield workers, victim


@pytest.mark.parametrize('count', [1, 2, 7])
def test_results_are_in_the_order_of_the_members(two, count):
  workers, _ = two
  members = list(range(count))
  assert workers.map(_map, 3, members) == [3000 + i for i in members]


def test_worker_that_dies_in_a_round_fails_it_and_is_left_out_after(two):
  workers, victim = two
  workers.map(_map, 1, [1, 2])
  process = psutil.Process(victim.pid)
  idle = process.cpu_times().user

  def kill_when_busy():
    while process.cpu_times().user < idle + 0.5:
      time.sleep(0.02)
    victim.kill()

  killer = threading.Thread(target=kill_when_busy, daemon=True)
  killer.start()
  with pytest.raises(RuntimeError, match='does not answer'):
    workers.map(_map, 1, [1, 100 + 300_000])
  killer.join()
  victim.wait()
  assert workers.map(_map, 1, [1, 2, 3]) == [1001, 1002, 1003]


def test_no_worker_left_is_said(runtime):
  with (
    runtime_lib.worker(1) as (port, process),
    remote_workers.connected([f'localhost:{port}']) as workers,
  ):
    process.kill()
    process.wait()
    with pytest.raises(RuntimeError, match=f'none of localhost:{port} answers'):
      workers.map(_map, 1, [1])


@pytest.mark.parametrize('address', ['nowhere', ':80', 'host:', 'host:http'])
def test_address_without_a_port_is_refused(address):
  with pytest.raises(ValueError, match='must be host:port'):
    with remote_workers.connected([address]):
      pass


def test_worker_that_is_not_there_is_said_before_anything_runs():
  with pytest.raises(RuntimeError, match='localhost:1 does not answer'):
    with remote_workers.connected(['localhost:1']):
      pass


@contextlib.contextmanager
def _stopped(process):
  """Stops a process for a block, as a debugger or a Ctrl-Z would."""
  process.send_signal(signal.SIGSTOP)
  # Until all its threads have stopped: one could still answer.
  os.waitid(os.P_PID, process.pid, os.WSTOPPED)
  try:
    yield
  finally:
    process.send_signal(signal.SIGCONT)


def test_worker_that_is_stopped_is_named_and_then_left_out(runtime):
  said = []
  wait_policy = runtime_lib.WaitPolicy(on_slow=said.append)
  with (
    runtime_lib.worker(1) as (first, _),
    runtime_lib.worker(1) as (second, victim),
  ):
    with remote_workers.connected(
      [f'localhost:{first}', f'localhost:{second}'], wait_policy
    ) as workers:
      assert workers.map(_map, 1, [1, 2]) == [1001, 1002]
      assert not said
      # A worker that runs may take seconds where many processes run.
      link = workers._contexts[f'localhost:{second}'].link
      link.wait_policy = runtime_lib.WaitPolicy(
        4.0, said.append, notice_seconds=1.0
      )
      with _stopped(victim):
        # Of a context that has computed before, so its connection stands.
        with mock.patch.object(runtime_lib, 'answers', lambda _: True):
          with pytest.raises(
            RuntimeError, match=f'localhost:{second}.*within 4 s'
          ) as caught:
            workers.map(_map, 1, [1, 2])
        assert '\n' not in str(caught.value)
        assert len(said) == 1 and f'localhost:{second}' in said[0]
        assert workers.map(_map, 1, [1, 2, 3]) == [1001, 1002, 1003]
      # Who knows what it does: another program may have it again.
      assert workers.map(_map, 1, [1, 2]) == [1001, 1002]
      assert len(said) == 1


def test_worker_that_is_stopped_does_not_answer(runtime):
  with runtime_lib.worker(1) as (port, process):
    assert runtime_lib.answers(f'localhost:{port}')
    with (
      mock.patch.object(runtime_lib, '_PROBE_SECONDS', 1.0),
      _stopped(process),
    ):
      assert not runtime_lib.answers(f'localhost:{port}')
    assert runtime_lib.answers(f'localhost:{port}')
