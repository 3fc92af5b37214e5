"""Tests of whole runs: real text, real TFF, real noise, kill -9."""

import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from simulations import (
    client_data,
    docstrings,
    evaluation,
    models,
    run_stackoverflow,
    training,
)
from simulations import config as config_lib
from tff_bandmf import noise, program, report

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_TOML = """
[data]
corpus = '{corpus}'
vocabulary_size = 100
max_sentences_per_client = 4
[model]
embedding_size = 8
lstm_size = 8
tied = true
[training]
rounds = 12
clients_per_round = 4
evaluate_every = 3
evaluation_sentences = 50
[privacy]
family = 'banded-toeplitz'
min_sep = 4
max_participations = 2
epsilon = 8.0
delta = 1e-5
l2_norm_clip = 0.5
noise_placement = 'tape'
"""


@pytest.fixture(scope='module')
def corpus_path(tmp_path_factory):
  packages = [p for p in docstrings.PACKAGES if p[0] == 'absl-py']
  path = tmp_path_factory.mktemp('corpus') / 'absl.sqlite'
  docstrings.write_clients(docstrings.read_clients(packages), str(path))
  return path


def _config_file(folder, corpus_path):
  path = folder / 'run.toml'
  path.write_text(_TOML.format(corpus=corpus_path))
  return path


def _command(config_path, directory, *more):
  return [
      sys.executable, '-m', 'simulations.run_stackoverflow',
      f'--config={config_path}', f'--output_dir={directory}', *more]


def test_killed_run_resumes_with_its_cohorts(
    tmp_path, corpus_path, runtime, monkeypatch
):
  config_path = _config_file(tmp_path, corpus_path)
  config = config_lib.load(str(config_path))
  corpus = training.load_corpus(config.data)
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'

  with open(tmp_path / 'log', 'wb') as log:
    process = subprocess.Popen(
        _command(config_path, killed), cwd=_ROOT, stdout=log, stderr=log)
    ledger_path = killed / report.LEDGER_FILE
    deadline = time.monotonic() + 180
    started = 0
    while started < 5:
      assert process.poll() is None, (tmp_path / 'log').read_text()
      assert time.monotonic() < deadline
      time.sleep(0.05)
      if ledger_path.exists() and ledger_path.stat().st_size:
        with program.Ledger(ledger_path) as ledger:
          started = ledger.observed().rounds
    process.send_signal(signal.SIGKILL)
    process.wait()
  with program.Ledger(ledger_path) as ledger:
    before = [ledger.cohort(t) for t in range(started)]
  assert not (killed / report.RESULT_FILE).exists()

  resumed = training.run(config, corpus, killed, resume=True)

  # An undisturbed run with the same key.
  key = noise.Key((killed / 'private' / 'noise.key').read_bytes())
  monkeypatch.setattr(noise.Key, 'load_or_create', lambda path: key)
  expected = training.run(config, corpus, whole)
  with program.Ledger(ledger_path) as ledger, program.Ledger(
      whole / report.LEDGER_FILE) as undisturbed:
    for t in range(started):
      np.testing.assert_array_equal(ledger.cohort(t), before[t])
    for t in range(config.training.rounds):
      np.testing.assert_array_equal(ledger.cohort(t), undisturbed.cohort(t))
    assert ledger.observed() == undisturbed.observed()
  # Sums over clients are taken in whatever order they arrive.
  assert resumed['test_loss'] == pytest.approx(expected['test_loss'], rel=1e-5)
  rounds = (killed / report.METRICS_FILE).read_text().splitlines()
  assert [row.split(',')[0] for row in rounds[1:]] == [
      str(t) for t in range(config.training.rounds)]
  written = report.write(killed)
  assert written['epsilon'] <= config.privacy.epsilon
  assert written['observed']['min_sep'] >= config.privacy.min_sep
  assert written['observed']['participations'] <= 2
  assert written['observed']['rounds_finished'] == config.training.rounds


def test_key_of_another_run_is_refused(tmp_path, corpus_path, runtime):
  config = config_lib.load(
      str(_config_file(tmp_path, corpus_path)), ('training.rounds=4',))
  corpus = training.load_corpus(config.data)
  directory = tmp_path / 'run'
  training.run(config, corpus, directory)
  (directory / report.RESULT_FILE).unlink()
  key_path = directory / 'private' / 'noise.key'
  key_path.rename(tmp_path / 'key')
  with pytest.raises(ValueError, match='is gone'):
    training.run(config, corpus, directory, resume=True)
  key_path.write_bytes(noise.Key.from_entropy().secret)
  with pytest.raises(ValueError, match='another run or noise key'):
    training.run(config, corpus, directory, resume=True)
  # What is left of a run is never taken for a new one.
  (directory / report.RUN_FILE).unlink()
  for resume in (False, True):
    with pytest.raises(ValueError, match='holds a run'):
      training.run(config, corpus, directory, resume=resume)


def test_updates_that_are_not_finite_count_and_do_no_harm(
    tmp_path, corpus_path, runtime
):
  config = config_lib.load(
      str(_config_file(tmp_path, corpus_path)),
      ('training.rounds=2', 'training.batch_size=1',
       'training.client_learning_rate=1e38'))
  result = training.run(
      config, training.load_corpus(config.data), tmp_path / 'run')
  assert np.isfinite(result['test_loss'])
  rows = (tmp_path / 'run' / report.METRICS_FILE).read_text().splitlines()
  place = rows[0].split(',').index('non_finite')
  assert [row.split(',')[place] for row in rows[1:]] == ['4', '4']


def test_identity_is_reported_as_identity(tmp_path, corpus_path, runtime):
  config = config_lib.load(
      str(_config_file(tmp_path, corpus_path)),
      ('training.rounds=2', 'privacy.family=identity'))
  training.run(config, training.load_corpus(config.data), tmp_path / 'run')
  assert report.write(tmp_path / 'run')['family'] == 'identity'


def test_secure_noise_is_reported_and_bound_to_the_run(
    tmp_path, corpus_path, runtime):
  path = str(_config_file(tmp_path, corpus_path))
  settings = ('training.rounds=2', 'privacy.secure_noise=true')
  config = config_lib.load(path, settings)
  corpus = training.load_corpus(config.data)
  training.run(config, corpus, tmp_path / 'run')
  generator = report.write(tmp_path / 'run')['generator']
  assert generator['algorithm'].startswith('AES-128')
  with pytest.raises(ValueError, match='another configuration'):
    training.run(
        config_lib.load(path, settings[:1]), corpus, tmp_path / 'run',
        resume=True)


def test_cohorts_that_run_out_are_told_before_anything_is_written(
    tmp_path, corpus_path
):
  config = config_lib.load(
      str(_config_file(tmp_path, corpus_path)),
      ('training.clients_per_round=40', 'privacy.min_sep=12'))
  with pytest.raises(ValueError, match='may take part'):
    training.run(
        config, training.load_corpus(config.data), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_comparison_named_as_the_main_run_is_refused():
  config = config_lib.load(
      str(_ROOT / 'configs' / 'demo.toml'), ('privacy.family=identity',))
  with pytest.raises(ValueError, match='compare=identity'):
    run_stackoverflow.planned_runs(config, pathlib.Path('runs'))


def test_directory_with_a_run_is_refused(tmp_path, corpus_path, runtime):
  config = config_lib.load(
      str(_config_file(tmp_path, corpus_path)), ('training.rounds=4',))
  corpus = training.load_corpus(config.data)
  training.run(config, corpus, tmp_path / 'run')
  with pytest.raises(ValueError, match='--resume'):
    training.run(config, corpus, tmp_path / 'run')
  other = config_lib.changed(config, {'privacy.epsilon': 2.0})
  with pytest.raises(ValueError, match='another configuration'):
    training.run(other, corpus, tmp_path / 'run', resume=True)


def test_cohort_that_cannot_be_filled_stops_before_training(
    tmp_path, corpus_path
):
  done = subprocess.run(
      _command(_config_file(tmp_path, corpus_path), tmp_path / 'run',
               '--set', 'training.clients_per_round=100000'),
      cwd=_ROOT, capture_output=True, text=True, timeout=120)
  assert done.returncode == 2
  assert 'cohort_size=100000' in done.stderr
  assert 'Traceback' not in done.stderr
  assert not (tmp_path / 'run').exists()


def test_key_stands_in_its_file_alone(tmp_path, corpus_path, runtime):
  config = config_lib.load(
      str(_config_file(tmp_path, corpus_path)), ('training.rounds=4',))
  directory = tmp_path / 'run'
  training.run(config, training.load_corpus(config.data), directory)
  report.write(directory)
  assert (directory / 'private').stat().st_mode & 0o777 == 0o700
  key_path = directory / 'private' / 'noise.key'
  assert key_path.stat().st_mode & 0o777 == 0o600
  secret = key_path.read_bytes()
  for path in directory.rglob('*'):
    if path.is_file() and path != key_path:
      content = path.read_bytes()
      assert secret not in content and secret.hex().encode() not in content


def test_accuracy_ignores_padding_unknown_and_end():
  y = np.array([[5, 7, 9, 3, 0]], np.int32)
  logits = np.full((1, 5, 12), -1.0, np.float32)
  for place, word in enumerate([5, 7, 9, 4, 0]):
    logits[0, place, word] = 1.0
  right, count = models.correct_words(logits, y, ignored=(0, 7, 9))
  assert (float(right), float(count)) == (1.0, 2.0)


def test_evaluator_agrees_with_a_direct_computation():
  vocabulary = client_data.Vocabulary(('the', 'a', 'of'))
  ids = np.array([[5, 1, 2, 3, 6], [5, 3, 1, 6, 0]], np.int16)
  clients = client_data.TokenizedClients(
      'test', ('c',), np.array([0, 2]), ids, vocabulary)
  weights = models.lstm_weights(
      vocabulary.num_ids, 4, 3, tied=False, skip=True, embedding_scale=0.05,
      seed=1)
  logits = models.lstm_logits(weights, ids[:, :-1].astype(np.int32)).numpy()
  y = ids[:, 1:]
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  chosen = np.take_along_axis(log_p, y[..., None].astype(int), -1)[..., 0]
  counted = np.isin(y, [1, 2, 3])
  found = evaluation.Evaluator(clients)(weights)
  assert found['loss'] == pytest.approx(-chosen[y != 0].mean(), rel=1e-5)
  assert found['accuracy'] == pytest.approx(
      (logits.argmax(-1) == y)[counted].mean())
