"""The record of who took part in which round, durable before the round runs.

SQLite, write-ahead log:

  rounds(round, status, z_stddev)   'started' or 'finished'; the noise measured
  participations(round, client)     client index, one a row
  runs(place, run)                  one row: the run that the ledger belongs to

A round that was started counts, whether or not it finished.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import pathlib
import sqlite3
from typing import Optional, Union

import numpy as np

from tff_bandmf import errors
from tff_bandmf.program import cohorts

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
  round INTEGER PRIMARY KEY, status TEXT NOT NULL, z_stddev REAL);
CREATE TABLE IF NOT EXISTS runs (
  place INTEGER PRIMARY KEY CHECK (place = 0), run INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS participations (
  round INTEGER NOT NULL, client INTEGER NOT NULL,
  PRIMARY KEY (round, client)) WITHOUT ROWID;
"""


@dataclasses.dataclass(frozen=True)
class Observed:
  """What the ledger shows.

  Attributes:
    rounds: rounds started.
    finished: rounds finished.
    clients: different clients that took part.
    min_cohort: fewest clients in a round; 0 without rounds.
    max_cohort: most clients in a round; 0 without rounds.
    min_sep: least r2 - r1 of two rounds of one client; None if no client took
      part twice.
    max_participations: most rounds of one client; 0 without rounds.
    last_round: highest round; -1 without rounds.
    last_client: highest client index; -1 without rounds.
    z_stddev: least noise measured in a round; None if it was not recorded.
  """

  rounds: int
  finished: int
  clients: int
  min_cohort: int
  max_cohort: int
  min_sep: Optional[int]
  max_participations: int
  last_round: int
  last_client: int
  z_stddev: Optional[float]


def _integer(value: int) -> int:
  """Returns the integer as Python's own, the only kind that SQLite compares.

  It takes NumPy's for bytes, and every integer is less than any bytes.
  """
  return operator.index(value)


class Ledger:
  """The ledger of one run; use it in a `with` statement or `close` it."""

  def __init__(self, path: Union[str, os.PathLike], create: bool = True):
    """Opens the ledger.

    Args:
      path: of the SQLite file.
      create: whether to make a new one where there is none.

    Raises:
      ValueError: no file, and `create` is False; or the file is no ledger.
    """
    path = pathlib.Path(path)
    if not create and not (path.is_file() and path.stat().st_size):
      raise ValueError(
          errors.invalid(
              'ledger', path, 'does not exist or is empty',
              'without it nobody knows who took part, and nothing is claimed'))
    self._connection = sqlite3.connect(path, isolation_level=None)
    try:
      self._connection.execute('PRAGMA journal_mode = WAL')
      self._connection.execute('PRAGMA synchronous = FULL')
      self._connection.executescript(_SCHEMA)
    except sqlite3.DatabaseError as error:
      self._connection.close()
      raise ValueError(
          errors.invalid(
              'ledger', path, 'is no participation ledger',
              'do not touch the files of a run')) from error

  def __enter__(self) -> Ledger:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def close(self) -> None:
    """Closes the file."""
    self._connection.close()

  def bind(self, run: int) -> None:
    """Says, once, which run and noise key this ledger belongs to.

    Args:
      run: 63 bits; see `noise.Key.identify`.

    Raises:
      ValueError: the ledger belongs to another run or key.
    """
    self._connection.execute('INSERT OR IGNORE INTO runs VALUES (0, ?)', (run,))
    bound, = self._connection.execute('SELECT run FROM runs').fetchone()
    if bound != run:
      raise ValueError(
          errors.invalid(
              'ledger', 'that of another run or noise key',
              'a started round keeps its key and its run',
              'restore the files of this run, or start a new one'))

  def start_round(self, round_index: int, cohort: np.ndarray) -> None:
    """Records, durably, that a round starts with this cohort.

    Starting a round again with the cohort it had is a replay, and legal.

    Raises:
      ValueError: the round was started with another cohort.
    """
    round_index = _integer(round_index)
    # PRIVACY: one round's noise never meets two cohorts.
    # Guard: ledger_test.test_round_cannot_start_with_another_cohort.
    recorded = self.cohort(round_index)
    if recorded is not None:
      if not np.array_equal(recorded, np.sort(cohort)):
        raise ValueError(
            errors.invalid(
                'round', round_index,
                'was already started with another cohort',
                'its noise may not be used twice: resume with the data, seed '
                'and configuration of the first start'))
      return
    self._connection.execute('BEGIN IMMEDIATE')
    try:
      self._connection.execute(
          'INSERT INTO rounds VALUES (?, ?, NULL)', (round_index, 'started'))
      self._connection.executemany(
          'INSERT INTO participations VALUES (?, ?)',
          [(round_index, int(client)) for client in cohort])
      self._connection.execute('COMMIT')
    except BaseException:
      self._connection.execute('ROLLBACK')
      raise

  def finish_round(
      self, round_index: int, z_stddev: Optional[float] = None
  ) -> None:
    """Records that the result of a started round was taken over.

    Args:
      round_index: the round.
      z_stddev: what the aggregator measured, clip included, if it is known.
    """
    self._connection.execute(
        'UPDATE rounds SET status = ?, z_stddev = ? WHERE round = ?',
        ('finished', None if z_stddev is None else float(z_stddev),
         _integer(round_index)))

  def cohort(self, round_index: int) -> Optional[np.ndarray]:
    """Returns the cohort of a round, [m] int64 ascending; None if not started.
    """
    round_index = _integer(round_index)
    started = self._connection.execute(
        'SELECT 1 FROM rounds WHERE round = ?', (round_index,)).fetchone()
    if started is None:
      return None
    rows = self._connection.execute(
        'SELECT client FROM participations WHERE round = ? ORDER BY client',
        (round_index,)).fetchall()
    return np.array([client for client, in rows], np.int64)

  def history(self, clients: int, before: int) -> cohorts.History:
    """Returns who took part in the rounds below `before`.

    Raises:
      ValueError: the ledger holds clients beyond the population.
    """
    history = cohorts.History.empty(clients)
    rows = self._connection.execute(
        'SELECT client, MAX(round), COUNT(*) FROM participations '
        'WHERE round < ? GROUP BY client', (_integer(before),))
    for client, last_round, count in rows:
      if not 0 <= client < clients:
        raise ValueError(
            errors.invalid(
                'client', client, f'is not among the {clients} clients',
                'resume with the data that the run started with'))
      history.last_round[client] = last_round
      history.count[client] = count
    return history

  def observed(self) -> Observed:
    """Returns what really happened, from the rows alone."""
    def one(query):
      return self._connection.execute(query).fetchone()

    rounds, = one('SELECT COUNT(*) FROM rounds')
    finished, = one("SELECT COUNT(*) FROM rounds WHERE status = 'finished'")
    min_cohort, max_cohort = one(
        'SELECT MIN(size), MAX(size) FROM ('
        ' SELECT COUNT(client) AS size FROM rounds LEFT JOIN participations'
        ' USING (round) GROUP BY rounds.round)')
    clients, most = one(
        'SELECT COUNT(*), MAX(times) FROM (SELECT COUNT(*) AS times'
        ' FROM participations GROUP BY client)')
    min_sep, = one(
        'SELECT MIN(gap) FROM (SELECT round - LAG(round) OVER'
        ' (PARTITION BY client ORDER BY round) AS gap FROM participations)')
    last_round, z_stddev = one('SELECT MAX(round), MIN(z_stddev) FROM rounds')
    last_client, = one('SELECT MAX(client) FROM participations')
    return Observed(
        rounds=rounds, finished=finished, clients=clients,
        min_cohort=min_cohort or 0, max_cohort=max_cohort or 0,
        min_sep=min_sep, max_participations=most or 0,
        last_round=-1 if last_round is None else last_round,
        last_client=-1 if last_client is None else last_client,
        z_stddev=z_stddev)
