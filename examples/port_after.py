"""The program of `port_before.py` with correlated noise, ported in two lines.

Shows what changes: the aggregator, and who is in the cohort. What the program
promises stands before that, from `SCHEMA` to `COHORTS`. It prints

  accuracy 1.0
  epsilon 8.0 for 2 rounds of a client, 8 apart at least
"""

import tempfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import accounting, participation, program, strategies
from tff_bandmf import aggregator as bandmf
from tff_bandmf.program import data_source, runtime

CLIENTS, ROUNDS, COHORT = 200, 12, 20
rng = np.random.default_rng(0)
LABELS = rng.integers(0, 4, [CLIENTS, 10]).astype(np.int32)
# Each label lights up one quarter of an image of 4 x 4 pixels.
LIGHTS = np.kron(np.eye(4).reshape(4, 2, 2), np.ones([2, 2]))
IMAGES = (LIGHTS[LABELS] + rng.normal(0, 0.5, [CLIENTS, 10, 4, 4])).astype('f')


def dataset(client, round_index=0):
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


SCHEMA = participation.MinSep(8)
STRATEGY = strategies.BandedSqrt(ROUNDS, 8)
GUARANTEE = accounting.calibrate(STRATEGY, SCHEMA, epsilon=8.0, delta=1e-4)
PLAN = {'l2_norm_clip': 0.5, 'strategy': STRATEGY, 'participation': SCHEMA}
FOLDER = tempfile.TemporaryDirectory()  # a real run keeps its ledger
LEDGER = program.Ledger(f'{FOLDER.name}/ledger.sqlite')
COHORTS = data_source.CohortDataSource(
  dataset,
  dataset(0).element_spec,
  program.CohortSampler(CLIENTS, COHORT, ROUNDS, SCHEMA, seed=1),
  LEDGER,
  guarantee=GUARANTEE,
).iterator()


def train():
  aggregator = bandmf.dp_aggregator(GUARANTEE.noise_multiplier, COHORT, **PLAN)
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model(),
    tff.learning.optimizers.build_sgdm(0.5),
    tff.learning.optimizers.build_sgdm(1.0, momentum=0.5),
    model_aggregator=aggregator,
  )
  state = process.initialize()
  for _ in range(ROUNDS):
    state = process.next(state, COHORTS.select()).state
  return process.get_model_weights(state)


if __name__ == '__main__':
  with runtime.local_runtime():
    print(f'accuracy {accuracy(train()):.1f}')
  seen = LEDGER.observed()
  print(
    f'epsilon {GUARANTEE.epsilon(1e-4):.1f} for {seen.max_participations} '
    f'rounds of a client, {seen.min_sep} apart at least'
  )
