"""The record of who took part in which round, durable before the round runs.

A round that was started counts, whatever became of it. An attempt at it is
'started', then 'finished', 'failed' (the round may be replayed) or 'abandoned'
(it may not: the round is burnt). Clients are in it as keyed hashes.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Optional, Union

import numpy as np
import sqlalchemy as sa

from tff_bandmf import errors
from tff_bandmf import participation as participation_lib
from tff_bandmf.program import admission, database, identifiers, records
from tff_bandmf.program import history as history_lib
from tff_bandmf.program import observed as observed_lib


@dataclasses.dataclass(frozen=True)
class Attempt:
  """One attempt at a round.

  Attributes:
    outcome: 'started', 'finished', 'failed' or 'abandoned'.
    z_stddev: noise measured, clip included; None if it was not recorded.
    result: digest of what was released; None if it was not recorded.
  """

  outcome: str
  z_stddev: Optional[float]
  result: Optional[bytes] = None


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
      ValueError: no ledger, and `create` is False; or what is there is none.
    """
    url = database.url_of(place)
    path = database.sqlite_path(url)
    if path is not None:
      key_file = key_file or path.parent / 'private' / 'ledger.key'
      if not create and not (path.is_file() and path.stat().st_size):
        raise _missing(path)
    self._key_file = None if key_file is None else pathlib.Path(key_file)
    self._identifiers: Optional[identifiers.Identifiers] = None
    self._population: Optional[tuple[range, np.ndarray]] = None
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
      # PRIVACY: a ledger of another kind is not taken for an empty one.
      # Guard: ledger_test.test_database_of_something_else_is_refused.
      if missing and tables and isinstance(place, pathlib.Path):
        raise _no_ledger(place)
      if missing and not create:
        raise _missing(place)
      for table in () if missing else records.TABLES:
        # A column that is computed could hold more than the file.
        columns = sa.inspect(self._reader).get_columns(table)
        if any('computed' in column for column in columns):
          raise _no_ledger(place)
      if missing:
        with database.transaction(self._writer) as connection:
          records.create(connection)
    except sa.exc.SQLAlchemyError as error:
      raise _no_ledger(place) from error

  def __enter__(self) -> Ledger:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def close(self) -> None:
    """Closes the connections."""
    self._writer.dispose()

  def bind(self, run: int) -> None:
    """Says, once, which run and noise key this ledger belongs to.

    Args:
      run: 63 bits; see `noise.Key.identify`.

    Raises:
      ValueError: the ledger belongs to another run or key.
    """
    if self._claim(records.RUN, run) != run:
      raise ValueError(
          errors.invalid(
              'ledger', 'that of another run or noise key',
              'a started round keeps its key and its run',
              'restore the files of this run, or start a new one'))

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
      round_index: the round.
      cohort: clients, all that were selected, those that drop out later too.

    Raises:
      ValueError: the round was started with another cohort or is abandoned, a
        client is there twice, or the key of the ledger is not there.
    """
    round_index = operator.index(round_index)
    found = np.sort(self._hash().of(cohort))
    if np.any(found[1:] == found[:-1]):
      raise ValueError(
          errors.invalid(
              'cohort', f'{len(found)} clients',
              f'has a client twice in round {round_index}',
              'a client takes part once in a round'))
    highest = max(
        (int(client) for client in cohort if not isinstance(client, str)),
        default=-1)
    try:
      with database.transaction(self._writer) as connection:
        records.add_round(connection, round_index, found, highest)
        records.add_attempt(connection, round_index, records.STARTED)
    except database.Conflict:
      self._start_again(round_index, found)

  def _start_again(self, round_index: int, cohort: np.ndarray) -> None:
    with database.transaction(self._writer) as connection:
      # PRIVACY: one round's noise never meets two cohorts.
      # Guard: ledger_test.test_round_cannot_start_with_another_cohort.
      recorded = records.cohort(connection, round_index)
      if recorded is None or not np.array_equal(recorded, cohort):
        raise ValueError(
            errors.invalid(
                'round', round_index,
                'was already started with another cohort',
                'its noise may not be used twice: resume with the data, seed '
                'and configuration of the first start'))
      # PRIVACY: nor does it meet two sums of one cohort.
      # Guard: ledger_test.test_abandoned_round_cannot_start_again.
      if any(outcome == records.ABANDONED for outcome, *_ in records.attempts(
          connection, round_index)):
        raise ValueError(
            errors.invalid(
                'round', round_index, 'was abandoned',
                'go on with the next round'))
      records.add_attempt(connection, round_index, records.STARTED)

  def finish_round(
      self,
      round_index: int,
      z_stddev: Optional[float] = None,
      result: Optional[bytes] = None,
  ) -> None:
    """Records that the result of a started round was taken over.

    Args:
      round_index: the round.
      z_stddev: what the aggregator measured, clip included, if it is known.
      result: digest of what is about to be released. A replay can then be held
        against it: with another result it is not to be released.

    Raises:
      ValueError: there is no attempt that was started and has no outcome yet.
    """
    self._end(
        round_index, records.FINISHED,
        None if z_stddev is None else float(z_stddev), result)

  def fail_round(self, round_index: int) -> None:
    """Records that an attempt failed; the round can be started again.

    Raises:
      ValueError: there is no attempt that was started and has no outcome yet.
    """
    self._end(round_index, records.FAILED)

  def abandon_round(self, round_index: int) -> None:
    """Records that a started round is burnt: it is never started again.

    Its cohort took part; to the mechanism it contributed nothing.

    Raises:
      ValueError: the round was never started.
    """
    round_index = operator.index(round_index)
    with database.transaction(self._writer) as connection:
      if not records.add_attempt(connection, round_index, records.ABANDONED):
        raise _not_started(round_index)

  def _end(
      self,
      round_index: int,
      outcome: str,
      z_stddev: Optional[float] = None,
      result: Optional[bytes] = None,
  ) -> None:
    round_index = operator.index(round_index)
    with database.transaction(self._writer) as connection:
      if not records.end_attempt(
          connection, round_index, outcome, z_stddev, result):
        raise _not_started(round_index)

  def attempts(self, round_index: int) -> list[Attempt]:
    """Returns the attempts at a round, in order; none if it was not started."""
    with database.transaction(self._reader) as connection:
      return [
          Attempt(*row) for row in
          records.attempts(connection, operator.index(round_index))]

  def cohort(
      self,
      round_index: int,
      population: Optional[Sequence[identifiers.Client]] = None,
  ) -> Optional[np.ndarray]:
    """Returns the cohort of a round, [m], in order; None if it was not started.

    Args:
      round_index: the round.
      population: among whom to look; None takes the indices up to the highest
        one of the ledger, as int64.

    Raises:
      ValueError: a client of the cohort is not among them.
    """
    with database.transaction(self._reader) as connection:
      recorded = records.cohort(connection, operator.index(round_index))
    if recorded is None:
      return None
    if population is None:
      population = range(self._last_client() + 1)
    hashes = self._hashes(population)
    if not np.isin(recorded, hashes).all():
      raise ValueError(
          errors.invalid(
              'round', round_index,
              'has clients that are not among those looked at',
              'give the population that the run started with'))
    return np.unique(np.asarray(population)[np.isin(hashes, recorded)])

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
              'client', highest, f'is not among the {clients} clients',
              'resume with the data that the run started with'))
    return self._past(range(clients), before, complete=True)

  def past(
      self, clients: Sequence[identifiers.Client], before: int
  ) -> history_lib.History:
    """Returns the rounds of some clients below `before`, in their order.

    Goes through all cohorts: for a population, keep its `History` in memory and
    `record` in it what is recorded here.
    """
    return self._past(clients, before, complete=False)

  def _past(self, clients, before: int, complete: bool) -> history_lib.History:
    hashes = self._hashes(clients)
    order = np.argsort(hashes)
    known = hashes[order]
    history = history_lib.History.empty(len(known))
    for round_index, cohort in self._cohorts(operator.index(before)):
      there = identifiers.places(known, cohort)
      if complete and len(there) < len(cohort):
        raise ValueError(
            errors.invalid(
                'round', round_index,
                f'has clients that are not among the {len(clients)} indices',
                'resume with the data that the run started with'))
      history.record(round_index, order[there])
    return history

  def rounds_of(self, client: identifiers.Client) -> np.ndarray:
    """Returns the rounds that a client took part in, [m] int64 ascending."""
    identifier = self._hash().of([client])
    return np.array(
        [round_index for round_index, cohort in self._cohorts()
         if len(identifiers.places(cohort, identifier))], np.int64)

  def last_round(self, client: identifiers.Client) -> Optional[int]:
    """Returns the last round of a client, or None if it never took part."""
    rounds = self.rounds_of(client)
    return int(rounds[-1]) if len(rounds) else None

  def eligible(
      self,
      clients: Sequence[identifiers.Client],
      round_index: int,
      participation: participation_lib.Participation,
      rounds: int,
  ) -> np.ndarray:
    """Returns which of some clients may take part in a round, [m] bool.

    Args:
      clients: [m] indices or strings; of one that is there twice the second is
        not eligible.
      round_index: the round, above all that were started.
      participation: the schema to enforce.
      rounds: n.
    """
    return admission.admit(
        np.asarray(clients), round_index, participation, rounds,
        self.past(clients, round_index)).admitted

  def observed(self) -> observed_lib.Observed:
    """Returns what really happened, from the rows alone."""
    with database.transaction(self._reader) as connection:
      sizes = {
          round_index: len(cohort)
          for round_index, cohort in records.cohorts(connection)}
      found = observed_lib.patterns(
          lambda: records.cohorts(connection), sum(sizes.values()))
      finished, z_stddev = records.finished(connection)
      burnt = records.burnt(connection)
      last_client = records.last_client(connection)
    return observed_lib.Observed(
        rounds=len(sizes), finished=finished, burnt=burnt,
        clients=found.clients,
        min_cohort=min(sizes.values(), default=0),
        max_cohort=max(sizes.values(), default=0),
        min_sep=found.min_sep, max_participations=found.max_participations,
        last_round=max(sizes, default=-1), last_client=last_client,
        z_stddev=z_stddev)

  def _hash(self) -> identifiers.Identifiers:
    """Returns the hash function of this ledger, and makes it at first."""
    if self._identifiers is None:
      if self._key_file is None:
        raise ValueError(
            errors.invalid(
                'key_file', None, 'a ledger in a database server needs it',
                'give a file next to the other secrets of the run'))
      with database.transaction(self._reader) as connection:
        recorded = records.get(connection, records.KEY)
      # PRIVACY: with another key every client looks new. Guards:
      # ledger_test.test_ledger_without_its_key_lets_nobody_in and
      # test_ledger_with_another_key_lets_nobody_in.
      if recorded is None:
        found = identifiers.Identifiers.load_or_create(self._key_file)
      else:
        found = identifiers.Identifiers.load(self._key_file)
      mine = found.fingerprint()
      if self._claim(records.KEY, mine) != mine:
        raise ValueError(
            errors.invalid(
                'ledger key', self._key_file, 'is not that of this ledger',
                'restore the file that it was started with'))
      self._identifiers = found
    return self._identifiers

  def _hashes(self, clients: Sequence[identifiers.Client]) -> np.ndarray:
    """Returns the identifiers of clients; those of a population are kept."""
    if not isinstance(clients, range):
      return self._hash().of(clients)
    if self._population is None or self._population[0] != clients:
      self._population = clients, self._hash().of(clients)
    return self._population[1]

  def _claim(self, column: sa.Column, value: int) -> int:
    """Sets a column of the ledger's row if it has no value; returns it."""
    with database.transaction(self._writer) as connection:
      return records.claim(connection, column, value)

  def _last_client(self) -> int:
    with database.transaction(self._reader) as connection:
      return records.last_client(connection)

  def _cohorts(
      self, before: Optional[int] = None
  ) -> Iterator[tuple[int, np.ndarray]]:
    with database.transaction(self._reader) as connection:
      yield from records.cohorts(connection, before)


def _missing(place: object) -> ValueError:
  return ValueError(
      errors.invalid(
          'ledger', place, 'does not exist or is empty',
          'without it nobody knows who took part, and nothing is claimed'))


def _no_ledger(place: object) -> ValueError:
  return ValueError(
      errors.invalid(
          'ledger', place, 'is no participation ledger, or cannot be opened',
          'do not touch the files of a run; check the address of a server'))


def _not_started(round_index: int) -> ValueError:
  return ValueError(
      errors.invalid(
          'round', round_index, 'has no attempt that could end',
          'start it first'))
