"""Tests of the privacy report: it believes files, and only what agrees."""

import json
import math
import pathlib

import brute_force
import doctored_runs
import numpy as np
import pytest
from written_run import KEPT, make_run

from tff_bandmf import accounting, participation, report, strategies
from tff_bandmf.cli import main
from tff_bandmf.run_files import run_json

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
  'clients, status',
  [(KEPT, 0), ([[0, 1], [2, 3], [0, 5], *KEPT[3:]], 1)],
)
def test_command_says_whether_the_claim_held(tmp_path, run, clients, status):
  make_run(tmp_path, clients)
  found, out, error = run('report', tmp_path)
  summary, path = out.splitlines()
  assert found == error.count('\n') == status
  assert path == str(tmp_path / 'report.md')
  found, out, _ = run('report', tmp_path, '--json')
  assert found == status
  assert json.loads(out)['summary'] == summary


def test_run_with_too_little_noise_claims_nothing(tmp_path):
  make_run(tmp_path / 'little', KEPT, noise_multiplier=0.02)
  written = report.write(tmp_path / 'little')
  assert written['epsilon'] is None and written['epsilon_curve'] == []
  assert 'too little noise for a claim' in written['summary']


def test_report_gives_the_numbers_of_the_accountant(tmp_path):
  spec = make_run(tmp_path, KEPT)
  written = report.write(tmp_path)
  assert written == json.loads((tmp_path / 'report.json').read_text())
  assert written['epsilon'] == pytest.approx(
    accounting.gaussian_epsilon(0.6, 1e-5), rel=1e-3
  )
  assert written['rho'] == pytest.approx(0.5 / 0.36)
  # Two disjoint columns of norm^2 1 + .25 + .16.
  assert written['sensitivity'] == pytest.approx(math.sqrt(2 * 1.41))
  assert written['z_stddev'] == pytest.approx(0.5 * 0.6 * math.sqrt(2 * 1.41))
  assert written['sensitivity_method'] == 'exact'
  assert written['adjacency'] == 'zero-out'
  assert written['strategy_sha256'] == spec.strategy.digest()
  planned = written['planned']
  assert (planned['rounds'], planned['min_sep'], planned['participations']) == (
    6,
    3,
    2,
  )
  assert planned['epsilon'] == written['epsilon']
  assert written['warnings'] == []
  # A client came twice, as often as it may.
  numbers = ('sensitivity', 'rho', 'epsilon', 'noise_multiplier', 'delta')
  for name in numbers:
    assert written['observed'][name] == pytest.approx(planned[name], rel=1e-5)
  assert (
    written['observed'].items()
    >= {
      'rounds': 6,
      'rounds_finished': 6,
      'rounds_burnt': 0,
      'clients': 9,
      'min_cohort': 2,
      'max_cohort': 2,
      'min_sep': 3,
      'participations': 2,
    }.items()
  )
  assert not written['violated']
  text = (tmp_path / 'report.md').read_text()
  for fact in ('zero-out', 'min_sep', '12.30', 'tuning', 'a count'):
    assert fact in text


def test_closer_participation_leads_and_raises_epsilon(tmp_path):
  make_run(tmp_path, [[0, 1], [2, 3], [0, 5], [4, 6], [8, 7], [9, 10]])
  written = report.write(tmp_path)
  assert written['violated']
  assert written['observed']['min_sep'] == 2
  worse = accounting.Guarantee(
    strategies.BandedToeplitz(6, [1.0, 0.5, 0.4]),
    participation.MinSep(2, 2),
    1.0,
  ).sensitivity.value
  planned = math.sqrt(2 * 1.41)
  assert worse > planned
  assert written['epsilon'] == pytest.approx(
    accounting.gaussian_epsilon(0.6 * planned / worse, 1e-5), rel=1e-3
  )
  assert written['epsilon'] > written['planned']['epsilon']
  assert written['planned']['epsilon'] == pytest.approx(
    accounting.gaussian_epsilon(0.6, 1e-5), rel=1e-3
  )
  # The noise that was added does not change.
  assert written['z_stddev'] == pytest.approx(0.5 * 0.6 * planned)
  first = (tmp_path / 'report.md').read_text().splitlines()[2]
  assert 'not kept' in first


def test_more_participations_raise_epsilon(tmp_path):
  make_run(tmp_path, KEPT, schema=participation.MinSep(3, 1))
  written = report.write(tmp_path)
  assert written['violated']
  assert written['epsilon'] == pytest.approx(
    accounting.gaussian_epsilon(0.6 / math.sqrt(2), 1e-5), rel=1e-3
  )


def _edit_plan(directory, **changes):
  """Changes values of a plan, by the names of their parents and their own."""
  path = directory / run_json.PLAN_FILE
  path.write_text(json.dumps(doctored_runs.changed(path, **changes)))


@pytest.mark.parametrize(
  'changes, match',
  [
    ({'noise_multiplier': 6.0}, 'noise_multiplier=6.0'),
    ({'request__noise_multiplier': 6.0}, 'noise_multiplier=0.6'),
    ({'request__cohorts__max_participations': 1}, 'more noise than the claim'),
    ({'request__clients_per_unit': 3}, 'less noise than the claim'),
    ({'request__l2_norm_clip': 0.5005}, 'less noise than the claim'),
    ({'request__l2_norm_clip': 0.4995}, 'more noise than the claim'),
  ],
)
def test_edited_claim_is_refused(tmp_path, changes, match):
  make_run(tmp_path, KEPT)
  _edit_plan(tmp_path, **changes)
  with pytest.raises(ValueError, match=match):
    report.write(tmp_path)
  assert not (tmp_path / 'report.json').exists()


def test_edited_strategy_is_refused(tmp_path):
  make_run(tmp_path, KEPT)
  strategies.save(
    strategies.BandedToeplitz(6, [1.0, 0.9, 0.4]),
    tmp_path / run_json.STRATEGY_FILE,
  )
  with pytest.raises(ValueError, match='strategy.json: differs from plan.json'):
    report.write(tmp_path)


def test_missing_plan_is_refused(tmp_path):
  make_run(tmp_path, KEPT)
  (tmp_path / run_json.PLAN_FILE).unlink()
  with pytest.raises(ValueError, match='plan.json: is gone; restore the file'):
    report.write(tmp_path)


def test_missing_ledger_is_refused(tmp_path):
  make_run(tmp_path, KEPT)
  (tmp_path / run_json.LEDGER_FILE).unlink()
  with pytest.raises(ValueError, match='ledger'):
    report.write(tmp_path)
  (tmp_path / run_json.LEDGER_FILE).touch()
  with pytest.raises(ValueError, match='ledger'):
    report.write(tmp_path)


def test_run_that_has_not_ended_says_so(tmp_path):
  make_run(tmp_path, KEPT[:4], ended=False)
  written = report.write(tmp_path)
  assert not written['completed']
  assert 'has not ended' in (tmp_path / 'report.md').read_text()


def test_unit_of_several_clients_is_claimed(tmp_path):
  spec = make_run(tmp_path, KEPT, clients_per_unit=3)
  written = report.write(tmp_path)
  assert written['clients_per_unit'] == 3
  assert written['epsilon'] == spec.epsilon(1e-5)
  assert written['sensitivity'] == pytest.approx(3 * math.sqrt(2 * 1.41))
  assert 'If a unit has at most 3 clients' in written['formal_statement']
  assert 'One unit of privacy is at most 3 clients.' in [
    row['assumption'] for row in written['assumptions']
  ]
  text = (tmp_path / 'report.md').read_text()
  assert 'one client, with at most 3 clients' in text
  # The same noise is not that of one client a unit.
  _edit_plan(tmp_path, request__clients_per_unit=1)
  with pytest.raises(ValueError, match='more noise than the claim'):
    report.write(tmp_path)


def test_stopped_run_claims_the_rounds_it_stated(tmp_path):
  make_run(tmp_path, KEPT[:2], ended=False, held=range(6), stated=3)
  written = report.write(tmp_path)
  assert not written['violated']
  assert written['participations'] == 1
  assert written['epsilon'] == pytest.approx(
    accounting.gaussian_epsilon(0.6 * math.sqrt(2), 1e-5), rel=1e-3
  )
  assert written['planned']['epsilon'] > written['epsilon']
  assert 'the releases of at most 3 rounds' in written['formal_statement']
  assert 'at most 3 rounds, a number that was' in str(written['assumptions'])
  # In a fourth round a client may come twice, and no number was stated here.
  for name, rounds, stated in ('more', 4, 4), ('none', 3, None), ('past', 4, 3):
    held = range(6)
    make_run(
      tmp_path / name, KEPT[:rounds], ended=False, held=held, stated=stated
    )
    more = report.write(tmp_path / name)
    assert more['epsilon'] == more['planned']['epsilon'] > written['epsilon']


@pytest.mark.parametrize('public', [[], ['--public']], ids=str)
def test_command_says_that_a_run_has_not_ended(tmp_path, run, public):
  make_run(tmp_path, KEPT[:3], ended=False)
  _, out, _ = run('report', tmp_path, *public)
  *caveats, _, path = out.splitlines()
  caveat = (
    'Training has not ended' if public else 'This run has not ended: 3 of'
  )
  assert any(line.startswith(caveat) for line in caveats)
  assert caveats[0] in pathlib.Path(path).read_text()
  make_run(tmp_path / 'ended', KEPT)
  _, out, _ = run('report', tmp_path / 'ended', *public)
  assert out.count('\n') == 2


def test_run_without_a_finished_round_leads_with_it(tmp_path):
  make_run(tmp_path, [], ended=False)
  written = report.write(tmp_path)
  assert written['warnings'][0].startswith('No round finished')
  assert written['observed']['epsilon'] is None
  assert 'no client took part' in (tmp_path / 'report.md').read_text()


def test_one_round_is_not_called_rounds(tmp_path):
  make_run(tmp_path, KEPT[:1], ended=False)
  text = report.write(tmp_path) and (tmp_path / 'report.md').read_text()
  assert '1 round of 2 clients' in text and '1 rounds' not in text


def test_observed_is_what_the_clients_did(tmp_path):
  # Planned are two participations, and nobody came twice.
  make_run(tmp_path, [[t, t + 6] for t in range(6)])
  written = report.write(tmp_path)
  assert written['observed']['epsilon'] == pytest.approx(
    accounting.gaussian_epsilon(0.6 * math.sqrt(2), 1e-5), rel=1e-3
  )
  assert written['observed']['epsilon'] < written['epsilon']
  assert written['epsilon'] == written['planned']['epsilon']
  text = (tmp_path / 'report.md').read_text()
  assert 'The claim is for the planned participation.' in text


def test_what_the_run_held_to_is_checked_in_every_round(tmp_path):
  checked = []
  for name, held in (('all', range(6)), ('some', range(5)), ('none', ())):
    make_run(tmp_path / name, KEPT, held=held)
    rows = report.write(tmp_path / name)['assumptions']
    checked.append(['digest of this setting' in row['checked'] for row in rows])
  # The clip and the key.
  assert sum(checked[0]) == 2 and checked[0][0]
  assert not any(checked[1] + checked[2])


def test_less_noise_measured_than_claimed_is_refused(tmp_path):
  make_run(tmp_path, KEPT)
  _edit_plan(tmp_path, noise_multiplier=6.0, request__noise_multiplier=6.0)
  with pytest.raises(ValueError, match='had less noise'):
    report.write(tmp_path)


def test_noise_measured_beyond_the_claim_is_refused(tmp_path):
  spec = make_run(tmp_path, KEPT)
  # A smaller clip would make a smaller z of the same epsilon.
  _edit_plan(tmp_path, request__l2_norm_clip=0.25)
  with pytest.raises(
    ValueError, match=f'{spec.z_stddev_per_clip / 2}.*more noise'
  ):
    report.write(tmp_path)


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_number_that_is_no_json_is_refused(tmp_path, value):
  make_run(tmp_path, KEPT)
  _edit_plan(tmp_path, request__delta=value)
  with pytest.raises(ValueError, match='plan.json'):
    report.write(tmp_path)


@pytest.mark.parametrize(
  'key, value',
  [
    ('delta', 0.0),
    ('delta', 1.0),
    ('delta', -1e-5),
    ('delta', '1e-5'),
    ('l2_norm_clip', 0.0),
    ('clients_per_round', -2),
    ('noise_multiplier', -1.0),
    ('cohorts__min_sep', 3.0),
    ('cohorts__participation', 'none'),
  ],
)
@pytest.mark.parametrize('noise_multiplier', [0.6, 0.0])
def test_number_out_of_range_is_refused(tmp_path, key, value, noise_multiplier):
  make_run(tmp_path, KEPT, noise_multiplier)
  _edit_plan(tmp_path, **{f'request__{key}': value})
  with pytest.raises((TypeError, ValueError)) as caught:
    report.write(tmp_path)
  assert key.split('__')[-1] in str(
    caught.value
  ) or 'plan.json: is damaged' in (str(caught.value))
  assert not list(tmp_path.glob('report.*'))


def test_client_beyond_the_population_is_refused(tmp_path):
  make_run(tmp_path, KEPT[:5] + [[4, 12]])
  with pytest.raises(ValueError, match='client=12'):
    report.write(tmp_path)


def test_result_cannot_change_the_claim(tmp_path):
  make_run(tmp_path, KEPT)
  path = tmp_path / run_json.RESULT_FILE
  path.write_text(
    json.dumps({**json.loads(path.read_text()), 'epsilon': 0.001})
  )
  with pytest.raises(ValueError, match='result='):
    report.write(tmp_path)


@pytest.mark.parametrize(
  'name, content',
  [
    (run_json.RUN_FILE, '{"format": "tff_bandmf.run", "version": 3}'),
    (run_json.RUN_FILE, '{"format": "tff_bandmf.run", "version": 2}'),
    (run_json.PLAN_FILE, '{'),
    (run_json.RUN_FILE, '{"format": "tff_bandmf.run", "version": 1}'),
    (run_json.RUN_FILE, '{'),
    (run_json.RESULT_FILE, '{'),
    (run_json.METRICS_FILE, 'round\nx\n'),
    (run_json.METRICS_FILE, 'a\n1,2\n'),
    (run_json.STRATEGY_FILE, '{'),
  ],
)
def test_damaged_file_is_named_in_one_line(tmp_path, name, content):
  make_run(tmp_path, KEPT)
  (tmp_path / name).write_text(content)
  with pytest.raises(ValueError, match=name) as caught:
    report.write(tmp_path)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'key, value',
  [
    ('not_covered', 'tuning'),
    ('population', '12'),
    ('setting', 1),
    ('run_id', 7),
    ('noise_key_id', 'x'),
    ('config', 'yes'),
  ],
)
def test_run_with_a_value_of_another_kind_is_refused(tmp_path, key, value):
  noted = key in run_json.NOTES
  make_run(tmp_path, KEPT, **({key: value} if noted else {}))
  if not noted:
    run = json.loads((tmp_path / run_json.RUN_FILE).read_text())
    (tmp_path / run_json.RUN_FILE).write_text(json.dumps({**run, key: value}))
  with pytest.raises(ValueError, match=f'{key}.*, or has a wrong type there'):
    report.write(tmp_path)


def test_ledger_with_more_rounds_than_the_strategy_is_refused(tmp_path):
  make_run(tmp_path, KEPT + [[9, 10]])
  with pytest.raises(ValueError, match='rounds=7'):
    report.write(tmp_path)


def test_run_without_noise_claims_nothing(tmp_path):
  make_run(tmp_path, KEPT, noise_multiplier=0.0)
  written = report.write(tmp_path)
  assert written['epsilon'] is None and written['rho'] is None
  assert 'guarantees nothing' in (tmp_path / 'report.md').read_text()


def test_compared_runs_are_shown(tmp_path):
  make_run(tmp_path, KEPT)
  make_run(tmp_path / 'compare' / 'other', KEPT, noise_multiplier=1.2)
  rows = report.write(tmp_path)['runs']
  assert [row['name'] for row in rows] == ['banded-toeplitz', 'other']
  assert rows[1]['epsilon'] < rows[0]['epsilon']


def test_folder_without_run_is_refused_in_one_line(tmp_path):
  with pytest.raises(ValueError, match='run.json') as caught:
    report.write(tmp_path)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'min_sep, k', [(1, 1), (1, 6), (2, 2), (2, 3), (3, 2), (6, 1)]
)
def test_what_if_is_the_epsilon_of_every_pattern(tmp_path, min_sep, k):
  spec = make_run(tmp_path, KEPT)
  found = report.what_if(tmp_path, min_sep, k)
  sensitivity = brute_force.bound(
    spec.strategy.matrix(), participation.MinSep(min_sep, k)
  )
  assert found['sensitivity_method'] == 'exact'
  assert found['epsilon'] == pytest.approx(
    accounting.gaussian_epsilon(spec.z_stddev_per_clip / sensitivity, 1e-5),
    rel=1e-3,
  )
  assert (found['min_sep'], found['participations']) == (min_sep, k)
  assert found['observed_is_worse'] == (min_sep > 3 or k < 2)


def test_what_if_without_a_value_takes_the_planned_one(tmp_path):
  make_run(tmp_path, KEPT, schema=participation.MinSep(3))
  assert report.what_if(tmp_path, min_sep=1)['participations'] == 6
  assert report.what_if(tmp_path, max_participations=1)['min_sep'] == 3
  with pytest.raises(ValueError, match='what_if=None'):
    report.what_if(tmp_path)
  with pytest.raises(ValueError, match='min_sep=0'):
    report.what_if(tmp_path, min_sep=0)


def test_what_if_on_the_command_line_writes_nothing(tmp_path, capsys):
  make_run(tmp_path, [[0, 1], [2, 3], [0, 5], [4, 6], [8, 7], [9, 10]])
  before = {path.name for path in tmp_path.iterdir()}
  command = ['report', str(tmp_path), '--what-if']
  assert main.main([*command, 'min_sep=3,max_participations=2']) == 0
  out, _ = capsys.readouterr()
  assert '1e-05)-DP' in out and 'the ledger has min_sep 2' in out
  assert main.main([*command, 'max-participations=1', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert (
    found['epsilon']
    == report.what_if(tmp_path, max_participations=1)['epsilon']
  )
  assert {path.name for path in tmp_path.iterdir()} == before
  for wrong in ('k=3', 'min_sep=3,min_sep=4', 'min_sep=x', 'min_sep=0', ''):
    assert main.main([*command, wrong]) == 2
    assert capsys.readouterr().err.count('\n') == 1


def test_fixed_epochs_get_the_bound_of_all_patterns(tmp_path):
  # Columns 0 and 5 are the worst two, and not 3 apart.
  matrix = np.diag([3.0, 1.0, 1.0, 1.0, 1.0, 3.0])
  spec = make_run(
    tmp_path,
    KEPT,
    strategy=strategies.Dense(matrix),
    schema=participation.FixedEpoch(3, 2),
  )
  written = report.write(tmp_path)
  all_patterns = brute_force.bound(matrix, participation.MinSep(3, 2))
  assert spec.sensitivity.value < 0.99 * all_patterns
  assert written['sensitivity'] >= all_patterns * (1 - 1e-12)
  assert written['epsilon'] > spec.epsilon(1e-5)
  # A composition counts the planned rounds of a run that has not ended.
  assert written['planned']['epsilon'] == written['epsilon']
  assert written['z_stddev_per_clip'] == pytest.approx(spec.z_stddev_per_clip)
  assert not written['violated']


def test_second_participation_where_one_was_planned_is_a_violation(tmp_path):
  make_run(tmp_path, [[t] for t in range(6)], schema=participation.Single())
  written = report.write(tmp_path)
  assert not written['violated'] and written['min_sep'] is None
  other = tmp_path / 'other'
  spec = make_run(other, KEPT, schema=participation.Single())
  written = report.write(other)
  assert written['violated']
  assert written['sensitivity'] == pytest.approx(
    brute_force.bound(spec.strategy.matrix(), participation.MinSep(3, 2))
  )
  assert 'Planned: participations 1.' in written['warnings'][0]


@pytest.mark.parametrize(
  'strategy',
  [
    strategies.SqrtToeplitz(6),
    strategies.Blt(6, [0.3], [0.8]),
    strategies.DpCgd(6, 0.5),
    strategies.BandedInverseSqrt(6, 3),
    strategies.Tree(6, 2),
    strategies.OnlineTree(6),
    strategies.Stamped(6, strategies.SqrtToeplitz(3)),
    strategies.ColumnNormalized(strategies.BandedSqrt(6, 4)),
    strategies.Dense(np.tril(np.ones((6, 6)))),
  ],
  ids=lambda s: s.family,
)
@pytest.mark.deep(but=('[tree', 'dense', 'stamped', 'blt'))
def test_every_family_gets_its_sensitivity_after_the_run(tmp_path, strategy):
  spec = make_run(
    tmp_path,
    [[0, 1], [0, 3], [2, 5], [4, 6], [8, 7], [9, 10]],
    strategy=strategy,
  )
  written = report.write(tmp_path)
  assert written['observed']['min_sep'] == 1
  matrix = np.abs(strategy.matrix())
  # At least what two rounds next to each other give.
  assert written['sensitivity'] >= brute_force.bound(
    matrix, participation.MinSep(1, 2)
  ) * (1 - 1e-9)
  assert written['epsilon'] == pytest.approx(
    accounting.gaussian_epsilon(
      spec.z_stddev_per_clip / written['sensitivity'], 1e-5
    ),
    rel=1e-3,
  )
