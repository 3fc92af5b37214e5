"""A runtime for TFF whose worker process ends with this process.

  with local_runtime():
    state = process.initialize()

The worker of TFF's default runtime keeps running after its program ends, and
keeps the program's pipes open.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import os
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Coroutine, Iterator
from typing import Any, Callable, Optional, Union

from tff_bandmf import errors
from tff_bandmf.tff import names as tff

try:
  # TFF installs grpc and portpicker.
  import grpc
  import portpicker
except ImportError as error:
  raise errors.needs('tensorflow_federated', __name__) from error

_PR_SET_PDEATHSIG = 1
# Load the library at import: nothing should be loaded between fork and exec.
_LIBC = ctypes.CDLL(None)
_START_SECONDS = 60
_POLL_SECONDS = 0.02
# A value passes between processes in one message, and TFF limits a message to
# less than 2^31 bytes.
_MAX_MESSAGE_BYTES = 2**31 - 1
# Interval of pings, in milliseconds. A ping without an answer shows that the
# worker's host is gone. gRPC servers refuse intervals below 300 s.
_KEEPALIVE_MS = 310_000
_NO_PROXY = ('grpc.enable_http_proxy', 0)
# Longest wait of `answers` for a connection, and then for an answer.
_PROBE_SECONDS = 10.0

# Contexts of the `local_runtime` blocks that are open in this process.
_OPEN: weakref.WeakSet[object] = weakref.WeakSet()


@dataclasses.dataclass(frozen=True)
class WaitPolicy:
  """Time limits for one computation of a worker.

  A worker whose process was stopped, or whose machine swaps, sends nothing and
  keeps its connection open. A program that waits for the worker's result would
  wait for ever, without a message. A `WaitPolicy` writes a message after a
  minute. It can set a limit: a longer wait ends with an error.

    WaitPolicy(limit_seconds=600)   # message after 1 minute, error after 10

  Attributes:
    limit_seconds: longest time without a result, in seconds, > 0. A longer wait
      ends with an error. If None, there is no limit.
    on_slow: function of one line of text, which names the worker. The default
      writes the line to standard error.
    notice_seconds: time without a result, in seconds, > 0; then `on_slow` is
      called. If `limit_seconds` is not larger, `on_slow` is never called.
  """

  limit_seconds: Optional[float] = None
  on_slow: Callable[[str], None] = errors.notice
  notice_seconds: float = 60.0

  @contextlib.contextmanager
  def waiting(
    self, describe: Callable[[], str], give_up: Callable[[str], None]
  ) -> Iterator[None]:
    """Applies the time limits to a `with` block that waits for a worker.

    Args:
      describe: function that returns the name and the state of the worker.
      give_up: function that is called in another thread when the limit is
        exceeded, with one line of explanation. It must make the block end.
    """
    over = threading.Event()
    watched = over, describe, give_up
    threading.Thread(target=self._watch, args=watched, daemon=True).start()
    try:
      yield
    finally:
      over.set()

  def _watch(self, over: threading.Event, describe, give_up) -> None:
    limit = self.limit_seconds
    notice = self.notice_seconds
    if limit is None or notice < limit:
      if over.wait(notice):
        return
      line = describe()
      if over.is_set():
        return
      self.on_slow(f'No result for {notice:.0f} s: {line}.')
      limit = None if limit is None else limit - notice
    if limit is None or over.wait(limit):
      return
    line = describe()
    if not over.is_set():
      give_up(
        f'{line}: no result within {self.limit_seconds:g} s, the limit of a '
        'computation; look at the process, or raise the limit'
      )


# The policy without a limit; it writes a line to standard error after a minute.
WAIT_FOREVER = WaitPolicy()


def _die_with_parent() -> None:
  _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def worker(
  concurrency: Optional[int] = None,
  log: Optional[Union[str, os.PathLike]] = None,
) -> Iterator[tuple[int, subprocess.Popen]]:
  """Yields the port of a TFF worker and its process, for a `with` block.

  On Linux the worker also ends if this process is killed. Call this function
  from a thread that lives as long as the block, such as the main thread: Linux
  kills the worker when the thread that started it ends.

  The worker listens on all network interfaces, without authentication or
  encryption. Anybody who can reach its port can use the worker, and may read
  the values in it.

  Args:
    concurrency: number of computations that can run at once, >= 1. If None, it
      is the number of cores.
    log: file for the worker's output. If None, the output is discarded.

  Raises:
    RuntimeError: the worker did not start.
  """
  concurrency = concurrency or os.cpu_count() or 1
  calls = f'--max_concurrent_computation_calls={concurrency}'
  binary = tff.folder() / 'data' / 'worker_binary'
  port = portpicker.pick_unused_port()
  with contextlib.ExitStack() as stack:
    output = stack.enter_context(open(log or os.devnull, 'ab'))
    process = subprocess.Popen(  # pylint: disable=subprocess-popen-preexec-fn
      [str(binary), f'--port={port}', calls],
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=output,
      # Ctrl-C must reach only this process, which then ends the worker.
      start_new_session=True,
      preexec_fn=_die_with_parent,
    )
    stack.callback(_end, process)
    _wait_for(process, port, log)
    yield port, process


@contextlib.contextmanager
def local_runtime(
  concurrency: Optional[int] = None,
  log: Optional[Union[str, os.PathLike]] = None,
  program: bool = False,
  wait_policy: WaitPolicy = WAIT_FOREVER,
) -> Iterator[None]:
  """Sets TFF's execution context to a new worker, for a `with` block.

  The worker ends with the block; see `worker`. After the block, the context of
  a surrounding `local_runtime` block is set again. Without a surrounding block,
  computations fail until another context is set.

  Args:
    concurrency: number of computations that can run at once, >= 1. If None, it
      is the number of cores.
    log: file for the worker's output. If None, the output is discarded.
    program: whether the context is for a federated program, such as
      `tff.learning.programs.train_model`, in which computations return
      references.
    wait_policy: time limits for a result of the worker. By default, a line on
      standard error says that a minute passed without a result, and the wait
      continues.

  Raises:
    RuntimeError: the worker did not start; or a computation in the block failed
      because the worker ended or returned no result in time.
    ValueError: a computation in the block refused a round; the message is one
      line with the reason.
  """
  with worker(concurrency, log) as (port, process):

    def check():
      if process.poll() is not None:
        raise RuntimeError(
          f'TFF worker: ended with exit status {process.poll()} (-9 may mean '
          f'that memory ran out); see log={log}.'
        )

    name = f'TFF worker of this program (process {process.pid})'
    around = tff.framework.get_context_stack().current
    link = Link(f'localhost:{port}', check, wait_policy, name)
    with execution_context(link, program) as context:
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


def check_program() -> None:
  """Raises ValueError unless TFF's context is for a federated program."""
  context = tff.framework.get_context_stack().current
  if not isinstance(context, tff.program.FederatedContext):
    raise errors.value_error(
      f'context={type(context).__name__}: must be the context of a federated '
      'program; use runtime.local_runtime(program=True)'
    )


def check_values() -> None:
  """Raises ValueError if computations in TFF's context return references."""
  context = tff.framework.get_context_stack().current
  kinds = tff.program.FederatedContext, tff.framework.AsyncContext
  if isinstance(context, kinds):
    raise errors.value_error(
      f'context={type(context).__name__}: gives references instead of values; '
      'use runtime.local_runtime(), or call run.train_model in '
      'local_runtime(program=True)'
    )


def run_coroutine(coroutine: Coroutine[Any, Any, None]) -> None:
  """Runs a coroutine to its end, also where an event loop is running.

  A new thread runs the coroutine in a new event loop, with the caller's TFF
  context. So the caller may be in a notebook or in a coroutine, where another
  event loop is running. That loop does not change. If the caller is
  interrupted, the coroutine is cancelled.
  """
  stack = tff.framework.get_context_stack()
  context = stack.current
  tasks: list[asyncio.Future] = []

  async def work() -> None:
    tasks.append(asyncio.ensure_future(coroutine))
    await tasks[0]

  def run() -> None:
    with stack.install(context):
      asyncio.run(work())

  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    future = thread.submit(run)
    try:
      future.result()
    except BaseException:
      while not (tasks or future.done()):
        time.sleep(_POLL_SECONDS)
      if not future.done():
        tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
      raise


@dataclasses.dataclass(eq=False)
class Link:
  """The connection of a context to its worker.

  A worker that exceeds the time limit is given up: it gets no further work.

  Attributes:
    address: address 'host:port' of the worker.
    check_worker: function that raises RuntimeError if the worker is gone. TFF
      retries a call for ever, and calls this function before each retry.
    wait_policy: time limits for the result of a computation.
    name: name of the worker in messages.
    failure: reason why the worker was given up; None if it was not given up.
    channel: connection of gRPC.
  """

  address: str
  check_worker: Callable[[], None]
  wait_policy: WaitPolicy
  name: str

  def __post_init__(self):
    self.failure: Optional[str] = None
    options = [
      ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
      ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
      ('grpc.keepalive_time_ms', _KEEPALIVE_MS),
      _NO_PROXY,
    ]
    self.channel = grpc.insecure_channel(self.address, options)
    # TFF's stub watches the channel for ever, and its thread prints a traceback
    # when the channel is closed. `tff_bandmf` does not need the channel's
    # state, so the stub gets a channel that cannot be watched.
    self.channel.subscribe = lambda callback, try_to_connect=False: None
    self._stub = tff.framework.RemoteExecutorGrpcStub(self.channel)

  def executor(self, cardinalities) -> tff.framework.RemoteExecutor:
    """Returns an executor on the worker; raises if the worker is gone."""
    self._check()
    self.check_worker()
    remote = tff.framework.RemoteExecutor(self._stub, dispose_batch_size=1)
    # `initialize` has no clients, so TFF gives no number of clients for it.
    remote.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    return remote

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Gives up the worker if a `with` block exceeds the time limit.

    Raises:
      RuntimeError: the worker was given up, before or in the block.
      ValueError: a computation refused a round; the message has the reason
        without TFF's traceback.
    """
    self._check()
    try:
      with self.wait_policy.waiting(self._describe, self._give_up):
        yield
    except Exception as error:
      if self.failure is not None:
        raise RuntimeError(f'{self.failure}.') from error
      refused = errors.from_assertion(error)
      if refused is None:
        raise
      raise refused from None

  def _check(self) -> None:
    if self.failure is not None:
      raise RuntimeError(f'{self.failure}.')

  def _describe(self) -> str:
    status = (
      'which answers, so it may just be busy'
      if answers(self.address)
      else 'which does not answer: it is stopped (kill -CONT continues it) or '
      'hangs (kill ends it)'
    )
    return f'{self.name}, {status}'

  def _give_up(self, why: str) -> None:
    self.failure = why
    # The worker may be stopped and never answer. `dispose` must do nothing, so
    # that cleanup does not wait for the worker.
    self._stub.dispose = self._stub.dispose_executor = lambda _: None
    # A closed channel ends every call that waits for the worker, with an error.
    self.channel.close()

  def arguments(self) -> dict[str, object]:
    """Returns the arguments for the constructor of a TFF context."""
    return dict(
      executor_fn=tff.framework.ResourceManagingExecutorFactory(self.executor),
      compiler_fn=tff.backends.native.desugar_and_transform_to_native,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )


class SyncContext(tff.framework.SyncExecutionContext):
  """A TFF context that waits for results; see `execution_context`.

  Attributes:
    link: connection to the worker.
  """

  def __init__(self, link: Link):
    super().__init__(**link.arguments())
    self.link = link

  def invoke(self, comp, arg):
    """Returns the result of a computation."""
    with self.link.waiting():
      return super().invoke(comp, arg)


class _AsyncContext(tff.framework.AsyncExecutionContext):
  def __init__(self, link: Link):
    super().__init__(**link.arguments())
    self._link = link

  async def invoke(self, comp, arg):
    with self._link.waiting():
      return await super().invoke(comp, arg)


@contextlib.contextmanager
def execution_context(
  link: Link, asynchronous: bool = False
) -> Iterator[Union[SyncContext, _AsyncContext]]:
  """Yields a context whose computations run on a worker, for a `with` block.

  Args:
    link: connection to the worker, which is closed when the block ends.
    asynchronous: whether computations return awaitables.
  """
  with contextlib.closing(link.channel):
    yield _AsyncContext(link) if asynchronous else SyncContext(link)


def answers(address: str) -> bool:
  """Returns whether a worker accepts a gRPC connection and answers.

  An open port is not enough: if a process is stopped, the operating system
  still accepts connections for it, but the process does not answer.

  Args:
    address: address 'host:port' of the worker.
  """
  host, _, port = address.rpartition(':')
  try:
    place = host.strip('[]'), int(port)
    socket.create_connection(place, _PROBE_SECONDS).close()
  except OSError:
    return False
  # Use a new connection: an older connection may have been opened before the
  # worker was stopped.
  options = [_NO_PROXY, ('grpc.use_local_subchannel_pool', 1)]
  with contextlib.closing(grpc.insecure_channel(address, options)) as channel:
    try:
      grpc.channel_ready_future(channel).result(_PROBE_SECONDS)
      return True
    except grpc.FutureTimeoutError:
      return False


def _wait_for(process: subprocess.Popen, port: int, log) -> None:
  """Waits until the worker listens on its port.

  Raises:
    RuntimeError: the worker ended, or does not listen after `_START_SECONDS`.
  """
  deadline = time.monotonic() + _START_SECONDS
  while process.poll() is None and time.monotonic() < deadline:
    with contextlib.suppress(OSError):
      socket.create_connection(('localhost', port), timeout=1).close()
      return
    time.sleep(_POLL_SECONDS)
  raise RuntimeError(
    f'TFF worker: no answer on port={port} within {_START_SECONDS} s; '
    f'exit status {process.poll()}; see log={log}.'
  )


def _end(process: subprocess.Popen) -> None:
  process.terminate()
  try:
    process.wait(timeout=10)
  except subprocess.TimeoutExpired:
    process.kill()
    process.wait()
