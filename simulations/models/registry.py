"""Builds the model of a configuration from the module of its architecture."""

from __future__ import annotations

import importlib

from simulations import config as config_lib
from simulations.models import next_word


def build(config: config_lib.Model, num_ids: int, seed: int) -> next_word.Model:
  """Returns the model of a configuration, with weights drawn from `seed`.

  The architecture is the name of a module of this folder. The module has a
  function `build` with the same arguments.

  Args:
    config: configuration of the model.
    num_ids: number of ids of the model's `Vocabulary`.
    seed: seed of the initial weights, >= 0.
  """
  module = importlib.import_module(f'simulations.models.{config.architecture}')
  return module.build(config, num_ids, seed)
