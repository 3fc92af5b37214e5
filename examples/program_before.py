"""Trains a model with `tff.learning.programs.train_model`.

Shows a program before it is ported: TFF's own loop, with its data source, its
checkpoints and its release managers. `program_after.py` has differential
privacy and a report. The program prints

  slope 3, intercept -1
"""

import asyncio

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

CLIENTS, ROUNDS, COHORT = 120, 6, 40
INPUTS = np.random.default_rng(0).normal(size=[CLIENTS, 10, 1]).astype('f')
TARGETS = 3 * INPUTS - 1


def dataset(client):
  pairs = (INPUTS[client], TARGETS[client])
  return tf.data.Dataset.from_tensor_slices(pairs).batch(5)


def model():
  return tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1])]),
    tf.keras.losses.MeanSquaredError(),
    dataset(0).element_spec,
  )


class Cohorts(tff.program.FederatedDataSourceIterator):
  """Selects clients at random; has no state to store."""

  federated_type = tff.FederatedType(
    tff.SequenceType(tff.types.tensorflow_to_type(dataset(0).element_spec)),
    tff.CLIENTS,
  )

  @classmethod
  def from_bytes(cls, buffer):
    return cls()

  def to_bytes(self):
    return b''

  def select(self, k=None):
    cohort = np.random.default_rng().choice(CLIENTS, k, replace=False)
    return [dataset(client) for client in cohort]


class Clients(tff.program.FederatedDataSource):
  federated_type = Cohorts.federated_type

  def iterator(self):
    return Cohorts()


class Last(tff.program.ReleaseManager):
  """Stores the last released value."""

  async def release(self, value, key):
    self.value = await tff.program.materialize_value(value)


def main():
  tff.framework.set_default_context(
    tff.program.NativeFederatedContext(
      tff.backends.native.create_async_local_cpp_execution_context()
    )
  )
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model(),
    tff.learning.optimizers.build_sgdm(0.2),
    tff.learning.optimizers.build_sgdm(1.0, momentum=0.3),
  )
  out = Last()
  asyncio.run(
    tff.learning.programs.train_model(
      train_process=process,
      train_data_source=Clients(),
      train_per_round_clients=COHORT,
      train_total_rounds=ROUNDS,
      program_state_manager=tff.program.FileProgramStateManager('states'),
      model_output_manager=out,
      train_metrics_manager=tff.program.CSVFileReleaseManager('metrics.csv'),
      evaluation_manager=None,
      evaluation_periodicity=10,
    )
  )
  (slope,), intercept = out.value.global_model_weights.trainable
  print(f'slope {slope.item():.0f}, intercept {intercept.item():.0f}')


if __name__ == '__main__':
  main()
