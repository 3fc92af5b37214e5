"""Tests of runs that start from public text or from an earlier run."""

import dataclasses
import json
import pathlib
import shutil

import doctored
import numpy as np
import pytest
import small_chat

from simulations import (
  attacks,
  config_keys,
  evaluation,
  models,
  pretraining,
  training,
)
from simulations.corpora import docstrings
from simulations.sweeps import grid
from tff_bandmf import report, verify
from tff_bandmf.ledger import chain
from tff_bandmf.run_files import run_json

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with public text, with people, and with a cache of its own."""
  folder = tmp_path_factory.mktemp('pretraining')
  packages = [each for each in docstrings.PACKAGES if each[0] == 'absl-py']
  docstrings.write_clients(
    docstrings.read_clients(packages), str(folder / 'public.sqlite')
  )
  (folder / 'words.txt').write_text('\n'.join(small_chat.WORDS) + '\n')
  small_chat.write(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(folder / 'cache'))
    yield folder


def _config(folder, **changes):
  """The experiment of `make people`, as little of it as can be."""
  path = pathlib.Path(__file__).resolve().parents[2] / 'configs'
  return config_keys.changed(
    grid.one(str(path / 'people_demo.toml')).config(),
    {
      'data.data_dir': str(folder),
      'data.vocabulary_file': str(folder / 'words.txt'),
      'data.vocabulary_size': len(small_chat.WORDS),
      'model.embedding_size': 4,
      'model.lstm_size': 4,
      'training.rounds': 3,
      'training.clients_per_round': 4,
      'training.server_cooldown_rounds': 1,
      'training.evaluate_every': 3,
      'training.init_corpus': str(folder / 'public.sqlite'),
      'training.init_epochs': 20,
      'privacy.min_sep': 2,
      **changes,
    },
  )


def _public(folder):
  return config_keys.changed(
    _config(folder),
    {
      'data.corpus': str(folder / 'public.sqlite'),
      'data.data_dir': None,
      'data.unit': 'client',
      'training.init': None,
      'privacy.family': 'none',
    },
  )


@pytest.fixture(scope='module')
def corpus(folder):
  return training.load_corpus(_config(folder).data)


@pytest.fixture(scope='module')
def ended(folder, corpus, runtime):
  """The run of the experiment, with its report."""
  directory = folder / 'ended'
  config = _config(folder)
  training.run(config, corpus, directory)
  report.write(directory)
  return directory


def _zeros(folder, corpus):
  start = pretraining.start(_config(folder), corpus.train.vocabulary)
  return [0 * weight for weight in start.model.weights]


def test_public_text_is_learnt_once(folder, corpus):
  config = _config(folder)
  start = pretraining.start(config, corpus.train.vocabulary)
  fresh = models.build(config.model, corpus.train.vocabulary.num_ids, 0)
  evaluate = evaluation.Evaluator(
    fresh, training.load_corpus(_public(folder).data).test
  )
  losses = [evaluate(each.weights)['loss'] for each in (fresh, start.model)]
  assert losses[1] < losses[0] - 0.1
  assert start.origin.startswith('on public text, ')
  assert start.digest in start.origin
  # Another time they are read, and not trained: the last bits would differ.
  (path,) = (folder / 'cache').rglob('pretrained-*.npz')
  weights = path.read_bytes()
  np.savez(path, *_zeros(folder, corpus))
  again = pretraining.start(config, corpus.train.vocabulary)
  assert not any(np.any(weight) for weight in again.model.weights)
  assert again.digest != start.digest
  path.write_bytes(weights)


def test_people_from_public_text_to_a_verified_report(ended):
  written = json.loads((ended / report.JSON_FILE).read_text())
  assert written['unit_of_privacy'].startswith('one person ')
  assert written['epsilon'] == pytest.approx(8.0, rel=1e-3)
  text = (ended / report.MARKDOWN_FILE).read_text()
  assert 'public pre-training' in text
  assert 'SHA-256 of the weights' in text
  assert verify.verdict(verify.verify(str(ended)))


def test_run_is_bound_to_the_weights_that_it_started_from(
  folder, corpus, ended
):
  (path,) = (folder / 'cache').rglob('pretrained-*.npz')
  weights = path.read_bytes()
  np.savez(path, *_zeros(folder, corpus))
  with pytest.raises(ValueError, match='initial_sha256='):
    training.run(_config(folder), corpus, ended, resume=True)
  path.write_bytes(weights)
  training.run(_config(folder), corpus, ended, resume=True)


def test_run_starts_from_the_model_of_another(folder, corpus, ended):
  config = _config(folder, **{'training.init': str(ended)})
  start = pretraining.start(config, corpus.train.vocabulary)
  assert run_json.RunDetails.read(ended).run_id in start.origin
  # The loss of the weights is that with which the run ended.
  evaluate = evaluation.Evaluator(start.model, corpus.test)
  tested = json.loads((ended / run_json.RESULT_FILE).read_text())
  assert evaluate(start.model.weights)['loss'] == pytest.approx(
    tested['test_loss'], abs=1e-6
  )
  # The people are the same: the report is to claim what both guarantee.
  assert start.after == (ended,)
  other = dataclasses.replace(config, data=_public(folder).data)
  assert pretraining.start(other, corpus.train.vocabulary).after == ()


def test_start_without_noise_on_same_people_is_refused(
  folder, corpus, ended, tmp_path
):
  silent = tmp_path / 'silent'
  shutil.copytree(ended, silent)
  plan = json.loads((silent / run_json.PLAN_FILE).read_text())
  plan.update(noise_multiplier=0.0, bound=None)
  plan['request'].update(epsilon=None, noise_multiplier=0.0)
  (silent / run_json.PLAN_FILE).write_text(json.dumps(plan))
  config = _config(folder, **{'training.init': str(silent)})
  with pytest.raises(ValueError, match='training.init=.*without a guarantee'):
    pretraining.start(config, corpus.train.vocabulary)
  # Without a claim there is none that would be wrong.
  for claimless in (
    config_keys.changed(config, {'privacy.family': 'none'}),
    dataclasses.replace(config, data=_public(folder).data),
  ):
    start = pretraining.start(claimless, corpus.train.vocabulary)
    assert 'without a guarantee for its clients' in start.origin
    assert start.after == ()


@pytest.mark.parametrize(
  'changes, rule',
  [
    ({'model.lstm_size': 5}, 'has another model'),
    ({'data.vocabulary_size': 9}, 'has other words'),
  ],
)
def test_run_that_does_not_fit_is_refused(folder, ended, changes, rule):
  config = _config(folder, **{'training.init': str(ended), **changes})
  vocabulary = training.load_corpus(config.data).train.vocabulary
  with pytest.raises(ValueError, match=f'training.init=.*{rule}'):
    pretraining.start(config, vocabulary)


def test_run_that_has_not_ended_is_refused(folder, corpus, ended, tmp_path):
  shutil.copytree(ended, tmp_path / 'run')
  doctored.rewrite(
    tmp_path / 'run' / run_json.LEDGER_FILE,
    lambda event: None if event.kind == chain.ENDED else event,
  )
  config = _config(folder, **{'training.init': str(tmp_path / 'run')})
  with pytest.raises(ValueError, match='training.init=.*unfinished'):
    pretraining.start(config, corpus.train.vocabulary)


def test_ended_run_is_attacked(folder, corpus, ended):
  start = pretraining.start(_config(folder), corpus.train.vocabulary)
  found = attacks.attack(corpus, ended, start)
  splits = (corpus.train, corpus.validation, corpus.test)
  assert found['members'] == corpus.train.num_clients
  assert found['members'] + found['others'] == sum(
    split.num_clients for split in splits
  )
  plan = run_json.read_plan(ended)
  assert found['noise_multiplier'] == plan.guarantee.noise_multiplier > 0
  assert not any(each['refuted'] for each in found['membership'])
