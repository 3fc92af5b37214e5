"""Clients that come by themselves, with a ledger in PostgreSQL.

Clients check in to a round on their own. The run admits a client if the ledger
shows that the plan allows the client to take part again, even among millions of
clients. The updates of other clients are in no sum. The first argument is the
URL of the database, such as postgresql+psycopg2://user@host/name. Without an
argument, the ledger is a file.
"""

import sys

import numpy as np

import tff_bandmf

PHONES, ROUNDS = 400, 6
INPUTS = np.random.default_rng(0).normal(size=[PHONES, 10])
TARGETS = 3 * INPUTS - 1


def arrivals():
  """Returns the clients that check in to a round."""
  return [f'phone {i}' for i in np.random.permutation(PHONES)[:100]]


def update_of(name, weights):
  """Returns the update of one client after two steps of gradient descent."""
  client, trained = int(name.split()[1]), np.array(weights)
  for _ in range(2):
    error = trained[0] * INPUTS[client] + trained[1] - TARGETS[client]
    trained -= 0.5 * np.array([np.mean(error * INPUTS[client]), error.mean()])
  return trained - weights


def main(ledger=None):
  plan = tff_bandmf.Plan(
    rounds=ROUNDS,
    clients_per_round=60,
    largest_cohort=80,
    cohorts=tff_bandmf.MinSep(3),
    epsilon=20.0,
    delta=1e-5,
    l2_norm_clip=2.0,
    mechanism='banded-sqrt',
  )
  with tff_bandmf.Run('run', plan, ledger=ledger) as run:
    weights = run.restore(lambda: np.zeros(2))
    while run.rounds_left:
      with run.round(cohort=arrivals()) as current:
        updates = (update_of(name, weights) for name in current.cohort)
        weights = weights + current.release(updates, like=weights)
        current.finish(weights)
      print(f'{len(current.cohort)} took part, {current.refused} went home')
    run.record(slope=weights[0], intercept=weights[1])
    print(run.report().statement)


if __name__ == '__main__':
  main(*sys.argv[1:])
