"""What a run says of itself, in `run.json`, and what resuming it must meet."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

from simulations import config as config_lib
from tff_bandmf import accounting, errors, report

_CODE = pathlib.Path(__file__).resolve().parent
# Of a run that is over, these may be others: nothing of it is made again.
_CODE_KEYS = ('versions', 'code_sha256')


def describe(
  config: config_lib.Config,
  corpus: Any,
  spec: accounting.PrivacySpec,
  simulated: Any = None,
) -> dict[str, Any]:
  """Returns the content of `run.json`.

  Args:
    config: the experiment.
    corpus: `training.Corpus`.
    spec: of the noise of the run itself.
    simulated: spec of the cohort that the run stands for, if it does.
  """
  privacy = config.privacy
  tree = dataclasses.asdict(config)
  del tree['compare']
  description = {
    'format': report.RUN_FORMAT,
    'version': report.RUN_VERSION,
    'config': tree,
    'versions': {**report.versions(), 'simulations': report.code_digest(_CODE)},
    'code_sha256': report.code_digest(),
    'train_sha256': corpus.train.digest(),
    'claim': {
      **spec.to_dict(),
      'delta': privacy.delta,
      'l2_norm_clip': privacy.l2_norm_clip,
      'clients_per_round': config.training.clients_per_round,
    },
    'unit_of_privacy': (
      'one client of the train split, with all its sentences'
    ),
    'population': corpus.train.num_clients,
    'data': (
      f'{os.path.basename(corpus.path)}: {corpus.train.num_clients} train, '
      f'{corpus.validation.num_clients} validation, '
      f'{corpus.test.num_clients} test clients'
    ),
    # PRIVACY: not the metrics, which have no noise. Guard:
    # training_test.test_guarantee_is_for_what_has_noise.
    'released': 'the model after every round',
    'enforced': {
      'min_sep': privacy.min_sep,
      'max_participations': privacy.max_participations,
      'by': 'the cohort sampler',
    },
    'clipped_by': (
      'the training program, where clients train: each update before it '
      'is added to another'
    ),
    'noise_key': 'the operating system',
    'tuning': 'hyperparameters were chosen with other runs on this corpus',
    'model_selection': 'none: the last model is the result',
    'pre_training': 'none: initial weights come from a seed',
    'not_covered': [
      f'the vocabulary, {corpus.words}',
      'the validation and test splits, evaluated without noise',
      'the runs it is compared with: each has a guarantee of its own, they '
      'compose, and a run without noise has none',
    ],
    # The report lists the columns of the metrics and the ledger by itself.
    'side_releases': ['vocabulary.txt: the words in the order of their ids'],
  }
  if simulated is not None:
    cohort = privacy.simulated_clients_per_round
    # PRIVACY: no figure of the larger cohort stands where a claim about this
    # run would. Guard: training_test.test_simulated_run_says_that_it_is_one.
    description['setting'] = (
      f'SIMULATED: {config.training.clients_per_round} clients a round stand '
      f'for {cohort}, with the noise of the mean that those would get. They '
      f'would have epsilon={simulated.epsilon(privacy.delta):.6g}; this run '
      'has not, and protects nobody'
    )
    description['simulated'] = {
      'clients_per_round': cohort,
      'noise_multiplier': simulated.noise_multiplier,
      'epsilon': simulated.epsilon(privacy.delta),
    }
  return description


def check_same(
  there: dict[str, Any], wanted: dict[str, Any], ended: bool
) -> None:
  """Raises ValueError, naming what differs, unless a run is the wanted one.

  Args:
    there: `run.json` of the run.
    wanted: what `describe` gives.
    ended: whether the run has its result.
  """
  there, wanted = (_flat(json.loads(json.dumps(d))) for d in (there, wanted))
  # The configuration first: the rest follows from it.
  for name in sorted(
    {*there, *wanted}, key=lambda name: (not name.startswith('config.'), name)
  ):
    if ended and name.split('.')[0] in _CODE_KEYS:
      continue
    if there.get(name) != wanted.get(name):
      raise ValueError(
        errors.invalid(
          name,
          wanted.get(name),
          'another configuration, corpus or version than the run started '
          f'with, {there.get(name)}',
          'go back to that, or choose another directory',
        )
      )


def _flat(tree: Any, prefix: str = '') -> dict[str, Any]:
  """Returns dotted names to leaves."""
  if not isinstance(tree, dict):
    return {prefix: tree}
  return {
    name: leaf
    for key, value in tree.items()
    for name, leaf in _flat(value, f'{prefix}.{key}' if prefix else key).items()
  }
