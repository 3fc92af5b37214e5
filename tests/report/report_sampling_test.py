"""Tests of reports of runs whose cohorts chance drew."""

import json

import jsonschema
import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import program, report, run, strategies
from tff_bandmf.accounting import samplers
from tff_bandmf.program import folder, run_record
from tff_bandmf.run import opening

pytestmark = pytest.mark.slow

_ROUNDS, _CLIENTS = 6, 60
_DELTA = 1e-3
_KINDS = [
  tff_bandmf.CyclicPoisson(0.1, 2, population=_CLIENTS),
  tff_bandmf.BallsInBins(3, population=_CLIENTS),
  tff_bandmf.BMinSep(2, 0.1, population=_CLIENTS),
]


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


def _train(directory, plan, record=True):
  with run.Run(directory, plan, keep_key=True) as mine:
    total = mine.restore(lambda: np.zeros(2))
    for opened in mine.rounds(clients=_CLIENTS):
      updates = [np.full(2, 0.1) for _ in opened.cohort]
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
  assert sampling['drawn'] == 'as the key of the draws gives them'
  worst = plan.sampled.always
  if worst.evenly_spaced:
    worst = tff_bandmf.MinSep(worst.min_sep)
  unamplified = plan.guarantee.under(worst)
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
  with program.Ledger(directory / run_record.LEDGER_FILE) as ledger:
    sizes = ledger.observed().cohort_sizes
  made = report.publish([report.source.of_run(directory)])
  (row,) = made.content['runs']
  assert row['observed_epsilon'] is None and not made.content['told']
  assert row['epsilon'] == row['planned_epsilon'] < row['epsilon_unamplified']
  assert 'drawn in secret' in made.markdown() and 'drawn in' in made.html()
  columns = (directory / run_record.METRICS_FILE).read_text().split()
  assert columns == ['round', *map(str, sizes)]


def test_what_amplification_rests_on_is_said(whole):
  rows = {
    row['assumption']: row['checked'] for row in whole[2].content['assumptions']
  }
  drawn, secret, come = [
    next(text for text in rows if text.startswith(start))
    for start in ('The server draws', 'Nobody who sees', 'Drawn clients come')
  ]
  assert 'its verdict is in the chain' in rows[drawn]
  assert rows[secret] == rows[come] == 'not checked here'
  assert not any(text.startswith('Clients take part as') for text in rows)


def test_run_without_a_verdict_is_not_checked(tmp_path):
  plan = _plan(_KINDS[0])
  content = _train(tmp_path, plan, record=False).content
  assert content['sampling']['drawn'] == 'not checked'
  (row,) = [
    row
    for row in content['assumptions']
    if row['assumption'].startswith('The server draws')
  ]
  assert row['checked'] == 'not checked here'
  # A result without the look at the cohorts is a program of somebody's own.
  with program.Ledger(tmp_path / run_record.LEDGER_FILE) as ledger:
    head = ledger.head()
  (tmp_path / run_record.RESULT_FILE).write_text(
    json.dumps({'total': 1.0, run_record.LEDGER_HEAD: head})
  )
  for made in (
    report.build(tmp_path),
    report.publish([report.source.of_run(tmp_path)]),
  ):
    warnings = made.content['warnings']
    assert any('was not checked' in str(each) for each in warnings)


def test_cohorts_that_no_key_drew_are_not_amplified(tmp_path):
  """As of a program with a ledger of its own and the claim of a plan."""
  plan = _plan(_KINDS[0])
  described = opening.described(plan)
  with folder.locked(tmp_path):
    folder.open_run(tmp_path, described, plan.strategy, plan.cohorts.schema)
  with program.Ledger(tmp_path / run_record.LEDGER_FILE) as ledger:
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
    with pytest.raises(ValueError, match='the cohort of round 5 was drawn'):
      next(mine.rounds(clients=_CLIENTS), None)
  with program.Ledger(tmp_path / run_record.LEDGER_FILE) as ledger:
    ledger.record_drawn(False)
  made = report.build(tmp_path)
  content = made.content
  jsonschema.validate(content, report.json_schema())
  assert content['amplification'] == 'none'
  assert content['sampling']['drawn'].startswith('not as the key')
  assert content['epsilon'] == content['sampling']['epsilon_unamplified'] > 2
  assert content['observed']['clients'] > 0
  assert any('amplifies nothing' in each for each in content['warnings'])
  assert plan.sampled.rule not in made.statement


def test_edited_bound_is_refused(whole):
  directory = whole[0]
  path = directory / run_record.RUN_FILE
  kept = path.read_text()
  content = json.loads(kept)
  content['claim']['bound']['epsilon'] -= 0.05
  path.write_text(json.dumps(content))
  try:
    with pytest.raises(ValueError, match='is not what the noise gives'):
      report.build(directory)
  finally:
    path.write_text(kept)
