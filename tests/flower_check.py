"""Checks of the example for Flower; `requirements/test_flower.sh` runs them."""

import pathlib
import re
import subprocess
import sys
import textwrap

import flwr as fl
import numpy as np
import pytest

import tff_bandmf

_EXAMPLE = (
  pathlib.Path(__file__).resolve().parent.parent / 'examples/flower_strategy.py'
)
sys.path.append(str(_EXAMPLE.parent))

import flower_strategy  # noqa: E402


def _promised():
  docstring = flower_strategy.__doc__
  return textwrap.dedent(docstring.split('prints\n\n')[1])


def test_killed_program_goes_on(tmp_path):
  command = [sys.executable, str(_EXAMPLE), str(tmp_path / 'run')]
  killed = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
  for line in killed.stderr:
    if re.search(r'\[ROUND 3\]', line):
      killed.kill()
      break
  killed.communicate()
  done = subprocess.run(command, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  assert done.stdout == _promised()
  # Flower counts from 1, and two rounds or fewer were left.
  assert '[ROUND 1]' in done.stderr and '[ROUND 3]' not in done.stderr


def test_cohorts_keep_the_separation(tmp_path, capsys):
  flower_strategy.main(tmp_path / 'run')
  assert capsys.readouterr().out == _promised()
  with tff_bandmf.ledger.Ledger(tmp_path / 'run/ledger.sqlite') as ledger:
    seen = ledger.observed()
  assert seen.min_sep >= 2
  assert set(seen.cohort_sizes.values()) == {flower_strategy.COHORT}


def test_first_model_is_not_that_of_a_client():
  strategy = flower_strategy.CorrelatedNoise(
    fl.server.strategy.FedAvg(), run=None
  )
  with pytest.raises(ValueError, match='initial_parameters=None'):
    strategy.initialize_parameters(fl.server.SimpleClientManager())


class _Failing(flower_strategy.Client):
  """A client whose updates never come."""

  def fit(self, ins, timeout, group_id):
    raise ConnectionError('gone')


def test_clients_that_fail_are_zero(tmp_path):
  plan = tff_bandmf.Plan(
    rounds=2,
    clients_per_round=4,
    cohorts=tff_bandmf.MinSep(1),
    noise_multiplier=0.0,
    l2_norm_clip=100.0,
    mechanism='identity',
  )
  clients = fl.server.SimpleClientManager()
  for i in range(4):
    clients.register((flower_strategy.Client, _Failing)[i % 2](f'{i}'))
  with tff_bandmf.Run(tmp_path / 'run', plan) as run:
    strategy = flower_strategy.CorrelatedNoise(
      fl.server.strategy.FedAvg(
        initial_parameters=fl.common.ndarrays_to_parameters([np.zeros(2)])
      ),
      run,
    )
    server = fl.server.Server(client_manager=clients, strategy=strategy)
    server.parameters = strategy.initialize_parameters(clients)
    parameters, _, (results, failures) = server.fit_round(1, None)
  assert (len(results), len(failures)) == (2, 2)
  (mean,) = fl.common.parameters_to_ndarrays(parameters)
  trained = [
    fl.common.parameters_to_ndarrays(result.parameters)[0]
    for _, result in results
  ]
  np.testing.assert_allclose(mean, np.sum(trained, 0) / 4, atol=1e-3)
