"""One training run: from an experiment to the files that a report reads."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pathlib
import time
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from simulations import (
    client_data,
    docstrings,
    evaluation,
    models,
    run_directory,
)
from simulations import config as config_lib
from tff_bandmf import (
  accounting,
  aggregator,
  errors,
  noise,
  optimize,
  program,
  report,
  strategies,
)
from tff_bandmf import participation as participation_lib


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The three splits of a corpus, and where they came from."""

  path: str
  train: client_data.TokenizedClients
  validation: client_data.TokenizedClients
  test: client_data.TokenizedClients


def load_corpus(data: config_lib.Data) -> Corpus:
  """Returns the corpus of an experiment, built or tokenised where needed."""
  path = data.corpus
  if path == config_lib.DOCSTRINGS:
    path = docstrings.cached_corpus()
  vocabulary = client_data.build_vocabulary(path, data.vocabulary_size)
  splits = [
      client_data.load_clients(
          path, split, vocabulary, sequence_length=data.sequence_length,
          max_sentences_per_client=data.max_sentences_per_client)
      for split in docstrings.SPLIT_NAMES
  ]
  return Corpus(path, *splits)


def make_sampler(
    config: config_lib.Config, corpus: Corpus
) -> program.CohortSampler:
  """Returns the sampler of an experiment, after a dry run of all rounds.

  Raises:
    ValueError: a cohort cannot be filled.
  """
  training, privacy = config.training, config.privacy
  sampler = program.CohortSampler(
      corpus.train.num_clients, training.clients_per_round, training.rounds,
      participation_lib.MinSep(privacy.min_sep, privacy.max_participations),
      training.seed)
  history = program.History.empty(sampler.clients)
  for t in range(training.rounds):
    history.record(t, sampler.sample(t, history))
  return sampler


def _strategy(
    config: config_lib.Config,
    directory: pathlib.Path,
    participation: participation_lib.Participation,
) -> strategies.Strategy:
  """Returns C of a run: that of its directory or, optimised, a new one."""
  if (directory / report.RUN_FILE).exists():
    return strategies.load(directory / report.STRATEGY_FILE)
  training, privacy = config.training, config.privacy
  if privacy.family == config_lib.NO_NOISE:
    return strategies.Identity(training.rounds)
  found = optimize.optimize(
      optimize.Request(
          privacy.family, training.rounds, participation,
          objective=privacy.objective,
          # What a run is compared with may take fewer than the main run.
          **{
              name: getattr(privacy, name)
              for name in ('bands', 'buffers', 'b0')
              if name in optimize.parameters_of(privacy.family)
          }))
  if not found.converged:
    raise ValueError(
        errors.invalid(
            'privacy.family', privacy.family,
            'the optimiser of the strategy did not converge',
            'use other bands or buffers'))
  return found.strategy


def run(
    config: config_lib.Config,
    corpus: Corpus,
    directory: pathlib.Path,
    resume: bool = False,
    name: Optional[str] = None,
) -> dict[str, Any]:
  """Trains and tests; returns the result, which is also in the directory.

  A round is in the ledger before it runs. A resumed run goes on from its last
  checkpoint and replays the rounds after it with the very cohorts and the very
  noise that they had.

  Args:
    config: the experiment; `compare` is not looked at.
    corpus: what `load_corpus` gives for it.
    directory: of the run.
    resume: whether to go on with a run that is there.
    name: of the progress bar.

  Raises:
    ValueError: a value out of range, a run is there and `resume` is False, or
      the run that is there had another configuration.
  """
  training, privacy = config.training, config.privacy
  sampler = make_sampler(config, corpus)
  if not resume:
    run_directory.refuse_existing(directory)
  strategy = _strategy(config, directory, sampler.participation)
  if privacy.family == config_lib.NO_NOISE:
    spec = accounting.PrivacySpec(strategy, sampler.participation, 0.0)
  else:
    spec = accounting.calibrate(
        strategy, sampler.participation, privacy.epsilon, privacy.delta)
  description = _describe(config, corpus, spec)
  run_directory.open_directory(directory, description, strategy)
  if (directory / report.RESULT_FILE).exists():
    return json.loads((directory / report.RESULT_FILE).read_text())

  weights = models.lstm_weights(
      corpus.train.vocabulary.num_ids, config.model.embedding_size,
      config.model.lstm_size, config.model.tied, config.model.skip,
      config.model.embedding_scale, training.seed)
  key = run_directory.noise_key(directory, description)
  checkpoints = tff.program.FileProgramStateManager(
      directory / 'private' / 'checkpoints', keep_total=2, keep_first=False)
  versions = asyncio.run(checkpoints.get_versions())
  start = max(versions) if versions else 0
  with aggregator.correlated_noise_aggregator(
      spec.noise_multiplier, training.clients_per_round, privacy.l2_norm_clip,
      tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights),
      key, strategy=strategy, participation=spec.participation,
      noise_placement=privacy.noise_placement, start_round=start,
      secure_noise=privacy.secure_noise) as factory:
    process = _learning_process(config, weights, factory)
    state = process.initialize()
    if start:
      state = asyncio.run(checkpoints.load(start, state))
    state = _train(
        process, state, start, sampler, config, corpus, directory,
        checkpoints, name)
  result = _test(process, state, corpus)
  run_directory.write_json(directory / report.RESULT_FILE, result)
  return result


def _learning_process(
    config: config_lib.Config,
    weights: list[np.ndarray],
    factory: aggregator.CorrelatedNoiseFactory,
) -> tff.learning.templates.LearningProcess:
  training = config.training
  return tff.learning.algorithms.build_unweighted_fed_avg(
      models.functional_model(weights, config.data.sequence_length),
      tff.learning.optimizers.build_sgdm(training.client_learning_rate),
      _server_optimizer(training),
      model_aggregator=factory,
      loop_implementation=(
          tff.learning.LoopImplementation.DATASET_ITERATOR))


def _server_optimizer(
    training: config_lib.Training,
) -> tff.learning.optimizers.Optimizer:
  optimizer = tff.learning.optimizers.build_sgdm(
      training.server_learning_rate, training.server_momentum or None)
  if not training.server_cooldown_rounds:
    return optimizer

  def schedule(t):
    left = tf.cast(training.rounds - t, tf.float32)
    return training.server_learning_rate * tf.minimum(
        1.0, left / training.server_cooldown_rounds)

  return tff.learning.optimizers.schedule_learning_rate(optimizer, schedule)


def _train(
    process, state, start, sampler, config, corpus, directory, checkpoints,
    name,
):
  """Returns the state after the last round."""
  training = config.training
  validate = evaluation.Evaluator(
      corpus.validation, training.evaluation_sentences)
  rounds = tqdm.trange(
      start, training.rounds, initial=start, total=training.rounds, desc=name,
      unit='round')
  with program.Ledger(
      directory / report.LEDGER_FILE) as ledger, run_directory.Metrics(
          directory, start) as metrics, rounds:
    history = ledger.history(sampler.clients, before=start)
    for t in rounds:
      began = time.perf_counter()
      cohort = sampler.sample(t, history)
      # PRIVACY: durable before the round, so a crash cannot hide it.
      # Guard: training_test.test_killed_run_resumes_with_its_cohorts.
      ledger.start_round(t, cohort)
      history.record(t, cohort)
      output = process.next(state, [
          corpus.train.client_dataset(
              int(client), training.batch_size, seed=training.seed,
              round_index=t)
          for client in cohort
      ])
      state = output.state
      aggregation = output.metrics['aggregator']
      finite = output.metrics['client_work']['train'][models.FINITE]
      row = {
          'round': t, 'clients': len(cohort),
          'non_finite': len(cohort) - int(finite) + int(
              aggregation['non_finite_count']),
          'seconds': time.perf_counter() - began,
      }
      last = t + 1 == training.rounds
      if last or (t + 1) % training.evaluate_every == 0:
        row.update(validate(process.get_model_weights(state).trainable))
        rounds.set_postfix(accuracy=f"{row['accuracy']:.4f}")
      metrics.write(row)
      ledger.finish_round(
          t, float(aggregation['dp_query_metrics']['z_stddev']))
      if 'accuracy' in row:
        # Last, so that a round before a checkpoint is complete everywhere.
        asyncio.run(checkpoints.save(state, t + 1))
  return state


def _test(process, state, corpus: Corpus) -> dict[str, Any]:
  weights = process.get_model_weights(state).trainable
  tested = evaluation.Evaluator(corpus.test)(weights)
  return {
      'test_accuracy': tested['accuracy'],
      'test_loss': tested['loss'],
      'parameters': int(sum(np.size(weight) for weight in weights)),
  }


def _describe(
    config: config_lib.Config, corpus: Corpus, spec: accounting.PrivacySpec
) -> dict[str, Any]:
  """Returns the content of `run.json`."""
  privacy = config.privacy
  tree = dataclasses.asdict(config)
  del tree['compare']
  return {
      'format': report.RUN_FORMAT,
      'version': report.RUN_VERSION,
      'config': tree,
      'versions': report.versions(),
      'train_sha256': corpus.train.digest(),
      'claim': {
          **spec.to_dict(),
          'delta': privacy.delta,
          'l2_norm_clip': privacy.l2_norm_clip,
          'clients_per_round': config.training.clients_per_round,
      },
      'unit_of_privacy': (
          'one client of the train split, with all its sentences'),
      'population': corpus.train.num_clients,
      'data': (
          f'{os.path.basename(corpus.path)}: {corpus.train.num_clients} train, '
          f'{corpus.validation.num_clients} validation, '
          f'{corpus.test.num_clients} test clients'),
      'released': 'the model after every round, and the metrics of the run',
      'enforced': {
          'min_sep': privacy.min_sep,
          'max_participations': privacy.max_participations,
          'by': 'the cohort sampler',
      },
      'noise_key': 'the operating system',
      'noise_generator': (
          noise.AES_CTR if privacy.secure_noise else noise.PHILOX),
      'tuning': 'hyperparameters were chosen with other runs on this corpus',
      'model_selection': 'none: the last model is the result',
      'pre_training': 'none: initial weights come from a seed',
      'not_covered': [
          'the vocabulary, counted on the train split without noise',
          'the validation and test splits, evaluated without noise',
          'the runs it is compared with: each has a guarantee of its own, they '
          'compose, and a run without noise has none',
      ],
      # The report lists the columns of the metrics and the ledger by itself.
      'side_releases': [],
  }
