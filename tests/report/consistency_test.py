"""Tests that a ledger is compared with a run's other files, round by round.

Each attack here was accepted once, and the report claimed too little.
"""

import contextlib
import json
import shutil
import sqlite3

import doctored
import numpy as np
import pytest
from written_run import KEPT, RESULTS, make_run

from tff_bandmf import accounting, report
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.ledger import chain
from tff_bandmf.run_files import checkpoints, run_json

pytestmark = pytest.mark.slow


def forge(directory, change):
  """Changes a ledger and computes its chain anew, as whoever has it can."""
  path = directory / run_json.LEDGER_FILE
  with contextlib.closing(sqlite3.connect(path)) as ledger, ledger:
    change(ledger)
    cohorts = dict(
      (t, chain.cohort_digest(np.frombuffer(cohort, '<i8'), highest))
      for t, cohort, highest in ledger.execute(
        'SELECT round, cohort, highest FROM bandmf_rounds'
      )
    )
    ((run, noise_key, key),) = ledger.execute(
      'SELECT run, noise_key, "key" FROM bandmf_ledger'
    )
    head = chain.genesis(run, noise_key, key)
    events = ledger.execute(
      'SELECT place, round, kind, digest, z_stddev, noise_checked, payload '
      'FROM bandmf_events ORDER BY place'
    ).fetchall()
    ledger.execute('DELETE FROM bandmf_events')
    for place, (_, t, kind, digest, z_stddev, checked, payload) in enumerate(
      events
    ):
      if kind == chain.STARTED:
        digest = cohorts[t]
      head = chain.link(
        head,
        place,
        chain.Event(t, kind, digest, z_stddev, bool(checked), payload),
      )
      ledger.execute(
        'INSERT INTO bandmf_events (place, round, kind, digest, z_stddev, '
        'noise_checked, payload, head) VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
        (place, t, kind, digest, z_stddev, checked, payload, head),
      )
    ledger.execute(
      'UPDATE bandmf_ledger SET events = ?, head = ?', (len(events), head)
    )
  with ledger_lib.Ledger(path, create=False):
    pass  # What is forged so well opens.


def _refused(directory, match):
  with pytest.raises(ValueError, match=match) as caught:
    report.write(directory)
  assert '\n' not in str(caught.value)
  assert not list(directory.glob('report.*'))


def _cut(ledger):
  """Takes out of its rounds the client that is there most often."""
  rows = ledger.execute('SELECT round, cohort FROM bandmf_rounds').fetchall()
  cohorts = {t: np.frombuffer(cohort, '<i8') for t, cohort in rows}
  clients, times = np.unique(
    np.concatenate(list(cohorts.values())), return_counts=True
  )
  worst = clients[times.argmax()]
  there = [t for t, cohort in cohorts.items() if worst in cohort]
  for t in there[1:]:
    ledger.execute(
      'UPDATE bandmf_rounds SET cohort = ? WHERE round = ?',
      (cohorts[t][cohorts[t] != worst].tobytes(), t),
    )
  return there


# One client three times, where two rounds three apart were planned.
_OFTEN = [[0, 1], [2, 3], [0, 5], [4, 6], [0, 7], [9, 10]]


def _copies(tmp_path):
  """Returns copies of the run: to edit, to forge, to forge without results."""
  return [
    shutil.copytree(tmp_path / 'run', tmp_path / name)
    for name in ('plain', 'forged', 'blind')
  ]


def test_client_cut_out_of_two_cohorts_is_refused(tmp_path):
  make_run(tmp_path / 'run', _OFTEN)
  true = report.build(tmp_path / 'run').content['epsilon']
  planned = accounting.gaussian_epsilon(0.6, 1e-5)
  assert true > 1.5 * planned
  # Whoever only edits the cohorts contradicts the chain.
  plain, forged, blind = _copies(tmp_path)
  path = plain / run_json.LEDGER_FILE
  with contextlib.closing(sqlite3.connect(path)) as ledger, ledger:
    _cut(ledger)
  _refused(plain, 'ledger=round 2: contradicts the chain')
  # Whoever makes another chain contradicts the result,
  forge(forged, _cut)
  _refused(forged, 'result.json: differs from the ledger')
  # and, while there is none, the sizes of the cohorts.
  forge(blind, _cut)
  (blind / run_json.RESULT_FILE).unlink()
  _refused(blind, 'clients=2: the metrics of round 2 have this number')


def test_ledger_of_another_run_is_refused(tmp_path):
  make_run(tmp_path / 'mine', _OFTEN)
  make_run(tmp_path / 'other', KEPT, key=b'other')
  mine, other = (
    tmp_path / name / run_json.LEDGER_FILE for name in ('mine', 'other')
  )
  shutil.copy(other, mine)
  _refused(tmp_path / 'mine', 'belongs to another run or key than run.json')
  # One that was never said to be of a run is of none.
  mine.unlink()
  with ledger_lib.Ledger(mine) as ledger:
    ledger.start_round(0, [0])
  _refused(tmp_path / 'mine', 'belongs to another run or key than run.json')


def test_other_clip_than_the_rounds_held_to_is_refused(tmp_path):
  make_run(tmp_path, KEPT, held=range(6))
  report.write(tmp_path)
  plan = json.loads((tmp_path / run_json.PLAN_FILE).read_text())
  plan['request']['clients_per_round'] += 1
  (tmp_path / run_json.PLAN_FILE).write_text(json.dumps(plan))
  with pytest.raises(ValueError, match='was changed after rounds'):
    report.write(tmp_path)


def test_run_without_a_finished_round_is_bound_to_its_files(tmp_path):
  """Once, what a run held to stood beside the end of a finished round."""
  make_run(tmp_path, KEPT[:1], ended=False, held=[0])
  doctored.rewrite(
    tmp_path / run_json.LEDGER_FILE,
    lambda event: (
      event if event.kind in (chain.STARTED, chain.ENFORCED) else None
    ),
  )
  (tmp_path / run_json.METRICS_FILE).unlink()
  report.build(tmp_path)
  plan = json.loads((tmp_path / run_json.PLAN_FILE).read_text())
  plan['request']['delta'] = 1e-3
  (tmp_path / run_json.PLAN_FILE).write_text(json.dumps(plan))
  _refused(tmp_path, 'was changed after rounds in the ledger')


def test_results_that_the_run_did_not_end_with_are_refused(tmp_path):
  make_run(tmp_path, KEPT)
  path = tmp_path / run_json.RESULT_FILE
  results = json.loads(path.read_text())
  path.write_text(json.dumps({**results, 'test_accuracy': 0.124}))
  _refused(tmp_path, 'result.json: differs from the ledger')


def test_noise_verified_in_one_of_six_rounds_is_refused(tmp_path):
  make_run(tmp_path, KEPT, verified=[2])
  _refused(
    tmp_path, 'round=0: is the first of 5 of 6 finished rounds whose noise'
  )
  # Where no noise is claimed, none need be there.
  make_run(tmp_path / 'none', KEPT, noise_multiplier=0.0, verified=[])
  assert report.write(tmp_path / 'none')['epsilon'] is None


@pytest.mark.parametrize('gone', [0, 3, 5])
def test_five_cohorts_for_six_rounds_are_refused(tmp_path, gone):
  make_run(tmp_path / 'run', KEPT)

  def without_cohort(ledger):
    ledger.execute('DELETE FROM bandmf_rounds WHERE round = ?', (gone,))

  def without_round(ledger):
    without_cohort(ledger)
    ledger.execute('DELETE FROM bandmf_events WHERE round = ?', (gone,))

  plain, forged, blind = _copies(tmp_path)
  path = plain / run_json.LEDGER_FILE
  with contextlib.closing(sqlite3.connect(path)) as ledger, ledger:
    without_cohort(ledger)
  _refused(plain, f'ledger=round {gone}: contradicts the chain')
  forge(forged, without_round)
  ended = 'result.json: differs|lacks round'
  _refused(forged, ended)
  forge(blind, without_round)
  (blind / run_json.RESULT_FILE).unlink()
  _refused(blind, ended)


def test_ended_run_with_a_round_that_did_not_end_is_refused(tmp_path):
  make_run(tmp_path, KEPT[:5], ended=False)
  with ledger_lib.Ledger(tmp_path / run_json.LEDGER_FILE) as ledger:
    ledger.start_round(5, [4, 8])
    head = ledger.head()
  assert not report.write(tmp_path)['completed']
  for path in tmp_path.glob('report.*'):
    path.unlink()
  # The ledger has no end, so a program of somebody's own wrote this file.
  (tmp_path / run_json.RESULT_FILE).write_text(
    json.dumps({**RESULTS, run_json.LEDGER_HEAD: head})
  )
  _refused(tmp_path, 'result.json: differs from the ledger')


def test_round_that_was_finished_twice_is_refused(tmp_path):
  make_run(tmp_path, KEPT, ended=False)

  def second(ledger):
    ledger.execute(
      'UPDATE bandmf_events SET digest = zeroblob(32) '
      "WHERE round = 5 AND kind = 'finished'"
    )
    # The rounds before are as they were: what follows is another release.
    for kind, digest in (('started', b''), ('finished', bytes([5]) * 32)):
      ledger.execute(
        'INSERT INTO bandmf_events (place, round, kind, digest, z_stddev, '
        'noise_checked, head) SELECT max(place) + 1, 5, ?, ?, NULL, ?, '
        "x'00' FROM bandmf_events",
        (kind, digest, kind == 'finished'),
      )

  forge(tmp_path, second)
  _refused(tmp_path, 'round=5: was finished twice')


def test_ledger_that_lacks_what_metrics_show_is_refused(tmp_path):
  make_run(tmp_path, KEPT[:4], ended=False)
  report.write(tmp_path)
  for path in tmp_path.glob('report.*'):
    path.unlink()
  path = tmp_path / run_json.METRICS_FILE
  lines = path.read_text().splitlines(keepends=True)
  for changed, match in (
    ([*lines, '4' + lines[4][1:]], 'lacks round 4, which has a row of metrics'),
    ([*lines[:3], lines[2]], 'differs from the ledger in line 4'),
    (
      [*lines[:3], '2,3,' + lines[3][4:], lines[4]],
      'differs from the ledger in line 4',
    ),
    ([*lines[:2], *lines[3:]], 'differs from the ledger in line 3'),
    (
      [lines[0].replace('fraction', 'number'), *lines[1:]],
      'differs from the ledger in line 2',
    ),
  ):
    path.write_text(''.join(changed))
    _refused(tmp_path, match)
  # A row more than were written is refused, a row less is a run that goes on.
  path.write_text(''.join(lines[:4]))
  report.write(tmp_path)


def test_ended_run_whose_metrics_lack_the_end_is_refused(tmp_path):
  make_run(tmp_path, KEPT)
  path = tmp_path / run_json.METRICS_FILE
  path.write_text(''.join(path.read_text().splitlines(keepends=True)[:-1]))
  _refused(tmp_path, 'ends with round 4, and the run ended with round 5')


def test_flipped_bit_of_metrics_is_refused(tmp_path):
  make_run(tmp_path, KEPT)
  path = tmp_path / run_json.METRICS_FILE
  whole = path.read_bytes()
  # 2 of 3 of them once changed what the report said, without a word.
  for bit in np.random.default_rng(0).permutation(8 * len(whole))[:100]:
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match='metrics.csv') as caught:
      report.what_if(tmp_path, 1)
    assert '\n' not in str(caught.value)


def test_checkpoint_of_another_ledger_is_refused(tmp_path):
  make_run(tmp_path, _OFTEN, ended=False)
  folder = tmp_path / 'private' / 'checkpoints'
  kept = checkpoints.Checkpoints(folder)
  with ledger_lib.Ledger(tmp_path / run_json.LEDGER_FILE) as ledger:
    heads = [ledger.attempts(t)[-1].head for t in range(6)]
  for t in 3, 6:
    kept.save(0.0, t, heads[t - 1])
  report.write(tmp_path)
  for path in tmp_path.glob('report.*'):
    path.unlink()
  (tmp_path / run_json.METRICS_FILE).unlink()
  forge(tmp_path, _cut)
  _refused(
    tmp_path, 'checkpoint=.*00000003.npz: does not follow from the rounds'
  )
  (folder / '00000003.npz').write_bytes(b'state')
  _refused(tmp_path, 'checkpoint=.*00000003.npz: is damaged')
