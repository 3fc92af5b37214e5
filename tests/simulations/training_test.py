"""Tests of whole runs: real text, real TFF, real noise."""

import dataclasses
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from simulations import config as config_lib
from simulations import (
  config_keys,
  description,
  evaluation,
  models,
  pretraining,
  run_stackoverflow,
  training,
)
from simulations.corpora import client_data
from simulations.corpora import vocabulary as vocabulary_lib
from simulations.sweeps import grid
from tff_bandmf import (
  accounting,
  clipping_norm,
  participation,
  report,
  strategies,
  verify,
)
from tff_bandmf.run_files import metrics as metrics_lib
from tff_bandmf.run_files import run_json

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).resolve().parents[2]
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
"""


def _config_file(folder, corpus_path):
  path = folder / 'run.toml'
  path.write_text(_TOML.format(corpus=corpus_path))
  return path


def _load(path, settings):
  return grid.one(path, settings).config()


def _command(config_path, directory, *more):
  return [
    sys.executable,
    '-m',
    'simulations.run_stackoverflow',
    f'--config={config_path}',
    f'--output_dir={directory}',
    *more,
  ]


@pytest.mark.parametrize('simulated', [None, 40])
def test_noise_is_that_of_the_claim(small, tmp_path, runtime, simulated):
  config, corpus = small
  # Clients that learn nothing: all that moves the model is noise.
  config = config_keys.changed(
    config,
    {
      'privacy.family': 'identity',
      'training.client_learning_rate': 1e-30,
      'training.rounds': 1,
      'training.server_momentum': 0.0,
      'training.server_cooldown_rounds': 0,
      **(
        {'privacy.simulated_clients_per_round': simulated} if simulated else {}
      ),
    },
  )
  training.run(config, corpus, tmp_path / 'run')
  written = report.write(tmp_path / 'run')
  start = models.build(
    config.model, corpus.train.vocabulary.num_ids, config.training.seed
  )
  with np.load(
    tmp_path / 'run' / 'private' / 'checkpoints' / '00000001.npz'
  ) as found:
    moved = np.concatenate(
      [
        (found[f'arr_{i}'] - weight).ravel()
        for i, weight in enumerate(start.weights)
      ]
    )
  assert written['family'] == 'identity'
  noise_of_sum = 4 * moved
  # Five standard deviations of the estimate.
  assert noise_of_sum.std() == pytest.approx(
    written['z_stddev'], rel=5 / np.sqrt(2 * moved.size)
  )
  assert abs(noise_of_sum.mean()) < (
    5 * written['z_stddev'] / np.sqrt(moved.size)
  )
  spec = accounting.calibrate(
    strategies.Identity(1), participation.MinSep(4, 2), epsilon=8.0, delta=1e-5
  )
  assert written['z_stddev'] == pytest.approx(
    clipping_norm.norm(config.privacy.clip)
    * spec.z_stddev_per_clip
    * (4 / simulated if simulated else 1)
  )
  assert written['measured_z_stddev'] == pytest.approx(
    written['z_stddev'], rel=1e-6
  )
  if simulated:
    # A tenth of the noise, for which nothing is proved.
    assert written['setting'].startswith('SIMULATED')
    assert written['warnings'][0].startswith('SIMULATED')
    assert written['epsilon'] is None
    plan = run_json.read_plan(tmp_path / 'run')
    assert plan.simulated.proved_epsilon(plan.delta) == pytest.approx(8.0)
    assert plan.simulated.noise_multiplier == pytest.approx(
      10 * written['noise_multiplier']
    )


@pytest.mark.deep
def test_driver_trains_with_a_file_of_ones_own(small, tmp_path, runtime):
  config, corpus = small
  path = tmp_path / 'mine.npz'
  mine = strategies.custom(4, inverse_coefficients=[1.0, -0.4])
  strategies.save(mine, path)
  config = config_keys.changed(config, {'privacy.family': str(path)})
  training.run(config, corpus, tmp_path / 'run')
  written = report.write(tmp_path / 'run')
  assert written['family'] == 'custom' and written['completed']
  verified = verify.verify(tmp_path / 'run')
  assert verified['epsilon'] == pytest.approx(written['epsilon'], rel=1e-6)


def test_guarantee_is_for_what_has_noise(ended):
  written = json.loads((ended / report.JSON_FILE).read_text())
  # Metrics are exact, and counted from updates.
  assert written['released'] == 'the model after every round'
  assert 'metrics' not in written['formal_statement']
  where = [row['where'] for row in written['side_releases']]
  assert 'metrics.csv, non_finite' in where
  # Clients are clipped in their groups, not by the aggregator.
  by = written['assumptions'][0]['enforced_by']
  assert 'where clients train' in by and 'aggregator' not in by
  # The clip adapts, and is released with noise.
  assert len(written['adaptive_clip']['path']) == 5
  assert 'metrics.csv, fraction' not in where


def test_rates_are_chosen_by_validation_and_results_are_of_test(small, ended):
  config, corpus = small
  model = models.build(
    config.model, corpus.train.vocabulary.num_ids, config.training.seed
  )
  with np.load(ended / 'private' / 'checkpoints' / '00000004.npz') as found:
    weights = [found[f'arr_{i}'] for i in range(len(model.weights))]
  validated = evaluation.Evaluator(
    model, corpus.validation, config.training.evaluation_sentences
  )(weights)
  tested = evaluation.Evaluator(model, corpus.test)(weights)
  assert validated['loss'] != pytest.approx(tested['loss'], rel=1e-5)
  last = (ended / run_json.METRICS_FILE).read_text().splitlines()[-1]
  assert float(last.split(',')[-1]) == pytest.approx(validated['loss'])
  result = json.loads((ended / run_json.RESULT_FILE).read_text())
  assert result['test_loss'] == pytest.approx(tested['loss'])


@pytest.mark.parametrize('zeroing_norm, moves', [(1e-9, False), (1e9, True)])
@pytest.mark.deep(but=('False',))
def test_updates_above_the_zeroing_norm_do_not_move_the_model(
  small, tmp_path, runtime, zeroing_norm, moves
):
  config, corpus = small
  config = config_keys.changed(
    config,
    {
      'privacy.family': 'none',
      'privacy.zeroing_norm': zeroing_norm,
      'training.rounds': 1,
      'training.server_cooldown_rounds': 0,
    },
  )
  training.run(config, corpus, tmp_path / 'run')
  start = models.build(
    config.model, corpus.train.vocabulary.num_ids, config.training.seed
  )
  with np.load(
    tmp_path / 'run' / 'private' / 'checkpoints' / '00000001.npz'
  ) as found:
    assert (
      any(
        (found[f'arr_{i}'] != weight).any()
        for i, weight in enumerate(start.weights)
      )
      == moves
    )


@pytest.mark.deep
def test_updates_that_are_not_finite_count_and_do_no_harm(
  tmp_path, corpus_path, runtime
):
  config = _load(
    str(_config_file(tmp_path, corpus_path)),
    (
      'training.rounds=2',
      'training.batch_size=1',
      'training.client_learning_rate=1e38',
    ),
  )
  result = training.run(
    config, training.load_corpus(config.data), tmp_path / 'run'
  )
  assert np.isfinite(result['test_loss'])
  rows = (tmp_path / 'run' / run_json.METRICS_FILE).read_text().splitlines()
  place = rows[0].split(',').index('non_finite')
  assert [row.split(',')[place] for row in rows[1:]] == ['4', '4']


def test_cohorts_that_run_out_are_told_before_anything_is_written(
  tmp_path, corpus_path
):
  config = _load(
    str(_config_file(tmp_path, corpus_path)),
    ('training.clients_per_round=40', 'privacy.min_sep=12'),
  )
  with pytest.raises(ValueError, match='cannot be filled'):
    training.run(config, training.load_corpus(config.data), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_comparison_named_as_the_main_run_is_refused():
  config = _load(
    str(_ROOT / 'configs' / 'demo.toml'), ('privacy.family=identity',)
  )
  with pytest.raises(ValueError, match='compare=identity'):
    run_stackoverflow.planned_runs(config, pathlib.Path('runs'))


def test_report_calls_a_client_what_it_is(small):
  config, corpus = small
  changed = config_keys.changed(config, {'data.unit': 'speaker'})
  found = description.describe(
    changed, corpus, pretraining.start(changed, corpus.train.vocabulary)
  )['unit_of_privacy']
  assert found == 'one speaker of the train split, with all its sentences'


def test_cohort_that_cannot_be_filled_stops_before_training(
  tmp_path, corpus_path
):
  done = subprocess.run(
    _command(
      _config_file(tmp_path, corpus_path),
      tmp_path / 'run',
      '--set',
      'training.clients_per_round=100000',
    ),
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert done.returncode == 2
  # A line before each phase, and nothing of other packages.
  *phases, error = done.stderr.splitlines()
  assert len(phases) == 3 and all(line.endswith(' ...') for line in phases)
  assert 'cohort_size=100000' in error
  assert not (tmp_path / 'run').exists()


def test_min_sep_beyond_the_rounds_is_told(small, tmp_path, runtime, capsys):
  """The plan has another min_sep than the experiment, and says so."""
  config, corpus = small
  config = dataclasses.replace(
    config, training=dataclasses.replace(config.training, rounds=2)
  )
  training.run(config, corpus, tmp_path / 'run', stop_after=1)
  least = config.privacy.min_sep
  assert (
    f'privacy.min_sep={least} exceeds training.rounds=2: a client takes part'
    in capsys.readouterr().err
  )
  content = report.build(tmp_path / 'run').content
  assert content['planned']['min_sep'] == 2
  assert content['process_checked'] is True


def test_key_stands_in_its_file_alone(ended):
  assert (ended / 'private').stat().st_mode & 0o777 == 0o700
  key_path = ended / 'private' / 'noise.key'
  assert key_path.stat().st_mode & 0o777 == 0o600
  secret = key_path.read_bytes()
  for path in ended.rglob('*'):
    if path.is_file() and path != key_path:
      content = path.read_bytes()
      assert secret not in content and secret.hex().encode() not in content


def test_accuracy_ignores_padding_unknown_and_end():
  y = np.array([[5, 9, 11, 3, 2, 0]], np.int32)
  logits = np.full((1, 6, 12), -1.0, np.float32)
  for place, word in enumerate([5, 9, 11, 4, 2, 0]):
    logits[0, place, word] = 1.0
  accuracy = models.accuracies(12)['accuracy']
  assert list(map(float, accuracy.correct(logits, y))) == [2.0, 3.0]
  # However likely the end is: the question is which word it is, if it is one.
  logits[..., 11] = 7.0
  assert list(map(float, accuracy.correct(logits, y))) == [2.0, 3.0]


def test_evaluator_agrees_with_a_direct_computation():
  vocabulary = vocabulary_lib.Vocabulary(('the', 'a', 'of'))
  ids = np.array([[5, 1, 2, 3, 6], [5, 3, 1, 6, 0]], np.int16)
  clients = client_data.TokenizedClients(
    'test', ('c',), np.array([0, 2]), ids, vocabulary
  )
  model = models.build(
    config_lib.Model(embedding_size=4, lstm_size=3, skip=True),
    vocabulary.num_ids,
    seed=1,
  )
  logits = model.logits(model.weights, ids[:, :-1].astype(np.int32)).numpy()
  y = ids[:, 1:]
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  chosen = np.take_along_axis(log_p, y[..., None].astype(int), -1)[..., 0]
  counted = np.isin(y, [1, 2, 3])
  found = evaluation.Evaluator(model, clients)(model.weights)
  assert found['loss'] == pytest.approx(-chosen[y != 0].mean(), rel=1e-5)
  assert found['accuracy'] == pytest.approx(
    (1 + logits[..., 1:4].argmax(-1) == y)[counted].mean()
  )


@pytest.mark.parametrize(
  ('amplification', 'epsilon', 'changes'),
  [
    ('cyclic-poisson', 2.0, {'parameters': {'bands': 2}}),
    ('balls-in-bins', 8.0, {}),
    ('b-min-sep', 8.0, {'sampling_prob': 0.05}),
  ],
)
@pytest.mark.deep(but=('b-min-sep',))
def test_amplified_experiment_tells_nothing_of_its_cohorts(
  small, tmp_path, runtime, amplification, epsilon, changes
):
  """Left and gone on with; what it claims is that of draws it made itself."""
  config, corpus = small
  privacy = dataclasses.replace(
    config.privacy,
    amplification=amplification,
    epsilon=epsilon,
    min_sep=4,
    max_participations=None,
    clip_quantile=None,
    **changes,
  )
  config = dataclasses.replace(config, privacy=privacy)
  clients = corpus.train.num_clients
  cohorts = (
    config.cohorts(clients)
    .for_cohort_size(config.training.clients_per_round)
    .for_bands(2)
  )
  expected = cohorts.expected_cohort(config.training.rounds)
  config = dataclasses.replace(
    config,
    training=dataclasses.replace(
      config.training, clients_per_round=max(1, round(expected))
    ),
  )
  assert training.run(config, corpus, tmp_path / 'run', stop_after=2) is None
  training.run(config, corpus, tmp_path / 'run', resume=True)
  content = report.build(tmp_path / 'run').content
  assert content['amplification'] == amplification
  assert (
    content['epsilon']
    <= epsilon
    < (content['sampling']['epsilon_unamplified'] or math.inf)
  )
  assert content['sampling']['drawn'] == 'as the sampling key gives them'
  columns = {'round', 'accuracy', 'loss', *metrics_lib.PLANNED}
  for row in metrics_lib.exported(tmp_path / 'run'):
    told = {name for name, value in row.items() if value}
    assert told <= columns | {name for name in row if name.startswith('acc')}
  assert content['observed']['clients'] is None
