"""Trains and tests the model of one experiment, in the folder of its run."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import sys
from typing import Any, Optional, Union

import attrs
import numpy as np
import tqdm

import tff_bandmf
from simulations import config as config_lib
from simulations import (
  config_keys,
  description,
  evaluation,
  fed_avg,
  metrics,
  pretraining,
  server_optimizer,
)
from simulations.corpora import client_data, corpus_file, registry
from simulations.corpora import vocabulary as vocabulary_lib
from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf import (
  errors,
  optimize,
  strategies,
  workloads,
)
from tff_bandmf import run as run_lib
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.plan import search as plan_search
from tff_bandmf.run_files import folder, run_json
from tff_bandmf.tff import names as tff
from tff_bandmf.tff import remote_workers


@dataclasses.dataclass(frozen=True)
class TokenizedCorpus:
  """The three splits of a corpus, encoded with one vocabulary.

  Attributes:
    path: path of the SQLite file.
    vocabulary_source: origin of the vocabulary, as text for the report.
    train: clients on which the model is trained.
    validation: clients whose text measures the model during training.
    test: clients whose text measures the final model.
  """

  path: str
  vocabulary_source: str
  train: client_data.TokenizedClients
  validation: client_data.TokenizedClients
  test: client_data.TokenizedClients


def load_corpus(data: config_lib.Data) -> TokenizedCorpus:
  """Returns the corpus of an experiment; creates missing files of the corpus.

  Raises:
    OSError: a file is missing and cannot be downloaded.
    ValueError: a file is damaged or has too few words, or the corpus does not
      use the given `data.data_dir`.
  """
  corpus = registry.get(data.corpus, data.data_dir)
  path = corpus.find(data.data_dir)
  size = data.vocabulary_size
  if data.vocabulary_file is not None:
    source = f'given as {os.path.basename(data.vocabulary_file)}'
    vocabulary = vocabulary_lib.read(data.vocabulary_file, size)
  else:
    source = corpus.vocabulary_source
    vocabulary = corpus.vocabulary(path, size, data.data_dir)
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
  return TokenizedCorpus(path, source, *splits)


def check_cohorts(config: config_lib.Config, corpus: TokenizedCorpus) -> None:
  """Raises ValueError if a cohort of an experiment cannot be filled."""
  training, clients = config.training, corpus.train.num_clients
  cohorts = config.cohorts(clients)
  # `tff_bandmf.Run` checks a `Budget` later: its costs depend on the strategy.
  if cohorts.schema is cohorts.schema.reference_schema and cohorts.is_enforced:
    cohorts_lib.CohortSampler(
      clients,
      training.clients_per_round,
      training.rounds,
      cohorts.schema,
      training.seed,
    )


def search_arguments(config: config_lib.Config, clients: int) -> dict[str, Any]:
  """Returns the arguments with which `optimize.optimize` finds the strategy.

  Args:
    config: the experiment; `privacy.family` is not a file.
    clients: number of clients of the train split, from which cohorts are
      sampled.
  """
  privacy = config.privacy
  mechanism = (
    tff_bandmf.Mechanism(strategies.Identity.family)
    if privacy.family == config_lib.NO_NOISE
    else tff_bandmf.Mechanism(privacy.family, **privacy.parameters)
  )
  request = attrs.evolve(
    plan(config, mechanism, clients),
    workload=config.training.server_schedule
    if privacy.workload == config_lib.MOMENTUM
    else workloads.PREFIX,
    objective=privacy.objective,
  )
  return plan_search.search_arguments(request, mechanism)


def find_strategy(
  config: config_lib.Config, clients: int
) -> strategies.Strategy:
  """Returns the strategy matrix of an experiment.

  Args:
    config: the experiment.
    clients: number of clients of the train split.

  Raises:
    ValueError: a parameter is out of range, or the optimiser did not converge.
  """
  if config.privacy.is_file:
    strategy, _ = strategies.load(config.privacy.family)
    if strategy.rounds != config.training.rounds:
      raise errors.value_error(
        f'privacy.family={config.privacy.family}: is for {strategy.rounds} '
        f'rounds, not for training.rounds={config.training.rounds}; give a '
        'strategy of as many rounds'
      )
    return strategy
  optimized = optimize.optimize(**search_arguments(config, clients))
  if not optimized.converged:
    raise errors.value_error(
      f'privacy.family={config.privacy.family}: the optimiser of the strategy '
      'did not converge; change privacy.bands or privacy.buffers'
    )
  return optimized.strategy


def run(
  config: config_lib.Config,
  corpus: TokenizedCorpus,
  directory: pathlib.Path,
  resume: bool = False,
  strategy: Optional[strategies.Strategy] = None,
  workers: Optional[remote_workers.Workers] = None,
  stop_after: Optional[int] = None,
  **run_options: Any,
) -> Optional[dict[str, Any]]:
  """Trains and tests a model; returns the content of the result file.

  A resumed run continues from its last checkpoint. `tff_bandmf.Run` repeats the
  rounds that started after the checkpoint, with the same cohorts and the same
  noise. A run with a `Budget` may be resumed with a larger `training.rounds`.

  Args:
    config: the experiment; its comparisons are ignored.
    corpus: result of `load_corpus` for the experiment.
    directory: folder of the run.
    resume: whether to continue a run that exists in the folder.
    strategy: result of `find_strategy`; None to call `find_strategy`. A resumed
      run uses the strategy in its folder instead.
    workers: workers that train the clients; if None, TFF's context trains them,
      with the same result.
    stop_after: number of rounds after which this call stops, >= 1. If rounds
      are left, the call returns None, and a later call with `resume` continues.
    **run_options: arguments `moved` and `keep_key` of `tff_bandmf.Run`.

  Raises:
    ValueError: a value is out of range; `resume` is False and the folder holds
      a run; or the run in the folder has another configuration, is running, or
      is a copy of another run.
  """
  training = config.training
  check_cohorts(config, corpus)
  if config.shortened is not None:
    print(config.shortened, file=sys.stderr)
  if not resume:
    folder.refuse_existing(directory)
  begun, stored = config, None
  if (directory / run_json.PLAN_FILE).exists():
    stored = plan_lib.Plan.load(directory / run_json.PLAN_FILE)
    strategy = stored.planned_strategy
    config.privacy.check_file(strategy)
    if stored.rounds < training.rounds <= stored.strategy.rounds:
      # The configuration extends a run with a `Budget`. `run.json` keeps the
      # number of rounds with which the run began.
      strategy = stored.strategy.of_rounds(training.rounds)
      begun = config_keys.changed(config, {'training.rounds': stored.rounds})
  start = pretraining.start(config, corpus.train.vocabulary)
  clients = corpus.train.num_clients
  planned = plan(config, strategy or find_strategy(config, clients), clients)
  with tff_bandmf.Run(
    directory,
    planned,
    **run_options,
    after=start.after,
    options=run_lib.RunOptions(
      description.describe(begun, corpus, start),
      metrics.COLUMNS,
      config.privacy.max_memory_bytes,
    ),
  ) as started:
    if started.results is not None:
      return json.loads((directory / run_json.RESULT_FILE).read_text())
    corpus.train.vocabulary.write(str(directory / 'vocabulary.txt'))
    process = fed_avg.build(
      start.model,
      config.data.sequence_length,
      tff.learning.optimizers.build_sgdm(training.client_learning_rate),
      server_optimizer.build(training),
      started.aggregator,
      training.batch_size,
      workers,
    )
    started.check(process.whole)
    evaluator = evaluation.Evaluator(
      start.model, corpus.validation, training.evaluation_sentences
    )
    state = _train(started, process, config, corpus, evaluator, stop_after)
    if started.rounds_left:
      return None
    started.record(**_test(process, start.model, state, corpus))
  return json.loads((directory / run_json.RESULT_FILE).read_text())


def plan(
  config: config_lib.Config,
  mechanism: Union[strategies.Strategy, tff_bandmf.Mechanism],
  clients: int,
) -> tff_bandmf.Plan:
  """Returns the plan of an experiment.

  Args:
    config: the experiment.
    mechanism: result of `find_strategy`, or a family to search.
    clients: number of clients of the train split.
  """
  training, privacy = config.training, config.privacy
  without = privacy.family == config_lib.NO_NOISE
  return tff_bandmf.Plan(
    rounds=training.rounds,
    clients_per_round=training.clients_per_round,
    cohorts=config.cohorts(clients),
    epsilon=None if without else privacy.epsilon,
    delta=privacy.delta,
    noise_multiplier=0.0 if without else None,
    l2_norm_clip=privacy.clip,
    zeroing_norm=privacy.zeroing_norm,
    mechanism=mechanism,
    memory_copies=privacy.memory_copies,
    stands_for=None if without else privacy.simulated_clients_per_round,
  )


def _train(started, process, config, corpus, validate, stop_after) -> Any:
  """Returns the state after the last round, or after `stop_after` rounds."""
  training = config.training
  state = started.restore(process.initialize)
  left = started.rounds_left
  stop = left - min(left, stop_after or left)

  def prepare(t, cohort):
    return fed_avg.group_datasets(
      corpus.train, cohort, training.client_groups, training.seed, t
    )

  started.tensorboard()
  with tqdm.tqdm(
    initial=training.rounds - left,
    total=training.rounds,
    desc=started.directory.name,
    unit='round',
  ) as progress:
    for opened in started.rounds(
      clients=corpus.train.num_clients, seed=training.seed, prepare=prepare
    ):
      output = opened.attempt(
        functools.partial(process.next, state, opened.data)
      )
      if output is None:
        progress.write(
          f'Round {opened.index} is burnt: its repetition gave another result '
          'than the ledger states, so it releases nothing, and the model stays '
          'as it was.',
          sys.stderr,
        )
        progress.update()
        continue
      row = {}
      # PRIVACY: Amplification needs cohorts that stay secret, and this number
      # grows with the size of a cohort. So the public rows of runs with sampled
      # cohorts do not have it.
      # Guard:
      # training_test.test_amplified_experiment_tells_nothing_of_its_cohorts.
      if config.privacy.amplification is None:
        work = output.metrics['client_work']
        row['non_finite'] = int(work['non_finite_count'])
      done = opened.index + 1
      if done == training.rounds - stop or done % training.evaluate_every == 0:
        weights = process.get_model_weights(output.state).trainable
        row.update(validate(weights))
        progress.set_postfix(loss=f'{row["loss"]:.4f}')
      released = output.metrics['aggregator'].get('released', {})
      state = opened.finish(
        output.state, {'aggregator': {'released': released}}, row
      )
      progress.update()
      if started.rounds_left == stop:
        break
  return state


def _test(process, model, state, corpus: TokenizedCorpus) -> dict[str, Any]:
  weights = process.get_model_weights(state).trainable
  tested = evaluation.Evaluator(model, corpus.test)(weights)
  return {
    **{f'test_{name}': value for name, value in tested.items()},
    'parameters': int(sum(np.size(weight) for weight in weights)),
  }
