"""What a run says of itself, in `run.json`."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import attrs

from simulations import config as config_lib
from tff_bandmf import accounting, clips, program, report

_CODE = pathlib.Path(__file__).resolve().parent


def describe(
  config: config_lib.Config,
  corpus: Any,
  guarantee: accounting.Guarantee,
  simulated: Any = None,
) -> program.RunRecord:
  """Returns what the run says of itself.

  Args:
    config: the experiment.
    corpus: `training.Corpus`.
    guarantee: of the noise of the run itself.
    simulated: guarantee of the cohort that the run stands for, if it does.
  """
  privacy = config.privacy
  tree = config_lib.to_tree(config)
  del tree['compare']
  described = program.RunRecord(
    config=tree,
    versions={**report.versions(), 'simulations': report.code_digest(_CODE)},
    code_sha256=report.code_digest(),
    train_sha256=corpus.train.digest(),
    claim={
      **guarantee.to_dict(),
      'delta': privacy.delta,
      **clips.claim(privacy.clip),
      'clients_per_round': config.training.clients_per_round,
    },
    unit_of_privacy=(
      f'one {config.data.unit} of the train split, with all its sentences'
    ),
    population=corpus.train.num_clients,
    data=(
      f'{os.path.basename(corpus.path)}: {corpus.train.num_clients} train, '
      f'{corpus.validation.num_clients} validation, '
      f'{corpus.test.num_clients} test clients'
    ),
    # PRIVACY: not the metrics, which have no noise. Guard:
    # training_test.test_guarantee_is_for_what_has_noise.
    released='the model after every round',
    enforced={
      'min_sep': privacy.min_sep,
      'max_participations': privacy.max_participations,
      'by': 'the cohort sampler',
    },
    clipped_by=(
      'the training program, where clients train: each update before it '
      'is added to another'
    ),
    noise_key='the operating system',
    tuning='hyperparameters were chosen with other runs on this corpus',
    model_selection='none: the last model is the result',
    pre_training='none: initial weights come from a seed',
    not_covered=[
      f'the vocabulary, {corpus.words}',
      'the validation and test splits, evaluated without noise',
      'the runs it is compared with: each has a guarantee of its own, they '
      'compose, and a run without noise has none',
    ],
    # The report lists the columns of the metrics and the ledger by itself.
    side_releases=['vocabulary.txt: the words in the order of their ids'],
  )
  if simulated is None:
    return described
  cohort = privacy.simulated_clients_per_round
  epsilon = simulated.epsilon(privacy.delta)
  return attrs.evolve(
    described,
    # PRIVACY: no figure of the larger cohort stands where a claim about this
    # run would. Guard: training_test.test_simulated_run_says_that_it_is_one.
    setting=(
      f'SIMULATED: {config.training.clients_per_round} clients a round stand '
      f'for {cohort}, with the noise of the mean that those would get. They '
      f'would have epsilon={epsilon:.6g}; this run has not, and protects nobody'
    ),
    simulated={
      'clients_per_round': cohort,
      'noise_multiplier': simulated.noise_multiplier,
      'epsilon': epsilon,
    },
  )
