"""What a ledger says; see `ledger` for what it records."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional, TypeVar, Union

import numpy as np
import sqlalchemy as sa

from tff_bandmf import errors, sensitivity, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.cohorts import history as history_lib
from tff_bandmf.ledger import chain, database, identifiers, tables
from tff_bandmf.ledger import observed as observed_lib

_Self = TypeVar('_Self', bound='Reader')
_Found = TypeVar('_Found')


class Reader:
  """An open ledger and what can be asked of it; `Ledger` adds to it."""

  def __init__(
    self,
    url: Union[str, os.PathLike],
    create: bool = True,
    key_file: Optional[Union[str, os.PathLike]] = None,
  ):
    """Opens the ledger.

    Args:
      url: of SQLAlchemy, or the path of a SQLite file; a database, or the
        schema that it leads to, holds one ledger.
      create: whether to make a new one where there is none.
      key_file: of the key of the hashes, which is made when the first round
        starts. None takes private/ledger.key next to the SQLite file. What is
        counted can be read without it.

    Raises:
      ValueError: there is nothing, and `create` is False; or what is there is
        not a ledger, is of another version, or was changed.
    """
    address = database.url_of(url)
    path = database.sqlite_path(address)
    if path is not None:
      key_file = key_file or path.parent / 'private' / 'ledger.key'
      if not create and not (path.is_file() and path.stat().st_size):
        raise _missing(path)
    self._key_file = None if key_file is None else pathlib.Path(key_file)
    self._identifiers: Optional[identifiers.Identifiers] = None
    self._seen = history_lib.Seen()
    self._writer, self._reader = database.engines(address)
    try:
      self._open(path or address.render_as_string(hide_password=True), create)
    except BaseException:
      self.close()
      raise

  def _open(self, url: object, create: bool) -> None:
    """Makes the tables, or checks that they are there."""
    try:
      existing = set(sa.inspect(self._reader).get_table_names())
      missing = tables.TABLES - existing
      if 'bandmf_attempts' in existing:
        raise tables.other_format(1)
      # PRIVACY: a ledger of another kind is not taken for an empty one.
      # Guard: ledger_test.test_database_of_something_else_is_refused.
      if missing and (
        missing < tables.TABLES or existing and isinstance(url, pathlib.Path)
      ):
        raise _not_a_ledger(url)
      if missing and not create:
        raise _missing(url)
      for table in () if missing else tables.TABLES:
        # A column that is computed could hold more than the file.
        columns = sa.inspect(self._reader).get_columns(table)
        if any('computed' in column for column in columns):
          raise _not_a_ledger(url)
    except sa.exc.SQLAlchemyError as error:
      raise database.unusable(url, error) from error
    if missing:
      with database.transaction(self._writer) as connection:
        database.wait_to_create(connection)
        tables.create(connection)
    # PRIVACY: what was changed claims nothing and goes on with nothing.
    # Guard: chain_test.test_any_change_of_a_row_is_refused.
    self._read(tables.verify)

  def __enter__(self: _Self) -> _Self:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def close(self) -> None:
    """Closes the connections."""
    self._writer.dispose()

  def _read(self, find: Callable[..., _Found], *arguments: Any) -> _Found:
    """Returns what a function of `records` finds, in one transaction."""
    with database.transaction(self._reader) as connection:
      return find(connection, *arguments)

  @contextlib.contextmanager
  def _write(self) -> Iterator[sa.engine.Connection]:
    """Yields a connection; what it sees stays so until it has written."""
    with database.transaction(self._writer) as connection:
      tables.row(connection, lock=True)
      yield connection

  def bound(self) -> tuple[Optional[int], Optional[int]]:
    """Returns what `bind` said, run and noise key; None if it never did."""
    row = self._read(tables.row)
    return row.run, row.noise_key

  def head(self) -> str:
    """Returns the head of the chain now, in hexadecimal; see `chain`.

    That after the last event of a round, its row included, is in `attempts`.
    """
    return self._read(tables.row).head.hex()

  def has_head(self, head: str) -> bool:
    """Returns whether the chain has, or began with, this head."""
    return self._read(tables.has_head, bytes.fromhex(head))

  def last_round(self) -> int:
    """Returns the highest round that was started; -1 without one."""
    return self._read(tables.last_round)

  def cohort_size(self, round_index: int) -> int:
    """Returns how many clients a round was started with; 0 if it was not."""
    return self._read(tables.cohort_size, operator.index(round_index))

  def next_round(self) -> int:
    """Returns where a run goes on: the last started round, or the one after it.

    A round that was started and has not ended, or whose attempts failed, is to
    be replayed or abandoned.
    """
    with database.transaction(self._reader) as connection:
      last = tables.last_round(connection)
      attempts = tables.attempts(connection, last)
    ended = any(
      attempt.outcome in (chain.FINISHED, chain.ABANDONED)
      for attempt in attempts
    )
    return last + 1 if ended or last < 0 else last

  def attempts(self, round_index: int) -> list[chain.Attempt]:
    """Returns the attempts at a round, in order; none if it was not started."""
    return self._read(tables.attempts, operator.index(round_index))

  def all_attempts(self) -> dict[int, list[chain.Attempt]]:
    """Returns the attempts at every started round, rounds ascending.

    Raises:
      ValueError: the ledger was changed or is damaged.
    """
    return self._read(tables.verify)[1]

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
    recorded = self._read(tables.cohort, operator.index(round_index))
    if recorded is None:
      return None
    if population is None:
      population = range(self._read(tables.last_client) + 1)
    if isinstance(population, range):
      found = np.sort(self._hash().indices(recorded))
      there = all(client in population for client in found.tolist())
    else:
      hashes = self._hash().of(population)
      there = bool(np.isin(recorded, hashes).all())
      found = np.unique(np.asarray(population)[np.isin(hashes, recorded)])
    if not there:
      raise errors.value_error(
        'round',
        round_index,
        'has clients that are not among those looked at',
        'give the population that the run started with',
      )
    return found

  def history(
    self,
    clients: int,
    before: int,
    participation: Optional[participation_lib.Participation] = None,
  ) -> Union[history_lib.History, history_lib.Patterns]:
    """Returns who of a population took part in the rounds below `before`.

    Args:
      clients: size of the population; clients are their indices.
      before: a round.
      participation: schema whose rule the history is for; None for all but a
        budget.

    Raises:
      ValueError: the ledger holds clients beyond the population, or strings.
    """
    highest = self._read(tables.last_client)
    if highest >= clients:
      raise errors.value_error(
        'client',
        highest,
        f'is not among the {clients} clients',
        'resume with the data that the run started with',
      )
    hashed = self._hash()
    history = history_lib.empty(clients, participation)
    for round_index, cohort in self._cohorts(operator.index(before)):
      found = hashed.indices(cohort)
      # PRIVACY: whoever is not in the history may take part too early. Guard:
      # ledger_test.test_clients_can_be_strings.
      if len(found) and not (0 <= found.min() and found.max() < clients):
        raise errors.value_error(
          'round',
          round_index,
          f'has clients that are not among the {clients} indices',
          'resume with the data that the run started with',
        )
      history.record(round_index, found)
    return history

  def past(
    self,
    clients: Union[Sequence[identifiers.Client], np.ndarray],
    before: int,
    whole: bool = False,
  ) -> history_lib.History:
    """Returns the rounds of some clients below `before`, in their order.

    Looks at the rounds that were started since the last call, and at these
    clients: a round of a million takes no longer for the millions before it.

    Args:
      clients: indices or strings.
      before: a round.
      whole: whether all rounds of the clients are asked for, as for a budget.
    """
    if whole and not self._seen.whole:
      self._seen = history_lib.Seen(whole=True)
    return self._seen_before(before).of(self._hash().of(clients))

  def patterns(
    self,
    population: Union[Sequence[identifiers.Client], np.ndarray],
    before: int,
  ) -> history_lib.Patterns:
    """Returns all rounds of a population below `before`, in its order.

    Args:
      population: indices or strings, different ones.
      before: a round.
    """
    hashes = self._hash().of(population)
    order = np.argsort(hashes)
    patterns = history_lib.Patterns(len(hashes))
    for round_index, cohort in self._cohorts(operator.index(before)):
      place = np.searchsorted(hashes, cohort, sorter=order)
      place = order[np.minimum(place, len(order) - 1)]
      patterns.record(round_index, place[hashes[place] == cohort])
    return patterns

  def clients(self, before: int) -> int:
    """Returns how many different clients took part in rounds below `before`."""
    return self._seen_before(before).clients()

  def _seen_before(self, before: int) -> history_lib.Seen:
    before = operator.index(before)
    # PRIVACY: a round that is left out lets its clients in too early. Guard:
    # admission_test.test_past_is_that_of_every_round_before.
    if self._seen.next > before:
      self._seen = history_lib.Seen(self._seen.whole)
    self._seen.record(self._cohorts(before, self._seen.next))
    return self._seen

  def observed(
    self,
    strategy: Optional[strategies.Strategy] = None,
    costs: Optional[participation_lib.Costs] = None,
  ) -> observed_lib.Observed:
    """Returns what really happened, from the rows alone.

    Args:
      strategy: C; its sensitivity for the clients' own rounds is then found.
      costs: of a budget, for this C.

    Raises:
      ValueError: the ledger was changed or is damaged, or has a round past the
        last one of C.
    """
    with database.transaction(self._reader) as connection:
      sizes, attempts = tables.verify(connection)
      found = sensitivity.observed(
        lambda: tables.cohorts(connection),
        sum(sizes.values()),
        strategy,
        costs=costs,
      )
      last_client = tables.last_client(connection)
      head = tables.row(connection).head.hex()
    return dataclasses.replace(
      observed_lib.observed(sizes, attempts, found, last_client), head=head
    )

  def _hash(self) -> identifiers.Identifiers:
    """Returns the hash function of this ledger, and makes it at first."""
    if self._identifiers is None:
      if self._key_file is None:
        raise errors.value_error(
          'key_file',
          None,
          'a ledger in a database server needs it',
          'give a file next to the other secrets of the run',
        )
      recorded = self._read(tables.row).key
      # PRIVACY: with another key every client looks new. Guards:
      # ledger_test.test_ledger_without_its_key_lets_nobody_in and
      # test_ledger_with_another_key_lets_nobody_in.
      if recorded is None:
        found = identifiers.Identifiers.load_or_create(self._key_file)
      else:
        found = identifiers.Identifiers.load(self._key_file)
      mine = found.fingerprint()
      with self._write() as connection:
        recorded = tables.claim(connection, key=mine).key
      if recorded != mine:
        raise errors.value_error(
          'ledger key',
          self._key_file,
          'is not that of this ledger',
          'restore the file that it was started with',
        )
      self._identifiers = found
    return self._identifiers

  def _cohorts(
    self, before: int, start: int = 0
  ) -> Iterator[tuple[int, np.ndarray]]:
    with database.transaction(self._reader) as connection:
      yield from tables.cohorts(connection, before, start)


def _missing(url: object) -> ValueError:
  return errors.value_error(
    'ledger',
    url,
    'does not exist or is empty',
    'without it nobody knows who took part, and nothing is claimed',
  )


def _not_a_ledger(url: object) -> ValueError:
  return errors.value_error(
    'ledger',
    url,
    'is not a participation ledger, or cannot be opened',
    'do not touch the files of a run; check the address of a server',
  )


def not_started(round_index: int) -> ValueError:
  return errors.value_error(
    'round', round_index, 'has no attempt that could end', 'start it first'
  )
