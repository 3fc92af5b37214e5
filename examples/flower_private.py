"""Federated averaging in Flower, in the form of its quickstart."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from tff_bandmf import MinSep, Plan, flower

INPUTS = np.random.default_rng(0).normal(size=[100, 10])
TARGETS = 3 * INPUTS - 1

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
  client = context.node_config['partition-id']
  (weights,) = message.content['arrays'].to_numpy_ndarrays()
  for _ in range(2):
    error = weights[0] * INPUTS[client] + weights[1] - TARGETS[client]
    weights = weights - 0.5 * np.array(
      [np.mean(error * INPUTS[client]), error.mean()]
    )
  metrics = MetricRecord({'num-examples': 10})
  content = {'arrays': ArrayRecord([weights]), 'metrics': metrics}
  return Message(RecordDict(content), reply_to=message)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
  strategy = FedAvg(fraction_evaluate=0.0, weighted_by_key=flower.EQUAL)
  plan = Plan(rounds=4, clients_per_round=50, cohorts=MinSep(2),
              epsilon=20.0, delta=1e-5, l2_norm_clip=2.0)  # fmt: skip
  strategy = flower.CorrelatedNoise(strategy, '~/flower_run', plan, clients=100)
  first = ArrayRecord([np.zeros(2)])
  result = strategy.start(grid=grid, initial_arrays=first, num_rounds=4)
  (weights,) = result.arrays.to_numpy_ndarrays()
  print(f'slope {weights[0]}, intercept {weights[1]}', flush=True)


if __name__ == '__main__':
  run_simulation(server_app, client_app, num_supernodes=100)
