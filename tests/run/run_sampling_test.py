"""Tests of runs whose cohorts are drawn by chance: killed, doctored."""

import collections
import contextlib

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_bandmf
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import run, strategies
from tff_bandmf.accounting.kinds import samplers
from tff_bandmf.noise import generator, key
from tff_bandmf.run_files import metrics, run_json

_ROUNDS, _CLIENTS = 6, 60
_KINDS = [
  tff_bandmf.CyclicPoisson(0.3, 2, population=_CLIENTS),
  tff_bandmf.BallsInBins(3, population=_CLIENTS),
  tff_bandmf.BMinSep(2, 0.2, population=_CLIENTS),
]


def _plan(cohorts=_KINDS[0], **changes):
  expected = round(cohorts.expected_cohort(_ROUNDS))
  return tff_bandmf.Plan(
    **{
      'rounds': _ROUNDS,
      'clients_per_round': expected,
      'cohorts': cohorts,
      'delta': 1e-5,
      'l2_norm_clip': 1.0,
      'noise_multiplier': 0.8,
      'mechanism': strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5]),
      **changes,
    }
  )


class _Killed(Exception):
  pass


def _train(
  directory, plan, *, kill=None, cohorts=None, comes=lambda t, i: True
):
  """Returns the sum of releases; the program dies in round `kill`."""
  total = np.zeros(2)
  with run.Run(directory, plan, keep_key=True) as mine:
    total = mine.restore(lambda: np.zeros(2))
    for opened in mine.rounds(clients=_CLIENTS):
      if cohorts is not None:
        cohorts[opened.index] = opened.cohort.tolist()
      if opened.index == kill:
        raise _Killed
      updates = [
        np.full(2, 0.1 + 0.001 * client)
        for client in opened.cohort.tolist()
        if comes(opened.index, client)
      ]
      total = total + opened.release(updates, np.zeros(2, np.float32))
      opened.finish(total)
    mine.record(total=float(total.sum()))
  return total


def _ledger(directory):
  return ledger_lib.Ledger(directory / run_json.LEDGER_FILE)


@pytest.mark.parametrize('cohorts', _KINDS, ids=lambda each: each.name)
def test_killed_run_draws_what_it_drew(tmp_path, cohorts):
  plan, first, again = _plan(cohorts), {}, {}
  with pytest.raises(_Killed):
    _train(tmp_path, plan, kill=3, cohorts=first)
  _train(tmp_path, plan, cohorts=again)
  assert again[3] == first.pop(3) and sorted(again) == [3, 4, 5]
  drawn = {**first, **again}
  # The very cohorts of the key, of a sampler that saw nothing of the run.
  secret = key.Key.load_or_create(tmp_path / run_json.SAMPLING_KEY)
  sampler = plan.sampled.sampler(generator.Generator(secret).words)
  assert drawn == {t: sampler.cohort(t).tolist() for t in range(_ROUNDS)}
  with _ledger(tmp_path) as ledger:
    observed = ledger.observed()
    assert all(ledger.cohort(t).tolist() == drawn[t] for t in range(_ROUNDS))
  assert observed.drawn is True and observed.finished == _ROUNDS
  # Begun again, it is over.
  _train(tmp_path, plan)


def test_key_of_the_draws_is_fresh_and_goes_with_the_run(tmp_path):
  plan = _plan()
  for name in ('one', 'two'):
    _train(tmp_path / name, plan)
  secrets = [
    (tmp_path / name / run_json.SAMPLING_KEY).read_bytes()
    for name in ('one', 'two')
  ]
  noise = (tmp_path / 'one' / run_json.NOISE_KEY).read_bytes()
  assert len({*secrets, noise}) == 3
  assert (tmp_path / 'one' / run_json.SAMPLING_KEY).stat().st_mode & 0o777 == (
    0o600
  )
  with run.Run(tmp_path / 'one', plan):
    pass
  assert not (tmp_path / 'one' / run_json.SAMPLING_KEY).exists()


def test_seed_has_no_part_in_sampled_cohorts(tmp_path):
  plan = _plan()
  drawn = []
  for name in ('one', 'two'):
    with run.Run(tmp_path / name, plan) as mine:
      drawn.append(next(mine.rounds(clients=_CLIENTS, seed=7)).cohort.tolist())
  # 30 clients at 0.3: equal with a probability below 1e-7.
  assert drawn[0] != drawn[1]


def test_key_that_is_gone_or_another_is_refused(tmp_path):
  plan = _plan()
  with pytest.raises(_Killed):
    _train(tmp_path, plan, kill=2)
  path = tmp_path / run_json.SAMPLING_KEY
  kept = path.read_bytes()
  # The very file comes back at the end: another one would be a copy.
  aside = path.rename(tmp_path / 'aside')
  with pytest.raises(ValueError, match='sampling.key=.* is gone'):
    _train(tmp_path, plan)
  path.touch(0o600)
  path.write_bytes(kept[::-1])
  with pytest.raises(ValueError, match='sampling_key_id='):
    _train(tmp_path, plan)
  path.write_bytes(kept)
  with pytest.raises(ValueError, match='is a copy, or was moved'):
    _train(tmp_path, plan)
  path.unlink()
  aside.rename(path)
  _train(tmp_path, plan)


def test_other_population_is_refused(tmp_path):
  plan = _plan()
  with pytest.raises(_Killed):
    _train(tmp_path, plan, kill=2)
  with run.Run(tmp_path, plan) as mine:
    with pytest.raises(ValueError, match='clients=61: are not the population'):
      next(mine.rounds(clients=_CLIENTS + 1))
    others = range(1, _CLIENTS + 1)
    with pytest.raises(ValueError, match='clients=60: are not the clients'):
      next(mine.rounds(clients=others))


@pytest.mark.parametrize('cohorts', _KINDS, ids=lambda each: each.name)
def test_client_in_the_place_of_another_is_refused(tmp_path, cohorts):
  """One that no round had drawn gave its place, and its draws, to another."""
  plan, took = _plan(cohorts), set()
  clients = [f'client {i:02d}' for i in range(_CLIENTS)]

  def train(clients, rounds):
    with run.Run(tmp_path, plan, keep_key=True) as mine:
      total = mine.restore(lambda: np.zeros(2))
      for opened in mine.rounds(clients=clients, rounds=rounds):
        took.update(opened.cohort.tolist())
        updates = [np.zeros(2)] * len(opened.cohort)
        total = total + opened.release(updates, np.zeros(2, np.float32))
        opened.finish(total)

  train(clients, 2)
  free = next(client for client in clients if client not in took)
  others = [f'{each}+' if each == free else each for each in clients]
  # In the sorted list the others have the places of the clients.
  assert np.argsort(others).tolist() == np.argsort(clients).tolist()
  with pytest.raises(ValueError, match='clients=60: are not the clients'):
    train(others, 3)
  path = tmp_path / run_json.POPULATION
  assert path.stat().st_mode & 0o777 == 0o600
  aside = path.rename(tmp_path / 'aside')
  with pytest.raises(ValueError, match='clients=60: are not the clients'):
    train(clients, 3)
  aside.rename(path)
  train(clients[::-1], 3)


def test_clients_that_come_by_themselves_are_refused(tmp_path):
  with run.Run(tmp_path, _plan()) as mine:
    with pytest.raises(
      ValueError, match='cohorts=cyclic-poisson: are sampled by'
    ):
      with mine.round(cohort=[1, 2]):
        pass


def test_sizes_of_sampled_cohorts_are_not_released(tmp_path):
  _train(tmp_path, _plan())
  rows = metrics.exported(tmp_path)
  assert [row.pop('round') for row in rows] == [*map(str, range(_ROUNDS))]
  assert {*rows[0]} == {*metrics.PLANNED} - {'epsilon'}


def test_cohort_that_is_too_large_burns_its_round(tmp_path, monkeypatch):
  plan, drawn = _plan(), {}
  assert plan.most_clients < _CLIENTS / 2 + 1
  # Everybody of the group, and of the other one, in round 2.
  cohort = samplers.CyclicPoisson.cohort

  def crowded(self, t):
    return np.arange(_CLIENTS) if t == 2 else cohort(self, t)

  monkeypatch.setattr(samplers.CyclicPoisson, 'cohort', crowded)
  _train(tmp_path, plan, cohorts=drawn)
  assert sorted(drawn) == [0, 1, 3, 4, 5]
  with _ledger(tmp_path) as ledger:
    observed = ledger.observed()
  assert observed.burnt == 1 and observed.finished == _ROUNDS - 1
  assert observed.drawn is True


def test_clients_that_do_not_come_count_as_zero(tmp_path):
  """The divisor stays, and so does who was drawn."""
  plan, drawn = _plan(noise_multiplier=0, delta=None), {}
  total = _train(
    tmp_path, plan, cohorts=drawn, comes=lambda t, client: client % 2 == 0
  )
  expected = sum(
    0.1 + 0.001 * client
    for cohort in drawn.values()
    for client in cohort
    if client % 2 == 0
  )
  assert total == pytest.approx(
    np.full(2, expected / plan.clients_per_round), abs=1e-3
  )
  with _ledger(tmp_path) as ledger:
    for t, cohort in drawn.items():
      assert ledger.cohort(t).tolist() == cohort


def test_cohort_that_differs_voids_the_claim(tmp_path, monkeypatch):
  """One client more in one cohort, whoever put it there."""
  plan = _plan()
  cohort = samplers.CyclicPoisson.cohort

  def more(self, t):
    found = cohort(self, t)
    others = np.setdiff1d(np.arange(_CLIENTS), found)
    return np.sort(np.append(found, others[0])) if t == 1 else found

  with monkeypatch.context() as patch:
    patch.setattr(samplers.CyclicPoisson, 'cohort', more)
    with pytest.raises(_Killed):
      _train(tmp_path, plan, kill=4)
  _train(tmp_path, plan)
  with _ledger(tmp_path) as ledger:
    assert ledger.observed().drawn is False


@pytest.mark.parametrize(
  ('cohorts', 'last'),
  zip(_KINDS, (0, 2, 4)),
  ids=[each.name for each in _KINDS],
)
def test_last_cohort_that_the_key_does_not_give_stops_the_run(
  tmp_path, monkeypatch, cohorts, last
):
  """One client fewer, one more, and another one, after any round."""
  plan, drawn = _plan(cohorts), {}
  with pytest.raises(_Killed):
    _train(tmp_path, plan, kill=last + 1, cohorts=drawn)
  cohort = np.array(drawn[last])
  outside = np.setdiff1d(np.arange(_CLIENTS), cohort)[:1]
  kind = getattr(samplers, type(cohorts).__name__)
  sample = kind.cohort
  with run.Run(tmp_path, plan) as mine:
    mine.restore(lambda: np.zeros(2))
    for other in (
      cohort[1:],
      np.sort(np.append(cohort, outside)),
      np.sort(np.append(cohort[1:], outside)),
    ):
      with monkeypatch.context() as patch:
        patch.setattr(
          kind,
          'cohort',
          lambda self, t, other=other: other if t == last else sample(self, t),
        )
        with pytest.raises(ValueError, match=f'round={last}: has another coh'):
          next(mine.rounds(clients=_CLIENTS))
    assert next(mine.rounds(clients=_CLIENTS)).index == last + 1


class _Process:
  """A process of nobody's making: its state is the sum of all releases."""

  def __init__(self, factory):
    self._process = factory.create(tff.to_type((np.float32, (3,))))

  def initialize(self):
    return _State(np.zeros(3), self._process.initialize())

  def next(self, state, data):
    output = self._process.next(state.aggregator, data)
    return _State(state.sum + output.result, output.state)


_State = collections.namedtuple('_State', ['sum', 'aggregator'])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('cohorts', 'epsilon'),
  [
    (tff_bandmf.CyclicPoisson(0.1, 2, population=12), 8.0),
    (tff_bandmf.BallsInBins(3, population=12), 2.0),
    (tff_bandmf.BMinSep(2, 0.1, population=12), 8.0),
  ],
  ids=str,
)
@pytest.mark.deep(but=('BMinSep',))
def test_aggregator_gets_what_is_drawn(runtime, tmp_path, cohorts, epsilon):
  """Few clients: some cohorts are empty, and a round has noise all the same."""
  plan = _plan(
    cohorts,
    clients_per_round=max(1, round(cohorts.expected_cohort(_ROUNDS))),
    noise_multiplier=None,
    epsilon=epsilon,
    delta=1e-3,
  )
  states = []
  for kill in (3, None):
    with contextlib.suppress(_Killed), run.Run(tmp_path, plan) as mine:
      process = _Process(mine.aggregator)
      state = mine.restore(process.initialize)
      for opened in mine.rounds(clients=12):
        data = [np.full(3, 0.1, np.float32) for _ in opened.cohort]
        before, state = state, process.next(state, data)
        assert (state.sum != before.sum).all()
        if opened.index == kill:
          raise _Killed
        states.append(opened.finish(state))
      mine.record(total=float(state.sum.sum()))
      content = mine.report().content
  assert len(states) == _ROUNDS
  assert content['epsilon'] <= epsilon and content['delta'] == 1e-3
  assert content['amplification'] == cohorts.name
  assert content['sampling']['drawn'] == 'as the sampling key gives them'
  assert content['observed']['rounds_finished'] == _ROUNDS
