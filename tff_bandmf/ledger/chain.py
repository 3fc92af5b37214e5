"""The events of a ledger, in a chain of hashes that covers all of them.

| symbol | name here | meaning                                                 |
|--------|-----------|---------------------------------------------------------|
| e_i    | `event`   | i-th event: a start, an end, a row of metrics           |
| h_i    | `head`    | 32 bytes: hash of all events up to e_i                  |

    h_i = SHA-256(h_{i-1}, i, e_i)    h_{-1} = SHA-256(format, run, both keys)

The event of a start has the digest of its cohort. A person who knows h_i can
test whether a ledger has exactly the events e_0 .. e_i and their cohorts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from typing import Optional

import numpy as np

STARTED = 'started'
FINISHED = 'finished'
FAILED = 'failed'
ABANDONED = 'abandoned'
# Digest of a row of metrics.
ROW = 'row'
# Digest of the files that the started attempt follows.
ENFORCED = 'enforced'
# Digest of the results; the run is over.
ENDED = 'ended'
# All cohorts so far are, or are not, those that the sampling key gives.
DRAWN = 'drawn'
NOT_DRAWN = 'not drawn'

# Flags of an attempt: the sum of the attempt lacked clients of its cohort.
INCOMPLETE = 'incomplete'
# The process of the attempt was checked for values that bypass the aggregator.
EXAMINED = 'examined'
# The attempt had no process: the program gave the updates to `Round.release`.
DIRECT = 'direct'
FLAGS = (INCOMPLETE, EXAMINED, DIRECT)

FORMAT = 3


@dataclasses.dataclass(frozen=True)
class Event:
  """An event of a round.

  Attributes:
    round: index t of the round, >= 0.
    kind: 'started', 'enforced', 'finished', 'failed', 'abandoned', 'row',
      'drawn', 'not drawn', 'ended', or a flag of `FLAGS`.
    digest: SHA-256 of the cohort, the enforced files, the released sum, the row
      or the results; None if the kind has no digest, or it is not known.
    z_stddev: measured standard deviation of the noise, clip included, >= 0;
      None if it is not known.
    noise_checked: whether the process that added the noise tested it.
  """

  round: int
  kind: str
  digest: Optional[bytes] = None
  z_stddev: Optional[float] = None
  noise_checked: bool = False

  def is_possible(self) -> bool:
    """Returns whether the types and values are those of a real event."""
    return (
      isinstance(self.round, int)
      and self.round >= 0
      and self.kind
      in (
        *(STARTED, ENFORCED, FINISHED, FAILED, ABANDONED, ROW),
        *(DRAWN, NOT_DRAWN, ENDED, *FLAGS),
      )
      and isinstance(self.digest, (bytes, type(None)))
      and (
        self.z_stddev is None
        or (
          isinstance(self.z_stddev, float)
          and math.isfinite(self.z_stddev)
          and self.z_stddev >= 0
        )
      )
      and isinstance(self.noise_checked, bool)
    )


@dataclasses.dataclass(frozen=True)
class Attempt:
  """One attempt at a round.

  Attributes:
    outcome: 'started', 'finished', 'failed' or 'abandoned'.
    z_stddev: measured standard deviation of the noise, clip included, >= 0;
      None if it is not known.
    result: digest of the released sum; None if it is not known.
    noise_checked: whether the process that added the noise tested it.
    row: digest of the row of metrics; None if it has none.
    head: head of the chain after the last event of the attempt, in hexadecimal.
    enforced: digest of the files that the attempt followed; None if it is not
      known.
    drawn: whether all cohorts up to this round are those of the sampling key;
      None if they were not compared.
    flags: flags of `FLAGS` that hold for the attempt.
    ended: digest of the results, if the run ended after this attempt; None
      otherwise.
  """

  outcome: str
  z_stddev: Optional[float] = None
  result: Optional[bytes] = None
  noise_checked: bool = False
  row: Optional[bytes] = None
  head: str = ''
  enforced: Optional[bytes] = None
  drawn: Optional[bool] = None
  flags: frozenset[str] = frozenset()
  ended: Optional[bytes] = None


def genesis(
  run: Optional[int], noise_key: Optional[int], key: Optional[int]
) -> bytes:
  """Returns the head before the first event.

  Args:
    run: ID of the run to which the ledger is bound; None before it is bound.
    noise_key: fingerprint of the key of the noise; None before it is bound.
    key: fingerprint of the key of the identifiers; None before the first round.
  """
  return _sha256(['bandmf ledger', FORMAT, run, noise_key, key])


def link(head: bytes, index: int, event: Event) -> bytes:
  """Returns the head after an event.

  Args:
    head: head before the event.
    index: i.
    event: e_i.
  """
  # PRIVACY: somebody could change a value that the hash does not cover, and so
  # hide participation. The hash covers every value of the event.
  # Guard: chain_test.test_any_change_of_a_row_is_refused.
  return _sha256(
    [
      head.hex(),
      index,
      event.round,
      event.kind,
      None if event.digest is None else event.digest.hex(),
      None if event.z_stddev is None else event.z_stddev.hex(),
      event.noise_checked,
    ]
  )


def cohort_digest(cohort: np.ndarray, highest: int) -> bytes:
  """Returns the SHA-256 of a cohort.

  Args:
    cohort: [m] int64 identifiers, ascending.
    highest: highest client index in the cohort; -1 without indices.
  """
  sha = hashlib.sha256(b'%d\n' % highest)
  sha.update(np.ascontiguousarray(cohort, '<i8').data)
  return sha.digest()


def attempts(events: Iterable[tuple[Event, bytes]]) -> list[Attempt]:
  """Returns the attempts at one round.

  Args:
    events: pairs of an event of the round and the head after it, in order.

  Raises:
    ValueError: the events cannot follow one another in this order.
  """
  result: list[Attempt] = []
  for event, head in events:
    is_open = bool(result) and result[-1].outcome == STARTED
    if event.kind == STARTED or (event.kind == ABANDONED and result):
      if is_open:
        raise ValueError(f'{event.kind} before the attempt ended')
      result.append(Attempt(event.kind, head=head.hex()))
    elif event.kind == ROW and result and not is_open:
      result[-1] = dataclasses.replace(
        result[-1], row=event.digest, head=head.hex()
      )
    elif event.kind == ENFORCED and is_open:
      result[-1] = dataclasses.replace(
        result[-1], enforced=event.digest, head=head.hex()
      )
    elif event.kind in FLAGS and result and event.kind not in result[-1].flags:
      result[-1] = dataclasses.replace(
        result[-1], flags=result[-1].flags | {event.kind}, head=head.hex()
      )
    elif event.kind in (DRAWN, NOT_DRAWN) and result and not is_open:
      # `head` does not change, since a checkpoint has it. After one verdict
      # 'not drawn', `drawn` stays False.
      result[-1] = dataclasses.replace(
        result[-1], drawn=event.kind == DRAWN and result[-1].drawn is not False
      )
    elif event.kind == ENDED and result and not is_open:
      result[-1] = dataclasses.replace(result[-1], ended=event.digest)
    elif event.kind in (FINISHED, FAILED) and is_open:
      result[-1] = Attempt(
        event.kind,
        event.z_stddev,
        event.digest,
        event.noise_checked,
        enforced=result[-1].enforced,
        head=head.hex(),
        flags=result[-1].flags,
      )
    else:
      raise ValueError(f'{event.kind} of no attempt')
  return result


def _sha256(content: list[object]) -> bytes:
  return hashlib.sha256(json.dumps(content).encode()).digest()
