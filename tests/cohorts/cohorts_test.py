"""Tests of cohorts: the schema is checked on the rounds that came out."""

import contextlib
import dataclasses
import itertools
import tracemalloc
from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf import participation as participation_lib
from tff_bandmf.cohorts import cohort_sampler
from tff_bandmf.participation import feasibility


def _run(sampler):
  """Returns the cohorts of all rounds."""
  history = cohorts_lib.History.empty(sampler.clients)
  cohorts = []
  for t in range(sampler.rounds):
    cohorts.append(sampler.sample(t, history))
    history.record(t, cohorts[-1])
  return cohorts


def _rounds_of(cohorts):
  """Returns the rounds of each client, from the cohorts alone."""
  rounds = {}
  for t, cohort in enumerate(cohorts):
    for client in cohort.tolist():
      rounds.setdefault(client, []).append(t)
  return rounds


_SEPARATED = (st.integers(1, 8), st.one_of(st.none(), st.integers(1, 4)))
_MIN_SEP = st.builds(participation_lib.MinSep, *_SEPARATED)
_SCHEMAS = st.one_of(
  st.just(participation_lib.Single()),
  _MIN_SEP,
  st.builds(participation_lib.FixedEpoch, *_SEPARATED),
)


@dataclasses.dataclass(frozen=True)
class _Chargers:
  """Devices of which a share charges in each round, and none from `noon` on."""

  seed: int
  share: float
  noon: int = 1000

  def available(self, round_index, clients):
    generator = np.random.default_rng([self.seed, round_index])
    charging = generator.random(1000) < self.share
    return charging[clients] & (round_index < self.noon)


def _draws_whatever_the_size():
  """Makes samplers draw in small populations too, as often as in large ones."""
  return mock.patch.multiple(cohort_sampler, _LARGE=0, _DRAWN_SHARE=100)


@pytest.mark.slow
@pytest.mark.parametrize('draws', [False, True])
@hypothesis.settings(max_examples=300)
@hypothesis.given(
  clients=st.integers(1, 30),
  share=st.floats(0, 1),
  rounds=st.integers(1, 25),
  schema=_SCHEMAS,
  seed=st.integers(0, 2**64),
  charging=st.one_of(st.none(), st.floats(0, 1)),
)
def test_schema_holds(draws, clients, share, rounds, schema, seed, charging):
  size = max(1, round(share * clients))
  if schema.evenly_spaced:
    hypothesis.assume(clients >= schema.min_sep)
    size = min(size, clients // schema.min_sep)
  availability = None if charging is None else _Chargers(seed, charging)
  with contextlib.ExitStack() as stack:
    if draws:
      stack.enter_context(_draws_whatever_the_size())
    # Fewer rounds, if all cannot be filled.
    for fewer in (rounds, 3, 1):
      try:
        sampler = cohorts_lib.CohortSampler(
          clients,
          size,
          min(fewer, rounds),
          schema,
          seed,
          availability,
        )
      except cohorts_lib.CohortError:
        continue
      # What could be made can be run.
      cohorts = _run(sampler)
      break
    else:
      assert charging is not None
      return
  assert len(cohorts) == sampler.rounds
  for t, cohort in enumerate(cohorts):
    assert len(cohort) == size == len(set(cohort.tolist()))
    assert cohort.min() >= 0 and cohort.max() < clients
    assert np.all(np.diff(cohort) > 0)
    assert availability is None or availability.available(t, cohort).all()
  rounds = sampler.rounds
  most = schema.participations(rounds)
  for taken in _rounds_of(cohorts).values():
    assert len(taken) <= most
    gaps = np.diff(taken)
    if schema.min_sep is not None:
      assert np.all(gaps >= schema.min_sep)
    if schema.evenly_spaced:
      assert np.all(gaps % schema.min_sep == 0)
    if isinstance(schema, participation_lib.FixedEpoch) and (
      most < len(range(0, rounds, schema.min_sep))
    ):
      assert np.all(gaps == schema.min_sep)


@pytest.mark.parametrize('min_sep', [1, 2, 5])
def test_separation_is_used_to_the_full(min_sep):
  # As many clients as can fill the cohorts only if each comes back at once.
  sampler = cohorts_lib.CohortSampler(
    3 * min_sep, 3, 4 * min_sep + 1, participation_lib.MinSep(min_sep), 0
  )
  cohorts = _run(sampler)
  assert len(cohorts) == sampler.rounds
  gaps = {
    b - a
    for taken in _rounds_of(cohorts).values()
    for a, b in zip(taken, taken[1:])
  }
  assert gaps == {min_sep}


def test_cohort_is_a_function_of_seed_round_and_history():
  schema = participation_lib.MinSep(4)
  make = lambda seed: cohorts_lib.CohortSampler(100, 10, 20, schema, seed)  # noqa: E731
  first, again, other = _run(make(1)), _run(make(1)), _run(make(2))
  assert all(np.array_equal(a, b) for a, b in zip(first, again))
  assert not any(np.array_equal(a, b) for a, b in zip(first, other))
  # Not of what was drawn before, nor of numpy's global generator.
  history = cohorts_lib.History.empty(100)
  for t, cohort in enumerate(first[:7]):
    history.record(t, cohort)
  np.random.seed(0)
  sampler = make(1)
  assert np.array_equal(sampler.sample(7, history), first[7])
  assert np.array_equal(sampler.sample(7, history), first[7])


def test_sampling_leaves_the_history_as_it_is():
  history = cohorts_lib.History.empty(10)
  sampler = cohorts_lib.CohortSampler(10, 5, 9, participation_lib.MinSep(2), 0)
  sampler.sample(0, history)
  assert not history.count.any()
  assert np.all(history.last_round < 0)


@pytest.mark.parametrize('draws', [False, True])
def test_cohorts_are_uniform_over_the_eligible(draws):
  # 3000 rounds of 5 among 20; false-alarm rate 1e-9 for a seed at random.
  sampler = cohorts_lib.CohortSampler(
    20, 5, 3000, participation_lib.MinSep(1), seed=3
  )
  if draws:
    with _draws_whatever_the_size():
      cohorts = _run(sampler)
  else:
    cohorts = _run(sampler)
  counts = np.bincount(np.concatenate(cohorts), minlength=20)
  deviation = (counts - 750) / np.sqrt(3000 * 0.25 * 0.75)
  assert np.abs(deviation).max() < 6.5
  # A client that is never drawn would show.
  assert 750 / np.sqrt(3000 * 0.25 * 0.75) > 6.5


def test_draws_and_a_look_at_everybody_differ():
  # Else the tests with draws would not test them.
  sampler = cohorts_lib.CohortSampler(
    200, 5, 9, participation_lib.MinSep(1), seed=3
  )
  looked = _run(sampler)
  with _draws_whatever_the_size():
    drawn = _run(sampler)
  assert not any(np.array_equal(a, b) for a, b in zip(looked, drawn))


def test_fixed_epochs_keep_each_client_to_its_class():
  sampler = cohorts_lib.CohortSampler(
    30, 3, 40, participation_lib.FixedEpoch(7), 5
  )
  cohorts = _run(sampler)
  assert len(cohorts) == 40
  for t, cohort in enumerate(cohorts):
    assert np.all(cohort % 7 == t % 7)
    # The classes of 0 and 1 have 5 clients, the others 4: all get their turn.
  assert set(np.concatenate(cohorts).tolist()) == set(range(30))


def test_only_the_available_are_selected_and_too_few_are_told():
  chargers = _Chargers(0, 0.5, noon=10)
  plan = 1000, 10, 48, participation_lib.MinSep(1), 0
  with pytest.raises(
    cohorts_lib.CohortError,
    match='in round 10, with this seed, .* if clients are not available',
  ):
    cohorts_lib.CohortSampler(*plan, availability=chargers)
  with mock.patch.object(cohorts_lib.CohortSampler, '_fill'):
    sampler = cohorts_lib.CohortSampler(*plan, availability=chargers)
  history = cohorts_lib.History.empty(1000)
  cohort = sampler.sample(1, history)
  assert chargers.available(1, cohort).all()
  with pytest.raises(
    cohorts_lib.CohortError,
    match='only 1000 of 1000 .* 0 of them are available',
  ):
    sampler.sample(12, history)


def test_large_population_needs_little_memory():
  clients = 2 * 10**6
  sampler = cohorts_lib.CohortSampler(
    clients, 6500, 400, participation_lib.MinSep(100, 3), 0
  )
  tracemalloc.start()
  try:
    history = cohorts_lib.History.empty(clients)
    history.record(0, sampler.sample(0, history))
    # 300 MB of 10^7 clients, of which the history is 60.
    assert tracemalloc.get_traced_memory()[1] < 30 * clients
    # When few are left everybody is looked at.
    history.record(1, np.arange(20000, clients))
    tracemalloc.reset_peak()
    history.record(2, sampler.sample(2, history))
    assert tracemalloc.get_traced_memory()[1] < 30 * clients
  finally:
    tracemalloc.stop()


def test_count_that_would_wrap_is_refused():
  history = cohorts_lib.History.empty(3)
  history.count[1] = 2**16 - 2
  history.record(0, np.array([1, 2]))
  with pytest.raises(ValueError, match='participations=65536'):
    history.record(1, np.array([1, 2]))
  assert history.count.tolist() == [0, 2**16 - 1, 1]


@pytest.mark.parametrize(
  'schema, fits',
  [
    (participation_lib.Single(), 'cohort_size 1, or rounds 3'),
    (participation_lib.MinSep(4), 'cohort_size 2, or min_sep 3, or rounds 3'),
    (
      participation_lib.MinSep(1, max_participations=2),
      'cohort_size 1, or rounds 6',
    ),
  ],
)
def test_sampler_of_rounds_that_cannot_be_filled_is_refused(schema, fits):
  rounds = 10 if schema.max_participations == 1 else 20
  with pytest.raises(cohorts_lib.CohortError, match=f'cohort_size=3: .*{fits}'):
    cohorts_lib.CohortSampler(10, 3, rounds, schema, 0)
  # What the message names is right.
  for part in fits.split(', or '):
    name, value = part.split()
    plan = dict(clients=10, cohort_size=3, rounds=rounds, participation=schema)
    if name == 'min_sep':
      plan['participation'] = participation_lib.MinSep(int(value))
    else:
      plan[name] = int(value)
    if not (name == 'min_sep' and schema.max_participations):
      _run(cohorts_lib.CohortSampler(seed=0, **plan))


def test_cohort_that_cannot_be_filled_is_refused():
  """As where another program has recorded rounds."""
  sampler = cohorts_lib.CohortSampler(10, 3, 20, participation_lib.MinSep(3), 0)
  history = cohorts_lib.History.empty(10)
  history.record(0, np.arange(8))
  with pytest.raises(
    cohorts_lib.CohortError, match='only 2 of 10 .* in round 1'
  ):
    sampler.sample(1, history)


_SMALL = [
  kind(b, k)
  for b, k in itertools.product(range(1, 5), (None, 1, 2, 3))
  for kind in (participation_lib.MinSep, participation_lib.FixedEpoch)
]


@pytest.mark.slow
@pytest.mark.parametrize(
  'schema', [*_SMALL, participation_lib.Single()], ids=str
)
@pytest.mark.deep(
  but=(
    'Single',
    'FixedEpoch(min_sep=2, max_participations=None',
    'FixedEpoch(min_sep=3, max_participations=2',
    'FixedEpoch(min_sep=4, max_participations=1',
    'MinSep(min_sep=1, max_participations=None',
    'MinSep(min_sep=2, max_participations=3',
    'MinSep(min_sep=3, max_participations=2',
    'MinSep(min_sep=4, max_participations=None',
  )
)
def test_counting_agrees_with_drawing(schema):
  """What is proved to fit is filled for any seed; what is not is never."""
  proved = {}
  for clients, size, rounds in itertools.product(
    range(1, 11), range(1, 4), (1, 2, 3, 5, 8)
  ):
    plan = feasibility.Demand(clients, size, rounds, schema)
    if size > clients // (schema.min_sep if schema.evenly_spaced else 1):
      continue
    proved[plan] = plan.certainly_feasible(), plan.certainly_infeasible()
    assert not all(proved[plan])
  # Where all rounds are drawn, whatever the count.
  with mock.patch.multiple(
    feasibility.Demand,
    certainly_feasible=lambda _: False,
    certainly_infeasible=lambda _: False,
  ):
    for plan, (feasible, infeasible) in proved.items():
      sizes = plan.clients, plan.cohort_size, plan.rounds
      for seed in range(6):
        try:
          cohorts_lib.CohortSampler(*sizes, schema, seed)
          assert not infeasible, plan
        except cohorts_lib.CohortError:
          assert not feasible, plan
  settled = sum(map(any, proved.values()))
  assert settled > 40


def test_sampler_of_ten_million_draws_nothing_when_it_is_made():
  with mock.patch.object(
    cohorts_lib.CohortSampler, 'sample', side_effect=AssertionError
  ):
    for schema in (
      participation_lib.MinSep(1000),
      participation_lib.MinSep(400, 6),
      participation_lib.FixedEpoch(1000),
    ):
      cohorts_lib.CohortSampler(10**7, 6500, 4000, schema, 0)
    with pytest.raises(
      cohorts_lib.CohortError, match='cohort_size 5000, .*min_sep 1538, .*1538'
    ):
      cohorts_lib.CohortSampler(
        10**7, 6500, 4000, participation_lib.MinSep(2000), 0
      )


def test_cohort_larger_than_the_population_is_refused():
  with pytest.raises(
    cohorts_lib.CohortError, match='cohort_size=11.*clients=10'
  ):
    cohorts_lib.CohortSampler(10, 11, 5, participation_lib.MinSep(1), 0)


@pytest.mark.parametrize('round_index', [-1, 5, 6])
def test_round_out_of_range_is_refused(round_index):
  sampler = cohorts_lib.CohortSampler(10, 1, 5, participation_lib.MinSep(1), 0)
  with pytest.raises(ValueError, match=f'round_index={round_index}'):
    sampler.sample(round_index, cohorts_lib.History.empty(10))


@pytest.mark.parametrize('schema', [3, None])
def test_cohorts_without_a_schema_are_refused(schema):
  with pytest.raises(TypeError, match='participation='):
    cohorts_lib.CohortSampler(10, 1, 5, schema, 0)


def test_sampling_that_cannot_be_filled_is_refused():
  schema = participation_lib.MinSep(4)
  with pytest.raises(cohorts_lib.CohortError, match='clients=10 // min_sep=4'):
    cohorts_lib.CohortSampler(10, 3, 20, participation_lib.FixedEpoch(4), 0)
  with pytest.raises(ValueError, match='rounds=1073741825'):
    cohorts_lib.CohortSampler(10, 3, 2**30 + 1, schema, 0)


def test_history_of_another_population_is_refused():
  sampler = cohorts_lib.CohortSampler(10, 1, 5, participation_lib.MinSep(1), 0)
  with pytest.raises(ValueError, match='11 clients'):
    sampler.sample(0, cohorts_lib.History.empty(11))


@pytest.mark.parametrize('name', ['clients', 'cohort_size', 'rounds'])
def test_count_below_one_is_refused(name):
  arguments = {
    'clients': 5,
    'cohort_size': 5,
    'rounds': 5,
    'seed': 0,
    'participation': participation_lib.MinSep(1),
    name: 0,
  }
  with pytest.raises(ValueError, match=f'{name}=0'):
    cohorts_lib.CohortSampler(**arguments)
