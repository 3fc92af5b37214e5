"""TFF workers on other machines, for the computations of clients.

The server sends only the model and the clients' data to the workers. The
aggregator, its noise and its state stay on the server.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from tff_bandmf import errors
from tff_bandmf.tff import names as tff
from tff_bandmf.tff import runtime


class Workers:
  """The TFF workers to which `connected` has connected.

  A worker that exceeds a time limit is given up: it gets no further work.
  """

  def __init__(self, contexts: dict[str, runtime.SyncContext]):
    self._contexts = contexts

  def map(
    self, computation: tff.Computation, shared: Any, members: Sequence[Any]
  ) -> list[Any]:
    """Returns the results of a computation for all members, in their order.

    The members are divided among the workers that answer and were not given up.
    The results depend neither on the division nor on the order in which the
    workers finish.

    Args:
      computation: TFF computation from (S@SERVER, {M}@CLIENTS) to {R}@CLIENTS.
      shared: value of type S, which all workers get.
      members: values of type M, one for each client.

    Raises:
      RuntimeError: a worker ended or was given up during the call, or no worker
        is left. The next call divides all members among the remaining workers.
    """
    remaining = [
      context
      for address, context in self._contexts.items()
      if context.link.failure is None and runtime.answers(address)
    ]
    if not remaining:
      raise RuntimeError(
        f'TFF workers: none of {", ".join(self._contexts)} answers in time; '
        'start them, or name no workers.'
      )
    shares = [members[i :: len(remaining)] for i in range(len(remaining))]
    # Calls of TFF block, so each worker gets its own thread.
    pool = concurrent.futures.ThreadPoolExecutor(len(remaining))
    try:
      futures = [
        pool.submit(_run, context, computation, shared, share)
        for context, share in zip(remaining, shares)
        if share
      ]
      # Wait for all workers, so that none is still busy after an error.
      concurrent.futures.wait(futures)
      results = [None] * len(members)
      for i, share in enumerate(futures):
        results[i :: len(remaining)] = share.result()
      return results
    finally:
      pool.shutdown(wait=False)


def _run(context, computation, shared, share):
  """Returns the results of one worker for its share of the members."""
  # TFF's stack of contexts is local to a thread.
  with tff.framework.get_context_stack().install(context):
    return computation(shared, share)


@contextlib.contextmanager
def connected(
  addresses: Sequence[str],
  wait_policy: runtime.WaitPolicy = runtime.WAIT_FOREVER,
) -> Iterator[Workers]:
  """Yields the workers at some addresses, for a `with` block.

  The connections have neither authentication nor encryption, so workers belong
  in a network of their own.

  Args:
    addresses: addresses 'host:port', all different.
    wait_policy: time limits for a result. A worker that exceeds the limit gets
      no further work.

  Raises:
    ValueError: an address is not 'host:port', or occurs twice.
    RuntimeError: a worker does not answer.
  """
  with contextlib.ExitStack() as stack:
    contexts = {}
    for address in addresses:
      host, colon, port = address.rpartition(':')
      if not (host and colon and port.isdigit()) or address in contexts:
        raise errors.value_error(
          f'workers={address}: must be host:port, each address once; for '
          'instance 10.0.0.2:8000,10.0.0.3:8000'
        )
      check = functools.partial(_require, address)
      check()
      link = runtime.Link(address, check, wait_policy, f'TFF worker {address}')
      contexts[address] = stack.enter_context(runtime.execution_context(link))
    yield Workers(contexts)


def _require(address: str) -> None:
  if not runtime.answers(address):
    raise RuntimeError(
      f'TFF worker: {address} does not answer; is worker_binary running '
      'there, and can its port be reached?'
    )
