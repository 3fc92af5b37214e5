"""Tests of reports of runs whose cohorts chance drew."""

import contextlib
import json
import shutil

import jsonschema
import numpy as np
import pytest
import written_run

import tff_bandmf
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import report, run, strategies
from tff_bandmf.accounting.kinds import samplers
from tff_bandmf.run import opening
from tff_bandmf.run_files import folder, metrics, run_json

pytestmark = pytest.mark.slow

_ROUNDS, _CLIENTS = 6, 60
_DELTA = 1e-3
_KINDS = [
  tff_bandmf.CyclicPoisson(0.1, 2, population=_CLIENTS),
  tff_bandmf.BallsInBins(3, population=_CLIENTS),
  tff_bandmf.BMinSep(2, 0.1, population=_CLIENTS),
]
# A cohort of less than two clients has a probability below 1e-7.
_LARGE = tff_bandmf.CyclicPoisson(0.5, 2, population=_CLIENTS)


def _plan(cohorts, **changes):
  return tff_bandmf.Plan(
    **{
      'rounds': _ROUNDS,
      'clients_per_round': round(cohorts.expected_cohort(_ROUNDS)),
      'cohorts': cohorts,
      'epsilon': 2.0,
      'delta': _DELTA,
      'l2_norm_clip': 1.0,
      'mechanism': strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5]),
      **changes,
    }
  )


def _train(directory, plan, record=True, cut=None):
  with run.Run(directory, plan, keep_key=True) as mine:
    total = mine.restore(lambda: np.zeros(2))
    for opened in mine.rounds(clients=_CLIENTS):
      updates = [np.full(2, 0.1) for _ in opened.cohort[:cut]]
      total = total + opened.release(updates, np.zeros(2, np.float32))
      opened.finish(total)
    if record:
      mine.record(total=float(total.sum()))
  return report.build(directory)


@pytest.fixture(scope='module', params=_KINDS, ids=lambda each: each.name)
def whole(request, tmp_path_factory):
  directory = tmp_path_factory.mktemp('run')
  plan = _plan(request.param)
  return directory, plan, _train(directory, plan)


def test_report_leads_with_the_planned_claim(whole):
  """Samples and all, digit for digit; what holds without chance is beside."""
  _, plan, made = whole
  content = made.content
  jsonschema.validate(content, report.json_schema())
  found = plan.guarantee.claim(_DELTA)
  assert content['epsilon'] <= found.epsilon <= 2.0
  assert content['epsilon'] == pytest.approx(found.epsilon, rel=1e-7)
  assert content['delta'] == _DELTA
  assert content['amplification'] == plan.cohorts.name
  sampling = content['sampling']
  assert sampling['drawn'] == 'as the sampling key gives them'
  (claim,) = content['check']['claims']
  assert claim['amplified'] == content['epsilon']
  assert claim['epsilon'] == sampling['epsilon_unamplified']
  worst = plan.sampled.worst_case_schema
  if worst.evenly_spaced:
    worst = tff_bandmf.MinSep(worst.min_sep)
  unamplified = plan.guarantee.for_cohorts(worst)
  assert sampling['epsilon_unamplified'] == unamplified.epsilon(_DELTA)
  assert sampling['epsilon_unamplified'] > content['epsilon']
  assert content['rho'] == unamplified.rho
  assert content['participations'] == worst.participations(_ROUNDS)
  assert plan.sampled.rule in made.statement
  assert repr(sampling['epsilon_unamplified']) in made.statement
  assert 'without amplification epsilon is' in content['summary']
  assert 'kept secret' in made.markdown() and 'kept secret' in made.html()
  assert (sampling['samples'] is None) == (
    plan.cohorts.name == 'cyclic-poisson'
  )


def test_report_keeps_what_was_drawn_to_itself(whole):
  directory, _, made = whole
  observed = made.content['observed']
  assert {name for name, value in observed.items() if value is not None} == {
    'rounds',
    'rounds_finished',
    'rounds_burnt',
    'delta',
  }
  told = [row['what'] for row in made.content['side_releases']]
  assert not any('cohort size' in each for each in told)
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    sizes = ledger.observed().cohort_sizes
  made = report.publish([report.of_run(directory)])
  (row,) = made.content['runs']
  assert row['observed_epsilon'] is None and not made.content['told']
  assert row['epsilon'] == row['planned_epsilon'] < row['epsilon_unamplified']
  assert 'drawn in secret' in made.markdown() and 'drawn in' in made.html()
  rows = metrics.exported(directory)
  assert [row.pop('round') for row in rows] == [*map(str, sizes)]
  assert {*rows[0]} == {*metrics.PLANNED} - {'epsilon'}


def test_what_amplification_rests_on_is_said(whole):
  rows = {
    row['assumption']: row['checked'] for row in whole[2].content['assumptions']
  }
  drawn, secret, come = [
    next(text for text in rows if text.startswith(start))
    for start in ('The server draws', 'Nobody who sees', 'Drawn clients come')
  ]
  assert "in the ledger's chain" in rows[drawn]
  assert rows[secret] == 'not checked here'
  assert 'one update of each client' in rows[come]
  assert not any(text.startswith('No client takes part') for text in rows)


def test_run_without_a_verdict_is_not_checked(tmp_path):
  plan = _plan(_KINDS[0])
  content = _train(tmp_path, plan, record=False).content
  assert content['sampling']['drawn'] == 'not checked'
  assert content['sampling']['as_drawn'] is None
  assert any('was not checked' in each for each in content['warnings'])
  (row,) = [
    row
    for row in content['assumptions']
    if row['assumption'].startswith('The server draws')
  ]
  assert row['checked'] == 'not checked here'
  # A result without the look at the cohorts is a program of somebody's own.
  with ledger_lib.Ledger(tmp_path / run_json.LEDGER_FILE) as ledger:
    written_run.end(tmp_path, ledger, {'total': 1.0})
  for made in (
    report.build(tmp_path),
    report.publish([report.of_run(tmp_path)]),
  ):
    warnings = made.content['warnings']
    assert any('was not checked' in str(each) for each in warnings)


def test_cut_cohort_has_no_amplified_claim(tmp_path):
  """A program that takes the first clients of each cohort, and no other."""
  plan = _plan(_LARGE)
  content = _train(tmp_path, plan, cut=1).content
  jsonschema.validate(content, report.json_schema())
  assert content['sampling']['complete'] is False
  assert content['sampling']['as_drawn'] is True
  assert content['amplification'] == 'none'
  assert content['epsilon'] == content['sampling']['epsilon_unamplified']
  assert any(
    'one update of each drawn client' in each for each in content['warnings']
  )
  public = report.publish([report.of_run(tmp_path)])
  (row,) = public.content['runs']
  assert row['epsilon'] == row['epsilon_unamplified']


def test_cut_cohort_of_a_burnt_round_counts(tmp_path):
  """Whoever saw the sum of a part can let the round burn."""
  plan = _plan(_LARGE)
  like = np.zeros(2, np.float32)
  for size in 0.1, 0.2:
    with run.Run(tmp_path, plan, keep_key=True) as mine:
      opened = next(each for each in mine.rounds(clients=_CLIENTS))
      with contextlib.suppress(Exception):
        opened.release([np.full(2, size)] * (len(opened.cohort) - 1), like)
  content = _train(tmp_path, plan).content
  assert content['observed']['rounds_burnt'] == 1
  assert content['amplification'] == 'none'
  assert content['sampling']['complete'] is False


def test_cohorts_that_no_key_drew_are_not_amplified(tmp_path):
  """As of a program with a ledger of its own and the claim of a plan."""
  plan = _plan(_KINDS[0])
  with folder.locked(tmp_path):
    plan.save(tmp_path / run_json.PLAN_FILE)
    keys = folder.keys(tmp_path, draws=False)
    folder.open_run(tmp_path, opening.run_details(), keys)
  with ledger_lib.Ledger(tmp_path / run_json.LEDGER_FILE) as ledger:
    ledger.start_round(0, [1, 2])
  content = report.build(tmp_path).content
  assert content['amplification'] == 'none'
  assert content['epsilon'] == content['sampling']['epsilon_unamplified']


@pytest.mark.parametrize('everybody', [False, True])
def test_other_cohorts_are_not_amplified(tmp_path, monkeypatch, everybody):
  """One client more in a cohort; and one that comes in another's turn."""
  plan = _plan(_KINDS[0])
  cohort = samplers.CyclicPoisson.cohort

  def more(self, t):
    found = cohort(self, t)
    group = self._members[(t + everybody) % 2]
    others = np.setdiff1d(group, found)
    return np.sort(np.append(found, others[0]))

  with monkeypatch.context() as patch:
    patch.setattr(samplers.CyclicPoisson, 'cohort', more)
    _train(tmp_path, plan, record=False)
  with run.Run(tmp_path, plan) as mine:
    # The last cohort is looked at when a run goes on.
    with pytest.raises(ValueError, match='round=5: has another cohort'):
      next(mine.rounds(clients=_CLIENTS), None)
  with ledger_lib.Ledger(tmp_path / run_json.LEDGER_FILE) as ledger:
    ledger.record_drawn(False)
  made = report.build(tmp_path)
  content = made.content
  jsonschema.validate(content, report.json_schema())
  assert content['amplification'] == 'none'
  assert content['sampling']['drawn'].startswith('not as the sampling key')
  assert content['epsilon'] == content['sampling']['epsilon_unamplified'] > 2
  assert content['observed']['clients'] > 0
  assert any('without amplification' in each for each in content['warnings'])
  assert plan.sampled.rule not in made.statement


@pytest.mark.parametrize(
  'edit, message',
  [
    (lambda plan: plan['bound'].update(epsilon=1.95), 'does not prove its cl'),
    (
      lambda plan: plan.update(noise_multiplier=10 * plan['noise_multiplier']),
      'asks for epsilon=2',
    ),
  ],
  ids=['bound', 'noise'],
)
def test_plan_that_contradicts_itself_is_not_reported(
  whole, tmp_path, edit, message
):
  directory = tmp_path / 'run'
  shutil.copytree(whole[0], directory)
  path = directory / run_json.PLAN_FILE
  plan = json.loads(path.read_text())
  edit(plan)
  path.write_text(json.dumps(plan))
  with pytest.raises(ValueError, match=message):
    report.build(directory)
