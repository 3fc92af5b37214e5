"""Clients and a model for training in milliseconds, for tests."""

import hashlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_bandmf
from simulations import config as config_lib
from simulations import models
from simulations.corpora import client_data
from simulations.corpora import vocabulary as vocabulary_lib
from simulations.models import next_word
from tff_bandmf import participation, strategies

_CLIENTS = 9
LENGTH = 6


def _clients():
  """Returns clients with 0 to 8 sentences of 0 to 6 random words."""
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


def batches(clients, client, batch_size, **order):
  """Returns one epoch of a client as a data set.

  Args:
    clients: clients of the split.
    client: index of the client.
    batch_size: number of sentences in a batch.
    **order: arguments of `TokenizedClients.client_arrays`.
  """
  arrays = clients.client_arrays(client, **order)
  return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)


def functional_model(model, sequence_length):
  """Returns a model in the form that TFF's own algorithms train."""
  spec = tf.TensorSpec([None, sequence_length], tf.int32)

  @tf.function(autograph=False)
  def predict(model_weights, x, training):
    del training
    return model.logits(model_weights[0], x)

  @tf.function(autograph=False)
  def loss(output, label, sample_weight=None):
    del sample_weight
    return models.next_word_loss(output, label)

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(model.weights), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=(spec, spec),
  )


def word_pairs():
  """Returns a model of word pairs, which TFF traces fast."""
  words = CLIENTS.vocabulary.num_ids
  weights = [np.zeros([words, words], np.float32)]
  pairs = next_word.Model(weights, lambda weights, x: tf.gather(weights[0], x))
  return functional_model(pairs, LENGTH)


def plan(rounds, cohorts=None):
  """Returns a plan of `rounds` rounds with three clients each."""
  return tff_bandmf.Plan(
    rounds=rounds,
    clients_per_round=3,
    cohorts=cohorts or participation.MinSep(2),
    delta=1e-5,
    l2_norm_clip=0.2,
    noise_multiplier=0.5,
    mechanism=strategies.BandedToeplitz(rounds, [1, 0.5]),
  )


def digest(state):
  """Returns the SHA-256 of the model and optimiser in a process's state."""
  sha = hashlib.sha256()
  for leaf in tf.nest.flatten((state.global_model_weights, state.finalizer)):
    sha.update(np.asarray(leaf).tobytes())
  return sha.digest()
