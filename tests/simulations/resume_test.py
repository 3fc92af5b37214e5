"""Runs that were killed, left or copied go on as they were, or are refused."""

import dataclasses
import json

import doctored
import processes
import pytest

from simulations import (
  config_keys,
  kill_test,
  training,
)
from simulations.sweeps import cell as sweep_cell
from simulations.sweeps import grid
from tff_bandmf import (
  noise,
  report,
  strategies,
  verify,
)
from tff_bandmf.ledger import chain
from tff_bandmf.run_files import folder, run_json

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('runtime')]


def _kill(folder):
  processes.to_files(folder)
  kill_test.main(['--kills=2', '--rounds=6', f'--out={folder}'])


def test_killed_runs_end_as_undisturbed_ones(tmp_path):
  # More of them: python -m simulations.kill_test --kills=50
  process = processes.start(_kill, tmp_path, daemon=True)
  process.join(900)
  assert process.exitcode == 0, (tmp_path / 'err').read_text()
  result = json.loads((tmp_path / 'out').read_text())
  assert result['failed'] == {}
  assert result['kills'] >= 1


def _reopen(directory):
  """Removes the end of a run from its ledger, and the export of the end."""
  (directory / run_json.RESULT_FILE).unlink()
  doctored.rewrite(
    directory / run_json.LEDGER_FILE,
    lambda event: None if event.kind == chain.ENDED else event,
  )


def test_checkpoint_that_contradicts_the_ledger_is_refused(small, run_copy):
  _reopen(run_copy)
  folder = run_copy / 'private' / 'checkpoints'
  path = folder / '00000004.npz'
  mine = path.read_bytes()
  # That of another round.
  path.write_bytes((folder / '00000003.npz').read_bytes())
  with pytest.raises(ValueError, match='rounds in the ledger'):
    training.run(*small, run_copy, resume=True, moved=True)
  path.write_bytes(mine)
  # A ledger that is gone takes with it who took part.
  for name in run_json.LEDGER_FILE, 'private/ledger.key':
    (run_copy / name).unlink()
  with pytest.raises(ValueError, match='ledger.sqlite'):
    training.run(*small, run_copy, resume=True, moved=True)


@pytest.mark.deep
def test_resumed_run_that_differs_says_so(small, run_copy, capsys):
  _reopen(run_copy)
  for path in (run_copy / 'private' / 'checkpoints').glob('*.npz'):
    path.unlink()
  # As if a machine of another kind had released other bits.
  doctored.rewrite(
    run_copy / run_json.LEDGER_FILE,
    lambda event: (
      dataclasses.replace(event, digest=b'0000000000-0000000001')
      if (event.round, event.kind) == (2, 'finished')
      else event
    ),
  )
  training.run(*small, run_copy, resume=True, moved=True)
  assert 'Round 2 is burnt' in capsys.readouterr().err
  written = report.write(run_copy)
  assert written['observed']['rounds_burnt'] == 2
  assert '2 of 4 rounds were burnt' in written['warnings'][0]


@pytest.mark.parametrize(
  'change, named',
  [
    ({'privacy.epsilon': 2.0}, 'epsilon=2.0: is not what'),
    ({'training.client_learning_rate': 0.25}, 'client_learning_rate=0.25'),
    ({'privacy.l2_norm_clip': 0.25}, "l2_norm_clip={'initial': 0.25"),
  ],
)
def test_what_changed_since_the_start_is_named(small, ended, change, named):
  config, corpus = small
  with pytest.raises(ValueError, match=named):
    training.run(
      config_keys.changed(config, change), corpus, ended, resume=True
    )


def test_strategy_that_was_changed_is_refused(run_copy):
  strategies.save(
    strategies.BandedToeplitz(4, [1, 0.1]), run_copy / run_json.STRATEGY_FILE
  )
  with pytest.raises(ValueError, match='strategy.json: differs from plan.json'):
    report.write(run_copy)


def test_strategy_file_that_changed_is_refused(small, tmp_path):
  path = tmp_path / 'mine.json'
  strategies.save(strategies.BandedToeplitz(4, [1, 0.5]), path)
  config, corpus = small
  tree = config_keys.to_tree(
    config_keys.changed(config, {'privacy.family': str(path)})
  )
  cell = sweep_cell.Cell(grid.Row('mine', 'mine', 8.0, (), tree, ()), None, 1)
  training.run(cell.config(), corpus, tmp_path / cell.name)
  report.write(tmp_path / cell.name)
  assert sweep_cell.read(cell, tmp_path) is not None
  strategies.save(strategies.BandedToeplitz(4, [1, 0.4]), path)
  with pytest.raises(ValueError, match='mine.json: has digest'):
    sweep_cell.read(cell, tmp_path)
  with pytest.raises(ValueError, match='mine.json: has digest'):
    training.run(cell.config(), corpus, tmp_path / cell.name, resume=True)
  # The folder of the run has all that a finished run needs.
  path.unlink()
  assert sweep_cell.read(cell, tmp_path) is not None


def test_other_code_is_refused_where_rounds_are_left(small, run_copy, tmp_path):
  open_run = tmp_path / 'open'
  assert training.run(*small, open_run, stop_after=1) is None
  for folder_ in open_run, run_copy:
    path = folder_ / run_json.RUN_FILE
    described = json.loads(path.read_text())
    described['code_sha256'] = '0' * 64
    path.write_text(json.dumps(described))
  with pytest.raises(ValueError, match='code_sha256='):
    training.run(*small, open_run, resume=True)
  # A run that has ended makes nothing again.
  result = json.loads((run_copy / run_json.RESULT_FILE).read_text())
  assert training.run(*small, run_copy, resume=True, moved=True) == result


def test_directory_has_one_process_at_a_time(small, tmp_path):
  with folder.locked(tmp_path / 'run'):
    with pytest.raises(ValueError, match='open in this process'):
      training.run(*small, tmp_path / 'run', resume=True)


def test_run_that_was_left_goes_on_where_it_was(small, ended, tmp_path):
  assert training.run(*small, tmp_path / 'run', stop_after=3) is None
  assert not (tmp_path / 'run' / run_json.RESULT_FILE).exists()
  assert not report.write(tmp_path / 'run')['completed']
  assert (tmp_path / 'run' / run_json.NOISE_KEY).exists()
  result = training.run(*small, tmp_path / 'run', resume=True, stop_after=3)
  assert result is not None
  written, kept = report.write(tmp_path / 'run'), report.write(ended)
  assert written['observed'] == kept['observed']
  # The key ends with the run, unless it was asked for.
  assert not (tmp_path / 'run' / run_json.NOISE_KEY).exists()
  assert (ended / run_json.NOISE_KEY).exists()
  for content, told in (written, 'destroyed when'), (kept, 'kept when'):
    assert told in str(content['assumptions'])
  assert training.run(*small, tmp_path / 'run', resume=True) == result
  # With keys of their own: other noise, the same cohorts.
  assert list(kill_test.differences(ended, tmp_path / 'run', 4)) == [
    # With what they held to: the clip, and their keys.
    'observed',
    *(f'release of round {t}' for t in range(4)),
    'result',
    'metrics',
    'report',
  ]
  assert not list(kill_test.differences(ended, ended, 4))


@pytest.mark.deep
def test_run_by_budget_goes_on_to_more_rounds(small, tmp_path):
  config, corpus = small
  config = config_keys.changed(config, {'privacy.participation': 'budget'})
  directory = tmp_path / 'run'
  assert training.run(config, corpus, directory, stop_after=3) is None
  longer = config_keys.changed(config, {'training.rounds': 6})
  result = training.run(longer, corpus, directory, resume=True)
  content = report.write(directory)
  assert result is not None and content['completed']
  assert content['observed']['rounds_finished'] == 6
  assert content['planned']['rounds'] == 4 and not content['violated']
  assert content['epsilon'] == content['planned']['epsilon']
  verified = verify.verify(str(directory))['epsilon']
  assert verified < content['epsilon'] * (1 + 1e-6)
  more = config_keys.changed(config, {'training.rounds': 7})
  with pytest.raises(ValueError, match='rounds=7: come after the end'):
    training.run(more, corpus, directory, resume=True)
  other = config_keys.changed(
    config, {'training.rounds': 7, 'privacy.epsilon': 9.0}
  )
  with pytest.raises(ValueError, match='rounds=7|epsilon=9.0'):
    training.run(other, corpus, directory, resume=True)


def test_key_of_another_run_is_refused(small, run_copy, tmp_path):
  _reopen(run_copy)
  key_path = run_copy / 'private' / 'noise.key'
  key_path.rename(tmp_path / 'key')
  with pytest.raises(ValueError, match='is gone'):
    training.run(*small, run_copy, resume=True, moved=True)
  key_path.touch(0o600)
  key_path.write_bytes(noise.Key.from_entropy().secret)
  key_path.chmod(0o600)
  with pytest.raises(ValueError, match='noise.key=.*another run'):
    training.run(*small, run_copy, resume=True, moved=True)
  # What is left of a run is never taken for a new one.
  (run_copy / run_json.RUN_FILE).unlink()
  for resume in (False, True):
    with pytest.raises(ValueError, match='holds a run'):
      training.run(*small, run_copy, resume=resume)


def test_directory_with_a_run_is_refused(small, ended):
  with pytest.raises(ValueError, match='--resume'):
    training.run(*small, ended)
