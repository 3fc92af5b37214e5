"""Federated averaging that trains a group of clients in one call of TFF.

A small model trains on a client in milliseconds, but TFF needs several times as
long to serialise the client's data set, instantiate a graph and pass on the
update. So here one client of TFF is a group of real clients. The clients of a
group train one after the other, each from the server's model, and the group
returns the sum of their clipped updates. TFF then needs memory for two models
for each group, instead of one model for each client.
"""

from __future__ import annotations

import collections
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from simulations import models
from simulations.corpora import client_data
from tff_bandmf import aggregator
from tff_bandmf.tff import names as tff
from tff_bandmf.tff import remote_workers


def deal(sizes: np.ndarray, groups: int) -> list[np.ndarray]:
  """Divides clients into groups with about the same number of sentences.

  Args:
    sizes: [m] integers, number of sentences of each client.
    groups: maximum number of groups, >= 1. If there are fewer clients than
      groups, there is one group for each client.

  Returns:
    The indices in `sizes` of the clients of each group.

  >>> deal(np.array([5, 1, 3, 3]), 2)
  [array([0, 1]), array([2, 3])]
  """
  loads = np.zeros(min(groups, len(sizes)))
  members: list[list[int]] = [[] for _ in loads]
  for member in np.argsort(-sizes, kind='stable').tolist():
    # If loads are equal, the group with fewer members is chosen. So no group
    # stays empty, even if members have no sentences.
    group = min(range(len(loads)), key=lambda i: (loads[i], len(members[i])))
    members[group].append(member)
    loads[group] += sizes[member]
  return [np.array(each) for each in members]


def group_datasets(
  clients: client_data.TokenizedClients,
  cohort: np.ndarray,
  groups: int,
  seed: int,
  round_index: int,
) -> list[tf.data.Dataset]:
  """Returns the data of a cohort for `build`, one data set for each group.

  Args:
    clients: clients of the train split.
    cohort: [m] indices of the cohort's clients.
    groups: maximum number of groups, >= 1.
    seed: seed, >= 0; the order of a client's sentences is a function of the
      seed, the round and the client.
    round_index: index of the round.
  """
  clients.prepare(cohort.tolist())
  arrays = [
    clients.client_arrays(client, seed=seed, round_index=round_index)
    for client in cohort.tolist()
  ]
  sizes = np.array([len(x) for x, _ in arrays], np.int32)
  return [
    tf.data.Dataset.from_tensors(
      collections.OrderedDict(
        x=np.concatenate([arrays[i][0] for i in group]),
        y=np.concatenate([arrays[i][1] for i in group]),
        sizes=sizes[group],
      )
    )
    for group in deal(sizes, groups)
  ]


def build(
  model: models.Model,
  sequence_length: int,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  model_aggregator: aggregator.CorrelatedNoiseFactory,
  batch_size: int,
  workers: Optional[remote_workers.Workers] = None,
) -> Process:
  """Returns the process of unweighted federated averaging over groups.

    record of a group = sum over its clients of clip(w - trained(w))

  Here w are the server's weights, and trained(w) are the weights after a client
  has trained. Clipped updates are int32 multiples of the aggregator's lattice
  step, so the sum of all records does not depend on the division into groups.

  PRIVACY: The guarantee assumes that one client changes the sum by at most the
  clip. A client could change the sum by more if it influenced the training of
  other clients of its group, or if two clients were clipped together. Every
  client starts from the server's weights, and its update is clipped and rounded
  before it is added to other updates.
  Guards: fed_avg_test.test_client_moves_the_sum_by_its_clip and
  test_groups_sum_to_what_tff_gives.

  Args:
    model: network. Its logits at a word must not depend on later words or
      padding, because padding after the longest sentence of a batch is removed.
    sequence_length: length of the rows of x and of y in words, >= 1.
    client_optimizer: optimiser of a client, initialised anew for each client;
      a client trains for one epoch.
    server_optimizer: optimiser that takes the aggregate as its gradient.
    model_aggregator: aggregator that clips the update of a client and adds up
      the records of groups; it must not be used in another process.
    batch_size: number of sentences in one step of a client, >= 1.
    workers: workers that train the groups; if None, TFF's context trains them.

  Returns:
    A process whose data in a round is the result of `group_datasets`. Its
    metrics have the counts of `query.GraphClipping.describe`, summed over the
    cohort without noise, under the name `client_work`.
  """
  weights = tff.learning.models.ModelWeights(tuple(model.weights), ())
  weights_type = tff.types.to_type(
    tff.learning.models.ModelWeights(
      tuple((w.dtype, w.shape) for w in model.weights), ()
    )
  )
  ids_type = tff.TensorType(np.int32, [None, sequence_length])
  data_type = tff.SequenceType(
    collections.OrderedDict(
      x=ids_type, y=ids_type, sizes=tff.TensorType(np.int32, [None])
    )
  )

  clipping, scales, summing = model_aggregator.create_for_sums(
    weights_type.trainable
  )
  finalizer = tff.learning.templates.build_apply_optimizer_finalizer(
    server_optimizer, weights_type
  )

  @tff.tensorflow.computation
  def initial_weights():
    return weights

  @tff.tensorflow.computation(
    weights_type, scales.type_signature.result, data_type
  )
  def train_group(server_weights, scale, dataset):
    group = dataset.get_single_element()
    total, counts = _train_group(
      model,
      client_optimizer,
      batch_size,
      clipping,
      tuple(scale),
      server_weights,
      group,
    )
    return (total, tf.size(group['sizes'])), counts

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      tff.learning.templates.LearningAlgorithmState(
        tff.federated_eval(initial_weights, tff.SERVER),
        tff.federated_value((), tff.SERVER),
        tff.federated_value((), tff.SERVER),
        summing.initialize(),
        finalizer.initialize(),
      )
    )

  @tff.federated_computation(
    (
      tff.FederatedType(weights_type, tff.SERVER),
      tff.FederatedType(scales.type_signature.result, tff.SERVER),
    ),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def clients_part(known, data):
    server_weights, scale = known
    return tff.federated_map(
      train_group,
      (
        tff.federated_broadcast(server_weights),
        tff.federated_broadcast(scale),
        data,
      ),
    )

  @tff.federated_computation(
    initialize.type_signature.result, summing.next.type_signature.parameter[1]
  )
  def server_part(state, updates):
    aggregated = summing.next(state.aggregator, updates)
    updated = finalizer.next(
      state.finalizer, state.global_model_weights, aggregated.result
    )
    return tff.learning.templates.LearningProcessOutput(
      tff.federated_zip(
        tff.learning.templates.LearningAlgorithmState(
          updated.result,
          state.distributor,
          state.client_work,
          aggregated.state,
          updated.state,
        )
      ),
      tff.federated_zip(
        collections.OrderedDict(
          aggregator=aggregated.measurements, finalizer=updated.measurements
        )
      ),
    )

  @tff.federated_computation(
    initialize.type_signature.result, tff.FederatedType(data_type, tff.CLIENTS)
  )
  def next_fn(state, data):
    total, counts = clients_part(
      (
        state.global_model_weights,
        tff.federated_map(scales, state.aggregator),
      ),
      data,
    )
    output = server_part(state, total)
    return tff.learning.templates.LearningProcessOutput(
      output.state,
      tff.federated_zip(
        collections.OrderedDict(
          aggregator=output.metrics['aggregator'],
          client_work=tff.federated_sum(counts),
          finalizer=output.metrics['finalizer'],
        )
      ),
    )

  return Process(
    initialize, next_fn, (scales, clients_part, server_part), workers
  )


class Process:
  """A learning process whose groups train in TFF's context or on workers.

  A group has the same record in TFF's context and on a worker, and sums are
  exact. So rounds in TFF's context and on workers have the same results, bit
  for bit.

  Attributes:
    whole: this process without workers, as one TFF process; `tff_bandmf.Run`
      checks it.
  """

  def __init__(self, initialize, next_fn, parts, workers):
    self.initialize = initialize
    self.whole = tff.templates.IterativeProcess(initialize, next_fn)
    self._next = next_fn
    self._scales, self._clients_part, self._server_part = parts
    self._workers = workers

  def get_model_weights(self, state: Any) -> tff.learning.models.ModelWeights:
    """Returns the weights of the global model."""
    return state.global_model_weights

  def next(
    self, state: Any, data: list[tf.data.Dataset]
  ) -> tff.learning.templates.LearningProcessOutput:
    """Returns the state after a round, and the metrics of the round.

    Raises:
      RuntimeError: a worker ended or was given up during the round, or no
        worker is left.
    """
    if self._workers is None or not data:
      return self._next(state, data)
    results = self._workers.map(
      self._clients_part,
      (state.global_model_weights, self._scales(state.aggregator)),
      data,
    )
    output = self._server_part(state, [total for total, _ in results])
    output.metrics['client_work'] = collections.OrderedDict(
      (name, sum(int(counts[name]) for _, counts in results))
      for name in results[0][1]
    )
    return output


def _train_group(
  model, optimizer, batch_size, clipping, scales, server_weights, group
) -> tuple[Any, dict[str, tf.Tensor]]:
  """Returns the sum of clipped updates, and the summed counts of clipping."""
  start = tuple(server_weights.trainable)
  ends = tf.cumsum(group['sizes'])
  specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, start)

  def step(first, last, weights, state):
    x, y = (
      group[name][first : tf.minimum(first + batch_size, last)]
      for name in ('x', 'y')
    )
    longest = tf.reduce_max(tf.math.count_nonzero(y, 1, dtype=tf.int32))
    x, y = x[:, :longest], y[:, :longest]
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = model.loss(weights, x, y)
    state, weights = optimizer.next(
      state, weights, tape.gradient(loss, weights)
    )
    return first + batch_size, last, weights, state

  def train(client, total, counts):
    _, _, trained, _ = tf.while_loop(
      lambda first, last, *_: first < last,
      step,
      (
        ends[client] - group['sizes'][client],
        ends[client],
        start,
        optimizer.initialize(specs),
      ),
      parallel_iterations=1,
    )
    update = tf.nest.map_structure(tf.subtract, start, trained)
    # PRIVACY: The guarantee assumes that one client changes the sum by at most
    # the clip. The norm of an update may exceed the clip. So each update is
    # clipped before it is added to the sum.
    # Guard: fed_avg_test.test_client_moves_the_sum_by_its_clip.
    total += clipping.clip(update, *scales)
    counts = tf.nest.map_structure(
      tf.add, counts, clipping.describe(update, *scales)
    )
    return client + 1, total, counts

  nothing = tf.nest.map_structure(tf.zeros_like, start)
  _, total, counts = tf.while_loop(
    lambda client, *_: client < tf.size(ends),
    train,
    (
      0,
      tf.zeros([sum(clipping.dimensions)], tf.int32),
      tf.nest.map_structure(tf.zeros_like, clipping.describe(nothing)),
    ),
    parallel_iterations=1,
  )
  return total, counts
