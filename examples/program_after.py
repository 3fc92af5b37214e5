"""The program of `program_before.py`, ported.

Shows TFF's loop around a run: the run selects the clients and stores the state,
and the release manager gets nothing but the weights, which have noise. The
command for its plan:

  bandmf plan --rounds 6 --clients-per-round 40 --min-sep 3 --epsilon 20
    --delta 1e-4 --l2-norm-clip 1 --mechanism banded-sqrt --out plan.json
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_bandmf
from tff_bandmf.tff import runtime

CLIENTS, ROUNDS, COHORT = 120, 6, 40
PLAN = tff_bandmf.Plan.load('plan.json')
INPUTS = np.random.default_rng(0).normal(size=[CLIENTS, 10, 1]).astype('f')
TARGETS = 3 * INPUTS - 1


def dataset(client, round_index=0):
  pairs = (INPUTS[client], TARGETS[client])
  return tf.data.Dataset.from_tensor_slices(pairs).batch(5)


def model():
  return tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1])]),
    tf.keras.losses.MeanSquaredError(),
    dataset(0).element_spec,
  )


class Last(tff.program.ReleaseManager):
  """Stores the last released value."""

  async def release(self, value, key):
    self.value = await tff.program.materialize_value(value)


def main(run):
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model(),
    tff.learning.optimizers.build_sgdm(0.2),
    tff.learning.optimizers.build_sgdm(1.0, momentum=0.3),
    model_aggregator=run.aggregator,
  )
  out = Last()
  run.train_model(process, dataset, clients=CLIENTS, model_output_manager=out)
  (slope,), intercept = out.value.trainable
  print(f'slope {slope.item():.0f}, intercept {intercept.item():.0f}')
  run.record(slope=slope, intercept=intercept)
  print(run.report().statement)


if __name__ == '__main__':
  with runtime.local_runtime(program=True), tff_bandmf.Run('run', PLAN) as run:
    main(run)
