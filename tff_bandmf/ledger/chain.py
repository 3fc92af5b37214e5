"""The events of a ledger, in a chain of hashes that covers all events.

| symbol | name here | meaning                                                 |
|--------|-----------|---------------------------------------------------------|
| e_i    | `event`   | i-th event: a start, an end, released values, notes,    |
|        |           | results                                                 |
| h_i    | `head`    | 32 bytes: hash of all events up to e_i                  |

    h_i = SHA-256(h_{i-1}, i, e_i)    h_{-1} = SHA-256(format, run, both keys)

The values in h_{-1} are defined in `genesis`. The event that starts a round has
the digest of the round's cohort. A person who knows h_i can test whether a
ledger begins with the events e_0 .. e_i and has their cohorts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_bandmf import _files

STARTED = 'started'
FINISHED = 'finished'
FAILED = 'failed'
ABANDONED = 'abandoned'
# Event with the digest of the round's row of metrics. The payload has the
# released values of an adaptive clip, which have noise.
ROW = 'row'
# Event with the digest of the plan and other files that an attempt follows. The
# payload has the stated number of rounds, if it differs from the plan.
ENFORCED = 'enforced'
# Event at the end of the run; the payload has its results.
ENDED = 'ended'
# Event whose payload has new values of notes on the run, see `RunDetails`.
NOTED = 'noted'
# Events that state whether all earlier cohorts are equal to the cohorts that
# the sampling key gives.
DRAWN = 'drawn'
NOT_DRAWN = 'not drawn'

# Flag of an attempt whose sum did not have one update of each client.
INCOMPLETE = 'incomplete'
# Flag of an attempt whose learning process was checked for values that bypass
# the aggregator.
EXAMINED = 'examined'
# Flag of an attempt without a learning process: the program gave the updates to
# `Round.release`.
DIRECT = 'direct'
FLAGS = (INCOMPLETE, EXAMINED, DIRECT)

FORMAT = 5


@dataclasses.dataclass(frozen=True)
class Event:
  """An event of a round.

  Attributes:
    round: index of the round, integer >= 0.
    kind: 'started', 'enforced', 'finished', 'failed', 'abandoned', 'row',
      'drawn', 'not drawn', 'ended', 'noted', or a flag of `FLAGS`.
    digest: digest of the cohort, the files, the released sum or the row,
      depending on the kind; None if the kind has no digest, or if the digest is
      not known.
    z_stddev: standard deviation of an entry of z, the noise before C^-1
      multiplies it, in the unit of the sum, >= 0; None if it is not known.
    noise_checked: whether the program that added the noise tested the noise.
    payload: {name: value} as JSON text; None if the event has no values.
  """

  round: int
  kind: str
  digest: Optional[bytes] = None
  z_stddev: Optional[float] = None
  noise_checked: bool = False
  payload: Optional[str] = None

  @property
  def numbers(self) -> dict[str, float]:
    """The numbers of the payload; {} without a payload.

    Raises:
      ValueError: the payload is not a JSON object of finite numbers.
    """
    content = self.content
    if not all(
      type(value) in (int, float) and abs(value) <= sys.float_info.max
      for value in content.values()
    ):
      raise ValueError('a payload with a value that is not a finite number')
    return content

  @property
  def content(self) -> dict[str, Any]:
    """The values of the payload; {} without a payload.

    Raises:
      ValueError: the payload is not a JSON object.
    """
    content = _files.parse_json((self.payload or '{}').encode())
    if not isinstance(content, dict):
      raise ValueError('a payload that is not a JSON object')
    return content

  def is_possible(self) -> bool:
    """Returns whether the types and the values are possible for an event."""
    return (
      isinstance(self.round, int)
      and self.round >= 0
      and isinstance(self.kind, str)
      and isinstance(self.z_stddev, (float, type(None)))
      and 0 <= (self.z_stddev or 0) < math.inf
      and isinstance(self.payload, (str, type(None)))
    )


@dataclasses.dataclass(frozen=True)
class End:
  """The end of a run.

  Attributes:
    results: {name: number}, the measured results of the last model.
    head: head of the chain after the event of the end, in hexadecimal.
  """

  results: Mapping[str, float]
  head: str


@dataclasses.dataclass(frozen=True)
class Attempt:
  """One attempt at a round.

  Attributes:
    outcome: 'started', 'finished' or 'failed'. The attempts at an abandoned
      round are followed by one more entry, with the outcome 'abandoned'.
    z_stddev: standard deviation of an entry of z, see `Event`; None if it is
      not known, or if the attempt did not finish.
    sum_digest: digest of the released sum; None if it is not known.
    noise_checked: whether the program that added the noise tested the noise;
      False if the attempt did not finish.
    row: digest of the round's row of metrics; None without a row.
    released: {name: number} that the round released besides the model; {}
      unless the clip is adaptive.
    head: head of the chain after the last event of the attempt, in hexadecimal.
    enforced: digest of the plan and other files that the attempt followed, see
      `RunDetails.enforced_digest`; None if it is not known.
    rounds: number of rounds of the whole run, as the program stated it when the
      attempt started; None if it is the number of the plan.
    drawn: whether all cohorts up to this round are equal to the cohorts that
      the sampling key gives; None if nobody compared the cohorts after this
      attempt.
    flags: the flags of the attempt, from `FLAGS`.
    ended: the end of the run, if the run ended after this attempt; else None.
  """

  outcome: str
  z_stddev: Optional[float] = None
  sum_digest: Optional[bytes] = None
  noise_checked: bool = False
  row: Optional[bytes] = None
  released: Mapping[str, float] = dataclasses.field(default_factory=dict)
  head: str = ''
  enforced: Optional[bytes] = None
  rounds: Optional[float] = None
  drawn: Optional[bool] = None
  flags: frozenset[str] = frozenset()
  ended: Optional[End] = None


# Maps the index of a round to the attempts at it, in their order.
Attempts = Mapping[int, Sequence[Attempt]]


def payload(values: Mapping[str, Any]) -> str:
  """Returns the payload of an event.

  Raises:
    ValueError: a number is not finite.
  """
  return json.dumps(dict(values), allow_nan=False)


def genesis(
  run: Optional[int], noise_key: Optional[int], key: Optional[int]
) -> bytes:
  """Returns the head before the first event.

  Args:
    run: ID of the run to which the ledger is bound; None before the ledger is
      bound.
    noise_key: fingerprint of the noise key; None before the ledger is bound.
    key: fingerprint of the key by which clients are hashed; None before the
      first round.
  """
  return _sha256(['bandmf ledger', FORMAT, run, noise_key, key])


def link(head: bytes, index: int, event: Event) -> bytes:
  """Returns the head after an event.

  Args:
    head: head before the event.
    index: index i of the event.
    event: event e_i.
  """
  # PRIVACY: if the hash left out a value of an event, somebody could change
  # this value and hide participation. The hash covers all values of the event.
  # Guard: chain_test.test_any_change_of_a_row_is_refused.
  content = [
    each.hex() if isinstance(each, (bytes, float)) else each
    for each in (head, index, *vars(event).values())
  ]
  return _sha256(content)


# PRIVACY: If a cohort could change without its digest, somebody could remove
# clients after the run. The digest covers all hashes and the highest index.
# Guard: chain_test.test_any_change_of_a_row_is_refused.
def cohort_digest(cohort: np.ndarray, highest: int) -> bytes:
  """Returns the SHA-256 of a cohort and its highest client index.

  Args:
    cohort: [number of clients] int64 identifiers, ascending.
    highest: highest client index in the cohort; -1 if clients are strings, or
      for an empty cohort.
  """
  sha = hashlib.sha256(b'%d\n' % highest)
  sha.update(np.ascontiguousarray(cohort, '<i8').data)
  return sha.digest()


# PRIVACY: If an event did not fit the state of its round, or counted for
# another attempt, a release could be hidden. Each event belongs to the last
# attempt, and the state of the round must allow the event.
# Guards: chain_test.test_random_events_are_attempts_or_are_refused,
# chain_test.test_head_is_a_new_one_after_every_event and
# ledger_test.test_verdict_is_of_all_rounds_or_none.
def attempts(events: Iterable[tuple[Event, bytes]]) -> list[Attempt]:
  """Returns the attempts at one round.

  Args:
    events: all events of the round in order, each with the head after it.

  Raises:
    ValueError: the events cannot follow one another in this order.
  """
  result: list[Attempt] = []
  for event, head in events:
    if event.kind == NOTED:
      continue
    last = result[-1] if result else None
    is_open = last is not None and last.outcome == STARTED
    has_ended = last is not None and not is_open
    if event.kind == STARTED or (event.kind == ABANDONED and last):
      if is_open:
        raise ValueError(f'{event.kind} before the attempt ended')
      result.append(Attempt(event.kind, head=head.hex()))
      continue
    changes: dict[str, Any] = {'head': head.hex()}
    if event.kind == ROW and has_ended:
      changes.update(row=event.digest, released=event.numbers)
    elif event.kind == ENFORCED and is_open:
      stated = event.numbers.get('rounds')
      changes.update(enforced=event.digest, rounds=stated)
    elif last and event.kind in FLAGS and event.kind not in last.flags:
      changes.update(flags=last.flags | {event.kind})
    elif last and event.kind in (DRAWN, NOT_DRAWN) and has_ended:
      # `head` stays the head before this event, since a checkpoint after this
      # attempt has that head. After one event 'not drawn', `drawn` stays False.
      changes = {'drawn': event.kind == DRAWN and last.drawn is not False}
    elif event.kind == ENDED and has_ended:
      changes = {'ended': End(event.numbers, head.hex())}
    elif event.kind in (FINISHED, FAILED) and is_open:
      changes.update(
        outcome=event.kind,
        z_stddev=event.z_stddev,
        sum_digest=event.digest,
        noise_checked=event.noise_checked,
      )
    else:
      raise ValueError(f'{event.kind} of no attempt')
    result[-1] = dataclasses.replace(result[-1], **changes)
  return result


def _sha256(content: list[object]) -> bytes:
  return hashlib.sha256(json.dumps(content).encode()).digest()
