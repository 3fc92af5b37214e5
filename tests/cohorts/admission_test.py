"""Tests of the rule that lets a client into a round."""

import itertools
from unittest import mock

import numpy as np
import pytest

from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity, strategies
from tff_bandmf.cohorts import history as history_lib
from tff_bandmf.ledger import tables

_SCHEMAS = [
  participation_lib.Single(),
  *(participation_lib.MinSep(b, k) for b in (1, 2, 3, 9) for k in (None, 1, 2)),
  *(
    participation_lib.FixedEpoch(b, k)
    for b in (1, 2, 3, 9)
    for k in (None, 1, 2)
  ),
]


def _legal(schema, rounds, pattern):
  """Returns whether a client may take part in these rounds, all at once."""
  if len(pattern) > schema.participations(rounds):
    return False
  gaps = [b - a for a, b in zip(pattern, pattern[1:])]
  if isinstance(schema, participation_lib.FixedEpoch):
    epochs = len(range(0, rounds, schema.min_sep))
    if schema.participations(rounds) < epochs:
      return all(gap == schema.min_sep for gap in gaps)
    return all(gap % schema.min_sep == 0 for gap in gaps)
  return all(gap >= (schema.min_sep or 1) for gap in gaps)


def _patterns(rounds):
  return itertools.chain.from_iterable(
    itertools.combinations(range(rounds), size) for size in range(1, rounds + 1)
  )


def _admitted(schema, rounds, pattern):
  """Returns whether the rule lets one client into these rounds, in turn."""
  history = cohorts_lib.History.empty(1)
  client = np.array([0])
  for t in pattern:
    admission = cohorts_lib.admit(client, t, schema, rounds, history)
    assert admission.admitted[0] == (
      not admission.too_soon + admission.too_often
    )
    if not admission.admitted[0]:
      return False
    history.record(t, client)
  return True


@pytest.mark.parametrize('schema', _SCHEMAS, ids=str)
def test_rule_is_the_schema(schema):
  for pattern in _patterns(7):
    assert _admitted(schema, 7, pattern) == _legal(schema, 7, pattern)


@pytest.mark.parametrize('schema', _SCHEMAS, ids=str)
def test_patterns_let_in_never_exceed_the_sensitivity(schema):
  rng = np.random.default_rng(0)
  for _ in range(3):
    # Columns of very different weight: no pattern is the worst by habit.
    matrix = np.tril(rng.exponential(size=(6, 6)) ** 3) + np.eye(6)
    bound = sensitivity.sensitivity(strategies.Dense(matrix), schema).value
    worst = max(
      np.linalg.norm(matrix[:, list(pattern)].sum(1))
      for pattern in _patterns(6)
      if _admitted(schema, 6, pattern)
    )
    assert worst <= bound * (1 + 1e-12)


def test_violators_are_counted_by_reason():
  history = cohorts_lib.History.empty(6)
  for t, cohort in enumerate([[0, 1], [2], [0, 3], [4]]):
    history.record(t, np.array(cohort))
  schema = participation_lib.MinSep(2, max_participations=2)
  cohort = np.array([5, 0, 4, 1, 3, 2])
  admission = cohorts_lib.admit(
    cohort, 4, schema, 9, history.for_clients(cohort)
  )
  assert cohort[admission.admitted].tolist() == [5, 1, 3, 2]
  assert (admission.too_soon, admission.too_often) == (1, 1)
  # Both at once: told as too soon.
  admission = cohorts_lib.admit(
    cohort, 3, schema, 9, history.for_clients(cohort)
  )
  assert (admission.too_soon, admission.too_often) == (3, 0)


@pytest.mark.parametrize('cohort', [[3, 1, 3], ['c', 'a', 'c']])
def test_client_that_is_there_twice_is_admitted_once(cohort):
  admission = cohorts_lib.admit(
    cohort, 0, participation_lib.MinSep(1), 9, cohorts_lib.History.empty(3)
  )
  assert admission.admitted.tolist() == [True, True, False]
  assert (admission.too_soon, admission.too_often) == (1, 0)


def test_empty_cohort_is_admitted():
  admission = cohorts_lib.admit(
    np.empty(0, np.int64),
    0,
    participation_lib.MinSep(1),
    9,
    cohorts_lib.History.empty(0),
  )
  assert admission.admitted.tolist() == []


def test_history_of_others_is_refused():
  with pytest.raises(ValueError, match='history=5 clients: must have the 2'):
    cohorts_lib.admit(
      np.array([0, 1]),
      0,
      participation_lib.MinSep(1),
      9,
      cohorts_lib.History.empty(5),
    )
  for clients in ([-1], [5], [0, 7]):
    with pytest.raises(ValueError, match='is not among the 5 clients'):
      cohorts_lib.History.empty(5).for_clients(np.array(clients))


@pytest.mark.parametrize('round_index', [-1, 9])
def test_round_out_of_range_is_refused(round_index):
  with pytest.raises(ValueError, match=f'round_index={round_index}'):
    cohorts_lib.admit(
      np.array([0]),
      round_index,
      participation_lib.MinSep(1),
      9,
      cohorts_lib.History.empty(1),
    )


def test_separation_beyond_every_round_lets_in_once():
  schema = participation_lib.MinSep(10**18)
  history = cohorts_lib.History.empty(2)
  history.record(0, np.array([0]))
  cohort = np.array([0, 1])
  admission = cohorts_lib.admit(cohort, 2**30 - 1, schema, 2**30, history)
  assert admission.admitted.tolist() == [False, True]


@pytest.mark.parametrize('entries', [2**19, 7])
def test_past_is_that_of_every_round_before(tmp_path, monkeypatch, entries):
  """Forwards, backwards, and where another process writes."""
  monkeypatch.setattr(history_lib, '_RANGE', entries)
  generator = np.random.default_rng(0)
  clients = [f'client {i}' for i in range(60)]
  expected = history_lib.History.empty(60)
  path = tmp_path / 'ledger.sqlite'
  with (
    ledger_lib.Ledger(path) as ledger,
    ledger_lib.Ledger(path) as writer,
  ):
    for t in range(0, 40, 2):
      history = ledger.past(clients[::-1], t)
      np.testing.assert_array_equal(history.count[::-1], expected.count)
      np.testing.assert_array_equal(
        history.last_round[::-1], expected.last_round
      )
      if t == 20:
        then = history
      cohort = generator.choice(60, generator.integers(0, 9), replace=False)
      writer.start_round(t, [clients[i] for i in cohort])
      expected.record(t, cohort)
    # From its first round on, all in one.
    history = ledger.past(clients[::-1], 20)
    np.testing.assert_array_equal(history.last_round, then.last_round)
    np.testing.assert_array_equal(history.count, then.count)
    assert ledger.past([], 40).count.tolist() == []


def test_past_looks_at_new_rounds_alone(tmp_path):
  read = []

  def cohorts(connection, before, start):
    for t, cohort in real(connection, before, start):
      read.append(t)
      yield t, cohort

  real = tables.cohorts
  with ledger_lib.Ledger(tmp_path / 'ledger.sqlite') as ledger:
    with mock.patch.object(tables, 'cohorts', cohorts):
      for t in range(5):
        ledger.past(['a', 'b'], t)
        ledger.start_round(t, ['a'])
  assert read == [0, 1, 2, 3]
