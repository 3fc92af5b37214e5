"""Tests of the table of metrics of a run, and of its files for TensorBoard."""

import csv
import logging
import math
import pathlib
import re
import struct
import sys

import numpy as np
import pytest
import small_run

import tff_bandmf
from tff_bandmf import errors, report
from tff_bandmf import run as run_lib
from tff_bandmf.run_files import metrics, run_json


def _plan(**changes):
  return tff_bandmf.Plan(
    **{
      'rounds': 4,
      'clients_per_round': 6,
      'cohorts': tff_bandmf.MinSep(2),
      'noise_multiplier': 2.0,
      'delta': 1e-3,
      'l2_norm_clip': 0.5,
      'mechanism': 'banded-sqrt',
      **changes,
    }
  )


def _run(folder, **options):
  return run_lib.Run(folder, _plan(), options=run_lib.RunOptions(**options))


def _train(folder, plan, before=lambda mine: None, rounds=None):
  """Trains without TFF, with a loss that has no noise; returns the table."""
  with run_lib.Run(folder, plan) as mine:
    before(mine)
    model = mine.restore(lambda: np.zeros(2))
    for opened in mine.rounds(clients=80, rounds=rounds):
      updates = [np.full(2, 0.1)] * len(opened.cohort)
      model = model + opened.release(updates, model)
      model = opened.finish(model, metrics={'loss': 1 / (opened.index + 1)})
    return mine.metrics


def test_metrics_of_a_run_are_one_table(tmp_path):
  plan = _plan()
  _train(tmp_path, plan, rounds=2)
  table = _train(tmp_path, plan)
  assert [row['round'] for row in table] == [0, 1, 2, 3]
  assert [row['epsilon'] for row in table] == [
    plan.spent(t) for t in range(1, 5)
  ]
  assert [row['loss'] for row in table] == [1, 1 / 2, 1 / 3, 1 / 4]
  noise = np.sqrt(plan.strategy.per_query_errors()) * plan.z_stddev / 6
  assert [row['noise_stddev'] for row in table] == pytest.approx(noise)
  for row in table:
    assert row['clip'] == 0.5 and row['clients'] == 6
    assert 0 < row['seconds'] < 60 and row['memory_mib'] > 10
  # The file in `private/` repeats it; the public one lacks what has no noise.
  with open(tmp_path / run_json.TABLE) as file:
    rows = list(csv.DictReader(file))
  assert [float(row['loss']) for row in rows] == [r['loss'] for r in table]
  assert not (tmp_path / run_json.TABLE).stat().st_mode & 0o077
  public = metrics.exported(tmp_path)
  assert [float(row['epsilon']) for row in public] == [
    row['epsilon'] for row in table
  ]
  assert 'loss' not in public[0]
  found = report.build(tmp_path).content
  assert 'loss (private/metrics.csv)' in str(found['not_covered'])
  sides = [each['where'] for each in found['side_releases']]
  assert {'metrics.csv, seconds', 'metrics.csv, memory_mib'} < {*sides}
  assert not {f'metrics.csv, {name}' for name in metrics.PLANNED} & {*sides}


@pytest.mark.parametrize('name', ['epsilon', 'fraction', 'clients', 'seconds'])
def test_column_of_the_run_is_refused_to_the_program(tmp_path, name):
  refused = pytest.raises(ValueError, match=f'={name}: is a column')
  with refused, _run(tmp_path / 'columns', columns=['loss', name]):
    pass
  with _run(tmp_path / 'mine', columns=['loss']) as mine:
    model = mine.restore(lambda: np.zeros(2))
    for opened in mine.rounds(clients=80, rounds=1):
      mean = opened.release([], model)
      with refused:
        opened.finish(model + mean, metrics={name: 1.0})
      with refused:
        opened.finish(model + mean, shown={name: 1.0})
      with pytest.raises(ValueError, match='shown=los: .* RunOptions.columns'):
        opened.finish(model + mean, shown={'los': 1.0})
      with pytest.raises(TypeError, match='loss=low: must be a number'):
        opened.finish(model + mean, shown={'loss': 'low'})
      opened.finish(model + mean, shown={'loss': 1.0})
  assert metrics.exported(tmp_path / 'mine')[0]['loss'] == '1.0'


def test_noise_of_the_table_is_the_noise_of_the_model(tmp_path):
  """Its deviation over many coordinates, within four standard errors."""
  plan, size = _plan(), 20_000
  with run_lib.Run(tmp_path, plan) as mine:
    model = mine.restore(lambda: np.zeros(size))
    for opened in mine.rounds(clients=80):
      updates = [np.zeros(size, np.float32)] * len(opened.cohort)
      model = opened.finish(model + opened.release(updates, model))
      expected = mine.metrics[-1]['noise_stddev']
      assert abs(np.std(model) / expected - 1) < 4 / math.sqrt(2 * size)


def test_sampled_run_shows_no_time_and_no_memory(tmp_path):
  plan = _plan(cohorts=tff_bandmf.CyclicPoisson(population=80))
  table = _train(tmp_path, plan)
  public = metrics.exported(tmp_path)
  assert list(public[0]) == ['round', 'planned_epsilon', 'clip', 'noise_stddev']
  assert {float(row['planned_epsilon']) for row in public} == {plan.spent(4)}
  # The owner of the folder sees the times.
  assert all(row['seconds'] > 0 and row['memory_mib'] > 10 for row in table)


def test_clip_that_adapts_is_the_one_that_rounds_released(tmp_path):
  _train(tmp_path, _plan(l2_norm_clip=tff_bandmf.AdaptiveClip(0.5)))
  rows = metrics.exported(tmp_path)
  assert not {'clip', 'noise_stddev'} & {*rows[0]}
  assert all(float(row['l2_norm_clip']) > 0 for row in rows)


def test_plan_without_a_claim_has_no_epsilon(tmp_path):
  table = _train(tmp_path, _plan(delta=None))
  assert 'epsilon' not in table[0] and table[0]['noise_stddev'] > 0
  assert metrics.exported(tmp_path)[0]['epsilon'] == ''


def _events(folder):
  """Yields (step, {tag: value}) of the records of each file, in their order."""
  from tensorboard.compat.proto import event_pb2

  for path in sorted(folder.iterdir()):
    data = path.read_bytes()
    while data:
      (length,) = struct.unpack('<Q', data[:8])
      event = event_pb2.Event.FromString(data[12 : 12 + length])
      data = data[16 + length :]
      if event.summary.value:
        values = {each.tag: each.simple_value for each in event.summary.value}
        yield event.step, values


def test_tensorboard_gets_the_numbers_of_each_round(tmp_path):
  """A program that is started again writes another file."""
  plan = _plan()
  _train(tmp_path, plan, run_lib.Run.tensorboard, rounds=2)
  table = _train(tmp_path, plan, run_lib.Run.tensorboard)
  folder = tmp_path / run_json.TENSORBOARD
  assert len(list(folder.iterdir())) == 2
  assert not (tmp_path / run_json.PRIVATE).stat().st_mode & 0o077
  events = list(_events(folder))
  assert [step for step, _ in events] == [0, 1, 2, 3]
  for (_, values), row in zip(events, table):
    assert values == pytest.approx(row, rel=1e-6)


def test_tensorboard_gets_the_numbers_of_a_process(tmp_path, runtime):
  with run_lib.Run(tmp_path, small_run.small_plan()) as mine:
    mine.tensorboard()
    process = small_run.Process(mine.aggregator)
    state = mine.restore(process.initialize)
    opened, _ = small_run.came(mine, process, state, [0, 1])
  (event,) = _events(tmp_path / run_json.TENSORBOARD)
  assert event[0] == opened.index and event[1]['clients'] == 2


def test_missing_tensorboard_has_a_remedy(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorboard.compat.proto', None)
  with run_lib.Run(tmp_path, _plan()) as mine:
    with pytest.raises(ImportError, match=r"tensorboard=.*'\.\[tensorboard\]'"):
      mine.tensorboard()


def test_rounds_are_logged_without_secrets(tmp_path, caplog, capfd):
  caplog.set_level(logging.DEBUG, 'tff_bandmf')
  _train(tmp_path, _plan(rounds=2))
  messages = [(record.levelname, record.message) for record in caplog.records]
  run = str(tmp_path)
  assert messages == [
    ('DEBUG', f'{run}: round 0 starts'),
    ('INFO', f'{run}: round 0 is over'),
    ('DEBUG', f'{run}: round 1 starts'),
    ('INFO', f'{run}: round 1 is over'),
  ]
  assert capfd.readouterr().err == ''
  with run_lib.Run(tmp_path, _plan(rounds=2)) as mine:
    assert not list(mine.rounds(clients=80))
  # A terminal shows what it has always shown.
  assert capfd.readouterr().err.startswith('All 2 rounds are done; ')
  assert caplog.records[-1].levelname == 'INFO'


def test_lines_of_a_level_that_nobody_asked_for_are_not_logged(caplog, capfd):
  # A root handler, as other libraries install one, stays silent. The level is
  # Python's default; other libraries may have changed it.
  caplog.set_level(logging.WARNING)
  errors.LOGGER.info('a round is over')
  errors.notice('two minutes', logging.INFO)
  assert not caplog.records
  assert capfd.readouterr().err == 'two minutes\n'
  with caplog.at_level(logging.INFO):
    errors.notice('two minutes', logging.INFO)
  assert len(caplog.records) == 1
  assert capfd.readouterr().err == 'two minutes\n'


def test_burnt_round_is_a_warning_of_the_log(tmp_path, caplog):
  with run_lib.Run(tmp_path, _plan()) as mine:
    mine.restore(lambda: np.zeros(2))
    with mine.round(cohort=[1, 2]):
      pass
  warnings = [each for each in caplog.records if each.levelname == 'WARNING']
  assert [each.message for each in warnings] == [
    f'{tmp_path}: round 0 is burnt'
  ]


@pytest.mark.slow
def test_code_of_the_page_runs(tmp_path, monkeypatch, caplog):
  """It compares epsilons, makes files, and stops early."""
  monkeypatch.chdir(tmp_path)
  page = pathlib.Path(tff_bandmf.__file__).parents[1] / 'docs' / 'guide'
  text = (page / 'while_training.md').read_text()
  monkeypatch.setattr(logging.getLogger('tff_bandmf'), 'handlers', [])
  caplog.set_level(logging.DEBUG, 'tff_bandmf')  # The page's level ends here.
  exec('\n'.join(re.findall(r'```python\n(.*?)```', text, re.DOTALL)), {})
  assert {'best.npy', 'losses.png'} < {each.name for each in tmp_path.iterdir()}
