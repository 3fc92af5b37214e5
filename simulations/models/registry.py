"""Makes the model of a configuration."""

from __future__ import annotations

import importlib

from simulations import config as config_lib
from simulations.models import next_word


def build(config: config_lib.Model, num_ids: int, seed: int) -> next_word.Model:
  """Returns the model of a configuration, its weights a function of `seed`.

  The architecture is the name of a module of this folder, which has a `build`
  with these arguments.

  Args:
    config: configuration of the model.
    num_ids: vocabulary with its special ids, see `initial.softmax_bias`.
    seed: seed of the initial weights, >= 0.
  """
  module = importlib.import_module(f'simulations.models.{config.architecture}')
  return module.build(config, num_ids, seed)
