"""The events of a ledger, each bound to all before it by a hash.

| symbol | name here | meaning                                                 |
|--------|-----------|---------------------------------------------------------|
| e_i    | `event`   | what happened i-th: a start, an end, a row of metrics   |
| h_i    | `head`    | 32 bytes that stand for the events up to e_i            |

    h_i = SHA-256(h_{i-1}, i, e_i)    h_{-1} = SHA-256(format, run, both keys)

A start holds the digest of its cohort. Whoever knows h_i can tell whether a
ledger that is shown to him has e_0 .. e_i, these cohorts, and no other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any, Optional

import numpy as np

STARTED = 'started'
FINISHED = 'finished'
FAILED = 'failed'
ABANDONED = 'abandoned'
# A row of metrics was written.
ROW = 'row'
# What the program holds to in the attempt that started.
ENFORCED = 'enforced'
# The run is over, with these results.
ENDED = 'ended'
# All cohorts so far are, or are not, those that the sampling key gives.
DRAWN = 'drawn'
NOT_DRAWN = 'not drawn'

# The sum of the attempt that is about to finish lacked clients of its cohort.
INCOMPLETE = 'incomplete'
# A check of the process showed what that attempt lets past the aggregator.
EXAMINED = 'examined'
# The program gave the updates themselves to that attempt, without a process.
DIRECT = 'direct'
FLAGS = (INCOMPLETE, EXAMINED, DIRECT)

FORMAT = 3


@dataclasses.dataclass(frozen=True)
class Event:
  """What happened to a round.

  Attributes:
    round: t.
    kind: 'started', 'enforced', 'finished', 'failed', 'abandoned', 'row',
      'drawn', 'not drawn', 'ended', or one of `FLAGS`.
    digest: of the cohort, of what was enforced or released, of the row, or of
      the results; None if it was not recorded.
    z_stddev: noise measured, clip included; None if it was not recorded.
    noise_checked: whether the process that added the noise tested it.
  """

  round: int
  kind: str
  digest: Optional[bytes] = None
  z_stddev: Optional[float] = None
  noise_checked: bool = False

  def is_possible(self) -> bool:
    """Returns whether a ledger writes such an event."""
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
    z_stddev: noise measured, clip included; None if it was not recorded.
    result: digest of what was released; None if it was not recorded.
    noise_checked: whether the process that added the noise tested it.
    row: digest of the row of metrics; None if it was not recorded.
    head: of the chain after the last event of the attempt, in hexadecimal.
    enforced: digest of what the program held to; None if it did not say.
    drawn: whether all cohorts up to here are those of the sampling key; None
      if nobody has looked.
    flags: those of `FLAGS` that the program said of the attempt.
    ended: digest of the results of the run, which ended then; None before.
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
    run: that the ledger belongs to.
    noise_key: fingerprint of the key of the noise.
    key: fingerprint of the key of the identifiers.
  """
  return _sha256(['bandmf ledger', FORMAT, run, noise_key, key])


def link(head: bytes, place: int, event: Event) -> bytes:
  """Returns the head after an event.

  Args:
    head: before it.
    place: i.
    event: e_i.
  """
  # PRIVACY: what is not in here can be changed in a ledger. Guard:
  # chain_test.test_any_change_of_a_row_is_refused.
  return _sha256(
    [
      head.hex(),
      place,
      event.round,
      event.kind,
      None if event.digest is None else event.digest.hex(),
      None if event.z_stddev is None else event.z_stddev.hex(),
      event.noise_checked,
    ]
  )


def cohort_digest(cohort: np.ndarray, highest: int) -> bytes:
  """Returns the digest of a cohort.

  Args:
    cohort: [m] int64 identifiers, ascending.
    highest: index of a client in it; -1 without one.
  """
  sha = hashlib.sha256(b'%d\n' % highest)
  sha.update(np.ascontiguousarray(cohort, '<i8').data)
  return sha.digest()


def attempts(events: Iterable[tuple[Event, bytes]]) -> list[Attempt]:
  """Returns the attempts at one round.

  Args:
    events: of that round, in order, and the head after each.

  Raises:
    ValueError: such events cannot follow one another.
  """
  found: list[Attempt] = []
  for event, head in events:
    is_open = bool(found) and found[-1].outcome == STARTED
    if event.kind == STARTED or (event.kind == ABANDONED and found):
      if is_open:
        raise ValueError(f'{event.kind} before the attempt ended')
      found.append(Attempt(event.kind, head=head.hex()))
    elif event.kind == ROW and found and not is_open:
      found[-1] = dataclasses.replace(
        found[-1], row=event.digest, head=head.hex()
      )
    elif event.kind == ENFORCED and is_open:
      found[-1] = dataclasses.replace(
        found[-1], enforced=event.digest, head=head.hex()
      )
    elif event.kind in FLAGS and found and event.kind not in found[-1].flags:
      found[-1] = dataclasses.replace(
        found[-1], flags=found[-1].flags | {event.kind}, head=head.hex()
      )
    elif event.kind in (DRAWN, NOT_DRAWN) and found and not is_open:
      # The head stays, which a checkpoint has; so does a bad verdict.
      found[-1] = dataclasses.replace(
        found[-1], drawn=event.kind == DRAWN and found[-1].drawn is not False
      )
    elif event.kind == ENDED and found and not is_open:
      found[-1] = dataclasses.replace(found[-1], ended=event.digest)
    elif event.kind in (FINISHED, FAILED) and is_open:
      found[-1] = Attempt(
        event.kind,
        event.z_stddev,
        event.digest,
        event.noise_checked,
        enforced=found[-1].enforced,
        head=head.hex(),
        flags=found[-1].flags,
      )
    else:
      raise ValueError(f'{event.kind} of no attempt')
  return found


def _sha256(content: list[Any]) -> bytes:
  return hashlib.sha256(json.dumps(content).encode()).digest()
