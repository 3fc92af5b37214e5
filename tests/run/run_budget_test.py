"""Tests of runs by budget: they go on, are killed, and keep their claim."""

import itertools
import shutil

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import report, run, strategies
from tff_bandmf.run_files import run_json

_ROUNDS, _MORE = 8, 18
_BUDGET = tff_bandmf.Budget(4, 2, apart=2)
# Overlaps of 6 rounds, of both signs.
_SIGNED = [1.0, 0.35, -0.25, 0.15, -0.1, 0.1]


def _plan(**changes):
  return tff_bandmf.Plan(
    **{
      'rounds': _ROUNDS,
      'clients_per_round': 3,
      'cohorts': _BUDGET,
      'l2_norm_clip': 1.0,
      'epsilon': 8.0,
      'delta': 1e-5,
      'dimension': 3,
      'mechanism': strategies.BandedToeplitz(_ROUNDS, _SIGNED),
      **changes,
    }
  )


def _go_on(directory, rounds=None, stop=None, plan=None, **opening):
  """Runs rounds until `stop`, which leaves its round open like a crash."""
  with run.Run(directory, plan or _plan(), **opening) as mine:
    total = mine.restore(lambda: np.zeros(3))
    for opened in mine.rounds(clients=32, seed=1, rounds=rounds):
      updates = (np.full(3, 0.01 * client) for client in opened.cohort)
      total = total + opened.release(updates, np.zeros(3, np.float32))
      if opened.index == stop:
        raise KeyboardInterrupt
      opened.finish(total)
  return total


def _rounds_of_clients(directory):
  clients = {}
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    for t in range(ledger.last_round() + 1):
      for client in ledger.cohort(t).tolist():
        clients.setdefault(client, []).append(t)
  return clients.values()


@pytest.fixture(scope='module', name='ended')
def _ended(tmp_path_factory):
  """A run that was stopped twice, and went on past its planned rounds."""
  directory = tmp_path_factory.mktemp('budget') / 'run'
  for stop in (5, 11):
    with pytest.raises(KeyboardInterrupt):
      _go_on(directory, _MORE, stop)
  # A replay with another sum burns its round, and its clients took part.
  with run.Run(directory, _plan()) as mine:
    mine.restore(lambda: np.zeros(3))
    for opened in mine.rounds(clients=32, seed=1, rounds=12):
      with pytest.raises(ValueError, match='another sum'):
        opened.release([np.full(3, 0.5)], np.zeros(3, np.float32))
        opened.finish(np.ones(3))
      break
  _go_on(directory, _MORE)
  return directory


def test_run_that_goes_on_claims_what_was_planned(ended):
  plan = tff_bandmf.Plan.load(ended / run_json.PLAN_FILE)
  found = report.build(ended)
  content = found.content
  assert content['observed']['rounds'] == _MORE
  assert content['observed']['rounds_burnt'] >= 1
  assert content['planned']['rounds'] == _ROUNDS == content['rounds']
  assert content['horizon'] == 10 * _ROUNDS
  assert not content['violated']
  planned = plan.guarantee.epsilon(1e-5)
  assert content['epsilon'] == content['planned']['epsilon'] == planned
  assert content['observed']['epsilon'] <= planned
  assert 'cost at most' in content['formal_statement']
  assert 'may depend on what was released' in content['formal_statement']


def test_rounds_of_every_client_move_the_run_by_no_more(ended):
  """Over all signs of what it sends, with the rounds that were burnt."""
  plan = tff_bandmf.Plan.load(ended / run_json.PLAN_FILE)
  matrix = strategies.BandedToeplitz(_MORE, _SIGNED).matrix()
  worst, more = 0.0, 0
  for rounds in _rounds_of_clients(ended):
    assert len(rounds) < 2 or np.diff(rounds).min() >= 2
    more += len(rounds) > 1 and np.diff(rounds).min() < 4
    signs = itertools.product((1, -1), repeat=len(rounds))
    columns = matrix[:, rounds]
    worst = max(worst, *(np.linalg.norm(columns @ s) for s in signs))
  assert 0 < worst <= plan.guarantee.sensitivity.value
  # min_sep would not have let these in.
  assert more > 1


def test_run_ends_early_or_late_and_no_sooner_or_later(tmp_path, ended):
  with run.Run(ended, _plan()) as mine:
    assert mine.rounds_left == 0
  early = tmp_path / 'early'
  _go_on(early, 3)
  with run.Run(early, _plan()) as mine:
    mine.restore(lambda: np.zeros(3))
    mine.record(loss=0.5)
  content = report.build(early).content
  assert content['completed'] and content['observed']['rounds'] == 3
  assert content['epsilon'] == content['planned']['epsilon']


def test_rounds_past_the_horizon_are_refused(tmp_path):
  plan = _plan(cohorts=tff_bandmf.Budget(4, 2, horizon=10))
  with pytest.raises(ValueError, match=r'rounds=11: must be in \[1, 10\]'):
    _go_on(tmp_path / 'budget', 11, plan=plan)
  plan = _plan(cohorts=tff_bandmf.MinSep(4, 2))
  with pytest.raises(ValueError, match=r'rounds=9: must be in \[1, 8\]'):
    _go_on(tmp_path / 'min_sep', 9, plan=plan)


def test_clients_that_come_are_admitted_by_budget(tmp_path):
  """One client that always comes, beside new ones."""
  directory = tmp_path / 'run'
  plan = _plan()
  costs = plan.schema.costs
  taken = []
  with run.Run(directory, plan) as mine:
    total = mine.restore(lambda: np.zeros(3))
    for t in range(9):
      with mine.round(cohort=['always', f'new {t}']) as opened:
        if 'always' in opened.cohort.tolist():
          taken.append(t)
        if t == 3:
          # It burns, and counts.
          continue
        total = total + opened.release(
          [np.ones(3)] * len(opened.cohort), np.zeros(3, np.float32)
        )
        opened.finish(total)
  assert taken[:2] == [0, 3]
  spent = costs.total(np.array([taken[::-1]]))[0]
  assert spent <= costs.limit
  for t in set(range(9)) - set(taken):
    past = [s for s in taken if s < t]
    more = costs.total(np.array([[t, *past[::-1]]]))[0]
    assert more > costs.limit or t - past[-1] < 2


def test_ledger_with_one_participation_too_many_is_not_what_was_planned(
  tmp_path,
):
  """A program that records clients of its own, past the run's admission."""
  directory = tmp_path / 'run'
  _go_on(directory, 3)
  frequent = max(_rounds_of_clients(directory), key=len)
  record = run_json.RunRecord.read(directory)
  doctored = tmp_path / 'doctored'
  shutil.copytree(directory, doctored)
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    client = next(i for i in ledger.cohort(frequent[0]).tolist())
    enforced = record.enforced_digest(directory)
    for t in range(3, 9):
      ledger.start_round(t, [client], enforced)
      ledger.abandon_round(t)
  content = report.build(directory).content
  assert content['violated']
  assert content['epsilon'] > content['planned']['epsilon']
  assert 'cost its budget at most' in content['warnings'][0]
  # One that is edited is refused.
  with ledger_lib.Ledger(doctored / run_json.LEDGER_FILE) as ledger:
    with ledger._write() as connection:
      connection.exec_driver_sql(
        'update bandmf_rounds set cohort = '
        '(select cohort from bandmf_rounds where round = 0) where round = 1'
      )
  with pytest.raises(ValueError, match='was changed'):
    report.build(doctored)
