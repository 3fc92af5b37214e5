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
from collections.abc import Iterable, Sequence
from typing import Optional, Union

import numpy as np

from tff_bandmf import errors
from tff_bandmf.cohorts import history as history_lib
from tff_bandmf.ledger import chain, identifiers, ledger_reader, tables


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
      row = tables.claim(connection, run=run, noise_key=noise_key)
    if (row.run, row.noise_key) != (run, noise_key):
      raise of_another_run()

  def start_round(
    self,
    round_index: int,
    cohort: Union[Sequence[identifiers.Client], np.ndarray],
    enforced: Optional[bytes] = None,
  ) -> None:
    """Records, durably, that a round starts with this cohort.

    Starting a round again with the cohort it had is a replay, and legal where
    the same clients contribute the same again, as in a simulation. Otherwise
    one noise would meet two sums: `abandon_round` it instead.

    Args:
      round_index: the round, above those that were started if it was not.
      cohort: clients, all that were selected, those that drop out later too.
      enforced: digest of what the program holds to in this round; see
        `RunRecord.enforced_digest`.

    Raises:
      TypeError: a client is neither index nor string, or some are each.
      ValueError: the round was started with another cohort, is abandoned or is
        below one that was started; the round before held to something else;
        a client is there twice, or named by index where the ledger has
        strings, or the other way round; or the key of the ledger is not there.
    """
    round_index = _round(round_index)
    found, highest = self._recorded(cohort)
    if np.any(found[1:] == found[:-1]):
      raise errors.value_error(
        'cohort',
        f'{len(found)} clients',
        f'has a client twice in round {round_index}',
        'a client takes part once in a round: name each one once',
      )
    digest = chain.cohort_digest(found, highest)
    with self._write() as connection:
      recorded = tables.digest(connection, round_index)
      attempts = tables.attempts(connection, round_index)
      # PRIVACY: a client that was 1 in a round before and is '1' now would look
      # new, and take part too early. The first round that has a client decides
      # for all. Guard: ledger_test.test_ledger_keeps_the_kind_of_its_names.
      if len(found) and tables.by_index(connection) not in (
        None,
        highest >= 0,
      ):
        raise errors.value_error(
          'clients',
          'indices' if highest >= 0 else 'strings',
          'are not what they were in the rounds before',
          'name clients as the run began to: all by index, or all by string',
        )
      last = tables.last_round(connection)
      # PRIVACY: a plan or strategy that was edited between two rounds is that
      # of neither. All rounds hold to one digest, as each holds to that of the
      # round before. Guard:
      # ledger_test.test_round_cannot_start_with_another_digest_than_the_last.
      if enforced is not None and any(
        attempt.enforced not in (None, enforced)
        for attempt in tables.attempts(connection, last)
      ):
        raise errors.value_error(
          'run',
          f'round {round_index}',
          'has another run.json, plan.json or strategy.json than the rounds '
          'before held to',
          'restore the files that the run was started with',
        )
      if recorded is None:
        # PRIVACY: who drew this cohort did not know of the rounds above it.
        # Guard: ledger_test.test_round_below_a_started_one_cannot_start.
        if round_index <= last:
          raise errors.value_error(
            'round',
            round_index,
            f'was never started, and round {last} was',
            'go on above it',
          )
        tables.add_round(connection, round_index, found, highest)
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
      tables.append(
        connection,
        *_failure(round_index, attempts),
        chain.Event(round_index, chain.STARTED, digest),
        *_digest(round_index, chain.ENFORCED, enforced),
      )

  def finish_round(
    self,
    round_index: int,
    z_stddev: Optional[float] = None,
    result: Optional[bytes] = None,
    *,
    noise_checked: bool = False,
    rounds_done: Optional[int] = None,
    row: Optional[bytes] = None,
    flags: Iterable[str] = (),
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
      row: digest of the row of metrics that is about to be written.
      flags: those of `chain.FLAGS` that hold for the attempt.

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
      row,
      flags,
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
    row: Optional[bytes] = None,
    flags: Iterable[str] = (),
  ) -> None:
    """Appends an end, its flags before it and the row after it."""
    with self._write() as connection:
      attempts = tables.attempts(connection, event.round)
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
      tables.append(
        connection,
        *(chain.Event(event.round, flag) for flag in sorted(flags)),
        event,
        *_digest(event.round, chain.ROW, row),
      )

  def abandon_round(
    self,
    round_index: int,
    row: Optional[bytes] = None,
    flags: Iterable[str] = (),
  ) -> None:
    """Records that a started round is burnt: it is never started again.

    Its cohort took part; to the mechanism it contributed nothing. Abandoning
    it again changes nothing but the row.

    Args:
      round_index: the round.
      row: as for `finish_round`; the last one counts.
      flags: those of `chain.FLAGS` that hold for an attempt at the round.

    Raises:
      ValueError: the round was never started.
    """
    round_index = _round(round_index)
    with self._write() as connection:
      attempts = tables.attempts(connection, round_index)
      if not attempts:
        raise ledger_reader.not_started(round_index)
      events = _digest(round_index, chain.ROW, row)
      if not _abandoned(attempts):
        events = [
          *_failure(round_index, attempts),
          chain.Event(round_index, chain.ABANDONED),
          *(chain.Event(round_index, flag) for flag in sorted(flags)),
          *events,
        ]
      tables.append(connection, *events)

  def same_cohort(
    self,
    round_index: int,
    cohort: Union[Sequence[identifiers.Client], np.ndarray],
  ) -> bool:
    """Returns whether a started round has exactly this cohort."""
    digest = chain.cohort_digest(*self._recorded(cohort))
    return self._read(tables.digest, _round(round_index)) == digest

  def _recorded(
    self, cohort: Union[Sequence[identifiers.Client], np.ndarray]
  ) -> tuple[np.ndarray, int]:
    """Returns the identifiers of a cohort, ascending, and its highest index.

    The index is -1 where there is none.
    """
    names = identifiers.names(cohort)
    highest = names.max(initial=-1) if isinstance(names, np.ndarray) else -1
    return np.sort(self._hash().of(names)), int(highest)

  def record_drawn(self, as_drawn: bool) -> None:
    """Records whether every cohort is the one that the sampling key gives.

    It is the last word on the rounds so far: whoever has the head of the chain
    has the verdict.

    Args:
      as_drawn: what drawing all cohorts again has shown.

    Raises:
      ValueError: there is no round, or the last one has not ended.
    """
    self._close(chain.DRAWN if as_drawn else chain.NOT_DRAWN)

  def record_end(self, results: bytes) -> None:
    """Records that the run is over; the head of the chain pins its results.

    Args:
      results: their digest; the last one counts, as a crash may lose the file.

    Raises:
      ValueError: there is no round, or the last one has not ended.
    """
    self._close(chain.ENDED, bytes(results))

  def _close(self, kind: str, digest: Optional[bytes] = None) -> None:
    """Appends an event on all rounds so far."""
    with self._write() as connection:
      last = tables.last_round(connection)
      attempts = tables.attempts(connection, last)
      if not attempts or attempts[-1].outcome == chain.STARTED:
        raise ledger_reader.not_started(last)
      tables.append(connection, chain.Event(last, kind, digest))


def of_another_run() -> ValueError:
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
