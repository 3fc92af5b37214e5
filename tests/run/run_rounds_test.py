"""Tests of what a run knows of the rounds before: clients and states."""

import collections
import itertools

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import participation, report, run, strategies
from tff_bandmf.run_files import run_json

_ROUNDS, _MIN_SEP = 9, 3


def _plan(**changes):
  """A plan without noise, whose rounds can be finished at once."""
  return tff_bandmf.Plan(
    **{
      'rounds': _ROUNDS,
      'clients_per_round': 2,
      'cohorts': participation.MinSep(_MIN_SEP),
      'l2_norm_clip': 1.0,
      'noise_multiplier': 0,
      'mechanism': strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5]),
      **changes,
    }
  )


def _open(directory, **changes):
  """A run that goes on from the state of its last round, if there is one."""
  opened = run.Run(directory, _plan(**changes), keep_key=True)
  opened.restore(lambda: np.zeros(1))
  return opened


def _finish(opened):
  opened.finish(np.zeros(1))


def _ledger(directory):
  return ledger_lib.Ledger(directory / run_json.LEDGER_FILE)


def _check(directory, rounds=_ROUNDS):
  """Compares all pairs of rounds in the ledger, which has so many."""
  with _ledger(directory) as ledger:
    cohorts = [set(ledger.cohort(t).tolist()) for t in range(rounds)]
    assert ledger.cohort(rounds) is None
  for one, other in itertools.combinations(range(rounds), 2):
    if other - one < _MIN_SEP:
      assert not cohorts[one] & cohorts[other], (one, other)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(4))
def test_burnt_rounds_are_remembered(tmp_path, seed):
  """Their clients were drawn again at once: two rounds in a row at min_sep 3.

  No checkpoint follows a burnt round, so a run that is begun again meets it.
  """
  came = np.random.default_rng(seed).permutation(10)[:4].tolist()
  with _open(tmp_path) as mine:
    for cohort in came[:2], came[2:]:
      with pytest.raises(KeyError), mine.round(cohort=cohort):
        raise KeyError
  with _open(tmp_path) as mine:
    for opened in mine.rounds(clients=10, seed=seed):
      assert opened.index > 1
      _finish(opened)
  _check(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('ahead', [False, True])
def test_rounds_of_every_way_are_remembered(tmp_path, seed, ahead):
  """Loops that are left, rounds of clients that come in between, crashes."""
  chance = np.random.default_rng(seed)

  def prepare(t, cohort):
    return t, cohort.tolist()

  while True:
    with _open(tmp_path) as mine:
      for opened in mine.rounds(
        clients=14, seed=seed, prepare=prepare if ahead else None
      ):
        if ahead:
          assert opened.data == (opened.index, opened.cohort.tolist())
        way = chance.integers(4)
        # Before `finish`, a round of others burns the one that is open.
        if way == 0 and mine.rounds_left > 1:
          with mine.round(cohort=chance.permutation(14)[:3]) as other:
            _finish(other)
          continue
        _finish(opened)
        if way == 1 and mine.rounds_left:
          with pytest.raises(KeyError):
            with mine.round(cohort=chance.permutation(14)[:3]):
              raise KeyError
        if way == 2:
          break
      else:
        break
  _check(tmp_path)


def test_two_loops_of_one_run_have_one_history(tmp_path):
  with _open(tmp_path) as mine:
    loops = [mine.rounds(clients=10, seed=seed) for seed in range(2)]
    for t in range(_ROUNDS):
      opened = next(loops[t % 2])
      assert opened.index == t
      _finish(opened)
  _check(tmp_path)


@pytest.mark.parametrize('seed', range(3))
def test_round_that_is_replayed_has_its_cohort(tmp_path, seed):
  """Also behind burnt rounds, of which no checkpoint tells."""
  with _open(tmp_path) as mine:
    for opened in mine.rounds(clients=10, seed=seed):
      if opened.index == 4:
        break
      if opened.index == 2:
        mine._journal.burn(2)
      elif opened.index == 3:
        mine._journal.burn(3)
      else:
        _finish(opened)
  with _ledger(tmp_path) as ledger:
    started = ledger.cohort(4).tolist()
  with _open(tmp_path) as mine:
    opened = next(mine.rounds(clients=10, seed=seed))
    assert (opened.index, opened.cohort.tolist()) == (4, started)
    _finish(opened)
  _check(tmp_path, 5)


@pytest.mark.slow
def test_clients_that_join_after_a_burnt_round_change_no_history(tmp_path):
  """The round was drawn from ten clients, and twenty would draw another one."""
  for seed in range(3):
    directory = tmp_path / f'{seed}'
    with _open(directory) as mine:
      for opened in mine.rounds(clients=10, seed=seed):
        if opened.index == 2:
          break
        _finish(opened)
      mine._journal.burn(2)
    with _open(directory) as mine:
      for opened in mine.rounds(clients=20, seed=seed):
        _finish(opened)
    _check(directory)


def test_other_names_are_refused(tmp_path):
  """As where ids are hashed with a salt that every start draws anew."""
  names = [f'salt one {i}' for i in range(9)]
  with _open(tmp_path) as mine:
    for opened in itertools.islice(mine.rounds(clients=names), 2):
      _finish(opened)
      last = opened.cohort
  others = [f'salt two {i}' for i in range(9)]
  with _open(tmp_path) as mine:
    with pytest.raises(ValueError, match='clients=9 ids: lack 4 of the 4 '):
      next(mine.rounds(clients=others))
    left = [name for name in names if name != last[0]]
    with pytest.raises(ValueError, match=r'note\(clients_left=1\)'):
      next(mine.rounds(clients=left))
    assert mine.report().content['not_covered'] == []
    mine.note(clients_left=1)
    # As many as were said, and no more.
    with pytest.raises(ValueError, match='lack 4 of the 4 clients'):
      next(mine.rounds(clients=others))
    for opened in mine.rounds(clients=left):
      assert last[0] not in opened.cohort
      _finish(opened)
    content = mine.report().content
  # The first client that took part is one of the nine, and gone.
  assert content['observed']['clients'] == content['population'] == 9
  (told,) = content['not_covered']
  assert told.startswith('1 clients that took part left the population')


@pytest.mark.parametrize('way', ['rounds', 'round', 'later rounds', 'resume'])
def test_names_alike_are_named_at_the_start_of_a_run(tmp_path, capsys, way):
  """'7' and '07' may be one client, and count as two."""
  names = ['7', '07', *'abcdefgh']
  with _open(tmp_path) as mine:
    if way == 'rounds':
      _finish(next(mine.rounds(clients=names)))
    elif way == 'round':
      with mine.round(cohort=names[:2]) as opened:
        _finish(opened)
    elif way == 'later rounds':
      for cohort in (names[1:3], names[:1]):
        with mine.round(cohort=cohort) as opened:
          _finish(opened)
    else:
      with mine.round(cohort=names[:1]) as opened:
        _finish(opened)
  if way == 'resume':
    with _open(tmp_path) as mine:
      with mine.round(cohort=names[1:2]) as opened:
        _finish(opened)
  error = capsys.readouterr().err
  assert error.count("client='07': and '7' differ only") == 1
  (sentence,) = report.build(tmp_path).content['not_covered']
  assert sentence.startswith('some names of clients differ from others only')


@pytest.mark.parametrize('way', ['rounds', 'round'])
def test_names_keep_their_kind_in_any_container(tmp_path, way):
  """'1' and then 1 in an array of objects were two clients, a round apart."""

  kept = []

  def start(mine, ids):
    if way == 'rounds':
      return next(mine.rounds(clients=ids))
    kept.append(mine.round(cohort=ids))
    return kept[-1].__enter__()

  names = [str(i) for i in range(8)]
  with _open(tmp_path) as mine:
    opened = start(mine, np.array(names, object))
    assert opened.cohort.dtype.kind == 'U'
    _finish(opened)
  for ids in (
    list(range(8)),
    np.arange(8),
    np.array(range(8), object),
    np.array([np.int64(i) for i in range(8)], object),
  ):
    with _open(tmp_path) as mine:
      with pytest.raises(ValueError, match='clients='):
        start(mine, ids)
  for ids in names[:7] + [7], np.array(names[:7] + [7], object):
    with _open(tmp_path) as mine:
      with pytest.raises(TypeError, match='clients=.*"1" would count as two'):
        start(mine, ids)
  if way == 'rounds':
    with _open(tmp_path) as mine:
      _finish(start(mine, [np.str_(name) for name in names]))


def test_state_is_restored_before_a_run_goes_on(tmp_path):
  """Training began anew in round 1, from the initial weights."""
  with _open(tmp_path) as mine:
    _finish(next(mine.rounds(clients=8)))
  with run.Run(tmp_path, _plan()) as mine:
    for start in (
      lambda: next(mine.rounds(clients=8)),
      mine.round(cohort=[1]).__enter__,
    ):
      with pytest.raises(ValueError, match='call state = run.restore'):
        start()
    mine.restore(lambda: np.zeros(1))
    assert next(mine.rounds(clients=8)).index == 1


_State = collections.namedtuple('_State', ['weights', 'aggregator'])


_NOISE = {'noise_multiplier': 0.5, 'delta': 1e-5}


def test_round_is_not_finished_with_a_state_that_counts_less(tmp_path):
  """By the rounds that TFF's aggregator counts."""

  def state(rounds):
    query = collections.OrderedDict(round=np.int64(rounds))
    query_state = collections.namedtuple('Aggregator', ['query_state'])(query)
    # The same counts with other weights: it follows from an old state.
    return _State(np.random.default_rng().normal(size=2), query_state)

  for first in 0, 3:
    with run.Run(tmp_path, _plan(**_NOISE)) as mine:
      mine.restore(lambda: state(0))
      for opened in itertools.islice(mine.rounds(clients=8), 3):
        opened.release([], np.zeros(2))
        done = opened.index - first
        # The program after a crash knows what it restored.
        for old in range(done + 1) if not first else [3]:
          with pytest.raises(ValueError, match='state=.*earlier round'):
            opened.finish(state(old))
        opened.finish(state(opened.index + 1))


def test_round_is_not_finished_with_the_arrays_of_an_earlier_one(tmp_path):
  for _ in range(2):
    with run.Run(tmp_path, _plan(**_NOISE)) as mine:
      states = [mine.restore(lambda: {'w': np.zeros(2), 'step': 0})]
      for opened in itertools.islice(mine.rounds(clients=8), 3):
        mean = opened.release([], np.zeros(2))
        for old in states[:-1]:
          with pytest.raises(ValueError, match='state=.*earlier round'):
            opened.finish(old)
        now = {'w': states[-1]['w'] + mean, 'step': opened.index + 1}
        states.append(opened.finish(now))
    assert len(states) == 4


@pytest.mark.slow
@pytest.mark.parametrize('in_place', [False, True])
@pytest.mark.parametrize('rates', [(0, 0, 0, 1), (1, -1)], ids=str)
def test_state_with_the_bits_of_an_earlier_one_is_of_its_round(
  tmp_path, in_place, rates
):
  """A schedule begins at 0 or goes back; float16 rounds an update away."""
  path = []
  for _ in range(2):
    with run.Run(tmp_path, _plan(**_NOISE)) as mine:
      weights = mine.restore(lambda: np.ones(2, np.float16))
      for opened in itertools.islice(mine.rounds(clients=8), 4):
        step = (
          0 * opened.release([], weights) + rates[opened.index % len(rates)]
        )
        if in_place:
          weights += step
        else:
          weights = weights + step
        path.append(opened.finish(weights).tolist())
  assert len(path) == 8 and len(set(map(str, path))) < 4


def test_run_that_is_over_says_so(tmp_path, capsys):
  with _open(tmp_path) as mine:
    for opened in mine.rounds(clients=8):
      _finish(opened)
    assert capsys.readouterr().err == ''
    assert not list(mine.rounds(clients=8))
    assert capsys.readouterr().err.startswith('All 9 rounds are done; for more')
    mine.record(accuracy=0.25)
  with _open(tmp_path) as mine:
    assert not list(mine.rounds(clients=8))
    assert capsys.readouterr().err.count('\n') == 1
    # A program that is begun again measures the same, but for rounding.
    mine.record(accuracy=0.25 + 1e-9)
    mine.record()
    for other in dict(accuracy=0.5), dict(loss=0.25):
      with pytest.raises(ValueError, match=r'record=.*ended with.*0\.25'):
        mine.record(**other)


@pytest.mark.slow
def test_run_is_not_recorded_before_its_last_round(tmp_path):
  """After any number of rounds, of clients that are drawn or that came."""
  for done in range(_ROUNDS):
    with _open(tmp_path) as mine:
      with pytest.raises(ValueError, match=f'record=round {done}: .* of 9'):
        mine.record(accuracy=0.5)
      if done % 2:
        _finish(next(mine.rounds(clients=30)))
      else:
        with mine.round(cohort=[20 + done]) as opened:
          _finish(opened)
  with _open(tmp_path) as mine:
    mine.record(accuracy=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'schema',
  [tff_bandmf.FixedEpoch(3), tff_bandmf.FixedEpoch(3, 2), tff_bandmf.Single()],
  ids=str,
)
def test_fixed_epochs_are_run_and_reported(tmp_path, schema):
  """Every kind of cohorts that a plan takes can be run."""
  plan = tff_bandmf.Plan(
    rounds=3 * schema.participations(6),
    clients_per_round=2,
    cohorts=schema,
    epsilon=4.0,
    delta=1e-6,
    l2_norm_clip=1.0,
    mechanism='banded-sqrt',
  )
  rounds = collections.defaultdict(list)
  with tff_bandmf.Run(tmp_path / 'run', plan) as run:
    weights = np.zeros(3)
    for each in run.rounds(clients=7):
      for client in each.cohort.tolist():
        rounds[client].append(each.index)
      updates = [np.full(3, 0.1)] * len(each.cohort)
      weights = each.finish(weights + each.release(updates, weights))
    run.record()
    report = run.report().content
  assert not report['violated']
  assert report['epsilon'] <= 4.0
  gaps = {gap for each in rounds.values() for gap in np.diff(each).tolist()}
  assert gaps <= {3}


def test_run_that_was_closed_does_nothing(tmp_path):
  """Its loop started rounds beside another process, without the lock."""
  with _open(tmp_path) as mine:
    state = mine.restore(lambda: np.zeros(1))
    loop = mine.rounds(clients=10)
    _finish(next(loop))
    opened = next(loop)
  with _open(tmp_path) as other:
    begun = next(other.rounds(clients=10))
    for refused in (
      lambda: next(loop),
      lambda: next(mine.rounds(clients=10)),
      lambda: mine.round(cohort=[1]).__enter__(),
      lambda: mine.restore(lambda: np.zeros(1)),
      lambda: mine.note(data='others'),
      lambda: mine.aggregator,
      lambda: opened.attempt(lambda: None),
      lambda: opened.finish(state),
      lambda: opened.release([state], state),
    ):
      with pytest.raises(ValueError, match='run=.*is closed') as caught:
        refused()
      assert '\n' not in str(caught.value)
    mine.close()
    # The other run is as it was.
    _finish(begun)
    assert other.rounds_left == _ROUNDS - 2


def _train(directory, ids, plan):
  with run.Run(directory, plan) as mine:
    for opened in mine.rounds(clients=ids):
      opened.finish(np.full(1, opened.index))
    return mine.report()


@pytest.mark.slow
@pytest.mark.parametrize(
  'ids', [range(1000, 1012), [*range(11), 99], [f'c{i}' for i in range(12)]]
)
def test_run_of_any_ids_is_reported(tmp_path, ids):
  """An honest run was refused where an index was not below their number."""
  assert _train(tmp_path, ids, _plan()).content['population'] == 12
  # A list that lacks the highest one, or any, is not that of the ledger.
  with _ledger(tmp_path) as ledger:
    observed = ledger.observed()
  for notes, match in (
    ({'population': observed.clients - 1}, 'clients='),
    ({'highest_client': observed.last_client - 1}, 'client='),
  ):
    with _ledger(tmp_path) as ledger:
      ledger.note({**observed.notes, **notes})
    with pytest.raises(ValueError, match=match):
      report.build(tmp_path)


def test_clients_that_no_list_had_can_be_reported(tmp_path):
  with _open(tmp_path) as mine:
    _finish(next(mine.rounds(clients=10)))
    with mine.round(cohort=[40, 41]) as opened:
      _finish(opened)
    assert mine.report().content['population'] is None


def test_ledger_of_another_run_is_refused_by_its_place(tmp_path):
  for name in 'mine', 'other':
    with _open(tmp_path / name) as opened:
      _finish(next(opened.rounds(clients=10)))
  ledger = tmp_path / 'other' / run_json.LEDGER_FILE
  with pytest.raises(ValueError, match='ledger=.*another run'):
    run.Run(tmp_path / 'mine', _plan(), ledger=ledger)


@pytest.mark.parametrize(
  'results',
  [
    {'acc': 'x'},
    {'acc': None},
    {'acc': float('nan')},
    {'ledger_head': 1.0},
    {'epsilon': 0.1},
  ],
  ids=str,
)
def test_result_that_is_not_a_number_is_refused(tmp_path, results):
  """The error did not name it, and a head of the ledger was dropped."""
  with _open(tmp_path) as mine:
    for i, opened in enumerate(mine.rounds(clients=10)):
      opened.finish(np.full(1, i))
    with pytest.raises(ValueError, match='record=.*must be a finite number'):
      mine.record(**results)
    mine.record(acc=np.float32(0.5))
