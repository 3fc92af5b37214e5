"""Tests of cohorts: the schema is checked on the rounds that came out."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_bandmf import participation as participation_lib
from tff_bandmf import program


def _run(sampler):
  """Returns the cohorts until the last round, or until none can be filled."""
  history = program.History.empty(sampler.clients)
  cohorts = []
  for t in range(sampler.rounds):
    try:
      cohort = sampler.sample(t, history)
    except program.CohortError:
      break
    history.record(t, cohort)
    cohorts.append(cohort)
  return cohorts


def _rounds_of(cohorts):
  """Returns the rounds of each client, from the cohorts alone."""
  rounds = {}
  for t, cohort in enumerate(cohorts):
    for client in cohort.tolist():
      rounds.setdefault(client, []).append(t)
  return rounds


_SCHEMAS = st.one_of(
    st.just(participation_lib.Single()),
    st.builds(
        participation_lib.MinSep, st.integers(1, 8),
        st.one_of(st.none(), st.integers(1, 4))))


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.given(
    clients=st.integers(1, 30), share=st.floats(0, 1),
    rounds=st.integers(1, 25),
    schema=_SCHEMAS, seed=st.integers(0, 2**64))
def test_schema_holds(clients, share, rounds, schema, seed):
  size = max(1, round(share * clients))
  cohorts = _run(program.CohortSampler(clients, size, rounds, schema, seed))
  assert cohorts
  for cohort in cohorts:
    assert len(cohort) == size == len(set(cohort.tolist()))
    assert cohort.min() >= 0 and cohort.max() < clients
    assert np.all(np.diff(cohort) > 0)
  most = schema.participations(rounds)
  for taken in _rounds_of(cohorts).values():
    assert len(taken) <= most
    if schema.min_sep is not None:
      assert all(b - a >= schema.min_sep for a, b in zip(taken, taken[1:]))


@pytest.mark.parametrize('min_sep', [1, 2, 5])
def test_separation_is_used_to_the_full(min_sep):
  # As many clients as can fill the cohorts only if each comes back at once.
  sampler = program.CohortSampler(
      3 * min_sep, 3, 4 * min_sep + 1, participation_lib.MinSep(min_sep), 0)
  cohorts = _run(sampler)
  assert len(cohorts) == sampler.rounds
  gaps = {b - a for taken in _rounds_of(cohorts).values()
          for a, b in zip(taken, taken[1:])}
  assert gaps == {min_sep}


def test_cohort_is_a_function_of_seed_round_and_history():
  schema = participation_lib.MinSep(4)
  make = lambda seed: program.CohortSampler(100, 10, 20, schema, seed)  # noqa: E731
  first, again, other = _run(make(1)), _run(make(1)), _run(make(2))
  assert all(np.array_equal(a, b) for a, b in zip(first, again))
  assert not any(np.array_equal(a, b) for a, b in zip(first, other))
  # Not of what was drawn before, nor of numpy's global generator.
  history = program.History.empty(100)
  for t, cohort in enumerate(first[:7]):
    history.record(t, cohort)
  np.random.seed(0)
  sampler = make(1)
  assert np.array_equal(sampler.sample(7, history), first[7])
  assert np.array_equal(sampler.sample(7, history), first[7])


def test_sampling_leaves_the_history_as_it_is():
  history = program.History.empty(10)
  sampler = program.CohortSampler(
      10, 5, 9, participation_lib.MinSep(2), 0)
  sampler.sample(0, history)
  assert not history.count.any()
  assert np.all(history.last_round < 0)


def test_cohorts_are_uniform_over_the_eligible():
  # 3000 rounds of 5 among 20; false-alarm rate 1e-9 for a seed at random.
  sampler = program.CohortSampler(
      20, 5, 3000, participation_lib.MinSep(1), seed=3)
  counts = np.bincount(np.concatenate(_run(sampler)), minlength=20)
  deviation = (counts - 750) / np.sqrt(3000 * 0.25 * 0.75)
  assert np.abs(deviation).max() < 6.5
  # A client that is never drawn would show.
  assert 750 / np.sqrt(3000 * 0.25 * 0.75) > 6.5


@pytest.mark.parametrize('schema, filled', [
    (participation_lib.Single(), 3),
    (participation_lib.MinSep(4), 3),
    (participation_lib.MinSep(1, max_participations=2), 6),
])
def test_cohort_that_cannot_be_filled_is_refused(schema, filled):
  sampler = program.CohortSampler(10, 3, 20, schema, 0)
  history = program.History.empty(10)
  for t in range(filled):
    history.record(t, sampler.sample(t, history))
  with pytest.raises(program.CohortError, match=f'in round {filled}'):
    sampler.sample(filled, history)


def test_cohort_larger_than_the_population_is_refused():
  with pytest.raises(program.CohortError, match='cohort_size=11.*clients=10'):
    program.CohortSampler(10, 11, 5, participation_lib.MinSep(1), 0)


@pytest.mark.parametrize('round_index', [-1, 5, 6])
def test_round_out_of_range_is_refused(round_index):
  sampler = program.CohortSampler(10, 1, 5, participation_lib.MinSep(1), 0)
  with pytest.raises(ValueError, match=f'round_index={round_index}'):
    sampler.sample(round_index, program.History.empty(10))


@pytest.mark.parametrize('schema', [participation_lib.FixedEpoch(2), 3, None])
def test_schema_that_uniform_cohorts_cannot_hold_is_refused(schema):
  with pytest.raises(TypeError, match='participation'):
    program.CohortSampler(10, 1, 5, schema, 0)


def test_history_of_another_population_is_refused():
  sampler = program.CohortSampler(10, 1, 5, participation_lib.MinSep(1), 0)
  with pytest.raises(ValueError, match='11 clients'):
    sampler.sample(0, program.History.empty(11))


@pytest.mark.parametrize('name', ['clients', 'cohort_size', 'rounds'])
def test_count_below_one_is_refused(name):
  arguments = {
      'clients': 5, 'cohort_size': 5, 'rounds': 5, 'seed': 0,
      'participation': participation_lib.MinSep(1), name: 0}
  with pytest.raises(ValueError, match=f'{name}=0'):
    program.CohortSampler(**arguments)
