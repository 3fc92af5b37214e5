"""The model that a configuration asks for."""

from __future__ import annotations

from simulations import config as config_lib
from simulations.models import lstm, next_word, transformer


def build(config: config_lib.Model, num_ids: int, seed: int) -> next_word.Model:
  """Returns the model of a configuration, its weights a function of `seed`.

  Args:
    config: of the model.
    num_ids: vocabulary with its special ids, see `initial.softmax_bias`.
    seed: of the initial weights.
  """
  return _BUILDERS[config.architecture](config, num_ids, seed)


def _lstm(config, num_ids, seed):
  return next_word.Model(
    lstm.initial_weights(
      num_ids,
      config.embedding_size,
      config.lstm_size,
      config.tied,
      config.skip,
      config.embedding_scale,
      seed,
    ),
    lstm.logits,
  )


def _transformer(config, num_ids, seed):
  return next_word.Model(
    transformer.initial_weights(
      num_ids,
      config.embedding_size,
      config.layers,
      config.heads,
      config.feed_forward_size,
      config.embedding_scale,
      seed,
    ),
    transformer.logits,
  )


_BUILDERS = {'lstm': _lstm, 'transformer': _transformer}
assert set(_BUILDERS) == set(config_lib.ARCHITECTURES)
