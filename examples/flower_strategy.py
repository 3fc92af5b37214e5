"""Federated averaging in Flower with the guarantee of a run.

`CorrelatedNoise` wraps a strategy as Flower's own wrappers for differential
privacy do. The run draws and records the clients of each round, which Flower's
wrappers leave to random sampling; it also clips updates and adds noise. A
program that is killed continues when it is started again. `make test-flower`
runs this example in its own environment. It prints

  slope 3, intercept -1
  epsilon 20.0 after 4 rounds
"""

import sys
import tempfile

import flwr as fl
import numpy as np

import tff_bandmf


class CorrelatedNoise(fl.server.strategy.Strategy):
  """A strategy whose fit rounds are the rounds of a run.

  All updates have the same weight, and their sum is divided by the clients per
  round of the plan. The update of a client that fails counts as zero. Metrics
  that clients evaluate have no noise.
  """

  def __init__(self, strategy, run):
    """Wraps a strategy that has initial parameters."""
    self._strategy = strategy
    self._run = run
    self._weights = None
    self._rounds = None
    self._round = None

  def initialize_parameters(self, client_manager):
    first = self._strategy.initialize_parameters(client_manager)
    # PRIVACY: Without initial parameters Flower starts from the weights of one
    # client, without noise. Such a strategy is refused.
    # Guard: flower_check.test_first_model_is_not_that_of_a_client.
    if first is None:
      raise ValueError('initial_parameters=None: give those of the model.')
    self._weights = self._run.restore(
      lambda: fl.common.parameters_to_ndarrays(first)
    )
    return fl.common.ndarrays_to_parameters(self._weights)

  def configure_fit(self, server_round, parameters, client_manager):
    proxies = client_manager.all()
    if self._rounds is None:
      self._rounds = self._run.rounds(clients=sorted(proxies))
    # PRIVACY: Flower samples clients at random, more often than the plan
    # allows. The run draws the cohort, and records it before the round.
    # Guard: flower_check.test_cohorts_keep_the_separation.
    self._round = next(self._rounds)
    given = self._strategy.configure_fit(
      server_round, parameters, client_manager
    )
    instructions = given[0][1]
    return [(proxies[client], instructions) for client in self._round.cohort]

  def aggregate_fit(self, server_round, results, failures):
    trained = (
      fl.common.parameters_to_ndarrays(result.parameters)
      for _, result in results
    )
    mean = self._round.release(
      (
        [new - old for new, old in zip(each, self._weights)] for each in trained
      ),
      like=self._weights,
    )
    self._weights = [old + step for old, step in zip(self._weights, mean)]
    self._round.finish(self._weights)
    return fl.common.ndarrays_to_parameters(self._weights), {}

  def configure_evaluate(self, server_round, parameters, client_manager):
    return self._strategy.configure_evaluate(
      server_round, parameters, client_manager
    )

  def aggregate_evaluate(self, server_round, results, failures):
    return self._strategy.aggregate_evaluate(server_round, results, failures)

  def evaluate(self, server_round, parameters):
    return self._strategy.evaluate(server_round, parameters)


CLIENTS, COHORT, ROUNDS = 100, 50, 4
INPUTS = np.random.default_rng(0).normal(size=[CLIENTS, 10])
TARGETS = 3 * INPUTS - 1


class Client(fl.server.client_proxy.ClientProxy):
  """A client in this process: two steps of gradient descent."""

  def fit(self, ins, timeout, group_id):
    (weights,) = fl.common.parameters_to_ndarrays(ins.parameters)
    trained, me = weights.copy(), int(self.cid)
    for _ in range(2):
      error = trained[0] * INPUTS[me] + trained[1] - TARGETS[me]
      trained -= 0.5 * np.array([np.mean(error * INPUTS[me]), error.mean()])
    return fl.common.FitRes(
      fl.common.Status(fl.common.Code.OK, ''),
      fl.common.ndarrays_to_parameters([trained]),
      num_examples=10,
      metrics={},
    )

  def get_properties(self, ins, timeout, group_id):
    raise NotImplementedError

  get_parameters = evaluate = reconnect = get_properties


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
  clients = fl.server.SimpleClientManager()
  for i in range(CLIENTS):
    clients.register(Client(f'{i:03d}'))
  averaging = fl.server.strategy.FedAvg(
    fraction_evaluate=0.0,
    initial_parameters=fl.common.ndarrays_to_parameters([np.zeros(2)]),
  )
  with tff_bandmf.Run(folder, plan) as run:
    server = fl.server.Server(
      client_manager=clients, strategy=CorrelatedNoise(averaging, run)
    )
    server.fit(num_rounds=run.rounds_left, timeout=None)
    (weights,) = fl.common.parameters_to_ndarrays(server.parameters)
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
