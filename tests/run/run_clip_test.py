"""Tests of runs whose clip adapts."""

import itertools

import numpy as np
import pytest
import small_run

import tff_bandmf
from tff_bandmf import run
from tff_bandmf.run_files import metrics, run_json


@pytest.mark.slow
def test_adaptive_clip_goes_on_after_a_kill(runtime, tmp_path):
  """Its replays clip as the rounds did, with TFF and without."""
  plan = small_run.small_plan(
    l2_norm_clip=tff_bandmf.AdaptiveClip(0.3, rate=2.0)
  )
  expected = small_run.train(small_run.with_key(tmp_path / 'whole'), plan).sum
  rows = []
  for write in range(5, 35, 10):
    directory = small_run.with_key(tmp_path / f'run{write}')
    with small_run.killed_at(write):
      small_run.train_without_tff(directory, plan=plan)
    total = small_run.train_without_tff(directory, plan=plan)
    np.testing.assert_array_equal(total, expected)
    rows.append(metrics.exported(directory))
    for row in rows[-1]:
      del row['seconds'], row['memory_mib']
    assert rows[-1] == rows[0]
  clips = [row['l2_norm_clip'] for row in rows[0]]
  assert len(set(clips)) == small_run.ROUNDS
  directory = small_run.with_key(tmp_path / 'killed')
  with small_run.killed_at(20):
    small_run.train(directory, plan)
  np.testing.assert_array_equal(small_run.train(directory, plan).sum, expected)


def test_adaptive_clip_goes_on_without_metrics(tmp_path):
  """The clip is a payload of the ledger; `metrics.csv` is an export of it."""
  plan = small_run.small_plan(
    rounds=5,
    l2_norm_clip=tff_bandmf.AdaptiveClip(0.3, rate=2.0),
    mechanism='identity',
  )
  path = tmp_path / 'run' / run_json.METRICS_FILE
  like = np.zeros(3, np.float32)
  for done in range(4):
    with run.Run(tmp_path / 'run', plan) as mine:
      mine.restore(lambda: like)
      for opened in itertools.islice(mine.rounds(clients=8), 1):
        opened.finish(opened.release([], like))
      report_path = mine.report().content['adaptive_clip']['path']
    rows = metrics.exported(tmp_path / 'run')
    assert len(rows) == done + 1
    assert [0.3, *(float(row['l2_norm_clip']) for row in rows)] == [
      point['l2_norm_clip'] for point in report_path
    ]
    assert len({point['l2_norm_clip'] for point in report_path}) == done + 2
    path.unlink()


def test_adaptive_clip_of_a_process_is_told(runtime, tmp_path):
  plan = small_run.small_plan(
    l2_norm_clip=tff_bandmf.AdaptiveClip(0.3), rounds=small_run.ROUNDS
  )
  with run.Run(tmp_path / 'run', plan) as mine:
    process = mine.aggregator.create(small_run.TYPE)
    state = mine.restore(process.initialize)
    for opened in mine.rounds(clients=8):
      data = [
        small_run.update_of(client, opened.index) for client in opened.cohort
      ]
      output = process.next(state, data)
      state = opened.finish(
        output.state,
        {'aggregator': output.measurements, 'released': {'fraction': 0.1}},
      )
    content = mine.report().content
  told = content['adaptive_clip']
  assert told['last_l2_norm_clip'] == state.query_state.clip['l2_norm_clip']
  assert [point['rounds'] for point in told['path']] == [0, 1, 2, 3]
  assert told['path'][0]['l2_norm_clip'] == told['initial'] == 0.3
  assert 'clip.png' in content['plots']
  assert content['l2_norm_clip'] == pytest.approx(0.3 * (1 + 0.14**2) ** 0.5)
  assert content['measured_z_stddev'] == pytest.approx(plan.z_stddev, rel=1e-6)
  # What has noise is not listed among what has none.
  (listed,) = [each for each in content['not_covered'] if 'metrics' in each]
  assert 'released/fraction' in listed
  assert 'aggregator/released' not in listed
  sides = [row['where'] for row in content['side_releases']]
  assert 'metrics.csv, clients' in sides
  assert 'metrics.csv, fraction' not in sides
  assert 'share of updates below the clip' in content['covered']
