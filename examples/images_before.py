"""Training on small images, as in TFF's tutorial on differential privacy.

Shows a program before it is ported: TFF's own DP aggregator, and cohorts that
are drawn at random. `images_after.py` has correlated noise. The program prints

  accuracy 1.0
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

CLIENTS, ROUNDS, COHORT = 200, 12, 20
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


def main():
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model(),
    tff.learning.optimizers.build_sgdm(0.5),
    tff.learning.optimizers.build_sgdm(1.0, momentum=0.5),
    model_aggregator=tff.learning.dp_aggregator(0.5, COHORT),
  )
  state = process.initialize()
  for _ in range(ROUNDS):
    chosen = np.random.uniform(size=CLIENTS) < COHORT / CLIENTS
    data = [dataset(client) for client in np.flatnonzero(chosen)]
    state = process.next(state, data).state
  found = accuracy(process.get_model_weights(state))
  print(f'accuracy {found:.1f}')


if __name__ == '__main__':
  main()
