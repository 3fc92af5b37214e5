"""Tests of runs by budget: they go on, are killed, and keep their claim."""

import itertools
import json
import os
import signal

import numpy as np
import processes
import pytest

import tff_bandmf
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import report, run, strategies
from tff_bandmf.run_files import run_json

pytestmark = pytest.mark.slow

_ROUNDS, _MORE = 40, 90
_CLIENTS = 160
_BUDGET = tff_bandmf.Budget(4, 2, apart=2)
# Overlaps of 6 rounds, of both signs.
_SIGNED = [1.0, 0.35, -0.25, 0.15, -0.1, 0.1]


def _plan(rounds=_ROUNDS, **changes):
  return tff_bandmf.Plan(
    **{
      'rounds': rounds,
      'clients_per_round': 3,
      'cohorts': _BUDGET,
      'l2_norm_clip': 1.0,
      'epsilon': 8.0,
      'delta': 1e-5,
      'dimension': 3,
      'mechanism': strategies.BandedToeplitz(rounds, _SIGNED),
      **changes,
    }
  )


def _go_on(directory, plan, killed_in=None, rounds=None):
  """Runs the rounds that are left; a kill comes after the sum of a round."""
  with run.Run(directory, plan) as mine:
    total = mine.restore(lambda: np.zeros(3))
    for opened in mine.rounds(clients=_CLIENTS, seed=1, rounds=rounds):
      updates = (np.full(3, 0.001 * client) for client in opened.cohort)
      total = total + opened.release(updates, np.zeros(3, np.float32))
      if opened.index == killed_in:
        os.kill(os.getpid(), signal.SIGKILL)
      opened.finish(total)


def _killed(directory, rounds, killed_in):
  """Runs the rounds of a plan in a process that is killed."""
  _go_on(directory, _plan(rounds), killed_in)


def _rounds_of_clients(directory):
  clients = {}
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    for t in range(ledger.last_round() + 1):
      for client in ledger.cohort(t).tolist():
        clients.setdefault(client, []).append(t)
  return clients.values()


@pytest.fixture(scope='module', name='ended')
def _ended(tmp_path_factory):
  """A run that was killed twice, and went on past its planned rounds."""
  directory = tmp_path_factory.mktemp('budget') / 'run'
  for rounds, killed_in in (_ROUNDS, 25), (_MORE, 61):
    process = processes.start(_killed, directory, rounds, killed_in)
    process.join()
    assert process.exitcode == -signal.SIGKILL
  # A replay with another sum burns its round, and its clients took part.
  with run.Run(directory, _plan()) as mine:
    mine.restore(lambda: np.zeros(3))
    for opened in mine.rounds(clients=_CLIENTS, seed=1, rounds=_MORE):
      assert opened.index == 61
      with pytest.raises(ValueError, match='another sum'):
        opened.release([np.full(3, 0.5)], np.zeros(3, np.float32))
        opened.finish(np.ones(3))
      break
  _go_on(directory, _plan(_MORE))
  return directory


def test_run_that_goes_on_claims_what_was_planned(ended):
  plan = tff_bandmf.Plan.load(ended / run_json.PLAN_FILE)
  found = report.build(ended)
  content = found.content
  assert content['observed']['rounds'] == _MORE
  assert content['observed']['rounds_burnt'] == 1
  assert '90 rounds, 50 past the plan, were started' in str(content['warnings'])
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
  for rounds, left in (_ROUNDS, 0), (_MORE, 0), (_MORE + 5, 5):
    with run.Run(ended, _plan(rounds)) as mine:
      assert mine.rounds_left == left
  early = tmp_path / 'early'
  _go_on(early, _plan(), rounds=3)
  with run.Run(early, _plan()) as mine:
    mine.restore(lambda: np.zeros(3))
    mine.record(loss=0.5)
  content = report.build(early).content
  assert content['completed'] and content['observed']['rounds'] == 3
  assert content['epsilon'] == content['planned']['epsilon']
  # What has ended has no key that could go on.
  with pytest.raises(ValueError, match='rounds=41: come after the end .* 40'):
    run.Run(early, _plan(_ROUNDS + 1))


@pytest.mark.parametrize(
  'rounds, changes, words',
  [
    (41, {'epsilon': 9.0}, 'epsilon=9.0: is not what'),
    (41, {'l2_norm_clip': 2.0}, 'l2_norm_clip=2.0: is not what'),
    (41, {'cohorts': tff_bandmf.Budget(4, 2)}, 'cohorts=.* is not what'),
    (41, {'cohorts': tff_bandmf.Budget(4, 3, apart=2)}, 'cohorts=.* is not'),
    (41, {'cohorts': tff_bandmf.MinSep(4, 2)}, 'cohorts=.* is not what'),
    (
      41,
      {'mechanism': strategies.BandedToeplitz(41, [1.0, 0.3])},
      'mechanism=.* is not what',
    ),
    (401, {}, 'rounds=401: must not exceed horizon=400'),
    (39, {}, 'rounds=39: is not what .* 40; .* rounds= to stop early'),
  ],
)
def test_plan_that_differs_in_more_is_refused(ended, rounds, changes, words):
  before = (ended / run_json.PLAN_FILE).read_bytes()
  with pytest.raises(ValueError, match=words):
    run.Run(ended, _plan(rounds, **changes))
  assert (ended / run_json.PLAN_FILE).read_bytes() == before


def test_rounds_past_the_horizon_are_refused(tmp_path):
  plan = _plan(cohorts=tff_bandmf.Budget(4, 2, horizon=50))
  with pytest.raises(ValueError, match=r'rounds=51: must be in \[1, 50\]'):
    _go_on(tmp_path / 'budget', plan, rounds=51)
  plan = _plan(cohorts=tff_bandmf.MinSep(4, 2))
  with pytest.raises(ValueError, match=r'rounds=41: must be in \[1, 40\]'):
    _go_on(tmp_path / 'min_sep', plan, rounds=41)
  with pytest.raises(ValueError, match='rounds=41: is not what .* 40'):
    run.Run(tmp_path / 'min_sep', _plan(41, cohorts=tff_bandmf.MinSep(4, 2)))


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


@pytest.mark.parametrize(
  'cohorts', [tff_bandmf.Budget(8, 2), tff_bandmf.MinSep(8, 2)]
)
def test_report_refuses_the_planned_claim(tmp_path, cohorts, run):
  """A program of its own records one participation too many."""
  directory = tmp_path / 'run'
  _go_on(directory, _plan(24, cohorts=cohorts), rounds=3)
  record = run_json.RunDetails.read(directory)
  enforced = record.enforced_digest(directory)
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    known = {int(c) for t in range(3) for c in ledger.cohort(t)}
    others = iter(set(range(_CLIENTS)) - known)
    frequent = int(ledger.cohort(0)[0])
    for t in range(3, 17):
      client = frequent if t in (8, 16) else next(others)
      ledger.start_round(t, [client], enforced)
      ledger.abandon_round(t)
      if t == 8:
        kept = report.build(directory).content
  assert not kept['violated'] and report.BROKEN not in str(kept)

  status, out, error = run('report', directory)
  assert status == 1 and 'violated=True' in error
  assert out.startswith(report.BROKEN)
  status, out, _ = run('report', directory, '--json')
  found = json.loads(out)
  assert status == 1 and found['violated']
  assert found['epsilon'] > found['planned']['epsilon']
  for text in (
    found['summary'],
    found['formal_statement'],
    found['warnings'][0],
  ):
    assert text.startswith(report.BROKEN)
  status, out, _ = run('report', directory, '--public')
  assert status == 1 and out.startswith(report.BROKEN)
  status, out, _ = run('report', directory, '--public', '--json')
  found = json.loads(out)
  assert status == 1 and found['warnings'][0].startswith(report.BROKEN)
  assert not found['runs'][0]['kept']
  assert found['epsilon'] > found['runs'][0]['planned_epsilon']
  for name in (
    report.MARKDOWN_FILE,
    report.HTML_FILE,
    report.PUBLIC_FILE,
  ):
    page = (directory / name).read_text()
    # Before any figure of the page.
    assert 0 < page.index(report.BROKEN) < page.index('What it means for')
  status, out, _ = run('verify', directory)
  assert status == 1 and 'DOES NOT HOLD' in out


def test_ledger_that_was_edited_is_refused(tmp_path):
  directory = tmp_path / 'run'
  _go_on(directory, _plan(8), rounds=3)
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    with ledger._write() as connection:
      connection.exec_driver_sql(
        'update bandmf_rounds set cohort = '
        '(select cohort from bandmf_rounds where round = 0) where round = 1'
      )
  with pytest.raises(ValueError, match='was changed'):
    report.build(directory)
