"""The description of an experiment that `run.json` and the report contain."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from simulations import config as config_lib
from simulations import config_keys
from tff_bandmf import report

_CODE = pathlib.Path(__file__).resolve().parent


def describe(
  config: config_lib.Config, corpus: Any, start: Any
) -> dict[str, Any]:
  """Returns the entries of `run.json` that come from this training program.

  Args:
    config: the experiment.
    corpus: the `training.TokenizedCorpus` of the experiment.
    start: the `pretraining.Start` of the experiment.
  """
  tree = config_keys.to_tree(config)
  del tree['compare']
  return {
    'config': tree,
    'versions': {**report.versions(), 'simulations': report.code_digest(_CODE)},
    'train_sha256': corpus.train.digest(),
    'unit_of_privacy': (
      f'one {config.data.unit} of the train split, with all its sentences'
    ),
    'population': corpus.train.num_clients,
    'data': (
      f'{os.path.basename(corpus.path)}: {corpus.train.num_clients} train, '
      f'{corpus.validation.num_clients} validation, '
      f'{corpus.test.num_clients} test clients'
    ),
    'clipped_by': (
      'the training program, where clients train: each update is clipped '
      'before it is added to another update'
    ),
    'tuning': 'hyperparameters were chosen with other runs on this corpus',
    'model_selection': 'none: the last model is the result',
    'pre_training': start.origin,
    'initial_sha256': start.digest,
    'not_covered': [
      f'the vocabulary, {corpus.vocabulary_source}',
      'the validation and test splits, evaluated without noise',
      'the runs with which this run is compared: each has only its own '
      'guarantee, a run without noise has none, and the guarantees compose',
    ],
    # The report adds the ledger and the columns of the metrics to this list.
    'side_releases': ['vocabulary.txt: the words in the order of their ids'],
  }
