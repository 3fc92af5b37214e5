"""Tests of the plots of `bandmf reproduce`."""

import pytest

from tff_bandmf.reproduction import plots

pytestmark = pytest.mark.slow


def test_every_plot_is_drawn(tmp_path, monkeypatch):
  for name, value in (
    ('_PICTURE_ROUNDS', 16),
    ('_PICTURE_MIN_SEP', 4),
    ('_ROUNDS', 64),
    ('_MIN_SEP', 16),
    ('_UNKNOWN', {'rounds': 600, 'bands': 32, 'b0': 16, 'participations': 2}),
  ):
    monkeypatch.setattr(plots, name, value)
  drawn = list(plots.draw(tmp_path / 'plots'))
  assert sorted(path.stem for path in drawn) == [
    'coefficients',
    'matrices',
    'per_query_error',
    'rmse_by_epsilon',
    'rmse_by_min_sep',
  ]
  for path in drawn:
    assert path.read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'
    assert path.stat().st_size > 10_000
