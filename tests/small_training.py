"""Clients and a model that train in milliseconds, for tests."""

import numpy as np
import tensorflow as tf

from simulations import config as config_lib
from simulations import models
from simulations.corpora import client_data
from simulations.corpora import vocabulary as vocabulary_lib

_CLIENTS = 9
LENGTH = 6


def _clients():
  """Clients with 0 to 8 sentences of 0 to 6 random words."""
  generator = np.random.default_rng(0)
  vocabulary = vocabulary_lib.Vocabulary(('a', 'b', 'c', 'd', 'e'))
  sizes = np.arange(_CLIENTS)
  rows = [
    vocabulary.encode(' '.join(generator.choice(list('abcdez'), words)), LENGTH)
    for words in generator.integers(0, LENGTH + 1, sizes.sum())
  ]
  return client_data.TokenizedClients(
    'train',
    tuple(map(str, range(_CLIENTS))),
    np.concatenate([[0], np.cumsum(sizes)]),
    np.array(rows, np.int16),
    vocabulary,
  )


CLIENTS = _clients()
MODEL = models.build(
  config_lib.Model(embedding_size=4, lstm_size=3),
  CLIENTS.vocabulary.num_ids,
  seed=1,
)
SPECS = tuple(tf.TensorSpec(w.shape, w.dtype) for w in MODEL.weights)
