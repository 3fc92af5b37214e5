"""Tests of sweeps of experiments: rates, seeds, crashes, summaries."""

import csv
import fcntl
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import pytest
from click import testing

from simulations import sweep
from simulations.corpora import docstrings
from simulations.sweeps import cell as sweep_cell
from simulations.sweeps import grid
from simulations.sweeps import plots as sweep_plots
from simulations.sweeps import summary as sweep_summary
from tff_bandmf import report

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_TOML = """
epsilons = [8]
seeds = 2
[base.data]
corpus = '{corpus}'
vocabulary_size = 100
max_sentences_per_client = 2
[base.model]
embedding_size = 4
lstm_size = 4
[base.training]
rounds = 4
clients_per_round = 3
evaluate_every = 2
evaluation_sentences = 20
[base.privacy]
min_sep = 2
delta = 1e-5
l2_norm_clip = 0.5
[mechanisms.crowd]
privacy.family = 'identity'
training.clients_per_round = 100000
[mechanisms.tree]
privacy.family = 'online-tree'
"""


def _row(*exponents):
  return grid.Row(
    'blt_epsilon8',
    'blt',
    8.0,
    exponents,
    {
      'data': {},
      'model': {},
      'training': {'rounds': 4, 'clients_per_round': 2},
      'privacy': {
        'family': 'blt',
        'min_sep': 2,
        'epsilon': 8.0,
        'delta': 1e-5,
        'l2_norm_clip': 1.0,
      },
    },
    (),
  )


def _result(accuracy, claimed=8.0):
  return sweep_cell.Result(
    accuracy + 0.01, ((2, accuracy / 2), (4, accuracy)), claimed, 0.5
  )


def _ended(accuracies):
  return {
    f'blt_epsilon8/seed0_rate{exponent:+d}': (
      None if accuracy is None else _result(accuracy)
    )
    for exponent, accuracy in accuracies.items()
  }


def _exponents(cells):
  return [cell.exponent for cell in cells]


def test_rate_of_best_validation_is_taken():
  taken, cells = sweep.choose_rate(
    _row(2, 0, 1), _ended({0: 0.1, 1: 0.3, 2: 0.2})
  )
  assert taken == 1
  assert _exponents(cells) == [0, 1, 2]
  assert {cell.seed for cell in cells} == {sweep.TUNING_SEED}


def test_smaller_of_two_equal_rates_is_taken():
  assert (
    sweep.choose_rate(
      _row(0, 1, 2, 3), _ended({0: 0.1, 1: 0.3, 2: 0.3, 3: 0.2})
    )[0]
    == 1
  )


def test_rate_is_open_while_a_candidate_runs():
  taken, cells = sweep.choose_rate(_row(0, 1, 2), _ended({0: 0.1, 1: 0.3}))
  assert taken is None
  assert _exponents(cells) == [0, 1, 2]
  assert sweep.test_cells(_row(0, 1, 2), 3, _ended({0: 0.1, 1: 0.3})) == []


@pytest.mark.parametrize(
  'scores, tried',
  [
    ({0: 0.3, 1: 0.2}, [-1, 0, 1]),
    ({0: 0.2, 1: 0.3}, [0, 1, 2]),
    ({0: 0.2, 1: 0.3, 2: 0.4}, [0, 1, 2, 3]),
    ({0: None, 1: 0.3}, [0, 1, 2]),
  ],
)
def test_search_goes_on_beyond_an_edge(scores, tried):
  taken, cells = sweep.choose_rate(_row(0, 1), _ended(scores))
  assert taken is None
  assert _exponents(cells) == tried


def test_search_beyond_an_edge_ends():
  scores = {i: 0.01 * (i + 1) for i in range(6)}
  taken, cells = sweep.choose_rate(_row(0, 1), _ended(scores))
  assert taken == 5
  assert _exponents(cells) == list(range(6))


def test_failed_candidates_are_not_taken():
  assert (
    sweep.choose_rate(_row(0, 1, 2), _ended({0: 0.1, 1: None, 2: None}))[0]
    is None
  )
  ended = _ended({-1: 0.05, 0: 0.1, 1: None, 2: None})
  assert sweep.choose_rate(_row(0, 1, 2), ended)[0] == 0
  nothing = _ended({0: None, 1: None})
  assert sweep.choose_rate(_row(0, 1), nothing)[0] is None
  assert sweep.test_cells(_row(0, 1), 3, nothing) == []


def test_test_seeds_are_fresh():
  ended = _ended({0: 0.1, 1: 0.3, 2: 0.2})
  cells = sweep.test_cells(_row(0, 1, 2), 3, ended)
  assert [(cell.exponent, cell.seed) for cell in cells] == [
    (1, 1),
    (1, 2),
    (1, 3),
  ]
  assert [cell.config.training.seed for cell in cells] == [1, 2, 3]
  assert cells[0].config.training.server_learning_rate == 1.7
  assert cells[0].name == 'blt_epsilon8/seed1_rate+1'


def _summary(tmp_path, claimed=8.0):
  row = _row(0, 1, 2)
  ended = _ended({0: 0.1, 1: 0.3, 2: None})
  cells = sweep.test_cells(row, 3, ended)
  accuracies = (0.25, 0.35, 0.3)
  ended.update(
    {
      cell.name: _result(value, claimed)
      for cell, value in zip(cells, accuracies)
    }
  )
  summary = sweep_summary.Summary.of(
    [(row, *sweep.choose_rate(row, ended), cells)], ended
  )
  summary.write(tmp_path)
  return summary


def test_summary_has_means_and_spread(tmp_path):
  summary = _summary(tmp_path)
  (row,) = json.loads((tmp_path / 'summary.json').read_text())['rows']
  # The test accuracies, not those that the rate was chosen by.
  expected = [26.0, 36.0, 31.0]
  assert row['accuracy_mean'] == pytest.approx(statistics.mean(expected))
  assert row['accuracy_stdev'] == pytest.approx(statistics.stdev(expected))
  assert (row['accuracy_least'], row['accuracy_most']) == pytest.approx(
    (26.0, 36.0)
  )
  assert (row['seeds'], row['claimed_epsilon']) == (3, 8.0)
  assert row['server_learning_rate'] == 1.7
  with open(tmp_path / 'summary.csv', newline='') as stream:
    (read,) = csv.DictReader(stream)
  assert float(read['accuracy_mean']) == row['accuracy_mean']
  assert summary.failed == ('blt_epsilon8/seed0_rate+2',)
  assert 'blt_epsilon8/seed0_rate+2' in summary.markdown()
  taken = [
    each['server_learning_rate'] for each in summary.tuning if each['taken']
  ]
  assert taken == [1.7]


def test_summary_says_what_no_guarantee_covers(tmp_path):
  summary = _summary(tmp_path)
  assert 'learning rates' in sweep_summary.NOTE
  assert 'covered by any of them' in sweep_summary.NOTE
  assert sweep_summary.NOTE in summary.markdown()
  assert sweep_summary.NOTE in (tmp_path / 'summary.json').read_text()


def test_row_that_claims_more_says_so(tmp_path):
  # Such as one that stands for a larger cohort.
  assert sweep_summary.CLAIMS_MORE not in _summary(tmp_path).markdown()
  summary = _summary(tmp_path, claimed=20.0)
  assert sweep_summary.CLAIMS_MORE in summary.markdown()
  assert sweep_summary.CLAIMS_MORE in (tmp_path / 'summary.json').read_text()
  (axes,) = sweep_plots.accuracy(summary.rows).axes
  assert list(axes.lines[0].get_xdata()) == [20.0]
  assert [label.get_text() for label in axes.get_xticklabels()] == ['20']


def test_plots_show_means_and_spread(tmp_path):
  summary = _summary(tmp_path)
  for name in ('accuracy', 'convergence'):
    assert (tmp_path / f'{name}.png').read_bytes().startswith(b'\x89PNG')
  (axes,) = sweep_plots.convergence(summary.curves).axes
  rounds, mean = axes.lines[0].get_data()
  assert list(rounds) == [2, 4]
  assert list(mean) == pytest.approx([15.0, 30.0])
  (axes,) = sweep_plots.accuracy(summary.rows).axes
  (bars,) = axes.containers
  segment = bars.lines[2][0].get_segments()[0]
  stdev = summary.rows[0]['accuracy_stdev']
  assert list(segment[:, 1]) == pytest.approx([31 - stdev, 31 + stdev])
  assert sweep_plots.accuracy(()) is None
  assert sweep_plots.convergence({}) is None


@pytest.fixture(scope='module')
def grid_path(tmp_path_factory):
  packages = [p for p in docstrings.PACKAGES if p[0] == 'absl-py']
  folder = tmp_path_factory.mktemp('sweep')
  corpus = folder / 'absl.sqlite'
  docstrings.write_clients(docstrings.read_clients(packages), str(corpus))
  path = folder / 'grid.toml'
  path.write_text(_TOML.format(corpus=corpus))
  return path


def _command(grid_path, directory, *more):
  return [
    sys.executable,
    '-m',
    'simulations.sweep',
    f'--grid={grid_path}',
    f'--out={directory}',
    *more,
  ]


def _start(grid_path, directory, log, *more):
  return subprocess.Popen(
    _command(grid_path, directory, *more), cwd=_ROOT, stdout=log, stderr=log
  )


def _refusal(grid_path, directory, *more):
  """Returns the line that a sweep is refused with."""
  handler = signal.getsignal(signal.SIGTERM)
  try:
    result = testing.CliRunner().invoke(
      sweep.main, _command(grid_path, directory, *more)[3:]
    )
  finally:
    signal.signal(signal.SIGTERM, handler)
  assert result.exit_code == 2
  assert result.output.count('\n') == 1
  return result.output


def _printed(grid_path, directory, *more):
  """Returns what a sweep prints that ends at once."""
  result = testing.CliRunner().invoke(
    sweep.main, _command(grid_path, directory, *more)[3:]
  )
  assert result.exit_code == 0
  return result.output


def _wait(condition, log_path):
  deadline = time.monotonic() + 900
  while not condition():
    assert time.monotonic() < deadline, log_path.read_text()
    time.sleep(0.05)


def test_killed_sweep_goes_on_where_it_was(tmp_path, grid_path):
  directory, log_path = tmp_path / 'sweep', tmp_path / 'log'
  first = directory / 'tree_epsilon8' / 'seed1'
  held = directory / 'logs' / 'tree_epsilon8' / 'seed2.lock'
  held.parent.mkdir(parents=True)
  with open(log_path, 'ab') as log, open(held, 'ab') as lock:
    # Somebody else seems to run the last cell: it waits.
    fcntl.flock(lock, fcntl.LOCK_EX)
    process = _start(grid_path, directory, log)
    _wait((first / report.JSON_FILE).exists, log_path)
    assert not (first.parent / 'seed2').exists()
    assert 'another sweep is at work' in _refusal(
      grid_path, directory, '--resume'
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    # With the sweep go its cells.
    _wait(lambda: not _holders(directory), log_path)
    fcntl.flock(lock, fcntl.LOCK_UN)
    (strategy,) = (directory / 'strategies').glob('online-tree*.json')
    kept = first / report.RESULT_FILE, strategy
    before = [os.stat(path) for path in kept]

    # As a job of its own, which does nothing for a cell that is done.
    assert _printed(grid_path, directory, '--list').splitlines() == [
      'crowd_epsilon8/seed1',
      'crowd_epsilon8/seed2',
      'tree_epsilon8/seed2',
    ]
    refused = _refusal(grid_path, directory, '--cell=tree_epsilon8/seed3')
    assert 'cell=tree_epsilon8/seed3' in refused
    process = _start(grid_path, directory, log, '--cell=tree_epsilon8/seed2')
    assert process.wait(timeout=900) == 0, log_path.read_text()
    assert not _printed(grid_path, directory, '--cell=tree_epsilon8/seed1')
    process = _start(grid_path, directory, log, '--resume')
    assert process.wait(timeout=900) == 1, log_path.read_text()
  for path, stat in zip(kept, before):
    after = os.stat(path)
    assert (after.st_mtime_ns, after.st_ino) == (stat.st_mtime_ns, stat.st_ino)
  summary = json.loads((directory / 'summary.json').read_text())
  (row,) = summary['rows']
  assert (row['mechanism'], row['seeds']) == ('tree', 2)
  assert row['claimed_epsilon'] <= 8
  assert summary['failed'] == ['crowd_epsilon8/seed1', 'crowd_epsilon8/seed2']
  assert (
    'cohort_size=100000'
    in (directory / 'logs' / 'crowd_epsilon8' / 'seed1.log').read_text()
  )
  assert 'crowd_epsilon8/seed1: failed' in log_path.read_text()
  # That of the tree, optimised once, and that of the failed cells.
  assert len(list((directory / 'strategies').glob('*.json'))) == 2
  for run in (first, first.parent / 'seed2'):
    written = report.build(run).content
    assert written['epsilon'] <= 8
    assert written['observed']['rounds_finished'] == 4

  row = grid.one(f'{grid_path}:tree_epsilon8', ('training.rounds=5',))
  with pytest.raises(ValueError, match='another configuration'):
    sweep_cell.read(sweep_cell.Cell(row, None, 1), directory)


def _holders(directory):
  """Returns the processes that name the directory in their open files."""
  found = []
  for folder in pathlib.Path('/proc').glob('[0-9]*/fd'):
    if folder.parent.name == str(os.getpid()):
      continue
    try:
      opened = [os.readlink(each) for each in folder.iterdir()]
    except OSError:
      continue
    if any(each.startswith(f'{directory}/') for each in opened):
      found.append(folder.parent.name)
  return found


def test_directory_of_a_sweep_needs_resume(tmp_path, grid_path):
  (tmp_path / 'sweep.lock').touch()
  assert '--resume' in _refusal(grid_path, tmp_path)


def test_pattern_without_a_row_is_refused(tmp_path, grid_path):
  line = _refusal(grid_path, tmp_path / 'sweep', '--only=tre_epsilon*')
  assert 'row=tre_epsilon*' in line and 'use tree_epsilon8;' in line
  assert not (tmp_path / 'sweep').exists()
