"""The record of who took part in which round, durable before the round runs.

A round that was started counts, whatever became of it. An attempt at it is
'started', then 'finished', 'failed' (the round may be replayed) or 'abandoned'
(it may not: the round is burnt). Clients are in it as keyed hashes, and what
happened stands in a chain of hashes, see `chain`: opening a ledger computes it
again.
"""

from __future__ import annotations

import math
import operator
import os
import pathlib
from collections.abc import Sequence
from typing import Optional, Union

import numpy as np

from tff_bandmf import _files, errors
from tff_bandmf.program import (
  chain,
  identifiers,
  ledger_reader,
  records,
  run_record,
)
from tff_bandmf.program import history as history_lib


class Ledger(ledger_reader.Reader):
  """The ledger of one run; use it in a `with` statement or `close` it.

  Clients are indices in a population or strings.
  """

  def bind(self, *, run: int, noise_key: int) -> None:
    """Says, once, which run and noise key this ledger belongs to.

    Args:
      run: 63 bits; see `noise.Key.identify`.
      noise_key: 63 bits, a fingerprint of the key; likewise.

    Raises:
      ValueError: the ledger belongs to another run or key, or has rounds and
        was not bound before them.
    """
    with self._write() as connection:
      row = records.claim(connection, run=run, noise_key=noise_key)
    if (row.run, row.noise_key) != (run, noise_key):
      raise _of_another_run()

  def start_round(
    self,
    round_index: int,
    cohort: Union[Sequence[identifiers.Client], np.ndarray],
  ) -> None:
    """Records, durably, that a round starts with this cohort.

    Starting a round again with the cohort it had is a replay, and legal where
    the same clients contribute the same again, as in a simulation. Otherwise
    one noise would meet two sums: `abandon_round` it instead.

    Args:
      round_index: the round, above those that were started if it was not.
      cohort: clients, all that were selected, those that drop out later too.

    Raises:
      ValueError: the round was started with another cohort, is abandoned or is
        below one that was started, a client is there twice, or the key of the
        ledger is not there.
    """
    round_index = _round(round_index)
    found = np.sort(self._hash().of(cohort))
    if np.any(found[1:] == found[:-1]):
      raise errors.value_error(
        'cohort',
        f'{len(found)} clients',
        f'has a client twice in round {round_index}',
        'a client takes part once in a round',
      )
    highest = _highest(cohort)
    digest = chain.cohort_digest(found, highest)
    with self._write() as connection:
      recorded = records.digest(connection, round_index)
      attempts = records.attempts(connection, round_index)
      if recorded is None:
        # PRIVACY: who drew this cohort did not know of the rounds above it.
        # Guard: ledger_test.test_round_below_a_started_one_cannot_start.
        last = records.last_round(connection)
        if round_index <= last:
          raise errors.value_error(
            'round',
            round_index,
            f'was never started, and round {last} was',
            'go on above it',
          )
        records.add_round(connection, round_index, found, highest)
      # PRIVACY: one round's noise never meets two cohorts.
      # Guard: ledger_test.test_round_cannot_start_with_another_cohort.
      elif recorded != digest:
        raise errors.value_error(
          'round',
          round_index,
          'was already started with another cohort',
          'its noise may not be used twice: resume with the data, seed '
          'and configuration of the first start',
        )
      # PRIVACY: nor does it meet two sums of one cohort.
      # Guard: ledger_test.test_abandoned_round_cannot_start_again.
      if _abandoned(attempts):
        raise errors.value_error(
          'round', round_index, 'was abandoned', 'go on with the next round'
        )
      records.append(
        connection,
        *_failure(round_index, attempts),
        chain.Event(round_index, chain.STARTED, digest),
      )

  def finish_round(
    self,
    round_index: int,
    z_stddev: Optional[float] = None,
    result: Optional[bytes] = None,
    *,
    noise_checked: bool = False,
    rounds_done: Optional[int] = None,
    enforced: Optional[bytes] = None,
    row: Optional[bytes] = None,
  ) -> None:
    """Records that the result of a started round was taken over.

    A replay may finish a round again with the result that it had, and with no
    other: two sums would have met one noise.

    Args:
      round_index: the round.
      z_stddev: what the aggregator measured, clip included, if it is known.
      result: digest of what is about to be released. A replay can then be held
        against it: with another result it is not to be released.
      noise_checked: whether the process that added the noise tested it.
      rounds_done: what the aggregator says that it has done, this one included
        (`round` in its measurements), if it is known.
      enforced: digest of what the program held to in this round, such as its
        clip; see `RunRecord.enforced_digest`.
      row: digest of the row of metrics that is about to be written.

    Raises:
      ValueError: there is no attempt that was started and has no outcome yet,
        or another result was recorded; `z_stddev` is not one; the
        aggregator did another round.
    """
    # PRIVACY: the noise of another round met this cohort. Guard:
    # ledger_test.test_round_of_another_number_than_the_aggregators_is_refused.
    if rounds_done is not None and int(rounds_done) != round_index + 1:
      raise errors.value_error(
        'round',
        round_index,
        f'is not the one that the aggregator did, {int(rounds_done) - 1}',
        'do not release its result; resume with state and ledger of one time',
      )
    z_stddev = None if z_stddev is None else float(z_stddev)
    if z_stddev is not None and not 0 <= z_stddev < math.inf:
      raise errors.value_error(
        'z_stddev',
        z_stddev,
        'must be finite and at least 0',
        'leave it out if it was not measured',
      )
    self._end(
      chain.Event(
        _round(round_index),
        chain.FINISHED,
        None if result is None else bytes(result),
        None if z_stddev is None else abs(z_stddev),
        bool(noise_checked),
      ),
      enforced,
      row,
    )

  def fail_round(self, round_index: int) -> None:
    """Records that an attempt failed; the round can be started again.

    Raises:
      ValueError: there is no attempt that was started and has no outcome yet.
    """
    self._end(chain.Event(_round(round_index), chain.FAILED))

  def _end(
    self,
    event: chain.Event,
    enforced: Optional[bytes] = None,
    row: Optional[bytes] = None,
  ) -> None:
    """Appends an end, what was held to before it and the row after it."""
    with self._write() as connection:
      attempts = records.attempts(connection, event.round)
      if not attempts or attempts[-1].outcome != chain.STARTED:
        raise ledger_reader.not_started(event.round)
      # PRIVACY: two sums that met one noise show their difference. Guard:
      # ledger_test.test_round_cannot_finish_with_two_results.
      if event.kind == chain.FINISHED and any(
        attempt.result not in (None, event.digest) for attempt in attempts
      ):
        raise errors.value_error(
          'round',
          event.round,
          'was finished with another result',
          'do not release this one: abandon the round',
        )
      records.append(
        connection,
        *_digest(event.round, chain.ENFORCED, enforced),
        event,
        *_digest(event.round, chain.ROW, row),
      )

  def abandon_round(
    self, round_index: int, row: Optional[bytes] = None
  ) -> None:
    """Records that a started round is burnt: it is never started again.

    Its cohort took part; to the mechanism it contributed nothing. Abandoning
    it again changes nothing but the row.

    Args:
      round_index: the round.
      row: as for `finish_round`; the last one counts.

    Raises:
      ValueError: the round was never started.
    """
    round_index = _round(round_index)
    with self._write() as connection:
      attempts = records.attempts(connection, round_index)
      if not attempts:
        raise ledger_reader.not_started(round_index)
      events = _digest(round_index, chain.ROW, row)
      if not _abandoned(attempts):
        events = [
          *_failure(round_index, attempts),
          chain.Event(round_index, chain.ABANDONED),
          *events,
        ]
      records.append(connection, *events)

  def same_cohort(
    self,
    round_index: int,
    cohort: Union[Sequence[identifiers.Client], np.ndarray],
  ) -> bool:
    """Returns whether a started round has exactly this cohort."""
    digest = chain.cohort_digest(
      np.sort(self._hash().of(cohort)), _highest(cohort)
    )
    return self._read(records.digest, _round(round_index)) == digest

  def record_drawn(self, as_drawn: bool) -> None:
    """Records whether every cohort is the one that the sampling key gives.

    It is the last word on the rounds so far: whoever has the head of the chain
    has the verdict.

    Args:
      as_drawn: what drawing all cohorts again has shown.

    Raises:
      ValueError: there is no round, or the last one has not ended.
    """
    with self._write() as connection:
      last = records.last_round(connection)
      attempts = records.attempts(connection, last)
      if not attempts or attempts[-1].outcome == chain.STARTED:
        raise ledger_reader.not_started(last)
      kind = chain.DRAWN if as_drawn else chain.NOT_DRAWN
      records.append(connection, chain.Event(last, kind))


def _of_another_run() -> ValueError:
  return errors.value_error(
    'ledger',
    'that of another run or noise key',
    'a started round keeps its key and its run',
    'restore the files of this run, or start a new one',
  )


def _round(round_index: int) -> int:
  round_index = operator.index(round_index)
  if not 0 <= round_index < history_lib.MAX_ROUNDS:
    raise errors.value_error(
      'round',
      round_index,
      f'must be in [0, {history_lib.MAX_ROUNDS})',
      'rounds count from 0',
    )
  return round_index


def _highest(cohort: Union[Sequence[identifiers.Client], np.ndarray]) -> int:
  """Returns the highest index among clients; -1 without one."""
  if isinstance(cohort, np.ndarray) and cohort.dtype.kind in 'iu':
    return int(cohort.max()) if len(cohort) else -1
  return max(
    (int(client) for client in cohort if not isinstance(client, str)),
    default=-1,
  )


def _abandoned(attempts: list[chain.Attempt]) -> bool:
  return any(attempt.outcome == chain.ABANDONED for attempt in attempts)


def _digest(
  round_index: int, kind: str, digest: Optional[bytes]
) -> list[chain.Event]:
  """Returns the event of a digest that is known."""
  return (
    [] if digest is None else [chain.Event(round_index, kind, bytes(digest))]
  )


def _failure(
  round_index: int, attempts: list[chain.Attempt]
) -> list[chain.Event]:
  """Returns the end of an attempt that has none."""
  if attempts and attempts[-1].outcome == chain.STARTED:
    return [chain.Event(round_index, chain.FAILED)]
  return []


def place(directory: pathlib.Path, url: Union[str, os.PathLike]) -> None:
  """Says where the ledger of a run is, for `of_run`.

  Args:
    directory: of the run.
    url: of SQLAlchemy, which may hold a password, or the path of a SQLite file.

  Raises:
    ValueError: the run has begun, and the ledger there is not its own.
  """
  said = os.fspath(url)
  if '://' not in said:
    said = os.path.abspath(said)
  path = directory / run_record.LEDGER_URL
  if path.exists() and path.read_text() == said:
    return
  if (directory / run_record.RUN_FILE).exists():
    with Ledger(said, False, directory / run_record.LEDGER_KEY) as ledger:
      if ledger.bound() != run_record.RunRecord.read(directory).bound():
        raise _of_another_run()
  # PRIVACY: a password in it is for nobody else. Guard:
  # run_test.test_ledger_is_where_it_is_said_to_be.
  _files.write(path, said.encode(), mode=0o600)


def of_run(directory: pathlib.Path, create: bool = False) -> Ledger:
  """Returns the ledger of a run, open, wherever it is.

  Raises:
    ValueError: as `Ledger`.
  """
  path = directory / run_record.LEDGER_URL
  return Ledger(
    path.read_text() if path.exists() else directory / run_record.LEDGER_FILE,
    create,
    directory / run_record.LEDGER_KEY,
  )
