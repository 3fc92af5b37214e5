"""An audit of sampled cohorts through a real run: its draws, sums and noise.

Every client has a coordinate of its own, so that a run has as many trials as
clients: half of them give all that they may where they are drawn, half nothing.
"""

import math

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import run, strategies
from tff_bandmf.audit import epsilon_bounds
from tff_bandmf.noise import generator, key
from tff_bandmf.run_files import run_json

_ROUNDS, _GROUPS, _Q = 2, 2, 0.1
_TRIALS = 8000
# Of a sound run that is called unsound.
_FALSE_ALARM = 1e-6
_EPSILON, _DELTA = 1.0, 1e-2
# Of the losses below; a bound of epsilon holds whatever it is.
_THRESHOLD = 2.0
_STRATEGY = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5])


def _losses(released, groups, z_stddev):
  """Returns ln P / Q of every client, for who knows groups and not draws.

  Args:
    released: [n, clients] sums with noise.
    groups: [clients] of each client.
    z_stddev: of P and Q.
  """
  matrix = _STRATEGY.matrix()
  whitened = matrix @ released
  loss = np.zeros(released.shape[1])
  for t in range(_ROUNDS):
    column = matrix[:, t]
    gain = (2 * column @ whitened - column @ column) / (2 * z_stddev**2)
    turn = groups == t % _GROUPS
    loss[turn] += np.logaddexp(math.log(1 - _Q), math.log(_Q) + gain[turn])
  return loss


def _audited(directory, share):
  """Returns a lower bound of epsilon of a run with a share of its noise."""
  cohorts = tff_bandmf.CyclicPoisson(_Q, _GROUPS, population=2 * _TRIALS)
  claim = tff_bandmf.Plan(
    rounds=_ROUNDS,
    clients_per_round=round(cohorts.expected_cohort(_ROUNDS)),
    cohorts=cohorts,
    epsilon=_EPSILON,
    delta=_DELTA,
    l2_norm_clip=1.0,
    mechanism=_STRATEGY,
  )
  plan = tff_bandmf.Plan(
    rounds=_ROUNDS,
    clients_per_round=claim.clients_per_round,
    cohorts=cohorts,
    noise_multiplier=share * claim.guarantee.noise_multiplier,
    l2_norm_clip=1.0,
    mechanism=_STRATEGY,
  )
  released = []
  like = np.zeros(2 * _TRIALS)
  with run.Run(directory, plan, keep_key=True) as mine:
    for opened in mine.rounds(clients=2 * _TRIALS):
      updates = (
        np.where(np.arange(2 * _TRIALS) == client, 1.0, 0.0)
        for client in opened.cohort.tolist()
        if client < _TRIALS
      )
      mean = opened.release(updates, like)
      released.append(mean * plan.clients_per_round)
      opened.finish(mean)
  secret = key.Key.load_or_create(directory / run_json.SAMPLING_KEY)
  sampler = cohorts.sampler(generator.Generator(secret).words)
  groups = np.full(2 * _TRIALS, -1)
  for group, members in enumerate(sampler._members):
    groups[members] = group
  # With the noise that is suspected.
  losses = _losses(np.array(released), groups, claim.z_stddev / 2)
  return epsilon_bounds.clopper_pearson(
    losses[:_TRIALS], losses[_TRIALS:], _THRESHOLD, _DELTA, _FALSE_ALARM
  )


@pytest.mark.slow
def test_half_of_the_noise_is_caught_and_all_of_it_is_not(tmp_path):
  assert _audited(tmp_path / 'half', 0.5) > _EPSILON
  assert _audited(tmp_path / 'sound', 1.0) <= _EPSILON
