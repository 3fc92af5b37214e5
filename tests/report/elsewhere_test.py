"""Tests of reports of training that ran elsewhere: a plan and a log."""

import json
import math

import pytest
import yaml

import tff_bandmf
from tff_bandmf import (
  accounting,
  participation,
  report,
  strategies,
  verify,
)

pytestmark = pytest.mark.slow

pytest.importorskip('pyarrow')

_STRATEGY = strategies.BandedSqrt(20, 4)
_KEPT = ((0, 'a'), (0, 'b'), (5, 'a'), (12, 'b'), (19, 'c'))


@pytest.fixture
def write(tmp_path):
  """Returns a function that writes plan and log; gives flags of a command."""

  def files(rows=_KEPT, cohorts=None, **changes):
    plan = tff_bandmf.Plan(
      **{
        'rounds': 20,
        'clients_per_round': 2,
        'cohorts': cohorts or participation.MinSep(5),
        'epsilon': 4.0,
        'delta': 1e-6,
        'l2_norm_clip': 0.5,
        'mechanism': _STRATEGY,
        **changes,
      }
    )
    plan.save(tmp_path / 'plan.json')
    lines = [f'{t},{client}' for t, client in rows]
    (tmp_path / 'log.csv').write_text('\n'.join(['round,client', *lines, '']))
    return '--plan', tmp_path / 'plan.json', '--log', tmp_path / 'log.csv'

  return files


def test_planned_and_observed_stand_beside_each_other(
  run_json, write, tmp_path
):
  notes = ('--note', 'title=Next words', '--note', 'owner=A team')
  out = tmp_path / 'out'
  found = run_json('report', *write(), *notes, '--out', out)
  assert found['elsewhere'] and not found['violated']
  assert found['epsilon'] == found['planned']['epsilon'] <= 4
  seen = accounting.Guarantee(
    _STRATEGY,
    participation.MinSep(5, 2),
    found['z_stddev_per_clip']
    / accounting.Guarantee(
      _STRATEGY, participation.MinSep(5, 2), 1.0
    ).sensitivity.value,
  )
  # Nobody took part more than twice.
  assert found['observed']['epsilon'] <= seen.epsilon(1e-6) < 4
  assert 'did not enforce the participation' in found['warnings'][0]
  assert 'did not check the noise' in found['warnings'][0]
  checks = {row['assumption']: row['checked'] for row in found['assumptions']}
  assert sum(value == 'not checked here' for value in checks.values()) >= 7
  text = (out / 'report.md').read_text()
  assert text.startswith('# Next words\n')
  assert 'owner: A team' in text
  page = (out / 'report.html').read_text()
  for words in (found['warnings'][0], 'A team', 'observed'):
    assert words in text and words in page
  assert json.loads((out / 'report.json').read_text()) == found
  schema = report.json_schema()
  assert set(found) == set(schema['required'])
  assert set(found['observed']) == set(
    schema['properties']['observed']['required']
  )


def test_log_that_broke_its_plan_leads_with_it(run, write, tmp_path):
  rows = [(t, 'a') for t in range(20)]
  status, out, error = run(
    'report', *write(rows), '--out', tmp_path / 'out', '--json'
  )
  assert status == 1 and error.count('\n') == 1
  found = json.loads(out)
  assert found['violated']
  assert found['epsilon'] >= found['observed']['epsilon'] > 4
  assert 'was not kept' in found['warnings'][0]


def test_sampled_cohorts_are_refused(run, write):
  cohorts = accounting.CyclicPoisson(0.1, 4)
  status, out, error = run('report', *write(cohorts=cohorts))
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert 'a log does not show how cohorts were drawn' in error


@pytest.mark.parametrize(
  'rows, changes, message',
  [
    ([(0, 'b'), (20, 'a')], {}, 'round=20: is not among the 20 rounds'),
    (
      [(7, 'b'), (0, 'a'), (2, 'a'), (2, 'a')],
      {},
      'round=2: a client is twice',
    ),
    ([(1, 'a'), (6, 'a')], {}, 'the values of round begin at 1'),
    ([], {}, 'shows no participation'),
    (
      _KEPT,
      {'epsilon': None, 'delta': None, 'noise_multiplier': 1.0},
      'delta=None',
    ),
  ],
)
def test_bad_input_is_one_line(run, write, rows, changes, message):
  status, out, error = run('report', *write(rows, **changes))
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert message in error


@pytest.mark.parametrize('command', ['report', 'observe'])
def test_cohort_that_the_plan_has_no_room_for_is_refused(
  run, write, tmp_path, command
):
  crowd = [(0, 'a'), *((5, f'c{i}') for i in range(3))]
  flags = *write(crowd), '--out', tmp_path / 'out'
  if command == 'observe':
    flags = flags[3], flags[1]
  status, out, error = run(command, *flags)
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert 'clients=3: are in round 5' in error and 'allows 2' in error
  (tmp_path / 'plan.json').unlink()
  write(crowd, largest_cohort=3)
  assert run(command, *flags)[0] == 0


@pytest.mark.parametrize(
  'arguments, message',
  [
    ((), 'plan=None: a report needs a run'),
    (('--log', 'l'), 'plan=None: a report needs a run'),
    (('run', '--log', 'l'), 'log=l: is for training that ran elsewhere'),
    (('--plan', 'p', '--log', 'l', '--note', 'x'), 'note=x: must be NAME=TEXT'),
  ],
)
def test_what_a_report_is_of_must_be_said(run, arguments, message):
  status, out, error = run('report', *arguments)
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert message in error


def test_unknown_note_is_refused(run, write):
  status, _, error = run('report', *write(), '--note', 'claim=none')
  assert status == 2 and 'claim=none: is not a note' in error


def test_plan_alone_is_reported_as_what_it_states(run_json, write, tmp_path):
  plan, out = write()[:2], tmp_path / 'out'
  found = run_json('report', *plan, '--out', out)
  assert found['stated'] and found['elsewhere'] and not found['violated']
  assert found['epsilon'] == found['planned']['epsilon'] <= 4
  assert 'read neither a ledger nor a log' in found['warnings'][0]
  observed = found['observed']
  # Nobody counted clients, and no round of any is known.
  for name in ('clients', 'min_cohort', 'max_cohort', 'participations'):
    assert observed[name] is None
  assert observed['epsilon'] is None and observed['rounds'] == 20
  checks = {row['assumption']: row['checked'] for row in found['assumptions']}
  assert sum(value == 'not checked here' for value in checks.values()) >= 8
  assert not any('log' in value for value in checks.values())
  assert found['side_releases'] == [] and set(found['files_sha256']) == {'plan'}
  for end in ('md', 'html'):
    text = (out / f'report.{end}').read_text()
    assert 'This report read no ledger and no log' in text
    assert 'python verify.py report.json' in text and 'RUN_DIR' not in text
    assert 'no client took part' not in text and 'kept secret' not in text
  schema = report.json_schema()
  assert set(found) == set(schema['required'])
  assert verify.verify(out / 'report.json')['epsilon'] == found['epsilon']


def test_record_does_not_vouch_for_other_arithmetic(run_json, write, tmp_path):
  flags = *write()[:2], '--public', '--registry', '--out', tmp_path
  for note in (
    *('title=Words', 'owner=A team', 'date=2026-11-23', 'model=LSTM'),
    *('intended_use=suggests', 'region=Spain', 'sector=Technology'),
  ):
    flags += '--note', note
  public = run_json('report', *flags)
  assert public['told'] == [] and public['runs'][0]['observed_epsilon'] is None
  record = yaml.safe_load((tmp_path / 'registry.yaml').read_text())
  text = record['deployment']['implementation']['justification']
  assert 'nobody checked how' in text and 'proved bound' not in text


@pytest.mark.parametrize(
  'strategy, between, most, deviation, rho, epsilon',
  [
    # Tree aggregation, 2022. The published epsilon goes by Renyi divergences.
    (strategies.OnlineTree(2000), 313, 6, 7.0, '0.81', '8.90'),
    # C has 400 bands and a published squared sensitivity of 3 / 5.
    (
      strategies.ColumnNormalized(strategies.BandedSqrt(2000, 400)),
      *(484, 3, 1.411 * math.sqrt(5), '0.150684', '3.424007'),
    ),
  ],
)
def test_published_deployments_come_out_as_published(
  tmp_path, strategy, between, most, deviation, rho, epsilon
):
  schema = participation.MinSep(between + 1, most)
  guarantee = accounting.Guarantee(strategy, schema, 1.0)
  noise = deviation / guarantee.sensitivity.value
  tff_bandmf.Plan(
    rounds=2000,
    clients_per_round=6500,
    cohorts=schema,
    noise_multiplier=noise,
    delta=1e-10,
    l2_norm_clip=1.0,
    mechanism=strategy,
  ).save(tmp_path / 'plan.json')
  claim = report.of_plan(tmp_path / 'plan.json').claim
  digits = len(rho) - 2
  assert f'{accounting.zcdp_rho(noise):.{digits}f}' == rho
  real = accounting.gaussian_epsilon(noise, 1e-10)
  claimed = claim.claimed.epsilon(1e-10)
  assert real < claimed < real + 0.0015
  if rho == '0.81':
    converted = min(
      rho_of_real * order
      + (
        math.log(1e10) + (order - 1) * math.log1p(-1 / order) - math.log(order)
      )
      / (order - 1)
      for rho_of_real in [accounting.zcdp_rho(noise)]
      for order in [*(1 + i / 10 for i in range(1, 100)), *range(12, 64)]
    )
    assert real < converted and f'{converted:.2f}' == epsilon
  else:
    assert f'{real:.6f}' == epsilon
