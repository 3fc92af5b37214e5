"""The program of `images_before.py`, ported.

Shows noise that is correlated between rounds, rounds of a client that are at
least 8 apart, a run that continues after it was killed, and its report. The
command for its plan:

  bandmf plan --rounds 12 --clients-per-round 20 --min-sep 8 --epsilon 8
    --delta 1e-4 --l2-norm-clip 0.5 --mechanism banded-sqrt --out plan.json
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_bandmf
from tff_bandmf.tff import runtime

CLIENTS, ROUNDS, COHORT = 200, 12, 20
PLAN = tff_bandmf.Plan.load('plan.json')
rng = np.random.default_rng(0)
LABELS = rng.integers(0, 4, [CLIENTS, 10]).astype(np.int32)
# Each label lights up one quarter of an image of 4 x 4 pixels.
LIGHTS = np.kron(np.eye(4).reshape(4, 2, 2), np.ones([2, 2]))
IMAGES = (LIGHTS[LABELS] + rng.normal(0, 0.5, [CLIENTS, 10, 4, 4])).astype('f')


def dataset(client):
  pairs = (IMAGES[client], LABELS[client])
  return tf.data.Dataset.from_tensor_slices(pairs).batch(10)


def model():
  return tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential(
      [
        tf.keras.layers.Flatten(input_shape=[4, 4]),
        tf.keras.layers.Dense(4, kernel_initializer='zeros'),
      ]
    ),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    dataset(0).element_spec,
  )


def accuracy(weights):
  kernel, bias = weights.trainable
  predicted = np.argmax(IMAGES.reshape([-1, 16]) @ kernel + bias, -1)
  return np.mean(predicted == LABELS.reshape(-1))


def main(run):
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model(),
    tff.learning.optimizers.build_sgdm(0.5),
    tff.learning.optimizers.build_sgdm(1.0, momentum=0.5),
    model_aggregator=run.aggregator,
  )
  state = run.restore(process.initialize)
  for done in run.train(process, lambda i, _: dataset(i), clients=CLIENTS):
    state = done.state
  found = accuracy(process.get_model_weights(state))
  print(f'accuracy {found:.1f}')
  run.record(accuracy=found)
  print(run.report().statement)


if __name__ == '__main__':
  with runtime.local_runtime(), tff_bandmf.Run('run', PLAN) as run:
    main(run)
