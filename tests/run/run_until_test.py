"""Tests of runs that stop before the last planned round."""

import json
import math

import doctored_runs
import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import accounting, report, verify
from tff_bandmf import run as run_lib

_ROUNDS = 8
_KINDS = {
  'min-sep': tff_bandmf.MinSep(2),
  'fixed-epoch': tff_bandmf.FixedEpoch(2),
  'single': tff_bandmf.Single(),
  'budget': tff_bandmf.Budget(2, 2),
  'poisson': tff_bandmf.CyclicPoisson(population=80),
}


def _plan(kind='min-sep', **changes):
  return tff_bandmf.Plan(
    **{
      'rounds': _ROUNDS,
      'clients_per_round': 6,
      'cohorts': _KINDS[kind],
      'noise_multiplier': 2.0,
      'delta': 1e-3,
      'l2_norm_clip': 1.0,
      'mechanism': 'banded-sqrt',
      **changes,
    }
  )


def _finish(opened, model):
  updates = [np.full(2, 0.1)] * len(opened.cohort)
  return opened.finish(model + opened.release(updates, model))


def _train(folder, plan, ends=True, stop=None, after=(), **options):
  """Trains without TFF; returns (rounds done, the report)."""
  with run_lib.Run(folder, plan, after=after) as mine:
    model = mine.restore(lambda: np.zeros(2))
    for opened in mine.rounds(clients=80, **options):
      model = _finish(opened, model)
      if opened.index == stop:
        mine.stop()
    done = opened.index + 1
    if ends:
      mine.record(total=float(model.sum()))
    written = mine.report().content
  return done, written


@pytest.mark.slow
@pytest.mark.parametrize('kind', _KINDS)
@pytest.mark.deep(but=('poisson', 'budget'))
def test_run_until_an_epsilon_claims_at_most_this_epsilon(tmp_path, kind):
  """Where fewer rounds have a proof; elsewhere a smaller epsilon is refused."""
  plan = _plan(kind)
  last = plan.spent(_ROUNDS)
  epsilon = (plan.spent(1) + last) / 2
  if kind in ('min-sep', 'fixed-epoch'):
    until = tff_bandmf.Epsilon(epsilon)
    done, written = _train(tmp_path / 'run', plan, until=until)
    assert 1 < done < _ROUNDS
    assert plan.spent(done) == written['epsilon'] <= epsilon
    assert plan.spent(done + 1) > epsilon
    text = f'at most {done} rounds, a number that was fixed'
    assert text in str(written['assumptions'])
    assert f'the releases of {done} rounds' in written['formal_statement']
    # In a composition, too: the run has ended.
    composed = report.of_run(tmp_path / 'run').guarantee.epsilon(1e-3)
    assert composed == pytest.approx(written['epsilon'], rel=1e-9)
    page = report.publish([report.of_run(tmp_path / 'run')])
    page.write(tmp_path / 'run')
    verify.verify(tmp_path / 'run' / 'public.json')
  else:
    with run_lib.Run(tmp_path / 'run', plan) as mine:
      mine.restore(lambda: np.zeros(2))
      until = tff_bandmf.Epsilon(0.99 * last)
      with pytest.raises(ValueError, match='epsilon=.*first round'):
        next(mine.rounds(clients=80, until=until))
    until = tff_bandmf.Epsilon(1.01 * last)
    done, written = _train(tmp_path / 'run', plan, until=until)
    assert done == _ROUNDS and written['epsilon'] == last
  checked = verify.verify(tmp_path / 'run')['epsilon']
  sampling = written['sampling'] or {'epsilon_unamplified': written['epsilon']}
  assert checked <= sampling['epsilon_unamplified'] * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('kind', _KINDS)
@pytest.mark.parametrize('ends', [True, False])
@pytest.mark.deep(
  but=('True-poisson', 'False-min-sep', 'True-budget', 'False-single')
)
def test_run_that_stops_by_its_model_claims_all_rounds(tmp_path, kind, ends):
  plan = _plan(kind)
  done, written = _train(tmp_path, plan, ends, stop=2)
  assert done == 3 and written['completed'] == ends
  assert written['epsilon'] >= plan.spent(_ROUNDS)
  assert written['epsilon'] == written['planned']['epsilon'] or (
    kind == 'poisson' and written['amplification'] == 'cyclic-poisson'
  )
  if kind != 'budget':
    text = 'at most 8 rounds, a number that may depend on what was released'
    assert text in written['formal_statement']
    early = 'ended early' if ends else 'has not ended'
    assert any(early in each for each in written['warnings'])
  verify.verify(tmp_path)


def test_run_that_stops_after_one_round_claims_all_rounds(tmp_path):
  plan = _plan()
  done, written = _train(tmp_path, plan, stop=0)
  assert (done, written['epsilon']) == (1, plan.spent(_ROUNDS))


@pytest.mark.slow
def test_stop_that_was_moved_claims_all_planned_rounds(tmp_path):
  """Who moves the stop may have looked at the model of the first stop."""
  plan = _plan()
  first, second = (tff_bandmf.Epsilon(plan.spent(rounds)) for rounds in (2, 6))
  done, written = _train(tmp_path, plan, ends=False, until=first)
  assert (done, written['epsilon']) == (2, plan.spent(2))
  done, written = _train(tmp_path, plan, until=second)
  assert (done, written['epsilon']) == (6, plan.spent(_ROUNDS))
  verify.verify(tmp_path)


def test_stop_at_the_same_epsilon_goes_on_after_a_kill(tmp_path):
  plan = _plan()
  until = tff_bandmf.Epsilon(plan.spent(4))
  with run_lib.Run(tmp_path, plan) as mine:
    model = mine.restore(lambda: np.zeros(2))
    _finish(next(mine.rounds(clients=80, until=until)), model)
  done, written = _train(tmp_path, plan, until=until)
  assert (done, written['epsilon']) == (4, plan.spent(4))


@pytest.mark.slow
def test_open_run_counts_as_planned_in_a_composition(tmp_path):
  """It may state more rounds when it is started again."""
  plan, first, second = _plan(), tmp_path / 'first', tmp_path / 'second'
  until = tff_bandmf.Epsilon(plan.spent(2))
  _, written = _train(first, plan, ends=False, until=until)
  assert written['epsilon'] < plan.spent(_ROUNDS)
  _train(second, plan, after=[first])
  composed = report.of_run(second).guarantee.epsilon(1e-3)
  both = accounting.compose([plan.guarantee] * 2).epsilon(1e-3)
  assert composed == pytest.approx(both, rel=1e-9)
  assert verify.verify(second)['epsilon'] == pytest.approx(both, rel=1e-5)
  # The rounds so far, once the run has ended.
  with run_lib.Run(first, plan) as mine:
    next(mine.rounds(clients=80, until=until), None)
    mine.record(total=0.0)
    mine.report()
  composed = report.of_run(second).guarantee.epsilon(1e-3)
  assert composed < both
  assert verify.verify(second)['epsilon'] == pytest.approx(composed, rel=1e-5)


def test_clients_that_come_stop_at_the_epsilon(tmp_path):
  plan = _plan()
  until = tff_bandmf.Epsilon(plan.spent(2))
  with run_lib.Run(tmp_path, plan) as mine:
    model = mine.restore(lambda: np.zeros(2))
    for t in range(2):
      with mine.round(cohort=range(6 * t, 6 * t + 6), until=until) as opened:
        model = _finish(opened, model)
    assert mine.rounds_left == 0
    with pytest.raises(ValueError, match='round=2: is past .* 1; end'):
      mine.round(cohort=range(20, 26), until=until).__enter__()
    mine.record(total=0.0)
    assert mine.report().content['epsilon'] == plan.spent(2)


def test_run_that_was_stopped_starts_no_round(tmp_path):
  with run_lib.Run(tmp_path, _plan()) as mine:
    model = mine.restore(lambda: np.zeros(2))
    with mine.round(cohort=range(6)) as opened:
      _finish(opened, model)
    mine.stop()
    assert not [*mine.rounds(clients=80)]
    with pytest.raises(ValueError, match='round=1: comes after the end'):
      mine.round(cohort=range(6, 12)).__enter__()
    assert mine.rounds_done == 1


@pytest.mark.parametrize(
  'options, error, match',
  [
    ({'until': 4.0}, TypeError, r'until=4.0: .*tff_bandmf.Epsilon'),
    (
      {'until': tff_bandmf.Epsilon(99.0), 'rounds': 3},
      ValueError,
      'rounds=3: .*one of them',
    ),
    ({'until': tff_bandmf.Epsilon(0.01)}, ValueError, 'epsilon=0.01: is below'),
  ],
  ids=str,
)
def test_stop_that_cannot_hold_is_refused(tmp_path, options, error, match):
  with run_lib.Run(tmp_path, _plan()) as mine:
    mine.restore(lambda: np.zeros(2))
    with pytest.raises(error, match=match):
      next(mine.rounds(clients=80, **options))
    assert mine.rounds_left == _ROUNDS


def test_epsilon_of_a_plan_without_a_claim_is_refused():
  for changes in {'delta': None}, {'noise_multiplier': 0.0}:
    with pytest.raises(ValueError, match='epsilon=4.0: .*no delta, or too'):
      _plan(**changes).rounds_within(4.0)
  for wrong in math.nan, math.inf, 0, -1:
    with pytest.raises(ValueError, match='epsilon='):
      tff_bandmf.Epsilon(wrong)


def test_run_that_was_not_stopped_is_not_ended_early(tmp_path):
  with pytest.raises(ValueError, match=r'before the last of 8 .*run.stop\(\)'):
    _train(tmp_path, _plan(), rounds=3)


@pytest.mark.slow
def test_stated_rounds_that_were_forged_do_not_hold(tmp_path):
  """Fewer rounds in the report than the chain states are refused."""
  plan = _plan()
  _, written = _train(
    tmp_path / 'few', plan, until=run_lib.Epsilon(plan.spent(2))
  )
  _, late = _train(tmp_path / 'late', plan, stop=1)
  assert late['epsilon'] > written['epsilon']
  path = tmp_path / 'late' / report.JSON_FILE
  forged = json.loads(path.read_text())
  forged['epsilon'] = written['epsilon']
  doctored_runs.write_signed(path, forged)
  with pytest.raises(AssertionError, match='epsilon'):
    verify.verify(tmp_path / 'late')


def test_stop_by_the_loss_of_privacy_breaks_the_epsilon_of_its_rounds():
  """Why a stop by releases claims all rounds: delta is exceeded by far.

  Noise has no correlation, and a client adds 1 to every round. The program may
  stop after 1, 16 or 256 rounds, and stops where the loss of privacy is above
  the epsilon of the rounds so far.
  """
  stops, sigma, delta, samples = np.array([1, 16, 256]), 8.0, 0.01, 100_000
  rng = np.random.default_rng(0)
  steps = np.diff(stops, prepend=0)
  sums = steps + sigma * np.sqrt(steps) * rng.standard_normal((samples, 3))
  losses = np.cumsum(sums - steps / 2, axis=1) / sigma**2
  epsilons = np.array(
    [accounting.gaussian_epsilon(sigma / math.sqrt(t), delta) for t in stops]
  )
  every, over = np.arange(samples), losses > epsilons
  stop = np.where(over.any(axis=1), over.argmax(axis=1), 2)

  def delta_at(epsilon, stop):
    gain = -np.expm1(np.minimum(epsilon - losses[every, stop], 0))
    return gain.mean(), 4 * gain.std() / math.sqrt(samples)

  for fixed in range(3):
    mean, error = delta_at(epsilons[fixed], np.full(samples, fixed))
    assert abs(mean - delta) <= error
  mean, error = delta_at(epsilons[stop], stop)
  assert mean - error > 2 * delta
  # The epsilon of all rounds covers the same stop.
  mean, error = delta_at(epsilons[-1], stop)
  assert mean - error <= delta
