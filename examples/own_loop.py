"""A federated averaging loop of your own, with ledger, key and tape.

Shows the parts of the library without TFF's learning algorithms: clients train
in NumPy, and TFF runs only the aggregation. The loop stops in the middle of
round 3, and continues with the same cohort and the same noise. The program
prints

  stopped in round 3
  went on with round 3
  slope 3, intercept -1, after 8 rounds
  2 rounds of a client at most, 4 apart at least
"""

import pathlib
import tempfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_bandmf import (
  accounting,
  aggregator,
  cohorts,
  noise,
  participation,
  strategies,
)
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.noise import placements
from tff_bandmf.tff import runtime

CLIENTS, COHORT, ROUNDS = 250, 50, 8
SCHEMA = participation.MinSep(4)
STRATEGY = strategies.BandedSqrt(ROUNDS, 4)
GUARANTEE = accounting.calibrate(STRATEGY, SCHEMA, epsilon=8.0, delta=1e-5)
INPUTS = np.random.default_rng(0).normal(size=[CLIENTS, 10])
TARGETS = 3 * INPUTS - 1


def update_of(client, weights):
  """Returns the update of one client after two steps of gradient descent."""
  trained = np.array(weights)
  for _ in range(2):
    error = trained[0] * INPUTS[client] + trained[1] - TARGETS[client]
    trained -= 0.5 * np.array([np.mean(error * INPUTS[client]), error.mean()])
  return np.float32(trained - weights)


def train(folder, stop=None):
  """Starts or resumes the training in `folder`, and stops in round `stop`."""
  key = noise.Key.load_or_create(folder / 'noise.key')
  # File t + 1 holds state and weights after round t.
  states = sorted(folder.glob('*.npz'))
  start, weights = len(states), np.zeros(2)
  sampler = cohorts.CohortSampler(CLIENTS, COHORT, ROUNDS, SCHEMA, seed=1)
  with (
    ledger_lib.Ledger(folder / 'ledger.sqlite') as ledger,
    aggregator.dp_aggregator(
      GUARANTEE.noise_multiplier,
      COHORT,
      l2_norm_clip=1.0,
      strategy=STRATEGY,
      participation=SCHEMA,
      noise=placements.Tape(key=key, start_round=start),
    ) as factory,
  ):
    process = factory.create(tff.TensorType(np.float32, [2]))
    state = process.initialize()
    if start:
      leaves = [*tf.nest.flatten(state), weights]
      with np.load(states[-1]) as held:
        *leaves, weights = (held[f'arr_{i}'] for i in range(len(leaves)))
      state = tf.nest.pack_sequence_as(state, leaves)
      print(f'went on with round {start}')
    history = ledger.history(CLIENTS, before=start)
    for t in range(start, ROUNDS):
      cohort = sampler.sample(t, history)
      history.record(t, cohort)
      # The ledger records a cohort before any of its updates is computed.
      ledger.start_round(t, cohort)
      if t == stop:
        print(f'stopped in round {t}')
        return
      output = process.next(state, [update_of(i, weights) for i in cohort])
      state, weights = output.state, weights + output.result
      ledger.finish_round(t, rounds_done=t + 1)
      np.savez(folder / f'{t + 1}.npz', *tf.nest.flatten(state), weights)
    observed = ledger.observed()
  print(f'slope {weights[0]:.0f}, intercept {weights[1]:.0f}, after', end=' ')
  print(f'{ROUNDS} rounds')
  print(f'{observed.max_participations} rounds of a client at most,', end=' ')
  print(f'{observed.min_sep} apart at least')


def main():
  with tempfile.TemporaryDirectory() as folder, runtime.local_runtime():
    train(pathlib.Path(folder), stop=3)
    train(pathlib.Path(folder))


if __name__ == '__main__':
  main()
