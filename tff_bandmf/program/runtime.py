"""TFF's local runtime, with a worker process that never outlives this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Iterator
from typing import Callable, Optional, Union

from tff_bandmf import errors

try:
  # The first two come with the third.
  import grpc
  import portpicker
  import tensorflow_federated as tff
except ImportError as error:
  raise errors.needs_tff(__name__) from error

_PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec nothing should be.
_LIBC = ctypes.CDLL(None)
_START_SECONDS = 60
_POLL_SECONDS = 0.02
# Values cross processes in one message; TFF's own limit is below 2^31 bytes.
_MAX_MESSAGE_BYTES = 2**31 - 1
# A host that is gone says nothing. Servers take more frequent pings for abuse.
_KEEPALIVE_MS = 310_000

# Contexts of the blocks that this process is in.
_OPEN: weakref.WeakSet[object] = weakref.WeakSet()


def _die_with_parent() -> None:
  _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def worker(
    concurrency: Optional[int] = None,
    log: Optional[Union[str, os.PathLike]] = None,
) -> Iterator[tuple[int, subprocess.Popen]]:
  """Yields the port of a TFF worker and its process, for a `with` block.

  On Linux it also ends if this process is killed. Call it from the main thread,
  which must live as long as the block.

  The worker listens on all interfaces, without authentication or encryption:
  whoever can reach its port can use it, and may read what is in it.

  Args:
    concurrency: computations that run at once; None takes the cores.
    log: file for the worker's output, which is otherwise dropped.

  Raises:
    RuntimeError: the worker did not start.
  """
  concurrency = concurrency or os.cpu_count() or 1
  binary = pathlib.Path(tff.__file__).parent / 'data' / 'worker_binary'
  port = portpicker.pick_unused_port()
  with contextlib.ExitStack() as stack:
    output = stack.enter_context(open(log or os.devnull, 'ab'))
    process = subprocess.Popen(  # pylint: disable=subprocess-popen-preexec-fn
        [str(binary), f'--port={port}',
         f'--max_concurrent_computation_calls={concurrency}'],
        stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        # A Ctrl-C is for this process, which then ends the worker.
        start_new_session=True, preexec_fn=_die_with_parent)
    stack.callback(_end, process)
    _wait_for(process, port, log)
    yield port, process


@contextlib.contextmanager
def local_runtime(
    concurrency: Optional[int] = None,
    log: Optional[Union[str, os.PathLike]] = None,
    program: bool = False,
) -> Iterator[None]:
  """Sets TFF's execution context to a worker of our own, for a `with` block.

  TFF's default worker survives its program and keeps its pipes open. This one
  ends with the block; see `worker`. After it the block around it goes on, if
  there is one; else computations fail until another context is set.

  Args:
    concurrency: computations that run at once; None takes the cores.
    log: file for the worker's output, which is otherwise dropped.
    program: whether it is for federated program logic, such as
      `tff.learning.programs.train_model`, where computations give references.

  Raises:
    RuntimeError: the worker did not start; from a computation: it ended.
  """
  with worker(concurrency, log) as (port, process):

    def check():
      if process.poll() is not None:
        raise RuntimeError(
            f'TFF worker: ended with exit status {process.poll()} (-9 may be '
            f'for want of memory); see log={log}.')

    kind = (
        tff.framework.AsyncExecutionContext if program
        else tff.framework.SyncExecutionContext)
    around = tff.framework.get_context_stack().current
    with execution_context(kind, f'localhost:{port}', check) as context:
      if program:
        context = tff.program.NativeFederatedContext(context)
      tff.framework.set_default_context(context)
      _OPEN.add(context)
      try:
        yield
      finally:
        _OPEN.discard(context)
        if around in _OPEN:
          tff.framework.set_default_context(around)


@contextlib.contextmanager
def execution_context(
    kind: type, address: str, check: Callable[[], None]
) -> Iterator[object]:
  """Yields a context that executes on a worker, for a `with` block.

  Args:
    kind: `tff.framework.SyncExecutionContext` or `AsyncExecutionContext`.
    address: host:port of the worker.
    check: raises RuntimeError if the worker is gone. TFF retries for ever, and
      asks for an executor each time.
  """
  channel = grpc.insecure_channel(
      address,
      options=[('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
               ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
               ('grpc.keepalive_time_ms', _KEEPALIVE_MS),
               ('grpc.enable_http_proxy', 0)])
  with contextlib.closing(channel):
    stub = _stub(channel)

    def executor(cardinalities):
      check()
      remote = tff.framework.RemoteExecutor(stub, dispose_batch_size=1)
      # `initialize` has no clients and so gives no cardinality.
      remote.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
      return remote

    yield kind(
        executor_fn=tff.framework.ResourceManagingExecutorFactory(executor),
        compiler_fn=tff.backends.native.desugar_and_transform_to_native,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result)


def _wait_for(process: subprocess.Popen, port: int, log) -> None:
  """Returns when the worker listens, or raises RuntimeError."""
  deadline = time.monotonic() + _START_SECONDS
  while process.poll() is None and time.monotonic() < deadline:
    with contextlib.suppress(OSError):
      socket.create_connection(('localhost', port), timeout=1).close()
      return
    time.sleep(_POLL_SECONDS)
  raise RuntimeError(
      f'TFF worker: no answer on port={port} within {_START_SECONDS} s; '
      f'exit status {process.poll()}; see log={log}.')


def _stub(channel: grpc.Channel) -> tff.framework.RemoteExecutorGrpcStub:
  """Returns a stub that does not watch the channel.

  TFF's stub never stops to watch, and its thread prints a traceback when the
  channel is closed. What it sees is not used.
  """
  channel.subscribe = lambda callback, try_to_connect=False: None
  return tff.framework.RemoteExecutorGrpcStub(channel)


def _end(process: subprocess.Popen) -> None:
  process.terminate()
  try:
    process.wait(timeout=10)
  except subprocess.TimeoutExpired:
    process.kill()
    process.wait()
