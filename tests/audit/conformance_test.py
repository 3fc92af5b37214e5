"""Aggregators with one fault each, a sound one, ours, and false alarms.

A sound aggregator fails a question with probability 1e-6.
"""

import collections
import dataclasses
import functools
import itertools
import json
import sys

import faulty_aggregators as faulty
import numpy as np
import pytest
import scipy.stats

from tff_bandmf import participation, strategies
from tff_bandmf.audit import aggregators, arithmetic_attacks, conformance

FAIL, PASS = conformance.FAIL, conformance.PASS
CANNOT_TELL = conformance.CANNOT_TELL

# Questions that fail for each fault, and no others.
_FAULTS = {
  faulty.Float32Sums: {'low_bits', 'sums'},
  faulty.TailsCut: {'tails'},
  faulty.FloatNoise: {'low_bits', 'sums'},
  faulty.DataDependentDivisor: {'divisor'},
  faulty.ZerosOfFewClients: {'divisor', 'tails'},
  faulty.WeightsByExamples: {'divisor'},
  faulty.LittleNoiseInOneCoordinate: {'size'},
  faulty.LittleNoiseInOneRound: {'size'},
  faulty.NoNoise: {'correlation', 'low_bits', 'size', 'tails'},
  faulty.SameNoise: {'correlation', 'influence', 'low_bits', 'size', 'tails'},
  faulty.SameNoiseInTwoLayers: {'correlation'},
  faulty.NoClipOfNan: {'influence'},
  faulty.NanPasses: {'influence'},
  faulty.ClipByLayer: {'influence'},
  faulty.ClipOfAbsoluteValues: {'influence'},
  faulty.ClipOfTheSum: {'influence'},
  faulty.SameNoiseForTwoSums: {'replay'},
  faulty.NewNoise: {'replay'},
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
  """Fewer coordinates, so that a run of the large updates takes no seconds."""
  monkeypatch.setattr(conformance, '_MANY_SHAPES', ((1 << 13,), (64, 128)))


def _statement(matrix=faulty.INDEPENDENT, clients=faulty.CLIENTS):
  return conformance.Statement(faulty.CLIP, faulty.Z, clients, matrix)


def _answers(make, statement=None, **keywords):
  keywords = {'draws': 1 << 20, 'seed': 0, **keywords}
  found = conformance.answers(make, statement or _statement(), **keywords)
  return {each.question: each for each in found}


def _verdicts(answers):
  return {name: each.verdict for name, each in answers.items()}


_SOUND = {
  'influence': PASS,
  'sums': PASS,
  'size': PASS,
  'correlation': PASS,
  'tails': CANNOT_TELL,
  'low_bits': PASS,
  'divisor': PASS,
  'replay': PASS,
}


@pytest.mark.slow
@pytest.mark.parametrize('fault', _FAULTS, ids=lambda each: each.__name__)
def test_fault_fails_its_questions_alone(fault):
  answers = _answers(fault)
  failed = {name for name, v in _verdicts(answers).items() if v == FAIL}
  assert failed == _FAULTS[fault]


@pytest.mark.slow
@pytest.mark.parametrize('sound', [faulty.Sound, faulty.ClipsOfLayers])
@pytest.mark.parametrize('matrix', [faulty.INDEPENDENT, faulty.BANDED])
def test_sound_aggregator_passes(matrix, sound):
  make = functools.partial(sound, matrix=matrix)
  assert _verdicts(_answers(make, _statement(matrix))) == _SOUND


def _passes_all(monkeypatch, module, name, rounds):
  """Whether an aggregator of the benchmarks passes, with a near TAIL."""
  benchmarks = pytest.importorskip('benchmarks.aggregators')
  make = getattr(pytest.importorskip(module), name)
  monkeypatch.setattr(arithmetic_attacks, 'TAIL', 2.8)
  statement = conformance.Statement(
    benchmarks.CLIP, benchmarks.Z_STDDEV, benchmarks.CLIENTS, np.eye(rounds)
  )
  verdicts = _verdicts(_answers(make, statement, draws=1 << 18))
  return verdicts == dict.fromkeys(_SOUND, PASS)


@pytest.mark.slow
def test_ours_passes_every_question_in_numpy(monkeypatch):
  assert _passes_all(monkeypatch, 'benchmarks.aggregators', 'Ours', 48)


@pytest.mark.slow
def test_ours_passes_every_question_in_tff(monkeypatch, runtime):
  assert _passes_all(monkeypatch, 'benchmarks.tff_aggregators', 'ours', 16)


@pytest.mark.slow
@pytest.mark.parametrize(
  'made, stated',
  [(faulty.INDEPENDENT, faulty.BANDED), (faulty.BANDED, faulty.INDEPENDENT)],
)
def test_correlation_that_is_not_stated_is_found(made, stated):
  make = functools.partial(faulty.Sound, matrix=made)
  answers = _answers(make, _statement(stated))
  assert answers['correlation'].verdict == FAIL
  assert answers['correlation'].statistic > 20


@pytest.mark.slow
@pytest.mark.parametrize('size', [0.95, 1.05])
def test_noise_of_another_size_is_found(size):
  statement = dataclasses.replace(_statement(), z_stddev=faulty.Z / size)
  answers = _answers(faulty.Sound, statement)
  assert answers['size'].verdict == FAIL
  assert answers['size'].statistic == pytest.approx(size, rel=0.02)
  assert answers['correlation'].verdict == PASS


def _function(aggregator, like, noise):
  """A function that keeps the state of an aggregator to itself."""
  if not noise:
    return None
  inner = aggregator(like, noise)
  rounds = itertools.count()

  def mean(updates, examples):
    return inner.next(next(rounds), updates, examples)[1]

  return mean


@pytest.mark.slow
@pytest.mark.parametrize(
  'fault, question',
  [
    (faulty.Sound, None),
    (faulty.ClipByLayer, 'influence'),
    (faulty.NanPasses, 'influence'),
    (faulty.ClipOfTheSum, 'influence'),
    (faulty.DataDependentDivisor, 'divisor'),
    (faulty.WeightsByExamples, 'divisor'),
    (faulty.LittleNoiseInOneCoordinate, 'size'),
  ],
)
def test_function_without_a_variant_without_noise(fault, question):
  """The noise hides neither a clip nor a divisor of 100 clients."""
  verdicts = _verdicts(_answers(functools.partial(_function, fault)))
  expected = {**_SOUND, 'sums': CANNOT_TELL, 'replay': CANNOT_TELL}
  if question:
    expected[question] = FAIL
  assert verdicts == expected


def test_much_noise_and_few_clients_cannot_tell():
  """No answer passes whose test could not have failed."""
  statement = conformance.Statement(faulty.CLIP, 50.0, 2, np.eye(4))
  answers = _verdicts(
    _answers(functools.partial(_function, _VeryNoisy), statement, draws=1)
  )
  assert answers.pop('size') == PASS
  assert answers.pop('correlation') == PASS
  assert set(answers.values()) == {CANNOT_TELL}


class _VeryNoisy(faulty.Sound):
  """Two clients a round, and a standard deviation of 50 clips."""

  def normals(self, t, size):
    return super().normals(t, size) * (50.0 / faulty.Z)

  def divisor(self, updates):
    return 2


def test_one_client_a_round():
  class One(faulty.Sound):
    def divisor(self, updates):
      return 1

  answers = _answers(One, _statement(clients=1))
  assert _verdicts(answers) == {
    **_SOUND, 'sums': CANNOT_TELL, 'divisor': CANNOT_TELL
  }  # fmt: skip


@pytest.mark.slow
def test_draws_that_reach_the_end_of_float32_normals_tell(monkeypatch):
  monkeypatch.setattr(arithmetic_attacks, 'TAIL', 3.2)
  assert _answers(faulty.Sound)['tails'].verdict == PASS
  found = _answers(faulty.TailsCut)['tails']
  assert found.verdict == FAIL and found.statistic < found.least


def test_default_draws_tell_whether_tails_end_at_float32():
  subject = conformance.Subject(None, _statement(), 1e-6, 0, None)
  draws = arithmetic_attacks.TAIL_DRAWS
  thresholds = arithmetic_attacks.TAIL, 5.4
  expected = 2 * draws * scipy.stats.norm.sf(thresholds)
  for at_tail, verdict in ((round(expected[0]), PASS), (0, FAIL)):
    counts = np.array([at_tail, round(expected[1])])
    found = conformance._tails(subject, draws, thresholds, counts)
    assert found.verdict == verdict


# False alarms, at a rate that is large enough to be counted.


_RATE, _TRIALS = 0.1, 200
# The number of alarms at this rate is between these but for one time in 10^6.
_FEWEST, _MOST = scipy.stats.binom.interval(1 - 1e-6, _TRIALS, _RATE)


def _alarms(ask, trials=_TRIALS):
  """Returns how many of sound samples fail a question."""
  subject = conformance.Subject(None, _statement(), _RATE, 0, None)
  random = np.random.default_rng(5)
  return sum(
    ask(subject, random.normal(size=[24, 96])).verdict == FAIL
    for _ in range(trials)
  )


def test_false_alarms_of_size_are_as_stated():
  assert _FEWEST <= _alarms(conformance._size) <= _MOST


def test_false_alarms_of_correlation_are_as_stated():
  assert _FEWEST <= _alarms(conformance._correlation) <= _MOST


def test_false_alarms_of_tails_are_at_most_as_stated():
  def ask(subject, normals):
    beyond = [np.sum(np.abs(normals) > each) for each in (2.5, 1.5)]
    return conformance._tails(
      subject, normals.size, (2.5, 1.5), np.array(beyond)
    )

  assert 0 < _alarms(ask) <= _MOST


@pytest.mark.slow
def test_false_alarms_of_low_bits_are_at_most_as_stated():
  def ask(subject, normals):
    without, present = (
      # Releases that are small, on a lattice.
      conformance._on_grids(
        np.rint(half * 16) * 2.0**-20 / faulty.CLIENTS, 2.0**-10, faulty.CLIENTS
      )
      for half in np.split(normals, 2)
    )
    return conformance._low_bits(subject, without, present)

  assert _alarms(ask, 40) <= scipy.stats.binom.isf(1e-6, 40, _RATE)


class _CoarseNoiseInOddRounds(faulty.Sound):
  """A sound lattice whose step is not the same in all rounds."""

  def noise(self, t, size):
    step = faulty.STEP * (256 if t % 2 else 1)
    return np.rint(super().noise(t, size) / step) * step

  def summed(self, vectors, examples):
    # A multiple of both steps.
    step = faulty.STEP * 256
    return sum(np.trunc(each / step) for each in vectors) * step


@pytest.mark.slow
def test_lattice_that_changes_between_rounds_is_no_low_bits_fault():
  answers = _answers(_CoarseNoiseInOddRounds, draws=1 << 22)
  assert answers['low_bits'].verdict == PASS


@pytest.mark.slow
def test_false_alarms_of_influence_and_divisor_are_at_most_as_stated():
  """The noise has another seed each time, and hides what clients add."""
  counts = collections.Counter()
  trials = 10
  for seed in range(trials):
    make = functools.partial(
      _function, functools.partial(faulty.Sound, seed=100 + seed)
    )
    subject = conformance.Subject(make, _statement(), _RATE, seed, lambda: None)
    questions = conformance.influence, conformance.divisor
    counts.update(ask(subject).verdict for ask in questions)
  assert counts[FAIL] <= scipy.stats.binom.isf(1e-6, 2 * trials, _RATE)
  assert counts[PASS] == 2 * trials - counts[FAIL]


# The command.


_FLAGS = '--l2-norm-clip 0.5 --z-stddev 0.6 --clients-per-round 100'


def _command(tmp_path, monkeypatch, name):
  """Returns the arguments of the command for a faulty aggregator."""
  (tmp_path / 'of_a_user.py').write_text(
    f'from faulty_aggregators import {name} as aggregator\n'
  )
  monkeypatch.chdir(tmp_path)
  sys.modules.pop('of_a_user', None)
  return (
    *('audit', '--aggregator', 'of_a_user:aggregator', *_FLAGS.split()),
    *('--rounds', faulty.ROUNDS, '--draws', 1 << 20),
  )


@pytest.mark.slow
@pytest.mark.parametrize('name, status', [('Sound', 0), ('ClipByLayer', 1)])
def test_command_exits_with_0_only_if_all_pass(
  run, tmp_path, monkeypatch, name, status
):
  monkeypatch.setattr(arithmetic_attacks, 'TAIL', 3.2)
  command = _command(tmp_path, monkeypatch, name)
  found, out, _ = run(*command)
  assert found == status
  assert out.count(' pass  ') == 8 - status and out.count('fail  ') == status
  found, out, _ = run(*command, '--json')
  record = json.loads(out)
  assert (found, record['holds']) == (status, not status)
  assert [each['question'] for each in record['answers']] == list(_SOUND)


@pytest.mark.slow
def test_command_cannot_tell_with_few_draws(run, tmp_path, monkeypatch):
  status, out, _ = run(*_command(tmp_path, monkeypatch, 'Sound'))
  assert status == 1 and out.count('cannot tell ') == 1


@pytest.mark.slow
def test_command_takes_a_strategy(run_json, tmp_path, monkeypatch):
  """A noise multiplier is relative to the sensitivity of the strategy."""
  monkeypatch.setattr(arithmetic_attacks, 'TAIL', 3.2)
  command = _command(tmp_path, monkeypatch, 'Banded')
  strategy = strategies.BandedToeplitz(faulty.ROUNDS, [1.0, 0.6, 0.3])
  strategies.save(strategy, 'c.json', participation=participation.MinSep(3))
  at = command.index('--z-stddev')
  sensitivity = np.linalg.norm([1.0, 0.6, 0.3]) * 4
  record = run_json(
    *command[:at], *command[at + 2 :], 'c.json',
    *('--noise-multiplier', faulty.Z / sensitivity),
  )  # fmt: skip
  assert record['holds'] and record['family'] == 'banded-toeplitz'
  assert record['z_stddev'] == pytest.approx(faulty.Z * faulty.CLIP)


@pytest.mark.parametrize(
  'arguments, line',
  [
    ('audit', 'file, delta=None: bandmf audit needs each of them; give FILE'),
    (
      'audit --aggregator x:y',
      'l2_norm_clip, clients_per_round=None: bandmf audit needs each of them',
    ),
    (
      'audit --aggregator x:y --l2-norm-clip 1 --clients-per-round 9',
      'noise_multiplier=None: give either it or z_stddev',
    ),
    (
      f'audit --aggregator x:y {_FLAGS} --delta 1e-6',
      'epsilon, delta=None, 1e-06: do not go with aggregator',
    ),
    (f'audit --aggregator x {_FLAGS}', 'aggregator=x: must be MODULE:FUNC'),
    (f'audit --aggregator nobody:y {_FLAGS}', 'aggregator=nobody:y: No module'),
    (f'audit --aggregator math:y {_FLAGS}', 'aggregator=math:y: math has no'),
    (
      f'audit --aggregator math:gcd {_FLAGS}',
      'aggregator=TypeError: cannot be made',
    ),
  ],
)
def test_bad_input_is_one_line(run, arguments, line):
  status, out, error = run(*arguments.split())
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert error.startswith(line)


def test_mean_of_another_size_is_refused():
  def make(like, noise):
    return lambda updates, examples: [np.zeros(3)]

  with pytest.raises(ValueError, match='mean=3 numbers'):
    _answers(make)


def test_aggregator_that_refuses_ordinary_rounds_is_bad_input():
  def make(like, noise):
    def mean(updates, examples):
      raise RuntimeError('not today')

    return mean

  with pytest.raises(aggregators.Refusal, match='not today'):
    _answers(make)
