"""Tests of pictures: they show the numbers of what they draw."""

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import (
  _figures,
  choosing,
  participation,
  sensitivity,
  strategies,
)

figure_lib = pytest.importorskip('matplotlib.figure')
_PLAN = {
  'rounds': 12,
  'clients_per_round': 5,
  'cohorts': participation.MinSep(4),
  'epsilon': 8.0,
  'delta': 1e-5,
  'l2_norm_clip': 1.0,
}


def test_strategy_shows_c_its_inverse_and_a_client():
  strategy, schema = strategies.BandedSqrt(12, 3), participation.MinSep(4)
  drawing = strategy.plot(schema)
  assert isinstance(drawing, figure_lib.Figure)
  matrix, inverse, client = drawing.axes[:3]
  shown = [axes.images[0].get_array() for axes in (matrix, inverse)]
  np.testing.assert_array_equal(shown[0], strategy.matrix())
  np.testing.assert_allclose(shown[0] @ shown[1], np.eye(12), atol=1e-12)
  _, dots = client.lines
  assert list(dots.get_xdata()) == [0, 4, 8]
  norm = sensitivity.sensitivity(strategy, schema).value
  assert f'norm {norm:.4g}' in client.get_title()


@pytest.mark.slow
@pytest.mark.parametrize(
  'strategy',
  [
    strategies.BandedSqrt(10**6, 3),
    strategies.Blt(10**6, [0.3, 0.2], [0.9, 0.5]),
    strategies.ColumnNormalized(strategies.BandedSqrt(5000, 3)),
  ],
  ids=lambda strategy: strategy.family,
)
def test_strategy_of_many_rounds_shows_the_first(strategy):
  drawing = strategy.plot()
  (image,) = drawing.axes[0].images
  rounds = len(image.get_array())
  assert 1 <= rounds <= 1024
  np.testing.assert_allclose(
    image.get_array()[:3, :3], strategy.part(0, 3, 0), rtol=1e-12
  )
  assert f'{rounds} of {strategy.rounds} rounds' in drawing.get_suptitle()


def test_ranking_shows_each_family_at_its_memory():
  ranking = choosing.choose(
    12,
    participation.MinSep(4),
    choosing.Target(8.0, 1e-5),
    memory_copies=3,
    families=['identity', 'dp-cgd', 'banded-sqrt'],
  )
  families, memory = ranking.plot().axes
  assert [bar.get_width() for bar in families.patches] == [
    each.ranked for each in ranking.choices
  ]
  assert [label.get_text() for label in families.get_yticklabels()] == [
    each.strategy.family for each in ranking.choices
  ]
  points, least, chosen = memory.lines
  best = ranking.choices[0]
  assert list(zip(points.get_xdata(), points.get_ydata())) == sorted(
    (each.copies, each.ranked) for each in ranking.choices
  )
  assert (np.diff(least.get_ydata()) <= 0).all()
  assert chosen.get_xydata().tolist() == [[best.copies, best.ranked]]


def test_run_shows_what_changes_by_round(tmp_path):
  plan = tff_bandmf.Plan(**_PLAN, mechanism='banded-sqrt')
  with tff_bandmf.Run(tmp_path / 'run', plan) as run:
    run.restore(lambda: np.zeros(2))
    with pytest.raises(ValueError, match='names=round: is not in the metrics'):
      run.plot()
    for current in run.rounds(clients=40, rounds=3):
      mean = current.release([], np.zeros(2))
      current.finish(mean, {'loss': 1 / (1 + current.index), 'constant': 1})
    titles = [axes.get_ylabel() for axes in run.plot().axes]
    assert 'loss' in titles and not {'round', 'constant'} & set(titles)
    (axes,) = run.plot('loss').axes
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[0, 1], [1, 1 / 2], [2, 1 / 3]]
    with pytest.raises(ValueError, match='names=accuracy: is not in.*loss'):
      run.plot('accuracy')


@pytest.mark.slow
def test_plan_shows_runners_up_and_other_limits_of_memory():
  plan = tff_bandmf.Plan(**_PLAN, mechanism=tff_bandmf.Mechanism('blt'))
  families, memory = plan.plot(memory_copies=[1, 2]).axes
  assert [bar.get_width() for bar in families.patches] == [
    plan.rmse,
    *(rmse for _, rmse in plan.result.runners_up),
  ]
  expected = {(plan.copies, plan.rmse)}
  for copies in 1, 2:
    other = tff_bandmf.Plan(
      **_PLAN, mechanism=tff_bandmf.Mechanism('blt'), memory_copies=copies
    )
    expected.add((other.copies, other.rmse))
  assert set(map(tuple, memory.lines[0].get_xydata().tolist())) == expected


def test_limit_in_which_a_mechanism_does_not_fit_is_left_out():
  plan = tff_bandmf.Plan(**_PLAN, mechanism=strategies.BandedSqrt(12, 4))
  _, memory = plan.plot(memory_copies=[0, 3]).axes
  assert list(memory.lines[0].get_xdata()) == [3]
  with pytest.raises(ValueError, match='memory_copies=-1'):
    plan.plot(memory_copies=[-1])


def test_figure_is_laid_out_once_for_its_files_and_shown_by_notebooks(
  monkeypatch,
):
  drawing, axes = _figures.empty('x', 'y')
  axes.plot([1, 2])
  assert drawing._repr_png_().startswith(b'\x89PNG')
  layouts = []
  engine = type(drawing.get_layout_engine())
  execute = engine.execute
  monkeypatch.setattr(
    engine,
    'execute',
    lambda self, fig: layouts.append(fig) or execute(self, fig),
  )
  assert _figures.png(drawing).startswith(b'\x89PNG')
  assert _figures.data_uri(drawing).startswith('data:image/svg+xml')
  assert len(layouts) == 1
