"""The ledger: the cohort of each round, and the end of each attempt.

The cohort of a round is durable before the round runs. The clients of a started
round count as having taken part, whether or not the round releases a sum. An
attempt at a round is 'started', and then 'finished' or 'failed'. A failed round
can be replayed. An abandoned (burnt) round cannot be replayed. Clients are
stored as keyed hashes. All events are in a chain of hashes, see `chain`. When a
ledger is opened, the chain is computed again, and each hash is compared with
the stored hash.

  with Ledger('ledger.sqlite') as ledger:
    ledger.start_round(0, cohort)
    ...                            # the round
    ledger.finish_round(0)
    print(ledger.observed().min_sep)
"""

from __future__ import annotations

import contextlib
import operator
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, TypeVar, Union

import numpy as np
import sqlalchemy as sa

from tff_bandmf import _checks, errors, sensitivity, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.cohorts import history as history_lib
from tff_bandmf.cohorts import names as names_lib
from tff_bandmf.ledger import chain, counts, database, identifiers, tables

_Result = TypeVar('_Result')
# Clients of one kind: indices in a population, or strings.
_Clients = Union[Sequence[names_lib.Client], np.ndarray]


class Ledger:
  """The ledger of one run, for use in a `with` block or with `close`.

  Clients are indices in a population, or strings.
  """

  def __init__(
    self,
    url: Union[str, os.PathLike],
    create: bool = True,
    key_file: Optional[Union[str, os.PathLike]] = None,
    check: bool = True,
  ):
    """Opens the ledger.

    Args:
      url: URL of SQLAlchemy, or path of a SQLite file. A database, or a schema
        in a database, holds one ledger.
      create: whether to make a missing ledger.
      key_file: path of the key by which clients are hashed. A new ledger makes
        the key when it first hashes clients. If None, the file is
        private/ledger.key next to the SQLite file, and a ledger in a database
        server has no key. Counts can be read without the key.
      check: whether to check the chain of hashes. If False, call `contents` or
        `observed` first, which check it.

    Raises:
      ValueError: the ledger is missing, and `create` is False; or the database
        is a SQLite file with other tables, or holds only some tables of a
        ledger, a ledger of another format, or a ledger that was changed.
    """
    address = database.url_of(url)
    path = database.sqlite_path(address)
    if path is not None:
      key_file = key_file or path.parent / 'private' / 'ledger.key'
      if not create and not (path.is_file() and path.stat().st_size):
        raise _missing(path)
    self._key_file = None if key_file is None else pathlib.Path(key_file)
    self._identifiers: Optional[identifiers.Identifiers] = None
    self._index = history_lib.IdentifierIndex()
    self._writer, self._reader = database.engines(address)
    try:
      self._open(path or address.render_as_string(hide_password=True), create)
      if check:
        # PRIVACY: a ledger from which somebody removed a client understates
        # the participation. This line checks the chain of hashes, and raises
        # ValueError if a hash is wrong.
        # Guard: chain_test.test_any_change_of_a_row_is_refused.
        self.contents()
    except BaseException:
      self.close()
      raise

  def _open(self, url: object, create: bool) -> None:
    """Makes the tables, or checks that all of them exist."""
    try:
      existing = set(sa.inspect(self._reader).get_table_names())
      missing = tables.TABLES - existing
      if 'bandmf_attempts' in existing:
        raise tables.other_format(1)
      # PRIVACY: if empty tables replaced lost tables of a ledger, the clients
      # of the ledger could take part again earlier than the schema allows. A
      # database with only some tables of a ledger is refused, and a SQLite file
      # that has only tables of another kind is refused.
      # Guard: ledger_test.test_database_of_something_else_is_refused.
      if missing and (
        missing < tables.TABLES or existing and isinstance(url, pathlib.Path)
      ):
        raise _not_a_ledger(url)
      if missing and not create:
        raise _missing(url)
      for table in () if missing else tables.TABLES:
        # In a forged table, SQLite could compute the values of a column. Such
        # values could be far larger than the file, and fill the memory.
        columns = sa.inspect(self._reader).get_columns(table)
        if any('computed' in column for column in columns):
          raise _not_a_ledger(url)
    except sa.exc.SQLAlchemyError as error:
      raise database.unusable(url, error) from error
    if missing:
      with database.transaction(self._writer) as connection:
        database.wait_to_create(connection)
        tables.create(connection)

  def __enter__(self) -> Ledger:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def close(self) -> None:
    """Closes the connections to the database."""
    self._writer.dispose()

  def _read(self, query: Callable[..., _Result], *arguments: object) -> _Result:
    """Returns the result of a function of `tables` in one transaction."""
    with database.transaction(self._reader) as connection:
      return query(connection, *arguments)

  @contextlib.contextmanager
  def _write(self) -> Iterator[sa.engine.Connection]:
    """Yields a connection whose transaction holds the lock of the ledger."""
    with database.transaction(self._writer) as connection:
      tables.row(connection, lock=True)
      yield connection

  def bound(self) -> tuple[Optional[int], Optional[int]]:
    """Returns the IDs of run and noise key; (None, None) before `bind`."""
    row = self._read(tables.row)
    return row.run, row.noise_key

  def head(self) -> str:
    """Returns the present head of the chain, in hexadecimal; see `chain`."""
    return self._read(tables.row).head.hex()

  def has_head(self, head: str) -> bool:
    """Returns whether `head` is or was the head of the chain."""
    return self._read(tables.has_head, bytes.fromhex(head))

  def last_round(self) -> int:
    """Returns the highest round that was started; -1 without rounds."""
    return self._read(tables.last_round)

  def cohort_size(self, round_index: int) -> int:
    """Returns the number of clients of a round; 0 for a round not started."""
    recorded = self._read(tables.cohort, _round(round_index))
    return 0 if recorded is None else len(recorded[0])

  def next_round(self) -> int:
    """Returns the round with which a run continues.

    If every attempt at the last started round is open or failed, the result is
    the last started round, which the run replays or abandons. Otherwise the
    result is the next round.
    """
    last, attempts = self._read(tables.last_attempts)
    outcomes = {attempt.outcome for attempt in attempts}
    has_ended = outcomes & {chain.FINISHED, chain.ABANDONED}
    return last + 1 if has_ended or last < 0 else last

  def attempts(self, round_index: int) -> list[chain.Attempt]:
    """Returns the attempts at a round, in order; [] for a round not started."""
    return self._read(tables.attempts, _round(round_index))

  def contents(self) -> counts.Contents:
    """Returns the attempts at every started round, and the notes.

    Raises:
      ValueError: the ledger was changed or is damaged.
    """
    return self._read(tables.verify)

  def cohort(
    self, round_index: int, population: Optional[_Clients] = None
  ) -> Optional[np.ndarray]:
    """Returns the cohort of a round, ascending; None for a round not started.

    Args:
      round_index: index of the round.
      population: clients that may be in the cohort; None for all indices. For
        None or a `range`, the time does not depend on the size of the
        population.

    Raises:
      ValueError: a client of the cohort is not in the population.
    """
    recorded = self._read(tables.cohort, _round(round_index))
    if recorded is None:
      return None
    identifiers, highest = recorded
    if population is None:
      population = range(highest + 1)
    if isinstance(population, range):
      cohort = np.sort(self._hash().indices(identifiers))
      complete = all(client in population for client in cohort.tolist())
    else:
      hashes = self._hash().hashes(population)
      complete = bool(np.isin(identifiers, hashes).all())
      cohort = np.unique(np.asarray(population)[np.isin(hashes, identifiers)])
    if not complete:
      raise errors.value_error(
        f'round={round_index}: has clients that are not in the given '
        'population; give the population that the run started with'
      )
    return cohort

  def history(
    self,
    clients: int,
    before: int,
    participation: Optional[participation_lib.Participation] = None,
  ) -> history_lib.AnyHistory:
    """Returns the rounds below `before` of each client of a population.

    Args:
      clients: number N of clients in the population, whose indices are 0 to
        N - 1.
      before: index of a round.
      participation: schema of the run; required for a `Budget`.

    Raises:
      ValueError: the ledger has clients outside of the population, or strings.
    """
    history, missing = self.population(range(clients), before, participation)
    # PRIVACY: if the history lacks a client, the client could be drawn again
    # earlier than the schema allows. A ledger with a client outside of the
    # population is refused.
    # Guard: identifiers_test.test_clients_can_be_strings.
    if missing:
      raise errors.value_error(
        f'clients={clients}: {missing} clients that took part are not among '
        f'the {clients} indices; resume with the data that the run started with'
      )
    return history

  def population(
    self,
    ids: _Clients,
    before: int,
    participation: Optional[participation_lib.Participation] = None,
  ) -> tuple[history_lib.AnyHistory, int]:
    """Returns the history below `before`, and the number of missing clients.

    For indices, the running time is proportional to the number of
    participations.

    Args:
      ids: [N] different indices, ascending, or different strings.
      before: index of a round.
      participation: schema of the run; required for a `Budget`.

    Returns:
      The rounds of each client, in the order of `ids`; and the number of
      clients that took part and are not in `ids`.
    """
    names = names_lib.names(ids)
    whole = isinstance(participation, participation_lib.Budget)
    history: history_lib.AnyHistory
    if not isinstance(names, np.ndarray):
      index = self._index_before(before, whole)
      hashes = self._hash().hashes(names)
      history = index.patterns(hashes) if whole else index.for_clients(hashes)
      return history, index.clients() - int(np.count_nonzero(history.count))
    hashed = self._hash()
    history = history_lib.empty(len(names), participation)
    # In a population without gaps, an index is its own position.
    gaps = len(names) and names[-1] != len(names) - 1
    missing = [np.empty(0, np.int64)]
    for round_index, cohort in self._cohorts(operator.index(before)):
      indices = np.sort(hashed.indices(cohort))
      places = np.searchsorted(names, indices) if gaps else indices
      present = (places >= 0) & (places < len(names))
      present[present] = names[places[present]] == indices[present]
      # PRIVACY: If clients of the ledger that are missing from the population
      # were not counted, their rounds would be forgotten. They are counted, so
      # that the caller can refuse the population.
      # Guards: identifiers_test.test_clients_can_be_strings and
      # ledger_test.test_history_of_a_population_is_that_of_its_rounds.
      missing.append(indices[~present])
      history.record(round_index, places[present])
    return history, len(np.unique(np.concatenate(missing)))

  def past(
    self, clients: _Clients, before: int, whole: bool = False
  ) -> history_lib.History:
    """Returns each client's history before a round, in the order of `clients`.

    The running time depends on the number of `clients` and on the number of
    rounds since the last call, and not on the number of all rounds.

    Args:
      clients: indices or strings.
      before: index of a round; the history has only rounds below this index.
      whole: whether the result has all rounds of a client, which a `Budget`
        needs, or only the last round and the number of rounds.
    """
    index = self._index_before(before, whole)
    return index.for_clients(self._hash().hashes(clients))

  def _index_before(
    self, before: int, whole: bool = False
  ) -> history_lib.IdentifierIndex:
    """Returns an index that finds the rounds below `before` of each client.

    Args:
      before: index of a round.
      whole: whether the index has all rounds of a client, or only the last
        round and the number of rounds.
    """
    before = operator.index(before)
    # PRIVACY: if the index lacks a round, the clients of this round could take
    # part again earlier than the schema allows. All rounds below `before` that
    # the index lacks are read from the ledger.
    # Guard: admission_test.test_past_is_that_of_every_round_before.
    if self._index.next > before or whole > self._index.whole:
      # The index has rounds from `before` on, or lacks earlier rounds.
      self._index = history_lib.IdentifierIndex(whole or self._index.whole)
    self._index.record(self._cohorts(before, self._index.next))
    return self._index

  def observed(
    self,
    strategy: Optional[strategies.Strategy] = None,
    costs: Optional[participation_lib.Costs] = None,
  ) -> counts.Counts:
    """Returns the counts of the ledger, computed only from its tables.

    Args:
      strategy: strategy matrix C. If given, the counts include the sensitivity
        of C for the rounds in which the clients took part.
      costs: costs of a `Budget` under C; None for another schema.

    Raises:
      ValueError: the ledger was changed or is damaged, or has a round after the
        last round of C.
    """
    with database.transaction(self._reader) as connection:
      contents = tables.verify(connection)
      count = sum(contents.sizes.values())
      log = sensitivity.observed(
        lambda: tables.cohorts(connection), count, strategy, costs=costs
      )
    return counts.from_contents(contents, log)

  def bind(self, *, run: int, noise_key: int) -> None:
    """Binds the ledger to a run and its noise key.

    Later calls compare run and key with the values of the first call.

    Args:
      run: ID of the run, 63 bits; see `noise.Key.identify`.
      noise_key: fingerprint of the noise key, 63 bits; see
        `noise.Key.identify`.

    Raises:
      ValueError: the ledger is bound to another run or key, or has rounds that
        were started before it was bound.
    """
    with self._write() as connection:
      row = tables.set_once(connection, run=run, noise_key=noise_key)
    if (row.run, row.noise_key) != (run, noise_key):
      raise of_another_run()

  def start_round(
    self,
    round_index: int,
    cohort: _Clients,
    enforced: Optional[bytes] = None,
    rounds: Optional[int] = None,
  ) -> list[chain.Attempt]:
    """Records durably that a round starts with a cohort.

    **Formal guarantee.** Assumption: the database keeps transactions that it
    has committed. Statement: if this call returns, the round is in the ledger
    with this cohort and no other, even after a crash of the host.

    A round may start again with the same cohort. This replay is safe only if
    the same clients contribute the same values, as in a simulation. If their
    values differ, two sums would get the same noise: call `abandon_round`
    instead.

    Args:
      round_index: index of a round that was started, or that is above all
        started rounds.
      cohort: all selected clients, also clients that drop out later.
      enforced: digest of the plan and other files that this round follows; see
        `RunDetails.enforced_digest`. If None, no digest is recorded.
      rounds: number of rounds of the whole run, recorded with `enforced`; None
        if it is the number of the plan.

    Returns:
      The attempts at the round; the last one is the attempt that starts.

    Raises:
      TypeError: a client is neither an index nor a string, or the cohort has
        both.
      ValueError: the round was started with another cohort, is abandoned, or is
        below a started round; `enforced` differs from the digest of the last
        started round; a client occurs twice; clients are indices and the ledger
        has strings, or clients are strings and the ledger has indices; or the
        key file is missing.
    """
    round_index = _round(round_index)
    hashes, highest = self._hashes_of(cohort)
    if np.any(hashes[1:] == hashes[:-1]):
      raise errors.value_error(
        f'cohort={len(hashes)} clients: has a client twice in round '
        f'{round_index}; name each client once'
      )
    digest = chain.cohort_digest(hashes, highest)
    stated = {} if rounds is None else {'rounds': rounds}
    with self._write() as connection:
      recorded = tables.cohort(connection, round_index)
      attempts = tables.attempts(connection, round_index)
      last, last_attempts = tables.last_attempts(connection)
      by_index = tables.by_index(connection)
      # PRIVACY: a client that was named 1 in an earlier round and is named '1'
      # now would look new, and could take part earlier than the schema allows.
      # A cohort of strings is refused if earlier cohorts have indices, and a
      # cohort of indices if earlier cohorts have strings.
      # Guard: identifiers_test.test_ledger_keeps_the_kind_of_its_names.
      if len(hashes) and by_index not in (None, highest >= 0):
        kind = 'indices' if highest >= 0 else 'strings'
        raise errors.value_error(
          f'clients={kind}: differ in kind from the clients of earlier rounds; '
          'name all clients of a run by index, or all by string'
        )
      # PRIVACY: if the plan or the strategy is edited between two rounds, the
      # claim of neither version holds. The digest of these files must be equal
      # to the digest at the start of the last round.
      # Guard:
      # ledger_test.test_round_cannot_start_with_another_digest_than_the_last.
      if enforced is not None and any(
        each.enforced not in (None, enforced) for each in last_attempts
      ):
        raise errors.value_error(
          f'run=round {round_index}: follows other files than the earlier '
          'rounds; restore run.json, plan.json and strategy.json'
        )
      if recorded is None:
        # PRIVACY: if a round below the last started round began now, its
        # cohort would be chosen without regard to the later rounds, and could
        # break the schema. The start of such a round is refused.
        # Guard: ledger_test.test_round_below_a_started_one_cannot_start.
        if round_index <= last:
          raise errors.value_error(
            f'round={round_index}: was never started, and is below round '
            f'{last}, which was started; start a round above that one'
          )
        tables.add_round(connection, round_index, hashes, highest)
      # PRIVACY: if two sums get the same noise, the difference of the two
      # releases has no noise. A second cohort for a round, which would give a
      # second sum, is refused.
      # Guard: ledger_test.test_round_cannot_start_with_another_cohort.
      elif chain.cohort_digest(*recorded) != digest:
        raise errors.value_error(
          f'round={round_index}: was already started with another cohort, and '
          'the noise of a round may not be used twice; resume with the data, '
          'seed and configuration of the first start'
        )
      # PRIVACY: an abandoned round may have released a sum, and a second start
      # could release another sum with the same noise. A start of an abandoned
      # round is refused.
      # Guard: ledger_test.test_abandoned_round_cannot_start_again.
      if _abandoned(attempts):
        raise errors.value_error(
          f'round={round_index}: was abandoned; go on with the next round'
        )
      tables.append(
        connection,
        *_failure(round_index, attempts),
        chain.Event(round_index, chain.STARTED, digest),
        *_event(round_index, chain.ENFORCED, enforced, stated),
      )
      return tables.attempts(connection, round_index)

  def finish_round(
    self,
    round_index: int,
    z_stddev: Optional[float] = None,
    sum_digest: Optional[bytes] = None,
    *,
    noise_checked: bool = False,
    rounds_done: Optional[int] = None,
    row: Optional[bytes] = None,
    released: Optional[Mapping[str, float]] = None,
    flags: Iterable[str] = (),
  ) -> str:
    """Records that a started round finished; returns the chain's head.

    A replay may finish a round again, but only with the same sum: two different
    sums would have the same noise.

    Args:
      round_index: index of the round.
      z_stddev: standard deviation of an entry of z, the noise before C^-1
        multiplies it, in the unit of the sum, >= 0; None if it is not known.
      sum_digest: digest of the sum that is about to be released; None if it is
        not known. A replay with another digest is refused.
      noise_checked: whether the program that added the noise tested the noise.
      rounds_done: the aggregator's count of rounds, including this round
        (`round` in its measurements); None if it is not known.
      row: digest of the round's row of metrics; None without a row.
      released: {name: number} that the round releases besides the model, with
        noise; None without such numbers. These numbers need a row.
      flags: flags of `chain.FLAGS` for the attempt.

    Raises:
      ValueError: no attempt is open; another sum was recorded; `z_stddev` is
        negative or not finite; or the aggregator is at another round.
    """
    # PRIVACY: if the ledger is at round t and the aggregator at round s, the
    # sum of round t got the noise of round s, and the sum of round s could get
    # the same noise. The end of round t is refused.
    # Guard:
    # ledger_test.test_round_of_another_number_than_the_aggregators_is_refused.
    if rounds_done is not None and int(rounds_done) != round_index + 1:
      raise errors.value_error(
        f'round={round_index}: is not the round of the aggregator, '
        f'{int(rounds_done) - 1}; do not release its sum; resume with a '
        'state and a ledger of the same moment'
      )
    if z_stddev is not None:
      remedy = 'leave it out if it is not known'
      z_stddev = abs(_checks.nonnegative('z_stddev', z_stddev, remedy))
    t = _round(round_index)
    digest = None if sum_digest is None else bytes(sum_digest)
    return self._end(
      *(chain.Event(t, flag) for flag in sorted(flags)),
      chain.Event(t, chain.FINISHED, digest, z_stddev, bool(noise_checked)),
      *_event(t, chain.ROW, row, released),
    )

  def fail_round(self, round_index: int) -> None:
    """Records that the open attempt at a round failed.

    The round can be started again.

    Raises:
      ValueError: no attempt is open.
    """
    self._end(chain.Event(_round(round_index), chain.FAILED))

  def _end(self, *events: chain.Event) -> str:
    """Appends the events at the end of an attempt; returns the chain's head."""
    with self._write() as connection:
      t = events[0].round
      attempts = tables.attempts(connection, t)
      if not _is_open(attempts):
        raise _not_started(t)
      # PRIVACY: if two sums get the same noise, the difference of the two
      # releases has no noise. A second, different sum of a round is refused.
      # Guard: ledger_test.test_round_cannot_finish_with_two_results.
      released = {each.sum_digest for each in attempts} - {None}
      sums = {each.digest for each in events if each.kind == chain.FINISHED}
      if sums and released - sums:
        raise errors.value_error(
          f'round={t}: was finished with another sum; do not release the '
          'new sum: abandon the round'
        )
      return tables.append(connection, *events).hex()

  def abandon_round(
    self,
    round_index: int,
    row: Optional[bytes] = None,
    flags: Iterable[str] = (),
  ) -> None:
    """Records that a started round is burnt, and can never start again.

    The clients of a burnt round count as having taken part. A second call
    changes only the digest of the row.

    Args:
      round_index: index of the round.
      row: digest of the round's row of metrics; None without a row.
      flags: flags of `chain.FLAGS` for an attempt at the round.

    Raises:
      ValueError: the round was never started.
    """
    round_index = _round(round_index)
    with self._write() as connection:
      attempts = tables.attempts(connection, round_index)
      if not attempts:
        raise _not_started(round_index)
      events = _event(round_index, chain.ROW, row)
      if not _abandoned(attempts):
        events = [
          *_failure(round_index, attempts),
          chain.Event(round_index, chain.ABANDONED),
          *(chain.Event(round_index, flag) for flag in sorted(flags)),
          *events,
        ]
      tables.append(connection, *events)

  def same_cohort(self, round_index: int, cohort: _Clients) -> bool:
    """Returns whether a started round has exactly this cohort."""
    digest = chain.cohort_digest(*self._hashes_of(cohort))
    recorded = self._read(tables.cohort, _round(round_index))
    return recorded is not None and chain.cohort_digest(*recorded) == digest

  def _hashes_of(self, cohort: _Clients) -> tuple[np.ndarray, int]:
    """Returns the hashes of a cohort, ascending, and its highest client index.

    The index is -1 if clients are strings, or for an empty cohort.
    """
    names = names_lib.names(cohort)
    # PRIVACY: The report uses the highest index to detect a client outside of
    # the population. The chain has this index, so the report detects an edit of
    # the index.
    # Guard: chain_test.test_head_is_the_hash_of_what_happened.
    highest = names.max(initial=-1) if isinstance(names, np.ndarray) else -1
    return np.sort(self._hash().hashes(names)), int(highest)

  def record_drawn(self, as_drawn: bool) -> None:
    """Records whether all cohorts agree with the sampling key.

    The event is in the chain, so the head of the chain covers it.

    Args:
      as_drawn: whether the sampling key gives exactly the cohorts in the
        ledger.

    Raises:
      ValueError: the ledger has no rounds, or the last attempt has not ended.
    """
    self._append_verdict(chain.DRAWN if as_drawn else chain.NOT_DRAWN)

  def note(self, notes: Mapping[str, Any]) -> None:
    """Writes new values of notes on the run, for its report.

    Args:
      notes: {name: JSON value}; None takes a note back.
    """
    if self._read(tables.row).key is None:
      # The head before the first event depends on this key.
      self._hash()
    payload = chain.payload(notes)
    with self._write() as connection:
      t = max(tables.last_round(connection), 0)
      tables.append(connection, chain.Event(t, chain.NOTED, payload=payload))

  def record_end(self, results: Mapping[str, float]) -> None:
    """Records the end of the run, and its results.

    Args:
      results: {name: finite number}.

    Raises:
      ValueError: the ledger has no rounds, or the last attempt has not ended.
    """
    self._append_verdict(chain.ENDED, chain.payload(results))

  def ended(self) -> Optional[chain.End]:
    """Returns the end of the run; None before the end."""
    last, attempts = self._read(tables.last_attempts)
    return counts.ended({last: attempts})

  def _append_verdict(self, kind: str, payload: Optional[str] = None) -> None:
    """Appends an event that concerns all rounds so far."""
    with self._write() as connection:
      last, attempts = tables.last_attempts(connection)
      if not attempts or _is_open(attempts):
        raise _not_started(last)
      tables.append(connection, chain.Event(last, kind, payload=payload))

  def _hash(self) -> identifiers.Identifiers:
    """Returns this ledger's hash function; makes the key of a new ledger."""
    if self._identifiers is None:
      if self._key_file is None:
        raise errors.value_error(
          'key_file=None: a ledger in a database server needs a key file; give '
          'a path next to the other secrets of the run'
        )
      recorded = self._read(tables.row).key
      # PRIVACY: under a new key, every client would look new and could take
      # part earlier than the schema allows. Only the key whose fingerprint is
      # in the ledger is accepted.
      # Guards:
      # identifiers_test.test_ledger_without_its_key_lets_nobody_in and
      # test_ledger_with_another_key_lets_nobody_in.
      loaded = identifiers.Identifiers.load(self._key_file, recorded is None)
      fingerprint = loaded.fingerprint()
      with self._write() as connection:
        recorded = tables.set_once(connection, key=fingerprint).key
      # PRIVACY: With another key all clients would have new hashes, so the
      # ledger would have no history of them. The ledger must have the
      # fingerprint of the key.
      # Guard: identifiers_test.test_ledger_with_another_key_lets_nobody_in.
      if recorded != fingerprint:
        raise errors.value_error(
          f'ledger key={self._key_file}: is not the key of this ledger; '
          'restore the key file that the ledger was started with'
        )
      self._identifiers = loaded
    return self._identifiers

  def _cohorts(
    self, before: int, start: int = 0
  ) -> Iterator[tuple[int, np.ndarray]]:
    with database.transaction(self._reader) as connection:
      yield from tables.cohorts(connection, before, start)


def _missing(url: object) -> ValueError:
  return errors.value_error(
    f'ledger={url}: does not exist or is empty; restore the ledger: without '
    'the participation in it, nothing is claimed'
  )


def _not_a_ledger(url: object) -> ValueError:
  return errors.value_error(
    f'ledger={url}: is not a participation ledger, or cannot be opened; do not '
    'change the files of a run; check the address of a server'
  )


def _not_started(round_index: int) -> ValueError:
  return errors.value_error(
    f'round={round_index}: has no attempt that is open; start the round first'
  )


def of_another_run() -> ValueError:
  """Returns the error for a ledger that is bound to another run."""
  return errors.value_error(
    'ledger=another: is bound to another run or noise key; restore the files '
    'of this run, or start a new run'
  )


def _round(round_index: int) -> int:
  round_index = _checks.count('round', round_index, 'count from 0', least=0)
  most = history_lib.MAX_ROUNDS - 1
  _checks.at_most('round', round_index, most, 'the last', 'count from 0')
  return round_index


def _abandoned(attempts: list[chain.Attempt]) -> bool:
  return any(attempt.outcome == chain.ABANDONED for attempt in attempts)


def _event(
  round_index: int,
  kind: str,
  digest: Optional[bytes],
  numbers: Optional[Mapping[str, float]] = None,
) -> list[chain.Event]:
  """Returns a list with the event of a digest; [] if the digest is None."""
  if digest is None:
    return []
  payload = chain.payload(numbers) if numbers else None
  return [chain.Event(round_index, kind, bytes(digest), payload=payload)]


def _failure(t: int, attempts: list[chain.Attempt]) -> list[chain.Event]:
  """Returns a list with the failure of the open attempt; [] if none is open."""
  return [chain.Event(t, chain.FAILED)] if _is_open(attempts) else []


def _is_open(attempts: list[chain.Attempt]) -> bool:
  return bool(attempts) and attempts[-1].outcome == chain.STARTED
