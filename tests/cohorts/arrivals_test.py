"""Tests of what rules make of clients that come, on servers and on devices."""

import json
import pathlib
import re

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf import participation, sensitivity, strategies
from tff_bandmf.cohorts import arrivals

_PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'reference' / 'budget.md'
_ROUNDS = 30


def _budget(strategy, *fields, **more):
  return sensitivity.budget.completed(
    participation.Budget(*fields, **more), strategy
  )


@pytest.mark.slow
def test_devices_decide_as_the_server_does():
  """The code of the page, on 10^5 histories."""
  (code,) = re.findall(
    r'```python\n(def may_join.*?)```', _PAGE.read_text(), re.DOTALL
  )
  names = {}
  exec(code, names)  # noqa: S102
  rng = np.random.default_rng(0)
  for strategy in (
    strategies.BandedToeplitz(_ROUNDS, [1.0, -0.5, 0.4, 0.3, 0.2]),
    strategies.Blt(_ROUNDS, [0.5], [0.8]),
  ):
    budget = _budget(strategy, 8, 3, apart=2)
    rule = json.loads(json.dumps(budget.device_rule()))
    assert len(rule['costs']) <= strategy.bands
    admitted = 0
    for t in (1, 7, 15, 29):
      past = cohorts_lib.Patterns.empty(12_500)
      came = rng.random((12_500, t)) < rng.random((12_500, 1)) / 2
      for s in range(t):
        there = np.flatnonzero(came[:, s])
        admission = cohorts_lib.admit(
          there, s, budget, _ROUNDS, past.for_clients(there)
        )
        past.record(s, there[admission.admitted])
      everybody = past.for_clients(np.arange(12_500))
      by_server = cohorts_lib.admit(
        np.arange(12_500), t, budget, _ROUNDS, everybody
      ).admitted
      by_device = [
        names['may_join'](rule, row[row >= 0][::-1].tolist(), t)
        for row in everybody.rounds
      ]
      assert by_device == by_server.tolist()
      admitted += by_server.sum()
    assert 10_000 < admitted < 40_000
    assert not names['may_join'](rule, [], rule['horizon'])


def test_device_rule_needs_costs_of_all_rounds():
  banded = strategies.Banded(np.eye(1, 2, dtype=float).repeat(9, 0))
  with pytest.raises(
    ValueError, match='participation=budget: .* depend on the round'
  ):
    _budget(banded, 3, 2).device_rule()
  plan = tff_bandmf.Plan(
    rounds=9,
    clients_per_round=2,
    cohorts=tff_bandmf.MinSep(3),
    l2_norm_clip=1.0,
    noise_multiplier=1.0,
    mechanism=strategies.Identity(9),
  )
  with pytest.raises(ValueError, match='cohorts=min-sep: only a Budget has'):
    plan.device_rule()


def test_arrivals_are_taken_as_the_rule_lets_in():
  # Client 0 comes always, 1 seldom and soon again, 2 to 9 once.
  rounds = [*range(20), 0, 3, *range(2, 10)]
  clients = [0] * 20 + [1, 1, *range(2, 10)]
  strategy = strategies.BandedToeplitz(20, [1.0, 0.5, 0.25, 0.1])
  count = dict(planned_rounds=20, cohort_size=2)
  by_min_sep = arrivals.admission_counts(
    np.array(rounds), np.array(clients), participation.MinSep(10), **count
  )
  assert by_min_sep == arrivals.AdmissionCounts(10, 11, 20, 19, 19)
  by_budget = arrivals.admission_counts(
    np.array(rounds), np.array(clients), _budget(strategy, 10, 2), **count
  )
  assert by_budget.participations == by_min_sep.participations
  # One a round at most: others are left, and the cohort is full.
  few = arrivals.admission_counts(
    np.array([0, 0, 0, 1]),
    np.array([5, 6, 7, 5]),
    participation.Single(),
    planned_rounds=2,
    cohort_size=1,
  )
  assert few.participations == 2 - few.short
