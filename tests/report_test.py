"""Tests of the privacy report: it believes files, and only what agrees."""

import json
import math
import pathlib

import numpy as np
import pytest

from tff_bandmf import accounting, participation, program, report, strategies
from tff_bandmf.report import report as report_lib

_ROUNDS = 6


def _make_run(
    directory: pathlib.Path, cohorts, noise_multiplier=0.6, min_sep=3, k=2,
):
  """Writes the files of a run by hand; returns the spec."""
  strategy = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5, 0.4])
  spec = accounting.PrivacySpec(
      strategy, participation.MinSep(min_sep, k), noise_multiplier)
  run = {
      'format': report.RUN_FORMAT, 'version': report.RUN_VERSION, 'config': {},
      'claim': {**spec.to_dict(), 'delta': 1e-5, 'l2_norm_clip': 0.5,
                'clients_per_round': 2},
      'unit_of_privacy': 'one client', 'population': 12, 'data': 'some text',
      'released': 'the model', 'not_covered': ['tuning'],
      'side_releases': ['a count'],
  }
  directory.mkdir(parents=True, exist_ok=True)
  (directory / report.RUN_FILE).write_text(json.dumps(run))
  strategies.save(strategy, directory / report.STRATEGY_FILE)
  (directory / report.RESULT_FILE).write_text(
      json.dumps(
          {'test_accuracy': 0.123, 'test_loss': 5.0, 'parameters': 10}))
  (directory / report.METRICS_FILE).write_text(
      'round,accuracy\n0,\n1,0.05\n5,0.125\n')
  with program.Ledger(directory / report.LEDGER_FILE) as ledger:
    for t, cohort in enumerate(cohorts):
      ledger.start_round(t, np.array(cohort))
      ledger.finish_round(t, spec.z_stddev * 0.5)
  return spec


_KEPT = [[0, 1], [2, 3], [4, 5], [0, 6], [2, 7], [4, 8]]


def test_report_gives_the_numbers_of_the_accountant(tmp_path):
  spec = _make_run(tmp_path, _KEPT)
  written = report.write(tmp_path)
  assert written == json.loads((tmp_path / 'report.json').read_text())
  assert written['epsilon'] == accounting.gaussian_epsilon(0.6, 1e-5)
  assert written['rho'] == pytest.approx(0.5 / 0.36)
  # Two disjoint columns of norm^2 1 + .25 + .16.
  assert written['sensitivity'] == pytest.approx(math.sqrt(2 * 1.41))
  assert written['z_stddev'] == pytest.approx(0.5 * 0.6 * math.sqrt(2 * 1.41))
  assert written['sensitivity_method'] == 'exact'
  assert written['adjacency'] == 'zero-out'
  assert written['strategy_sha256'] == spec.strategy.digest()
  assert written['planned'] == {'rounds': 6, 'min_sep': 3, 'participations': 2}
  assert written['observed'] == {
      'rounds': 6, 'rounds_finished': 6, 'clients': 9, 'min_cohort': 2,
      'max_cohort': 2, 'min_sep': 3, 'participations': 2}
  assert not written['violated']
  text = (tmp_path / 'report.md').read_text()
  for fact in ('zero-out', 'min_sep', '12.30', 'tuning', 'a count'):
    assert fact in text
  assert (tmp_path / 'accuracy.png').stat().st_size > 1000


def test_closer_participation_leads_and_raises_epsilon(tmp_path):
  _make_run(tmp_path, [[0, 1], [2, 3], [0, 5], [4, 6], [8, 7], [9, 10]])
  written = report.write(tmp_path)
  assert written['violated']
  assert written['observed']['min_sep'] == 2
  worse = accounting.PrivacySpec(
      strategies.BandedToeplitz(6, [1.0, 0.5, 0.4]),
      participation.MinSep(2, 2), 1.0).sensitivity.value
  planned = math.sqrt(2 * 1.41)
  assert worse > planned
  assert written['epsilon'] == pytest.approx(
      accounting.gaussian_epsilon(0.6 * planned / worse, 1e-5))
  # The noise that was added does not change.
  assert written['z_stddev'] == pytest.approx(0.5 * 0.6 * planned)
  first = (tmp_path / 'report.md').read_text().splitlines()[2]
  assert 'not kept' in first


def test_more_participations_raise_epsilon(tmp_path):
  _make_run(tmp_path, _KEPT, min_sep=3, k=1)
  written = report.write(tmp_path)
  assert written['violated']
  assert written['epsilon'] == pytest.approx(
      accounting.gaussian_epsilon(0.6 / math.sqrt(2), 1e-5))


@pytest.mark.parametrize('key, value', [
    ('noise_multiplier', 6.0), ('max_participations', 1),
    ('z_stddev_per_clip', 9.0)])
def test_edited_claim_is_refused(tmp_path, key, value):
  _make_run(tmp_path, _KEPT)
  run = json.loads((tmp_path / report.RUN_FILE).read_text())
  run['claim'][key] = value
  (tmp_path / report.RUN_FILE).write_text(json.dumps(run))
  with pytest.raises(ValueError, match='z_stddev'):
    report.write(tmp_path)
  assert not (tmp_path / 'report.json').exists()


def test_edited_strategy_is_refused(tmp_path):
  _make_run(tmp_path, _KEPT)
  strategies.save(
      strategies.BandedToeplitz(6, [1.0, 0.9, 0.4]),
      tmp_path / report.STRATEGY_FILE)
  with pytest.raises(ValueError, match='contradicts'):
    report.write(tmp_path)


def test_missing_ledger_is_refused(tmp_path):
  _make_run(tmp_path, _KEPT)
  (tmp_path / report.LEDGER_FILE).unlink()
  with pytest.raises(ValueError, match='ledger'):
    report.write(tmp_path)
  (tmp_path / report.LEDGER_FILE).touch()
  with pytest.raises(ValueError, match='ledger'):
    report.write(tmp_path)


def test_ended_run_with_part_of_a_ledger_is_refused(tmp_path):
  _make_run(tmp_path, _KEPT[:4])
  with pytest.raises(ValueError, match='rounds=4'):
    report.write(tmp_path)
  (tmp_path / report.RESULT_FILE).unlink()
  written = report.write(tmp_path)
  assert not written['completed']
  assert 'has not ended' in (tmp_path / 'report.md').read_text()


def test_less_noise_measured_than_claimed_is_refused(tmp_path):
  _make_run(tmp_path, _KEPT)
  run = json.loads((tmp_path / report.RUN_FILE).read_text())
  for key in ('noise_multiplier', 'z_stddev_per_clip'):
    run['claim'][key] *= 10
  (tmp_path / report.RUN_FILE).write_text(json.dumps(run))
  with pytest.raises(ValueError, match='measured less noise'):
    report.write(tmp_path)


def test_client_beyond_the_population_is_refused(tmp_path):
  _make_run(tmp_path, _KEPT[:5] + [[4, 12]])
  with pytest.raises(ValueError, match='client=12'):
    report.write(tmp_path)


def test_result_cannot_change_the_claim(tmp_path):
  _make_run(tmp_path, _KEPT)
  (tmp_path / report.RESULT_FILE).write_text(json.dumps(
      {'test_accuracy': 0.5, 'test_loss': 1.0, 'parameters': 1,
       'epsilon': 0.001}))
  assert report.write(tmp_path)['runs'][0]['epsilon'] > 1


@pytest.mark.parametrize('name, content', [
    (report.RUN_FILE, '{"format": "tff_bandmf.run", "version": 1}'),
    (report.RUN_FILE, '{'), (report.RESULT_FILE, '{'),
    (report.STRATEGY_FILE, '{')])
def test_damaged_file_is_named_in_one_line(tmp_path, name, content):
  _make_run(tmp_path, _KEPT)
  (tmp_path / name).write_text(content)
  with pytest.raises(ValueError, match=name) as caught:
    report.write(tmp_path)
  assert '\n' not in str(caught.value)

def test_ledger_with_more_rounds_than_the_strategy_is_refused(tmp_path):
  _make_run(tmp_path, _KEPT + [[9, 10]])
  with pytest.raises(ValueError, match='rounds=7'):
    report.write(tmp_path)


def test_run_without_noise_claims_nothing(tmp_path):
  _make_run(tmp_path, _KEPT, noise_multiplier=0.0)
  written = report.write(tmp_path)
  assert written['epsilon'] is None and written['rho'] is None
  assert 'guarantees nothing' in (tmp_path / 'report.md').read_text()


def test_compared_runs_are_shown(tmp_path):
  _make_run(tmp_path, _KEPT)
  _make_run(tmp_path / 'compare' / 'other', _KEPT, noise_multiplier=1.2)
  rows = report.write(tmp_path)['runs']
  assert [row['name'] for row in rows] == ['banded-toeplitz', 'other']
  assert rows[1]['epsilon'] < rows[0]['epsilon']


def test_folder_without_run_is_refused_in_one_line(tmp_path):
  with pytest.raises(ValueError, match='run.json') as caught:
    report.write(tmp_path)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    'value', [8.0, 3.4240072731488453, 0.123456789, 99999.99, 1e-7 / 3])
def test_printed_epsilon_is_never_below_the_computed_one(value):
  printed = float(report_lib._number(value))
  assert value <= printed <= value * (1 + 2e-5)
