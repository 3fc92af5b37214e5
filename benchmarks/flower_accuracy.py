"""Accuracy in Flower of `tff_bandmf.flower` and of Flower's wrapper for DP.

  python -m benchmarks.flower_accuracy

The program needs flwr and scikit-learn, and prints a table in Markdown. The
task is logistic regression on the digits of scikit-learn, with three images a
client. All methods have the same clients, cohort size, rounds, learning rate
and clip, and the same (epsilon, delta) for one client, with zero-out adjacency.

Flower's wrapper draws cohorts at random. Its noise is calibrated under one of
three assumptions:

  all rounds      A client takes part in every round. Flower's accountant
                  assumes this.
  most rounds     All cohorts are drawn before training and are public. The
                  noise covers the largest number of rounds of a client.
  secret cohorts  The cohorts are secret, and the rounds are Poisson-sampled at
                  the rate cohort / clients. This favours Flower: its cohorts
                  have a fixed size, which can only need more noise.
"""

import collections
import math
import random
import tempfile

import dp_accounting
import numpy as np
from dp_accounting import pld
from flwr import app, clientapp
from flwr.serverapp import strategy as strategies
from scipy import optimize
from sklearn import datasets

import tff_bandmf
from benchmarks import flower_grid
from tff_bandmf import flower

_CLIENTS, _OF_A_CLIENT, _COHORT, _ROUNDS, _SEEDS = 500, 3, 50, 100, 5
_MIN_SEP = _CLIENTS // _COHORT
_EPSILON, _DELTA = 8.0, 1e-5
_CLIP, _STEP = 1.0, 1.0


class _Task:
  """The images of the clients, and test images that no client has.

  Attributes:
    rounds_of: number of rounds in which each client took part.
  """

  def __init__(self, seed: int):
    images, labels = datasets.load_digits(return_X_y=True)
    images = np.column_stack([images / 16, np.ones(len(images))])
    order = np.random.default_rng(seed).permutation(len(images))
    first = _CLIENTS * _OF_A_CLIENT
    self._images, self._labels = images[order[:first]], labels[order[:first]]
    self._test = images[order[first:]], labels[order[first:]]
    self.rounds_of = collections.Counter[int]()

  def client_app(self) -> clientapp.ClientApp:
    """Returns a Flower app whose clients take one step of gradient descent."""
    client_app = clientapp.ClientApp()

    @client_app.train()
    def train(message: app.Message, context: app.Context) -> app.Message:
      client = int(context.node_config['partition-id'])
      self.rounds_of[client] += 1
      mine = slice(client * _OF_A_CLIENT, (client + 1) * _OF_A_CLIENT)
      images, labels = self._images[mine], self._labels[mine]
      (weights,) = message.content['arrays'].to_numpy_ndarrays()
      logits = images @ weights
      odds = np.exp(logits - logits.max(1, keepdims=True))
      error = odds / odds.sum(1, keepdims=True) - np.eye(10)[labels]
      content = {
        'arrays': app.ArrayRecord(
          [weights - _STEP / _OF_A_CLIENT * images.T @ error]
        ),
        'metrics': app.MetricRecord({'num-examples': _OF_A_CLIENT}),
      }
      return app.Message(app.RecordDict(content), reply_to=message)

    return client_app

  def accuracy(self, strategy: strategies.Strategy) -> float:
    """Trains with a Flower strategy; returns the accuracy on test images."""
    result = strategy.start(
      flower_grid.LocalGrid(self.client_app(), _CLIENTS),
      app.ArrayRecord([np.zeros((65, 10))]),
      num_rounds=_ROUNDS,
    )
    (weights,) = result.arrays.to_numpy_ndarrays()
    images, labels = self._test
    return float(np.mean(np.argmax(images @ weights, 1) == labels))


def _averaging(**changes) -> strategies.FedAvg:
  return strategies.FedAvg(
    fraction_train=_COHORT / _CLIENTS, fraction_evaluate=0.0, **changes
  )


def _of_flower(seed: int, noise_multiplier: float) -> tuple[float, int]:
  """Returns the accuracy of Flower's wrapper, and the most rounds of a client.

  Args:
    seed: seed of the images' order and of the cohorts.
    noise_multiplier: noise multiplier of a round.
  """
  random.seed(seed)
  np.random.seed(seed)
  task = _Task(seed)
  accuracy = task.accuracy(
    strategies.DifferentialPrivacyServerSideFixedClipping(
      _averaging(), noise_multiplier, _CLIP, _COHORT
    )
  )
  return accuracy, max(task.rounds_of.values())


def _most_rounds(seed: int) -> int:
  """Returns the maximum number of rounds for which Flower draws a client."""
  random.seed(seed)
  drawn = collections.Counter(
    client
    for _ in range(_ROUNDS)
    for client in random.sample(range(_CLIENTS), _COHORT)
  )
  return max(drawn.values())


def _of_run(seed: int, private: bool) -> float:
  """Returns the accuracy of `flower.CorrelatedNoise`.

  Args:
    seed: seed of the images' order.
    private: whether noise is added.
  """
  plan = tff_bandmf.Plan(
    rounds=_ROUNDS,
    clients_per_round=_COHORT,
    cohorts=tff_bandmf.MinSep(_MIN_SEP),
    epsilon=_EPSILON,
    delta=_DELTA,
    l2_norm_clip=_CLIP,
    mechanism='banded-sqrt',
  )
  with tempfile.TemporaryDirectory() as folder:
    return _Task(seed).accuracy(
      flower.CorrelatedNoise(
        _averaging(weighted_by_key=flower.EQUAL),
        f'{folder}/run',
        plan,
        clients=_CLIENTS,
        private=private,
      )
    )


def _noise_multiplier(event, times: int) -> float:
  """Returns the noise multiplier with which a composition has `_EPSILON`.

  Args:
    event: function from the noise multiplier to the event of one round.
    times: number of composed events.
  """

  def excess(noise_multiplier):
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(event(noise_multiplier), times)
    return accountant.get_epsilon(_DELTA) - _EPSILON

  return optimize.brentq(excess, 0.4, 30.0, xtol=1e-3)


def _sampled(noise_multiplier: float) -> dp_accounting.DpEvent:
  return dp_accounting.PoissonSampledDpEvent(
    _COHORT / _CLIENTS, dp_accounting.GaussianDpEvent(noise_multiplier)
  )


def main() -> None:
  # k Gaussian mechanisms with noise multiplier s compose to one with s / k^0.5.
  single = _noise_multiplier(dp_accounting.GaussianDpEvent, 1)
  secret = _noise_multiplier(_sampled, _ROUNDS)
  seeds = range(_SEEDS)
  most = [_most_rounds(seed) for seed in seeds]
  known = [
    _of_flower(seed, single * math.sqrt(k)) for seed, k in zip(seeds, most)
  ]
  assert [k for _, k in known] == most
  rows = {
    'no noise, `private=False`': [_of_run(seed, False) for seed in seeds],
    f'`flower.CorrelatedNoise`, a client in {_ROUNDS // _MIN_SEP} rounds': [
      _of_run(seed, True) for seed in seeds
    ],
    f"Flower's wrapper, all {_ROUNDS} rounds": [
      _of_flower(seed, single * math.sqrt(_ROUNDS))[0] for seed in seeds
    ],
    f"Flower's wrapper, most rounds ({min(most)} to {max(most)})": [
      accuracy for accuracy, _ in known
    ],
    "Flower's wrapper, secret cohorts": [
      _of_flower(seed, secret)[0] for seed in seeds
    ],
  }
  print('| method | accuracy |\n|---|---|')
  for name, accuracies in rows.items():
    error = np.std(accuracies, ddof=1) / math.sqrt(len(accuracies))
    print(f'| {name} | {np.mean(accuracies):.3f} +- {error:.3f} |')


if __name__ == '__main__':
  main()
