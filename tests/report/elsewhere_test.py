"""Tests of reports of training that ran elsewhere: a plan and a log."""

import json

import pytest

import tff_bandmf
from tff_bandmf import accounting, participation, report, strategies

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
  assert 'did not enforce who took part' in found['warnings'][0]
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
  assert 'a log does not show how they were drawn' in error


@pytest.mark.parametrize(
  'rows, changes, message',
  [
    ([(0, 'b'), (20, 'a')], {}, 'round=20: is not among the 20 rounds'),
    (
      [(7, 'b'), (0, 'a'), (2, 'a'), (2, 'a')],
      {},
      'round=2: has a client that is twice',
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
  assert 'clients=3: are in round 5' in error and 'has room for 2' in error
  (tmp_path / 'plan.json').unlink()
  write(crowd, largest_cohort=3)
  assert run(command, *flags)[0] == 0


@pytest.mark.parametrize(
  'arguments, message',
  [
    ((), 'plan=None: a report is of a run'),
    (('--plan', 'p'), 'log=None: a report is of a run'),
    (('run', '--log', 'l'), 'log=l: is for training that ran elsewhere'),
    (('--plan', 'p', '--log', 'l', '--note', 'x'), 'note=x: is NAME=TEXT'),
  ],
)
def test_what_a_report_is_of_must_be_said(run, arguments, message):
  status, out, error = run('report', *arguments)
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert message in error


def test_unknown_note_is_refused(run, write):
  status, _, error = run('report', *write(), '--note', 'claim=none')
  assert status == 2 and 'claim=none: is not a statement' in error
