"""Tests of sweeps of experiments: rates, seeds, crashes, summaries."""

import dataclasses
import fcntl
import math
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

import processes
import pytest
from click import testing

from simulations import sweep
from simulations.corpora import docstrings
from simulations.sweeps import analysis, grid, schedule
from simulations.sweeps import cell as sweep_cell
from simulations.sweeps import plots as sweep_plots
from simulations.sweeps import summary as sweep_summary
from tff_bandmf import report
from tff_bandmf.run_files import run_json

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_TOML = """
epsilons = [8]
seeds = [1]
[rule]
slope = -0.5
row = 'tree_epsilon8'
rate_exponents = [-1, 0]
[base.data]
corpus = '{corpus}'
vocabulary_size = 100
max_sentences_per_client = 2
[base.model]
embedding_size = 4
lstm_size = 4
[base.training]
server_learning_rate = 3.0
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


def _result(loss, claimed=8.0, noise=0.01, rate=1.7):
  return sweep_cell.Result(
    rate,
    loss + 0.1,
    0.25,
    ((2, 9.0, 0.1), (8, 2 * loss, 0.1), (10, loss, 0.2)),
    claimed,
    noise,
    10 * noise,
    4,
    90.0,
  )


def _ended(losses):
  return {
    f'blt_epsilon8/seed0_rate{exponent:+d}': (
      None if loss is None else _result(loss)
    )
    for exponent, loss in losses.items()
  }


def _exponents(cells):
  return [cell.exponent for cell in cells]


def test_rate_of_least_validation_loss_is_taken():
  taken, cells = schedule.choose_rate(
    _row(2, 0, 1), _ended({0: 4.9, 1: 4.7, 2: 4.8})
  )
  assert taken == 1
  assert _exponents(cells) == [0, 1, 2]
  assert {cell.seed for cell in cells} == {sweep_cell.TUNING_SEED}


def test_validation_loss_is_that_of_the_last_fifth():
  steps = tuple((t, float(t), 0.1) for t in range(10, 101, 10))
  result = dataclasses.replace(_result(1.0), validation=steps)
  assert result.validation_loss == 95.0


def test_smaller_of_two_equal_rates_is_taken():
  assert (
    schedule.choose_rate(
      _row(0, 1, 2, 3), _ended({0: 4.9, 1: 4.7, 2: 4.7, 3: 4.8})
    )[0]
    == 1
  )


def test_rate_is_open_while_a_candidate_runs():
  taken, cells = schedule.choose_rate(_row(0, 1, 2), _ended({0: 4.9, 1: 4.7}))
  assert taken is None
  assert _exponents(cells) == [0, 1, 2]
  assert schedule.test_cells(_row(0, 1, 2), _ended({0: 4.9, 1: 4.7})) == []


@pytest.mark.parametrize(
  'losses, tried',
  [
    ({0: 4.7, 1: 4.8}, [-1, 0, 1]),
    ({0: 4.8, 1: 4.7}, [0, 1, 2]),
    ({0: 4.8, 1: 4.7, 2: 4.6}, [0, 1, 2, 3]),
    ({0: None, 1: 4.7}, [0, 1, 2]),
    ({0: math.nan, 1: 4.7}, [0, 1, 2]),
  ],
)
def test_search_goes_on_beyond_an_edge(losses, tried):
  taken, cells = schedule.choose_rate(_row(0, 1), _ended(losses))
  assert taken is None
  assert _exponents(cells) == tried


def test_search_beyond_an_edge_ends():
  losses = {i: 5 - 0.01 * (i + 1) for i in range(6)}
  taken, cells = schedule.choose_rate(_row(0, 1), _ended(losses))
  assert taken == 5
  assert _exponents(cells) == list(range(6))


def test_failed_candidates_are_not_taken():
  assert (
    schedule.choose_rate(_row(0, 1, 2), _ended({0: 4.9, 1: None, 2: None}))[0]
    is None
  )
  ended = _ended({-1: 4.95, 0: 4.9, 1: None, 2: None})
  assert schedule.choose_rate(_row(0, 1, 2), ended)[0] == 0
  nothing = _ended({0: None, 1: math.inf})
  assert schedule.choose_rate(_row(0, 1), nothing)[0] is None
  assert schedule.test_cells(_row(0, 1), nothing) == []


def test_test_seeds_are_fresh():
  ended = _ended({0: 4.9, 1: 4.7, 2: 4.8})
  cells = schedule.test_cells(_row(0, 1, 2), ended)
  assert [(cell.exponent, cell.seed) for cell in cells] == [
    (1, 1),
    (1, 2),
    (1, 3),
  ]
  assert [cell.config().training.seed for cell in cells] == [1, 2, 3]
  assert cells[0].config().training.server_learning_rate == 1.7
  assert cells[0].name == 'blt_epsilon8/seed1_rate+1'


def _by_rule(**changes):
  rule = grid.Rule(-0.95, dataclasses.replace(_row(0, 1), extensions=0))
  return dataclasses.replace(_row(), rule=rule, **changes)


def test_rates_by_the_rule_follow_from_the_noise():
  row = _by_rule(name='tree_epsilon8')
  row.tree['training']['server_learning_rate'] = 5.0
  # No rate beyond the candidates is tried.
  assert schedule.test_cells(row, _ended({0: 4.7})) == []
  cell, *_ = schedule.test_cells(row, _ended({0: 4.8, 1: 4.7}))
  assert cell.name == 'tree_epsilon8/seed1'

  def rate(noise):
    return cell.config(noise).training.server_learning_rate

  # What was fitted had L = 0.01 and took 1.7.
  assert rate(0.01) == 1.7
  assert rate(0.02) == pytest.approx(1.7 * 2**-0.95, rel=1e-5)
  assert rate(0.005) == pytest.approx(1.7 * 2**0.95, rel=1e-5)
  assert rate(0.0001) == rate(0.0) == 5.0


def test_cells_come_seed_by_seed_and_least_noise_first():
  rows = [
    _by_rule(name=name, epsilon=epsilon, seeds=seeds)
    for name, epsilon, seeds in (
      ('a2', 2.0, (1, 2)),
      ('a8', 8.0, (1,)),
      ('none', math.inf, (1, 2)),
    )
  ]
  outcomes = schedule.outcome(grid.Grid(tuple(rows)), {})
  assert [each.cell.name for each in outcomes] == [
    'blt_epsilon8/seed0_rate+0',
    'blt_epsilon8/seed0_rate+1',
    'none/seed1',
    'a8/seed1',
    'a2/seed1',
    'none/seed2',
    'a2/seed2',
  ]


def _outcomes(claimed=8.0):
  losses = {
    f'{name}_epsilon8/seed{seed}': loss
    for name, three in (
      ('blt', (4.5, 4.6, 4.4)),
      ('tree', (4.7, 4.81, 4.59)),
    )
    for seed, loss in enumerate(three, 1)
  }
  ended = {
    name: _result(loss, claimed, noise=0.02 - loss / 1000)
    for name, loss in losses.items()
  }
  tree = dataclasses.replace(_row(), name='tree_epsilon8', series='tree')
  rows = [_row(), tree]
  return schedule.outcome(grid.Grid(tuple(rows)), ended)


def _summary(claimed=8.0):
  return sweep_summary.Summary.from_outcomes(_outcomes(claimed))


def test_summary_has_means_and_spread(tmp_path):
  _summary().write(tmp_path)
  summary = sweep_summary.Summary.read((tmp_path / 'summary.json').read_text())
  assert summary == _summary()
  row, _ = summary.rows
  # The test losses, not those that the rate was chosen by.
  expected = [4.6, 4.7, 4.5]
  assert row['loss_mean'] == pytest.approx(statistics.mean(expected))
  assert row['loss_stdev'] == pytest.approx(statistics.stdev(expected))
  assert row['perplexity'] == pytest.approx(math.exp(4.6))
  assert row['accuracy_mean'] == 25.0
  assert (row['seeds'], row['claimed_epsilon']) == (3, 8.0)
  assert summary.runs[0]['curve'][-1] == [10, 4.5]
  assert summary.missing == summary.failed == ()
  for name in ('noise', 'convergence'):
    assert (tmp_path / f'{name}.png').read_bytes().startswith(b'\x89PNG')


def test_summary_claims_an_order_where_seeds_show_it():
  (pair,) = _summary().pairs
  assert (pair['first'], pair['second'], pair['seeds']) == ('blt', 'tree', 3)
  # On every seed about 0.2, whatever the seed.
  assert pair['shown'] == 'yes'
  assert '-0.2000 ± 0.0248' in pair['difference']
  assert 'blt' in _summary().pairs_table()


def test_paired_difference_is_that_of_common_seeds():
  found = analysis.paired({1: 1.0, 2: 3.0, 3: 2.0}, {1: 0.0, 2: 1.0, 4: 9.0})
  assert (found.seeds, found.mean) == (2, 1.5)
  # t of one degree of freedom.
  assert found.half_width == pytest.approx(12.7062 * found.stdev / 2**0.5)
  assert not found.shown
  assert analysis.paired({1: 1.0}, {1: 2.0}) is None
  least = analysis.least_difference(0.1, 3)
  assert least == pytest.approx(4.30265 * 0.1 / 3**0.5)


def test_curve_goes_through_what_lies_on_it():
  points = [(x, 4 + 0.1 * math.log(x) ** 2) for x in (0.01, 0.1, 1, 2, 5)]
  found = analysis.curve(points)
  assert found([0.5]) == pytest.approx([4 + 0.1 * math.log(0.5) ** 2])
  assert found.stdev < 1e-9
  assert analysis.curve(points[:4]) is None


def test_summary_says_what_has_not_ended():
  ended = _ended({0: 4.9, 1: None})
  summary = sweep_summary.Summary.from_outcomes(
    schedule.outcome(grid.Grid((_row(0, 1, 2),)), ended)
  )
  assert summary.failed == ('blt_epsilon8/seed0_rate+1',)
  assert summary.missing == (
    'blt_epsilon8/seed0_rate+2',
    *(f'blt_epsilon8/seed{seed}' for seed in (1, 2, 3)),
  )
  assert 'Missing: blt_epsilon8/seed0_rate+2' in summary.markdown()
  (run,) = summary.runs
  # What a rate is chosen by says nothing of the test.
  assert run['search'] and run['test_loss'] is None
  assert run['validation_loss'] == 4.9


def test_model_that_diverged_is_no_number(tmp_path):
  (outcome, *others) = _outcomes()
  lost = dataclasses.replace(outcome.result, test_loss=math.nan)
  lost = dataclasses.replace(outcome, result=lost)
  summary = sweep_summary.Summary.from_outcomes([lost, *others])
  summary.write(tmp_path)
  assert summary.rows[0]['loss_mean'] == math.inf
  assert summary.pairs == []


def test_summary_says_what_no_guarantee_covers():
  assert 'learning rates' in sweep_summary.NOTE
  assert 'No guarantee covers this choice.' in sweep_summary.NOTE
  assert sweep_summary.NOTE in _summary().markdown()


def test_row_that_claims_more_says_so():
  # Such as one that stands for a larger cohort.
  assert sweep_summary.CLAIMS_MORE not in _summary().markdown()
  assert sweep_summary.CLAIMS_MORE in _summary(claimed=20.0).markdown()


def test_row_that_claims_nothing_says_so():
  assert sweep_summary.CLAIMS_NOTHING not in _summary().markdown()
  assert sweep_summary.CLAIMS_NOTHING in _summary(claimed=None).markdown()


def test_plots_show_every_run():
  tests = _summary().tests
  left, right = sweep_plots.noise(tests).axes
  assert [line.get_xdata()[0] for line in left.lines[: len(tests)]] == [
    run['noise'] for run in tests
  ]
  assert right.lines[0].get_xdata()[0] == tests[0]['momentum_noise']
  (axes,) = sweep_plots.convergence(tests).axes
  rounds, mean = axes.lines[0].get_data()
  assert list(rounds) == [2, 8, 10]
  assert mean[-1] == pytest.approx(4.5)
  assert sweep_plots.noise(()) is None
  assert sweep_plots.convergence(()) is None


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
    f'--config={grid_path}',
    f'--out={directory}',
    *more,
  ]


def _start(grid_path, directory, log):
  return subprocess.Popen(
    _command(grid_path, directory), cwd=_ROOT, stdout=log, stderr=log
  )


def _invoked(grid_path, directory, *more):
  """Returns the result of a sweep in this process."""
  # Its cells are forked from the server of the tests.
  processes.start_server()
  handler = signal.getsignal(signal.SIGTERM)
  try:
    return testing.CliRunner().invoke(
      sweep.main, _command(grid_path, directory, *more)[3:]
    )
  finally:
    signal.signal(signal.SIGTERM, handler)


def _refusal(grid_path, directory, *more):
  """Returns the line that a sweep is refused with."""
  result = _invoked(grid_path, directory, *more)
  assert result.exit_code == 2
  assert result.output.count('\n') == 1
  return result.output


def _printed(grid_path, directory, *more):
  """Returns what a sweep prints that ends at once."""
  result = _invoked(grid_path, directory, *more)
  assert result.exit_code == 0
  return result.output


def _sweep(arguments):
  sweep.main(arguments)


def _wait(condition, log_path):
  deadline = time.monotonic() + 900
  while not condition():
    assert time.monotonic() < deadline, log_path.read_text()
    time.sleep(0.05)


def test_killed_sweep_goes_on_where_it_was(tmp_path, grid_path):
  directory, log_path = tmp_path / 'sweep', tmp_path / 'log'
  first = directory / 'tree_epsilon8' / 'seed0_rate-1'
  second, last = first.parent / 'seed0_rate+0', first.parent / 'seed1'
  held = directory / 'logs' / 'tree_epsilon8' / 'seed0_rate+0.lock'
  held.parent.mkdir(parents=True)
  with open(log_path, 'ab') as log, open(held, 'ab') as lock:
    # Somebody else seems to run the other candidate: it waits.
    fcntl.flock(lock, fcntl.LOCK_EX)
    process = _start(grid_path, directory, log)
    _wait((first / report.JSON_FILE).exists, log_path)
    assert not second.exists()
    assert 'another sweep runs in' in _refusal(grid_path, directory, '--resume')
    process.send_signal(signal.SIGKILL)
    process.wait()
    # With the sweep go its cells.
    _wait(lambda: not _holders(directory), log_path)
    fcntl.flock(lock, fcntl.LOCK_UN)
    (strategy,) = (directory / 'strategies').glob('online-tree*.json')
    outputs = first / run_json.RESULT_FILE, strategy
    before = [os.stat(path) for path in outputs]

    # As a job of its own, which does nothing for a cell that is done.
    listed = _printed(grid_path, directory, '--list').splitlines()
    assert [re.split(r'\t\d+ min\t', line) for line in listed] == [
      ['tree_epsilon8/seed0_rate+0', 'ready'],
      ['crowd_epsilon8/seed1', 'waits for its rate'],
      ['tree_epsilon8/seed1', 'waits for its rate'],
    ]
    refused = _refusal(grid_path, directory, '--cell=tree_epsilon8/seed1')
    assert 'cell=tree_epsilon8/seed1' in refused
    cell = '--cell=tree_epsilon8/seed0_rate+0'
    arguments = _command(grid_path, directory, cell)[3:]
    process = processes.start(_sweep, arguments)
    process.join(900)
    assert process.exitcode == 0, log_path.read_text()
    assert not _printed(grid_path, directory, cell)
    done = _invoked(grid_path, directory, '--resume')
    assert done.exit_code == 1, done.output
  for path, stat in zip(outputs, before):
    after = os.stat(path)
    assert (after.st_mtime_ns, after.st_ino) == (stat.st_mtime_ns, stat.st_ino)
  text = (directory / 'summary.json').read_text()
  assert _printed(grid_path, directory, '--results') == text.replace(
    '"failed": [\n"crowd_epsilon8/seed1"\n]', '"failed": [\n\n]'
  ).replace('"missing": [\n\n]', '"missing": [\n"crowd_epsilon8/seed1"\n]')
  summary = sweep_summary.Summary.read(text)
  (row,) = summary.rows
  assert (row['mechanism'], row['seeds']) == ('tree', 1)
  assert row['claimed_epsilon'] <= 8
  # The row that the rule was fitted on has the rate that was taken.
  (taken,) = [run for run in summary.runs if run['search'] and run['taken']]
  assert row['rate'] == taken['rate']
  assert row['noise'] == taken['noise'] > 0
  assert summary.failed == ('crowd_epsilon8/seed1',)
  assert (
    'cohort_size=100000'
    in (directory / 'logs' / 'crowd_epsilon8' / 'seed1.log').read_text()
  )
  assert 'crowd_epsilon8/seed1: failed' in done.output
  # That of the tree, optimised once, and that of the failed cell.
  assert len(list((directory / 'strategies').glob('*.json'))) == 2
  for run in (first, last):
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
