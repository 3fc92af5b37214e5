"""Forged ledgers: changed content with a new, consistent hash chain."""

import contextlib
import dataclasses
import sqlite3

import numpy as np

from tff_bandmf.ledger import chain


def rewrite(path, change=lambda event: event, cohorts=None):
  """Changes events and cohorts of a ledger, and computes its chain again.

  Args:
    path: path of the ledger's SQLite file, which no ledger has open.
    change: function from an event to the event in its place; None removes the
      event.
    cohorts: function from a round and its cohort, [m] int64 identifiers, to the
      cohort in its place; None removes the cohort and all events of the round.
  """
  with contextlib.closing(sqlite3.connect(path)) as connection, connection:
    digests = {}
    for t, highest, content in connection.execute(
      'SELECT round, highest, cohort FROM bandmf_rounds'
    ).fetchall():
      cohort = np.frombuffer(content, '<i8')
      if cohorts is not None:
        cohort = cohorts(t, cohort)
      if cohort is None:
        connection.execute('DELETE FROM bandmf_rounds WHERE round = ?', [t])
        continue
      connection.execute(
        'UPDATE bandmf_rounds SET cohort = ? WHERE round = ?',
        [cohort.astype('<i8').tobytes(), t],
      )
      digests[t] = chain.cohort_digest(cohort, highest)
    run, noise_key, key = connection.execute(
      'SELECT run, noise_key, key FROM bandmf_ledger'
    ).fetchone()
    events = connection.execute(
      'SELECT round, kind, digest, z_stddev, noise_checked, payload '
      'FROM bandmf_events ORDER BY place'
    ).fetchall()
    connection.execute('DELETE FROM bandmf_events')
    head, place = chain.genesis(run, noise_key, key), 0
    for *fields, checked, payload in events:
      event = change(chain.Event(*fields, bool(checked), payload))
      if event is None or event.round not in digests:
        continue
      if event.kind == chain.STARTED:
        event = dataclasses.replace(event, digest=digests[event.round])
      head = chain.link(head, place, event)
      connection.execute(
        'INSERT INTO bandmf_events (place, round, kind, digest, z_stddev, '
        'noise_checked, payload, head) VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
        [
          place,
          event.round,
          event.kind,
          event.digest,
          event.z_stddev,
          int(event.noise_checked),
          event.payload,
          head,
        ],
      )
      place += 1
    connection.execute(
      'UPDATE bandmf_ledger SET events = ?, head = ?', [place, head]
    )
