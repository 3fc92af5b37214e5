"""TFF workers on other machines, for the part of a round that clients do.

Nothing but what clients get goes there: the model and the data of the clients.
The aggregator, its noise and its state stay with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from tff_bandmf import errors
from tff_bandmf.program import runtime

try:
  import tensorflow_federated as tff
except ImportError as error:
  raise errors.needs_tff(__name__) from error

_CONNECT_SECONDS = 10.0


class Workers:
  """Workers that answer at `addresses`; make them with `connected`."""

  def __init__(
      self,
      contexts: dict[str, tff.framework.AsyncExecutionContext],
  ):
    self._contexts = contexts

  def map(
      self,
      computation: tff.Computation,
      shared: Any,
      members: Sequence[Any],
  ) -> list[Any]:
    """Returns the results of members, in their order.

    The members are dealt to the workers that answer. Which of them does which
    makes no difference, and who ends first makes none.

    Args:
      computation: (S@SERVER, {M}@CLIENTS) to {R}@CLIENTS.
      shared: of type S.
      members: of type M.

    Raises:
      RuntimeError: a worker ended meanwhile, or none answers. Called again, the
        others do its part.
    """
    there = [
        context for address, context in self._contexts.items()
        if _answers(address)]
    if not there:
      raise RuntimeError(
          f'TFF workers: none of {", ".join(self._contexts)} answers; start '
          'them, or leave --workers out.')
    shares = [members[i::len(there)] for i in range(len(there))]
    done = asyncio.run(_run_all(computation, shared, [
        (context, share) for context, share in zip(there, shares) if share]))
    results = [None] * len(members)
    for i, share in enumerate(done):
      results[i::len(there)] = share
    return results


async def _run_all(computation, shared, shares):
  """Returns what every worker gives for its share of the members."""
  stack = tff.framework.get_context_stack()

  async def run(context, share):
    with stack.install(context):
      # Not awaited in the block: contexts are of the thread, not of the task.
      running = computation(shared, share)
    return await running

  tasks = [asyncio.ensure_future(run(*each)) for each in shares]
  try:
    return await asyncio.gather(*tasks)
  except BaseException:
    # No worker is left with work that nobody waits for.
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    raise


@contextlib.contextmanager
def connected(addresses: Sequence[str]) -> Iterator[Workers]:
  """Yields the workers at some addresses, for a `with` block.

  The connections have neither authentication nor encryption: workers belong in
  a network of their own.

  Args:
    addresses: 'host:port' each.

  Raises:
    ValueError: an address is not of that form, or is there twice.
    RuntimeError: a worker does not answer.
  """
  with contextlib.ExitStack() as stack:
    contexts = {}
    for address in addresses:
      host, colon, port = address.rpartition(':')
      if not (host and colon and port.isdigit()) or address in contexts:
        raise ValueError(
            errors.invalid(
                'workers', address, 'must be host:port, and there once',
                'for instance --workers=10.0.0.2:8000,10.0.0.3:8000'))
      check = functools.partial(_require, address)
      check()
      contexts[address] = stack.enter_context(
          runtime.execution_context(
              tff.framework.AsyncExecutionContext, address, check))
    yield Workers(contexts)


def _answers(address: str) -> bool:
  host, _, port = address.rpartition(':')
  with contextlib.suppress(OSError):
    socket.create_connection(
        (host.strip('[]'), int(port)), _CONNECT_SECONDS).close()
    return True
  return False


def _require(address: str) -> None:
  if not _answers(address):
    raise RuntimeError(
        f'TFF worker: {address} does not answer; is worker_binary running '
        'there, and can its port be reached?')
