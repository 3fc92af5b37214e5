"""The program of `fed_avg_before.py`, ported.

Shows a process and a loop of your own: the run averages the updates, gives the
state and the cohorts, and stores the new state. The command for its plan:

  bandmf plan --rounds 6 --clients-per-round 40 --min-sep 3 --epsilon 20
    --delta 1e-4 --l2-norm-clip 1 --mechanism banded-sqrt --out plan.json
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_bandmf
from tff_bandmf.tff import runtime

CLIENTS, ROUNDS, COHORT = 120, 6, 40
run = tff_bandmf.Run('run', tff_bandmf.Plan.load('plan.json'))
rng = np.random.default_rng(0)
INPUTS = rng.normal(size=[CLIENTS, 10]).astype(np.float32)
TARGETS = 3 * INPUTS - 1

Weights = collections.namedtuple('Weights', ['slope', 'intercept'])
Server = collections.namedtuple('Server', ['weights', 'velocity'])
Client = collections.namedtuple('Client', ['update', 'loss'])
WEIGHTS = Weights(*[tff.TensorType(np.float32)] * 2)
SERVER = Server(WEIGHTS, WEIGHTS)
DATA = tff.SequenceType(tff.TensorType(np.float32, [None, 2]))


def dataset(client):
  pairs = np.stack([INPUTS[client], TARGETS[client]], axis=1)
  return tf.data.Dataset.from_tensor_slices(pairs).batch(5)


@tff.tensorflow.computation
def zeros():
  return Weights(tf.zeros([]), tf.zeros([]))


@tff.tensorflow.computation(DATA, WEIGHTS)
def client_update(data, weights):
  """Returns the update of an epoch of gradient descent, and the last loss."""

  def step(held, pairs):
    (slope, intercept), _ = held
    inputs, targets = pairs[:, 0], pairs[:, 1]
    error = slope * inputs + intercept - targets
    slope -= 0.4 * tf.reduce_mean(error * inputs)
    intercept -= 0.4 * tf.reduce_mean(error)
    return (slope, intercept), tf.reduce_mean(error**2)

  trained, loss = data.reduce((tuple(weights), 0.0), step)
  return Client(Weights(*(a - b for a, b in zip(trained, weights))), loss)


@tff.tensorflow.computation(SERVER, WEIGHTS)
def server_update(server, update):
  """Returns weights and velocity after a step with momentum."""
  velocity = Weights(*(0.3 * v + u for v, u in zip(server.velocity, update)))
  weights = Weights(*(w + v for w, v in zip(server.weights, velocity)))
  return Server(weights, velocity)


@tff.federated_computation
def initialize():
  zero = tff.federated_eval(zeros, tff.SERVER)
  return tff.federated_zip(Server(zero, zero))


@tff.federated_computation(
  tff.FederatedType(SERVER, tff.SERVER), tff.FederatedType(DATA, tff.CLIENTS)
)
def next_round(server, data):
  weights = tff.federated_broadcast(server.weights)
  clients = tff.federated_map(client_update, (data, weights))
  mean = run.federated_mean(clients.update)
  metrics = collections.OrderedDict(loss=tff.federated_mean(clients.loss))
  return tff.learning.templates.LearningProcessOutput(
    tff.federated_map(server_update, (server, mean)),
    tff.federated_zip(metrics),
  )


process = tff.learning.templates.LearningProcess(
  initialize,
  next_round,
  tff.tensorflow.computation(lambda server: server.weights, SERVER),
  tff.tensorflow.computation(
    lambda server, weights: Server(weights, server.velocity), SERVER, WEIGHTS
  ),
)


@runtime.local_runtime()
def main():
  state = run.restore(process)
  for current in run.rounds(clients=CLIENTS):
    data = [dataset(client) for client in current.cohort]
    output = process.next(state, data)
    state = current.finish(output.state, output.metrics)
  slope, intercept = process.get_model_weights(state)
  print(f'slope {slope:.0f}, intercept {intercept:.0f}')
  run.record(slope=slope, intercept=intercept)
  print(run.report().statement)


if __name__ == '__main__':
  main()
