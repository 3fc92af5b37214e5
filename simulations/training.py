"""One training run: from an experiment to the files that a report reads."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import time
from typing import Any, Optional

import attrs
import numpy as np
import tensorflow_federated as tff
import tqdm

from simulations import config as config_lib
from simulations import (
  description,
  evaluation,
  fed_avg,
  metrics,
  models,
  server_optimizer,
)
from simulations.corpora import (
  client_data,
  corpus_file,
  docstrings,
  stackoverflow,
)
from simulations.corpora import vocabulary as vocabulary_lib
from tff_bandmf import (
  _files,
  accounting,
  aggregator,
  errors,
  optimize,
  program,
  report,
  strategies,
  workloads,
)
from tff_bandmf import participation as participation_lib
from tff_bandmf.noise import placements
from tff_bandmf.program import checkpoints as checkpoints_lib
from tff_bandmf.program import folder, rounds, run_record
from tff_bandmf.program import workers as workers_lib


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The three splits of a corpus, and where they came from.

  Attributes:
    path: of the SQLite file.
    words: what the vocabulary was made from.
  """

  path: str
  words: str
  train: client_data.TokenizedClients
  validation: client_data.TokenizedClients
  test: client_data.TokenizedClients


def load_corpus(data: config_lib.Data) -> Corpus:
  """Returns the corpus of an experiment, built or tokenised where needed."""
  path = data.corpus
  if path == config_lib.DOCSTRINGS:
    path = docstrings.cached_corpus()
  elif path == config_lib.STACKOVERFLOW:
    path = stackoverflow.find(data.data_dir)
  if data.vocabulary_file is not None:
    words = f'given as {os.path.basename(data.vocabulary_file)}'
    vocabulary = vocabulary_lib.read(data.vocabulary_file, data.vocabulary_size)
  elif data.corpus == config_lib.STACKOVERFLOW:
    words = "TFF's, by the number of train users, counted without noise"
    vocabulary = stackoverflow.vocabulary(data.vocabulary_size, data.data_dir)
  else:
    words = 'counted on the train split without noise'
    vocabulary = vocabulary_lib.count(path, data.vocabulary_size)
  splits = [
    client_data.load_clients(
      path,
      split,
      vocabulary,
      sequence_length=data.sequence_length,
      max_sentences_per_client=data.max_sentences_per_client,
    )
    for split in corpus_file.SPLIT_NAMES
  ]
  return Corpus(path, words, *splits)


def planned_participation(
  privacy: config_lib.Privacy,
) -> participation_lib.Participation:
  """Returns the schema that the cohorts of an experiment are drawn for."""
  return participation_lib.MinSep(privacy.min_sep, privacy.max_participations)


def make_sampler(
  config: config_lib.Config, corpus: Corpus
) -> program.CohortSampler:
  """Returns the sampler of an experiment, after a dry run of all rounds.

  Raises:
    ValueError: a cohort cannot be filled.
  """
  training, privacy = config.training, config.privacy
  sampler = program.CohortSampler(
    corpus.train.num_clients,
    training.clients_per_round,
    training.rounds,
    planned_participation(privacy),
    training.seed,
  )
  history = program.History.empty(sampler.clients)
  for t in range(training.rounds):
    history.record(t, sampler.sample(t, history))
  return sampler


def strategy_request(config: config_lib.Config) -> dict[str, Any]:
  """Returns all that the strategy of an experiment is a function of."""
  privacy, training = config.privacy, config.training
  without = privacy.family == config_lib.NO_NOISE
  return {
    'family': strategies.Identity.family if without else privacy.family,
    'rounds': training.rounds,
    'participation': planned_participation(privacy),
    'workload': training.server_schedule
    if privacy.workload == config_lib.MOMENTUM
    else workloads.PREFIX,
    'objective': privacy.objective,
    **({} if without else privacy.parameters),
  }


def find_strategy(config: config_lib.Config) -> strategies.Strategy:
  """Returns C of an experiment, built or optimised.

  Raises:
    ValueError: a parameter does not fit, or the optimiser did not converge.
  """
  found = optimize.optimize(**strategy_request(config))
  if not found.converged:
    raise errors.value_error(
      'privacy.family',
      config.privacy.family,
      'the optimiser of the strategy did not converge',
      'use other bands or buffers',
    )
  return found.strategy


def run(
  config: config_lib.Config,
  corpus: Corpus,
  directory: pathlib.Path,
  resume: bool = False,
  strategy: Optional[strategies.Strategy] = None,
  workers: Optional[workers_lib.Workers] = None,
  stop_after: Optional[int] = None,
  moved: bool = False,
) -> Optional[dict[str, Any]]:
  """Trains and tests; returns the result, which is also in the directory.

  A resumed run goes on from its last checkpoint and replays the rounds after it
  with the very cohorts and the very noise that they had; see `rounds`.

  Args:
    config: the experiment; `compare` is not looked at.
    corpus: what `load_corpus` gives for it.
    directory: of the run.
    resume: whether to go on with a run that is there.
    strategy: what `find_strategy` gives, where it is at hand; the claim is
      about the matrix that is passed. A run that is there keeps its own.
    workers: on which the clients train; None takes TFF's context for them too.
      The result is the same.
    stop_after: so many rounds the call ends, and None comes back if some are
      left; another call with `resume` goes on.
    moved: whether the directory was moved or restored from a copy, and no other
      one of the run goes on.

  Raises:
    ValueError: a value out of range, a run is there and `resume` is False, or
      the run that is there had another configuration, is running, or is a copy.
  """
  sampler = make_sampler(config, corpus)
  if not resume:
    folder.refuse_existing(directory)
  with folder.locked(directory):
    return _run(
      config, corpus, sampler, directory, strategy, workers, stop_after, moved
    )


def _run(
  config, corpus, sampler, directory, strategy, workers, stop_after, moved
) -> Optional[dict[str, Any]]:
  training, privacy = config.training, config.privacy
  if (directory / report.RUN_FILE).exists():
    strategy, _ = strategies.load(directory / report.STRATEGY_FILE)
  elif strategy is None:
    strategy = find_strategy(config)
  guarantee, simulated = _guarantees(config, strategy, sampler.participation)
  record = description.describe(config, corpus, guarantee, simulated)
  if (directory / report.RESULT_FILE).exists():
    folder.check_record(directory, record)
    return json.loads((directory / report.RESULT_FILE).read_text())

  key = folder.open_run(
    directory, record, strategy, sampler.participation, moved
  )
  corpus.train.vocabulary.write(str(directory / 'vocabulary.txt'))
  model = models.build(
    config.model, corpus.train.vocabulary.num_ids, training.seed
  )
  checkpoints = checkpoints_lib.Checkpoints(directory / run_record.CHECKPOINTS)
  start = checkpoints.latest()
  # PRIVACY: the noise is that of `guarantee`. Guard:
  # training_test.test_noise_is_that_of_the_claim.
  with aggregator.dp_aggregator(
    guarantee.noise_multiplier,
    training.clients_per_round,
    l2_norm_clip=privacy.clip,
    strategy=strategy,
    participation=sampler.participation,
    zeroing_norm=privacy.zeroing_norm,
    noise=placements.Tape(
      key=key, start_round=start, max_memory_bytes=privacy.max_memory_bytes
    ),
  ) as factory:
    process = fed_avg.build(
      model,
      config.data.sequence_length,
      tff.learning.optimizers.build_sgdm(training.client_learning_rate),
      server_optimizer.build(training),
      factory,
      training.batch_size,
      workers,
    )
    state = process.initialize()
    if start:
      state, head = checkpoints.load(start, state)
      with program.Ledger(directory / report.LEDGER_FILE) as ledger:
        folder.check_checkpoint(
          ledger, start, head, checkpoints_lib.digest(state)
        )
    stop = min(training.rounds, start + (stop_after or training.rounds))
    state = _train(
      process,
      state,
      range(start, stop),
      sampler,
      config,
      corpus,
      directory,
      evaluation.Evaluator(
        model, corpus.validation, training.evaluation_sentences
      ),
    )
  if stop < training.rounds:
    return None
  result = _test(process, model, state, corpus)
  with program.Ledger(directory / report.LEDGER_FILE) as ledger:
    result[run_record.LEDGER_HEAD] = ledger.head()
  _files.write_json(directory / report.RESULT_FILE, result)
  return result


def _guarantees(
  config: config_lib.Config,
  strategy: strategies.Strategy,
  participation: participation_lib.Participation,
) -> tuple[accounting.Guarantee, Optional[accounting.Guarantee]]:
  """Returns that of the run's noise, and of what it stands for, if so."""
  privacy = config.privacy
  if privacy.family == config_lib.NO_NOISE:
    return accounting.Guarantee(strategy, participation, 0.0), None
  guarantee = accounting.calibrate(
    strategy, participation, epsilon=privacy.epsilon, delta=privacy.delta
  )
  if privacy.simulated_clients_per_round is None:
    return guarantee, None
  # PRIVACY: the claim of the run is about the noise that it gets. Guard:
  # training_test.test_simulated_run_says_that_it_is_one.
  scale = (
    config.training.clients_per_round / privacy.simulated_clients_per_round
  )
  return attrs.evolve(
    guarantee, noise_multiplier=scale * guarantee.noise_multiplier
  ), guarantee


def _train(process, state, span, sampler, config, corpus, directory, validate):
  """Returns the state after the rounds of `span`."""
  training = config.training
  checkpoints = checkpoints_lib.Checkpoints(directory / run_record.CHECKPOINTS)

  def datasets(t, cohort):
    return fed_avg.group_datasets(
      corpus.train, cohort, training.client_groups, training.seed, t
    )

  progress = tqdm.trange(
    span.start,
    span.stop,
    initial=span.start,
    total=training.rounds,
    desc=directory.name,
    unit='round',
  )
  with (
    program.Ledger(directory / report.LEDGER_FILE) as ledger,
    metrics.Metrics(
      directory, ledger, span.start, config.privacy.clip_quantile is not None
    ) as rows,
    progress,
    rounds.Rounds(process, sampler, datasets, ledger, span.start) as runner,
  ):
    for t in progress:
      began = time.perf_counter()
      done = runner.run(state)
      state = done.state
      row = {
        'round': t,
        'clients': len(done.cohort),
        'seconds': time.perf_counter() - began,
      }
      if done.metrics is not None:
        row['non_finite'] = int(done.metrics['client_work']['non_finite_count'])
        row.update(done.metrics['aggregator'].get('released', {}))
      else:
        progress.write(
          f'Round {t} is burnt: run again, it gave another result than the '
          'one in the ledger. The model stays as it was.',
          sys.stderr,
        )
      last = t + 1 == span.stop
      if last or (t + 1) % training.evaluate_every == 0:
        row.update(validate(process.get_model_weights(state).trainable))
        progress.set_postfix(accuracy=f'{row["accuracy"]:.4f}')
      rows.write(row)
      if 'accuracy' in row:
        # Last, so that a round before a checkpoint is complete everywhere.
        checkpoints.save(state, t + 1, ledger.head())
  return state


def _test(process, model, state, corpus: Corpus) -> dict[str, Any]:
  weights = process.get_model_weights(state).trainable
  tested = evaluation.Evaluator(model, corpus.test)(weights)
  return {
    **{f'test_{name}': value for name, value in tested.items()},
    'parameters': int(sum(np.size(weight) for weight in weights)),
  }
