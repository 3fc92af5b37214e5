"""The record of who took part in which round, durable before the round runs.

A round that was started counts, whatever became of it. An attempt at it is
'started', then 'finished', 'failed' (the round may be replayed) or 'abandoned'
(it may not: the round is burnt). Clients are in it as keyed hashes, and what
happened stands in a chain of hashes, see `chain`: opening a ledger computes it
again.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Optional, Union

import numpy as np
import sqlalchemy as sa

from tff_bandmf import errors, sensitivity, strategies
from tff_bandmf.program import chain, database, identifiers, records
from tff_bandmf.program import history as history_lib
from tff_bandmf.program import observed as observed_lib


class Ledger:
  """The ledger of one run; use it in a `with` statement or `close` it.

  Clients are indices in a population or strings.
  """

  def __init__(
    self,
    place: Union[str, os.PathLike],
    create: bool = True,
    key_file: Optional[Union[str, os.PathLike]] = None,
  ):
    """Opens the ledger.

    Args:
      place: path of a SQLite file, or a URL of SQLAlchemy; a database, or the
        schema that it leads to, holds one ledger.
      create: whether to make a new one where there is none.
      key_file: of the key of the hashes, which is made when the first round
        starts. None takes private/ledger.key next to the SQLite file. What is
        counted can be read without it.

    Raises:
      ValueError: no ledger, and `create` is False; or what is there is none, is
        of another version, or was changed.
    """
    url = database.url_of(place)
    path = database.sqlite_path(url)
    if path is not None:
      key_file = key_file or path.parent / 'private' / 'ledger.key'
      if not create and not (path.is_file() and path.stat().st_size):
        raise _missing(path)
    self._key_file = None if key_file is None else pathlib.Path(key_file)
    self._identifiers: Optional[identifiers.Identifiers] = None
    self._writer, self._reader = database.engines(url)
    try:
      self._open(path or url.render_as_string(hide_password=True), create)
    except BaseException:
      self.close()
      raise

  def _open(self, place: object, create: bool) -> None:
    """Makes the tables, or checks that they are there."""
    try:
      tables = set(sa.inspect(self._reader).get_table_names())
      missing = records.TABLES - tables
      if 'bandmf_attempts' in tables:
        raise records.other_format(1)
      # PRIVACY: a ledger of another kind is not taken for an empty one.
      # Guard: ledger_test.test_database_of_something_else_is_refused.
      if missing and (
        missing < records.TABLES or tables and isinstance(place, pathlib.Path)
      ):
        raise _no_ledger(place)
      if missing and not create:
        raise _missing(place)
      for table in () if missing else records.TABLES:
        # A column that is computed could hold more than the file.
        columns = sa.inspect(self._reader).get_columns(table)
        if any('computed' in column for column in columns):
          raise _no_ledger(place)
    except sa.exc.SQLAlchemyError as error:
      raise database.unusable(place, error) from error
    if missing:
      with database.transaction(self._writer) as connection:
        records.create(connection)
    with database.transaction(self._reader) as connection:
      # PRIVACY: what was changed claims nothing and goes on with nothing.
      # Guard: chain_test.test_any_change_of_a_row_is_refused.
      records.verify(connection)

  def __enter__(self) -> Ledger:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def close(self) -> None:
    """Closes the connections."""
    self._writer.dispose()

  @contextlib.contextmanager
  def _write(self) -> Iterator[sa.engine.Connection]:
    """Yields a connection; what it sees stays so until it has written."""
    with database.transaction(self._writer) as connection:
      records.row(connection, lock=True)
      yield connection

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
      raise ValueError(
        errors.invalid(
          'ledger',
          'that of another run or noise key',
          'a started round keeps its key and its run',
          'restore the files of this run, or start a new one',
        )
      )

  def bound(self) -> tuple[Optional[int], Optional[int]]:
    """Returns what `bind` said, run and noise key; None if it never did."""
    with database.transaction(self._reader) as connection:
      row = records.row(connection)
    return row.run, row.noise_key

  def head(self, round_index: Optional[int] = None) -> str:
    """Returns the head of the chain, in hexadecimal; see `chain`.

    Args:
      round_index: as it stood after the last event of this round, its row
        included; None is now.

    Raises:
      ValueError: the round was not started.
    """
    if round_index is not None:
      attempts = self.attempts(round_index)
      if not attempts:
        raise _not_started(round_index)
      return attempts[-1].head
    with database.transaction(self._reader) as connection:
      return records.row(connection).head.hex()

  def last_round(self) -> int:
    """Returns the highest round that was started; -1 without one."""
    with database.transaction(self._reader) as connection:
      return records.last_round(connection)

  def next_round(self) -> int:
    """Returns where a run goes on: the last started round, or the one after it.

    A round that was started and has not ended, or whose attempts failed, is to
    be replayed or abandoned.
    """
    with database.transaction(self._reader) as connection:
      last = records.last_round(connection)
      attempts = records.attempts(connection, last)
    ended = any(
      attempt.outcome in (chain.FINISHED, chain.ABANDONED)
      for attempt in attempts
    )
    return last + 1 if ended or last < 0 else last

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
      raise ValueError(
        errors.invalid(
          'cohort',
          f'{len(found)} clients',
          f'has a client twice in round {round_index}',
          'a client takes part once in a round',
        )
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
          raise ValueError(
            errors.invalid(
              'round',
              round_index,
              f'was never started, and round {last} was',
              'go on above it',
            )
          )
        records.add_round(connection, round_index, found, highest)
      # PRIVACY: one round's noise never meets two cohorts.
      # Guard: ledger_test.test_round_cannot_start_with_another_cohort.
      elif recorded != digest:
        raise ValueError(
          errors.invalid(
            'round',
            round_index,
            'was already started with another cohort',
            'its noise may not be used twice: resume with the data, seed '
            'and configuration of the first start',
          )
        )
      # PRIVACY: nor does it meet two sums of one cohort.
      # Guard: ledger_test.test_abandoned_round_cannot_start_again.
      if _abandoned(attempts):
        raise ValueError(
          errors.invalid(
            'round', round_index, 'was abandoned', 'go on with the next round'
          )
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

    Raises:
      ValueError: there is no attempt that was started and has no outcome yet,
        or another result was recorded; `z_stddev` is no standard deviation; the
        aggregator did another round.
    """
    # PRIVACY: the noise of another round met this cohort. Guard:
    # ledger_test.test_round_of_another_number_than_the_aggregators_is_refused.
    if rounds_done is not None and int(rounds_done) != round_index + 1:
      raise ValueError(
        errors.invalid(
          'round',
          round_index,
          f'is not the one that the aggregator did, {int(rounds_done) - 1}',
          'do not release its result; resume with state and ledger of one time',
        )
      )
    z_stddev = None if z_stddev is None else float(z_stddev)
    if z_stddev is not None and not 0 <= z_stddev < math.inf:
      raise ValueError(
        errors.invalid(
          'z_stddev',
          z_stddev,
          'must be finite and at least 0',
          'leave it out if it was not measured',
        )
      )
    self._end(
      chain.Event(
        _round(round_index),
        chain.FINISHED,
        None if result is None else bytes(result),
        None if z_stddev is None else abs(z_stddev),
        bool(noise_checked),
      )
    )

  def fail_round(self, round_index: int) -> None:
    """Records that an attempt failed; the round can be started again.

    Raises:
      ValueError: there is no attempt that was started and has no outcome yet.
    """
    self._end(chain.Event(_round(round_index), chain.FAILED))

  def _end(self, event: chain.Event) -> None:
    with self._write() as connection:
      attempts = records.attempts(connection, event.round)
      if not attempts or attempts[-1].outcome != chain.STARTED:
        raise _not_started(event.round)
      # PRIVACY: two sums that met one noise show their difference. Guard:
      # ledger_test.test_round_cannot_finish_with_two_results.
      if event.kind == chain.FINISHED and any(
        attempt.result not in (None, event.digest) for attempt in attempts
      ):
        raise ValueError(
          errors.invalid(
            'round',
            event.round,
            'was finished with another result',
            'do not release this one: abandon the round',
          )
        )
      records.append(connection, event)

  def abandon_round(self, round_index: int) -> None:
    """Records that a started round is burnt: it is never started again.

    Its cohort took part; to the mechanism it contributed nothing. Abandoning
    it again changes nothing.

    Raises:
      ValueError: the round was never started.
    """
    round_index = _round(round_index)
    with self._write() as connection:
      attempts = records.attempts(connection, round_index)
      if not attempts:
        raise _not_started(round_index)
      if not _abandoned(attempts):
        records.append(
          connection,
          *_failure(round_index, attempts),
          chain.Event(round_index, chain.ABANDONED),
        )

  def record_row(self, round_index: int, digest: bytes) -> None:
    """Records the digest of the row of metrics of a round that ended.

    Args:
      round_index: the round.
      digest: of the row that is about to be written; the last one counts.

    Raises:
      ValueError: the round was not started, or has not ended.
    """
    round_index = _round(round_index)
    with self._write() as connection:
      attempts = records.attempts(connection, round_index)
      if not attempts or attempts[-1].outcome == chain.STARTED:
        raise ValueError(
          errors.invalid(
            'round', round_index, 'has not ended', 'finish or abandon it first'
          )
        )
      records.append(
        connection, chain.Event(round_index, chain.ROW, bytes(digest))
      )

  def attempts(self, round_index: int) -> list[chain.Attempt]:
    """Returns the attempts at a round, in order; none if it was not started."""
    with database.transaction(self._reader) as connection:
      return records.attempts(connection, operator.index(round_index))

  def all_attempts(self) -> dict[int, list[chain.Attempt]]:
    """Returns the attempts at every started round, rounds ascending.

    Raises:
      ValueError: the ledger was changed or is damaged.
    """
    with database.transaction(self._reader) as connection:
      return records.verify(connection).attempts

  def cohort(
    self,
    round_index: int,
    population: Optional[Sequence[identifiers.Client]] = None,
  ) -> Optional[np.ndarray]:
    """Returns the cohort of a round, [m], in order; None if it was not started.

    Args:
      round_index: the round.
      population: among whom to look; None takes the indices up to the highest
        one of the ledger, as int64. A `range` costs nothing, whatever its size.

    Raises:
      ValueError: a client of the cohort is not among them.
    """
    with database.transaction(self._reader) as connection:
      recorded = records.cohort(connection, operator.index(round_index))
    if recorded is None:
      return None
    if population is None:
      population = range(self._last_client() + 1)
    if isinstance(population, range):
      found = np.sort(self._hash().indices(recorded))
      wanted = population if population.step > 0 else population[::-1]
      there = np.all(
        (wanted.start <= found)
        & (found < wanted.stop)
        & ((found - wanted.start) % wanted.step == 0)
      )
    else:
      hashes = self._hash().of(population)
      there = np.isin(recorded, hashes).all()
      found = np.unique(np.asarray(population)[np.isin(hashes, recorded)])
    if not there:
      raise ValueError(
        errors.invalid(
          'round',
          round_index,
          'has clients that are not among those looked at',
          'give the population that the run started with',
        )
      )
    return found

  def history(self, clients: int, before: int) -> history_lib.History:
    """Returns who of a population took part in the rounds below `before`.

    Args:
      clients: size of the population; clients are their indices.
      before: a round.

    Raises:
      ValueError: the ledger holds clients beyond the population, or strings.
    """
    highest = self._last_client()
    if highest >= clients:
      raise ValueError(
        errors.invalid(
          'client',
          highest,
          f'is not among the {clients} clients',
          'resume with the data that the run started with',
        )
      )
    hashed = self._hash()
    history = history_lib.History.empty(clients)
    for round_index, cohort in self._cohorts(operator.index(before)):
      found = hashed.indices(cohort)
      # PRIVACY: whoever is not in the history may take part too early. Guard:
      # ledger_test.test_clients_can_be_strings.
      if len(found) and not (0 <= found.min() and found.max() < clients):
        raise ValueError(
          errors.invalid(
            'round',
            round_index,
            f'has clients that are not among the {clients} indices',
            'resume with the data that the run started with',
          )
        )
      history.record(round_index, found)
    return history

  def past(
    self, clients: Sequence[identifiers.Client], before: int
  ) -> history_lib.History:
    """Returns the rounds of some clients below `before`, in their order.

    Goes through all cohorts: for a population, keep its `History` in memory and
    `record` in it what is recorded here.
    """
    hashes = self._hash().of(clients)
    order = np.argsort(hashes)
    known = hashes[order]
    history = history_lib.History.empty(len(known))
    for round_index, cohort in self._cohorts(operator.index(before)):
      history.record(round_index, order[identifiers.places(known, cohort)])
    return history

  def observed(
    self, strategy: Optional[strategies.Strategy] = None
  ) -> observed_lib.Observed:
    """Returns what really happened, from the rows alone.

    Args:
      strategy: C; its sensitivity for the clients' own rounds is then found.

    Raises:
      ValueError: the ledger was changed or is damaged, or has a round past the
        last one of C.
    """
    with database.transaction(self._reader) as connection:
      contents = records.verify(connection)
      found = sensitivity.observed(
        lambda: records.cohorts(connection),
        sum(contents.sizes.values()),
        strategy,
      )
    return observed_lib.observed(
      contents.sizes, contents.attempts, found, contents.last_client
    )

  def _hash(self) -> identifiers.Identifiers:
    """Returns the hash function of this ledger, and makes it at first."""
    if self._identifiers is None:
      if self._key_file is None:
        raise ValueError(
          errors.invalid(
            'key_file',
            None,
            'a ledger in a database server needs it',
            'give a file next to the other secrets of the run',
          )
        )
      with database.transaction(self._reader) as connection:
        recorded = records.row(connection).key
      # PRIVACY: with another key every client looks new. Guards:
      # ledger_test.test_ledger_without_its_key_lets_nobody_in and
      # test_ledger_with_another_key_lets_nobody_in.
      if recorded is None:
        found = identifiers.Identifiers.load_or_create(self._key_file)
      else:
        found = identifiers.Identifiers.load(self._key_file)
      mine = found.fingerprint()
      with self._write() as connection:
        recorded = records.claim(connection, key=mine).key
      if recorded != mine:
        raise ValueError(
          errors.invalid(
            'ledger key',
            self._key_file,
            'is not that of this ledger',
            'restore the file that it was started with',
          )
        )
      self._identifiers = found
    return self._identifiers

  def _last_client(self) -> int:
    with database.transaction(self._reader) as connection:
      return records.last_client(connection)

  def _cohorts(
    self, before: Optional[int] = None
  ) -> Iterator[tuple[int, np.ndarray]]:
    with database.transaction(self._reader) as connection:
      yield from records.cohorts(connection, before)


def _round(round_index: int) -> int:
  round_index = operator.index(round_index)
  if not 0 <= round_index < history_lib.MAX_ROUNDS:
    raise ValueError(
      errors.invalid(
        'round',
        round_index,
        f'must be in [0, {history_lib.MAX_ROUNDS})',
        'rounds count from 0',
      )
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


def _failure(
  round_index: int, attempts: list[chain.Attempt]
) -> list[chain.Event]:
  """Returns the end of an attempt that has none."""
  if attempts and attempts[-1].outcome == chain.STARTED:
    return [chain.Event(round_index, chain.FAILED)]
  return []


def _missing(place: object) -> ValueError:
  return ValueError(
    errors.invalid(
      'ledger',
      place,
      'does not exist or is empty',
      'without it nobody knows who took part, and nothing is claimed',
    )
  )


def _no_ledger(place: object) -> ValueError:
  return ValueError(
    errors.invalid(
      'ledger',
      place,
      'is no participation ledger, or cannot be opened',
      'do not touch the files of a run; check the address of a server',
    )
  )


def _not_started(round_index: int) -> ValueError:
  return ValueError(
    errors.invalid(
      'round', round_index, 'has no attempt that could end', 'start it first'
    )
  )
