"""Federated averaging in NumPy with the guarantee of a run, without TFF.

If the program is killed, it continues when it is started again. The first
argument is the folder of the run. The program prints

  round 0 is done
  round 1 is done
  round 2 is done
  round 3 is done
  slope 3, intercept -1
  epsilon 20.0 after 4 rounds
"""

import sys
import tempfile

import numpy as np

import tff_bandmf

CLIENTS, COHORT, ROUNDS = 100, 50, 4
INPUTS = np.random.default_rng(0).normal(size=[CLIENTS, 10])
TARGETS = 3 * INPUTS - 1


def update_of(client, weights):
  """Returns the update of one client after two steps of gradient descent."""
  trained = np.array(weights)
  for _ in range(2):
    error = trained[0] * INPUTS[client] + trained[1] - TARGETS[client]
    trained -= 0.5 * np.array([np.mean(error * INPUTS[client]), error.mean()])
  return trained - weights


def main(folder):
  plan = tff_bandmf.Plan(
    rounds=ROUNDS,
    clients_per_round=COHORT,
    cohorts=tff_bandmf.MinSep(2),
    epsilon=20.0,
    delta=1e-5,
    l2_norm_clip=2.0,
    mechanism='banded-sqrt',
  )
  with tff_bandmf.Run(folder, plan) as run:
    weights = run.restore(lambda: np.zeros(2))
    for current in run.rounds(clients=CLIENTS):
      updates = (update_of(client, weights) for client in current.cohort)
      weights = weights + current.release(updates, like=weights)
      current.finish(weights)
      print(f'round {current.index} is done', flush=True)
    run.record(slope=weights[0], intercept=weights[1])
    found = run.report().content
  print(f'slope {weights[0]:.0f}, intercept {weights[1]:.0f}')
  print(f'epsilon {found["epsilon"]:.1f}', end=' ')
  print(f'after {found["observed"]["rounds_finished"]} rounds')


if __name__ == '__main__':
  if len(sys.argv) > 1:
    main(sys.argv[1])
  else:
    with tempfile.TemporaryDirectory() as folder:
      main(f'{folder}/run')
