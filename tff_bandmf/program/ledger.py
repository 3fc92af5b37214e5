"""The record of who took part in which round, durable before the round runs.

In any database of SQLAlchemy; SQLite, with a write-ahead log, by default:

  bandmf_ledger    one row: the run and the key that the ledger belongs to, and
                   the highest client index
  bandmf_rounds    round, cohort: its identifiers, keyed hashes of the clients,
                   ascending, 8 bytes each, little-endian
  bandmf_attempts  round, attempt, outcome, the noise measured

A cohort is one value, so that it is there whole or not at all, and that a round
of thousands of clients costs one write. A round that was started counts,
whatever became of it. An attempt is 'started', then 'finished', 'failed' (the
round may be replayed) or 'abandoned' (it may not: the round is burnt).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Optional, Union

import numpy as np
import sqlalchemy as sa

from tff_bandmf import errors
from tff_bandmf import participation as participation_lib
from tff_bandmf.program import admission, identifiers
from tff_bandmf.program import history as history_lib
from tff_bandmf.program import observed as observed_lib

STARTED = 'started'
FINISHED = 'finished'
FAILED = 'failed'
ABANDONED = 'abandoned'

_LOCK_SECONDS = 60
_COHORTS_AT_A_TIME = 16

_METADATA = sa.MetaData()
_LEDGER = sa.Table(
    'bandmf_ledger', _METADATA,
    sa.Column('place', sa.Integer, primary_key=True, autoincrement=False),
    sa.Column('run', sa.BigInteger),
    sa.Column('key', sa.BigInteger),
    sa.Column('last_client', sa.BigInteger, nullable=False))
_ROUNDS = sa.Table(
    'bandmf_rounds', _METADATA,
    sa.Column('round', sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column('cohort', sa.LargeBinary, nullable=False))
_ATTEMPTS = sa.Table(
    'bandmf_attempts', _METADATA,
    sa.Column('round', sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column('attempt', sa.Integer, primary_key=True, autoincrement=False),
    sa.Column('outcome', sa.String(16), nullable=False),
    sa.Column('z_stddev', sa.Float(53)))


@dataclasses.dataclass(frozen=True)
class Attempt:
  """One attempt at a round.

  Attributes:
    outcome: 'started', 'finished', 'failed' or 'abandoned'.
    z_stddev: noise measured, clip included; None if it was not recorded.
  """

  outcome: str
  z_stddev: Optional[float]


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
    url = _url(place)
    path = None
    if url.get_backend_name() == 'sqlite':
      path = _sqlite_path(url)
      key_file = key_file or path.parent / 'private' / 'ledger.key'
      if not create and not (path.is_file() and path.stat().st_size):
        raise _missing(path)
    self._key_file = None if key_file is None else pathlib.Path(key_file)
    self._identifiers = None
    self._engine = _engine(url)
    try:
      self._open(url if path is None else path, create)
    except BaseException:
      self.close()
      raise

  def _open(self, place: object, create: bool) -> None:
    """Makes the tables, or checks that they are there."""
    try:
      tables = set(sa.inspect(self._engine).get_table_names())
      if not tables.issuperset(_METADATA.tables):
        # PRIVACY: a ledger of another kind is not taken for an empty one.
        # Guard: ledger_test.test_database_of_something_else_is_refused.
        if tables and self._engine.dialect.name == 'sqlite' and not (
            tables & set(_METADATA.tables)):
          raise _no_ledger(place)
        if not create:
          raise _missing(place)
        self._create()
    except sa.exc.DatabaseError as error:
      raise _no_ledger(place) from error

  def _create(self) -> None:
    with self._engine.begin() as connection:
      for table in _METADATA.sorted_tables:
        connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
      if connection.execute(sa.select(_LEDGER.c.place)).first() is None:
        connection.execute(
            sa.insert(_LEDGER).values(place=0, last_client=-1))

  def __enter__(self) -> Ledger:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def close(self) -> None:
    """Closes the connections."""
    self._engine.dispose()

  def bind(self, run: int) -> None:
    """Says, once, which run and noise key this ledger belongs to.

    Args:
      run: 63 bits; see `noise.Key.identify`.

    Raises:
      ValueError: the ledger belongs to another run or key.
    """
    if self._claim(_LEDGER.c.run, run) != run:
      raise ValueError(
          errors.invalid(
              'ledger', 'that of another run or noise key',
              'a started round keeps its key and its run',
              'restore the files of this run, or start a new one'))

  def start_round(
      self, round_index: int, cohort: Sequence[identifiers.Client]
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
    content = found.astype('<i8').tobytes()
    try:
      with self._engine.begin() as connection:
        connection.execute(
            sa.insert(_ROUNDS).values(round=round_index, cohort=content))
        _add_attempt(connection, round_index, STARTED)
        connection.execute(
            sa.update(_LEDGER).where(_LEDGER.c.last_client < highest).values(
                last_client=highest))
    except sa.exc.IntegrityError:
      self._start_again(round_index, content)

  def _start_again(self, round_index: int, content: bytes) -> None:
    with self._engine.begin() as connection:
      _add_attempt(connection, round_index, STARTED)
      recorded = connection.execute(
          sa.select(_ROUNDS.c.cohort).where(_ROUNDS.c.round == round_index)
      ).scalar_one()
      # PRIVACY: one round's noise never meets two cohorts.
      # Guard: ledger_test.test_round_cannot_start_with_another_cohort.
      if bytes(recorded) != content:
        raise ValueError(
            errors.invalid(
                'round', round_index,
                'was already started with another cohort',
                'its noise may not be used twice: resume with the data, seed '
                'and configuration of the first start'))
      if connection.execute(
          sa.select(_ATTEMPTS.c.attempt).where(
              _ATTEMPTS.c.round == round_index,
              _ATTEMPTS.c.outcome == ABANDONED)).first() is not None:
        raise ValueError(
            errors.invalid(
                'round', round_index, 'was abandoned',
                'go on with the next round'))

  def finish_round(
      self, round_index: int, z_stddev: Optional[float] = None
  ) -> None:
    """Records that the result of a started round was taken over.

    Args:
      round_index: the round.
      z_stddev: what the aggregator measured, clip included, if it is known.

    Raises:
      ValueError: there is no attempt that was started and has no outcome yet.
    """
    self._end(
        round_index, FINISHED, None if z_stddev is None else float(z_stddev))

  def fail_round(self, round_index: int) -> None:
    """Records that an attempt failed; the round can be started again.

    Raises:
      ValueError: there is no attempt that was started and has no outcome yet.
    """
    self._end(round_index, FAILED, None)

  def abandon_round(self, round_index: int) -> None:
    """Records that a started round is burnt: it is never started again.

    Its cohort took part; to the mechanism it contributed nothing.

    Raises:
      ValueError: the round was never started.
    """
    round_index = operator.index(round_index)
    with self._engine.begin() as connection:
      if not _add_attempt(connection, round_index, ABANDONED, first=False):
        raise _not_started(round_index)

  def _end(
      self, round_index: int, outcome: str, z_stddev: Optional[float]
  ) -> None:
    round_index = operator.index(round_index)
    with self._engine.begin() as connection:
      changed = connection.execute(
          sa.update(_ATTEMPTS).where(
              _ATTEMPTS.c.round == round_index, _ATTEMPTS.c.outcome == STARTED
          ).values(outcome=outcome, z_stddev=z_stddev))
      if not changed.rowcount:
        raise _not_started(round_index)

  def attempts(self, round_index: int) -> list[Attempt]:
    """Returns the attempts at a round, in order; none if it was not started."""
    with self._engine.connect() as connection:
      return [
          Attempt(outcome, z_stddev) for outcome, z_stddev in
          connection.execute(
              sa.select(_ATTEMPTS.c.outcome, _ATTEMPTS.c.z_stddev).where(
                  _ATTEMPTS.c.round == operator.index(round_index)
              ).order_by(_ATTEMPTS.c.attempt))]

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
    with self._engine.connect() as connection:
      content = connection.execute(
          sa.select(_ROUNDS.c.cohort).where(
              _ROUNDS.c.round == operator.index(round_index))).scalar()
    if content is None:
      return None
    recorded = np.frombuffer(content, '<i8')
    if population is None:
      population = range(self._last_client() + 1)
    found = np.flatnonzero(np.isin(self._hashes(population), recorded))
    if len(found) < len(recorded):
      raise ValueError(
          errors.invalid(
              'round', round_index,
              'has clients that are not among those looked at',
              'give the population that the run started with'))
    return np.sort(np.asarray(population)[found])

  def history(self, clients: int, before: int) -> history_lib.History:
    """Returns who of a population took part in the rounds below `before`.

    Args:
      clients: size of the population; clients are their indices.
      before: a round.

    Raises:
      ValueError: the ledger holds clients beyond the population.
    """
    highest = self._last_client()
    if highest >= clients:
      raise ValueError(
          errors.invalid(
              'client', highest, f'is not among the {clients} clients',
              'resume with the data that the run started with'))
    return self.past(range(clients), before)

  def past(
      self, clients: Sequence[identifiers.Client], before: int
  ) -> history_lib.History:
    """Returns the rounds of some clients below `before`, in their order.

    Goes through all cohorts: keep the `History` of a population in memory, and
    `record` in it what is recorded here.
    """
    known, place = np.unique(self._hashes(clients), return_inverse=True)
    found = history_lib.History.empty(len(known))
    for round_index, cohort in self._cohorts(operator.index(before)):
      found.record(round_index, np.flatnonzero(np.isin(
          known, cohort, assume_unique=True)) if len(known) <= len(
              cohort) else _places(known, cohort))
    return found.of(place)

  def rounds_of(self, client: identifiers.Client) -> np.ndarray:
    """Returns the rounds that a client took part in, [m] int64 ascending."""
    identifier, = self._hash().of([client])
    return np.array(
        [round_index for round_index, cohort in self._cohorts()
         if len(_places(cohort, np.array([identifier])))], np.int64)

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
    """Returns which of some different clients may take part, [m] bool.

    Args:
      clients: indices or strings.
      round_index: the round.
      participation: the schema to enforce.
      rounds: n.
    """
    return admission.admit(
        clients, round_index, participation, rounds,
        self.past(clients, round_index)).admitted

  def observed(self) -> observed_lib.Observed:
    """Returns what really happened, from the rows alone."""
