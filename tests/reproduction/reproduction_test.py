"""Tests of the published tables; `bandmf reproduce` computes all of them."""

import json

import numpy as np
import pytest

from tff_bandmf import reproduction
from tff_bandmf.reproduction import tables

_QUICK = (
  'example_b1',
  'gaussian_sigma',
  'tail_at_its_limit',
  'unknown_min_sep',
  'gboard_report',
)


@pytest.mark.slow
@pytest.mark.parametrize('name', _QUICK)
def test_table_is_reproduced(name):
  rows = list(reproduction.reproduce([name]))
  assert rows and all(row.table == name for row in rows)
  failed = [row for row in rows if not row.passed]
  assert not failed


@pytest.mark.slow
def test_epsilons_follow_from_the_noise_of_amplified_runs(monkeypatch):
  """The last row of [BandMF23, Table 5]: noise of epsilon, and the way back."""
  published = tables._published()
  table = {**published['amplified_sigma'], 'dp_sgd': []}
  table['banded_rows'] = table['banded_rows'][-1:]
  monkeypatch.setattr(
    tables, '_published', lambda: {**published, 'amplified_sigma': table}
  )
  noise, back = reproduction.reproduce(['amplified_sigma'])
  assert noise.row == 'epsilon 8, 64 bands' and noise.published == 0.4349
  assert back.row == 'epsilon of sigma 0.4349, 64 bands'
  assert back.published == 8 and back.ours == pytest.approx(8, rel=1e-3)
  assert noise.passed and back.passed


@pytest.mark.parametrize(
  'published, ours, absolute, passed',
  [
    (2.0, 2.019, False, True),
    (2.0, 1.981, False, True),
    (2.0, 2.021, False, False),
    (2.0, 2.009, True, True),
    (2.0, 1.989, True, False),
    (2.0, float('nan'), False, False),
    (2.0, float('inf'), True, False),
  ],
)
def test_row_passes_within_its_tolerance(published, ours, absolute, passed):
  row = reproduction.Row('t', 'r', published, ours, 0.01, absolute)
  assert row.passed is passed


def test_row_can_be_written_as_json_whatever_number_it_got():
  row = reproduction.Row('t', 'r', 2.0, np.float64(2.0), 0.01, False)
  assert json.loads(json.dumps(row.passed)) is True


def test_tables_are_those_that_are_published():
  with pytest.raises(ValueError) as error:
    reproduction.reproduce(['table_9'])
  assert str(error.value).startswith('name=table_9: is not a table; use one of')


@pytest.mark.slow
def test_amplified_rows_have_an_estimate_and_a_bound(monkeypatch):
  table = {
    'rounds': 32,
    'bins': 8,
    'delta': 1e-3,
    'samples': 20_000,
    'seed': 0,
    'tol': 0.1,
    'epsilons': [2],
    'rows': [
      {'family': 'dp-cgd', 'lambda': 0.7, 'values': [6.0]},
      {'family': 'banded-sqrt', 'any_bands': [2, 8], 'values': [6.0]},
      {
        'family': 'banded-toeplitz',
        'bands_at': [4],
        'unamplified': True,
        'values': [6.0],
      },
    ],
  }
  name = 'bifr_table6_amplified'
  monkeypatch.setattr(tables, '_published', lambda: {name: table})
  rows = list(reproduction.reproduce([name]))
  assert [row.row for row in rows] == [
    'epsilon 2, dp-cgd, lambda 0.7', 'epsilon 2, banded-sqrt',
    'epsilon 2, banded-toeplitz, bands 4, optimised without amplification',
  ]  # fmt: skip
  for row in rows:
    assert 0.95 * row.ours < row.bound < 1.3 * row.ours
    assert (row.samples, row.seed) == (20_000, 0)


def test_c_of_free_norms_has_a_sensitivity_for_each_schema(monkeypatch):
  row = {
    'family': 'banded',
    'bands': 4,
    'column_normalize': False,
    'ratio': 1.0,
    'sensitivity_min_sep': 1.0,
    'min_sep_ratio': 1.0,
    'sensitivity_single': 0.5,
  }
  table = {
    **tables._published()['banded_rmse'],
    'rounds': 24,
    'min_sep': 6,
    'max_participations': 4,
    'rows': [row],
  }
  monkeypatch.setattr(tables, '_published', lambda: {'banded_rmse': table})
  rows = {each.row: each for each in reproduction.reproduce(['banded_rmse'])}
  name = 'banded, bands 4, norms free'
  ratio, min_sep, at_min_sep, single = (
    rows[name + end].ours
    for end in (
      '',
      ', sensitivity_min_sep',
      ', min_sep_ratio',
      ', sensitivity_single',
    )  # fmt: skip
  )
  assert at_min_sep == pytest.approx(ratio * min_sep)
  assert 1 < min_sep < 1.2
  # A client with one round of 4 has about half of their norm.
  assert 0.5 < single < 0.7


def test_slow_tables_are_asked_for(monkeypatch):
  names = []
  for name in reproduction.TABLES:
    monkeypatch.setitem(
      reproduction.TABLES,
      name,
      lambda table, name=name: names.append(name) or (),
    )
  list(reproduction.reproduce())
  assert not set(reproduction.SLOW) & set(names)
  list(reproduction.reproduce(slow=True))
  assert set(reproduction.SLOW) <= set(names)
