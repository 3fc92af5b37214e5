"""TFF workers on other machines, for the part of a round that clients do.

Nothing but what clients get goes there: the model and the data of the clients.
The aggregator, its noise and its state stay with the server.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from tff_bandmf import errors
from tff_bandmf.program import patience as patience_lib
from tff_bandmf.program import runtime

try:
  import tensorflow_federated as tff
except ImportError as error:
  raise errors.needs_tff(__name__) from error


class Workers:
  """Workers that answer at `addresses`; make them with `connected`."""

  def __init__(
    self,
    contexts: dict[str, runtime.SyncContext],
  ):
    self._contexts = contexts

  def map(
    self,
    computation: tff.Computation,
    shared: Any,
    members: Sequence[Any],
  ) -> list[Any]:
    """Returns the results of members, in their order.

    The members are dealt to the workers that answer and were never given up.
    Which of them does which makes no difference, and who ends first makes none.

    Args:
      computation: (S@SERVER, {M}@CLIENTS) to {R}@CLIENTS.
      shared: of type S.
      members: of type M.

    Raises:
      RuntimeError: a worker ended or was given up meanwhile, or none is left.
        Called again, the others do its part.
    """
    there = [
      context
      for address, context in self._contexts.items()
      if not context.given_up and runtime.answers(address)
    ]
    if not there:
      raise RuntimeError(
        f'TFF workers: none of {", ".join(self._contexts)} answers in time; '
        'start them, or leave --workers out.'
      )
    shares = [members[i :: len(there)] for i in range(len(there))]
    # A thread each: calls of TFF block, and one worker must not hold up others.
    pool = concurrent.futures.ThreadPoolExecutor(len(there))
    try:
      done = [
        pool.submit(_run, context, computation, shared, share)
        for context, share in zip(there, shares)
        if share
      ]
      # All of them, so that none is left with work that nobody waits for.
      concurrent.futures.wait(done)
      results = [None] * len(members)
      for i, share in enumerate(done):
        results[i :: len(there)] = share.result()
      return results
    finally:
      pool.shutdown(wait=False)


def _run(context, computation, shared, share):
  """Returns what a worker gives for its share of the members."""
  # Contexts are of the thread.
  with tff.framework.get_context_stack().install(context):
    return computation(shared, share)


@contextlib.contextmanager
def connected(
  addresses: Sequence[str],
  patience: patience_lib.Patience = patience_lib.FOREVER,
) -> Iterator[Workers]:
  """Yields the workers at some addresses, for a `with` block.

  The connections have neither authentication nor encryption: workers belong in
  a network of their own.

  Args:
    addresses: 'host:port' each.
    patience: how long a worker is waited for; one that took longer is left out
      from then on.

  Raises:
    ValueError: an address is not of that form, or is there twice.
    RuntimeError: a worker does not answer.
  """
  with contextlib.ExitStack() as stack:
    contexts = {}
    for address in addresses:
      host, colon, port = address.rpartition(':')
      if not (host and colon and port.isdigit()) or address in contexts:
        raise errors.value_error(
          'workers',
          address,
          'must be host:port, and there once',
          'for instance --workers=10.0.0.2:8000,10.0.0.3:8000',
        )
      check = functools.partial(_require, address)
      check()
      contexts[address] = stack.enter_context(
        runtime.execution_context(
          address, check, patience, f'TFF worker {address}'
        )
      )
    yield Workers(contexts)


def _require(address: str) -> None:
  if not runtime.answers(address):
    raise RuntimeError(
      f'TFF worker: {address} does not answer; is worker_binary running '
      'there, and can its port be reached?'
    )
