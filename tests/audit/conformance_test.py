"""Aggregators with one fault each, a sound one, ours, and false alarms.

A sound aggregator fails a question with probability 1e-6. The noise here has
fixed seeds, so each run is one draw.
"""

import collections
import dataclasses
import functools
import itertools
import json
import math
import sys

import numpy as np
import pytest
import scipy.stats

from tff_bandmf import participation, strategies
from tff_bandmf.audit import aggregators, arithmetic_attacks, conformance

FAIL, PASS = conformance.FAIL, conformance.PASS
CANNOT_TELL = conformance.CANNOT_TELL

_CLIENTS, _CLIP, _Z, _ROUNDS = 100, 0.5, 1.2, 48
_INDEPENDENT = np.eye(_ROUNDS)
_BANDED = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.6, 0.3]).matrix()
# Steps of the lattice of sums and noise.
_STEP = _CLIP * 2.0**-20


class _Sound:
  """Clips, rounds to a lattice, adds lattice noise, divides by a constant.

  A state is the round, the noise of earlier rounds and the sum of a replay.
  """

  def __init__(self, like, noise, seed=1, matrix=_INDEPENDENT):
    self._inverse = np.linalg.inv(matrix)
    self._noise = noise
    self._seed = seed
    self._sums = {}

  def initialize(self):
    return 0

  def clipped(self, update):
    vector = np.concatenate([each.ravel() for each in update])
    vector = vector.astype(np.float64)
    with np.errstate(over='ignore', invalid='ignore'):
      norm = np.sqrt(np.sum(vector**2))
    if not math.isfinite(norm):
      return np.zeros_like(vector)
    return vector * min(1.0, _CLIP / max(norm, 1e-300))

  def summed(self, vectors, examples):
    return sum(np.trunc(each / _STEP) for each in vectors) * _STEP

  def divisor(self, updates):
    return _CLIENTS

  def normals(self, t, size):
    return np.random.default_rng([self._seed, t]).normal(size=size)

  def noise(self, t, size):
    z = [self.normals(s, size) for s in range(t + 1) if self._inverse[t, s]]
    row = self._inverse[t][self._inverse[t] != 0]
    y = sum(each * z for each, z in zip(row, z))
    return np.rint(_CLIP * _Z * y / _STEP) * _STEP

  def check_replay(self, t, total):
    previous = self._sums.setdefault(t, total)
    if not np.array_equal(previous, total, equal_nan=True):
      raise ValueError('another sum')

  def next(self, state, updates, examples):
    total = self.summed([self.clipped(each) for each in updates], examples)
    if total.size < 1000:
      self.check_replay(state, total)
    if self._noise:
      total = total + self.noise(state, total.size)
    return state + 1, self.mean(total, updates)

  def mean(self, total, updates):
    return [(total / self.divisor(updates)).astype(np.float32)]


class _Float32Sums(_Sound):
  """The sum is not on the lattice of the noise, so last bits show it too."""

  def summed(self, vectors, examples):
    total = np.zeros(len(vectors[0]), np.float32)
    for each in vectors:
      total += each.astype(np.float32)
    return total


class _TailsCut(_Sound):
  def normals(self, t, size):
    z = super().normals(t, size)
    return np.where(np.abs(z) > 3.5, 1.0, z)


class _FloatNoise(_Sound):
  """Float32 records and noise are added without a lattice."""

  def summed(self, vectors, examples):
    return sum(each.astype(np.float32) for each in vectors)

  def noise(self, t, size):
    return np.float32(_CLIP * _Z) * self.normals(t, size).astype(np.float32)


class _DataDependentDivisor(_Sound):
  def divisor(self, updates):
    return len(updates)


class _ZerosOfFewClients(_Sound):
  """A round of fewer clients is not refused, and releases zeros."""

  def mean(self, total, updates):
    return super().mean(total * (len(updates) == _CLIENTS), updates)


class _WeightsByExamples(_Sound):
  def summed(self, vectors, examples):
    weights = np.array(examples) * (len(examples) / sum(examples))
    return super().summed([w * v for w, v in zip(weights, vectors)], examples)


class _LittleNoiseInOneCoordinate(_Sound):
  def normals(self, t, size):
    z = super().normals(t, size)
    z[7] *= 0.3
    return z


class _LittleNoiseInOneRound(_Sound):
  def normals(self, t, size):
    return super().normals(t, size) * (0.5 if t == 9 else 1.0)


class _NoNoise(_Sound):
  def normals(self, t, size):
    return np.zeros(size)


class _SameNoise(_Sound):
  def normals(self, t, size):
    return super().normals(0, size)


class _SameNoiseInTwoLayers(_Sound):
  def normals(self, t, size):
    z = super().normals(t, size)
    z[24:48] = z[:24]
    return z


class _NoClipOfNan(_Sound):
  """A norm that is not a number is not above the clip."""

  def clipped(self, update):
    vector = np.concatenate([each.ravel() for each in update]).astype(float)
    norm = np.sqrt(np.sum(vector**2))
    factor = _CLIP / norm if norm > _CLIP else 1.0
    return np.nan_to_num(vector) * factor


class _NanPasses(_Sound):
  def clipped(self, update):
    vector = np.concatenate([each.ravel() for each in update]).astype(float)
    with np.errstate(invalid='ignore'):
      return vector * np.minimum(1.0, _CLIP / np.sqrt(np.sum(vector**2)))


class _ClipByLayer(_Sound):
  def clipped(self, update):
    return np.concatenate(
      [super(_ClipByLayer, self).clipped([x]) for x in update]
    )


class _ClipOfAbsoluteValues(_Sound):
  """The sum of absolute values is clipped, to ten clips."""

  def clipped(self, update):
    vector = np.concatenate([each.ravel() for each in update]).astype(float)
    total = np.abs(vector).sum()
    if not math.isfinite(total):
      return np.zeros_like(vector)
    return vector * min(1.0, 10 * _CLIP / total)


class _ClipsOfLayers(_Sound):
  """Each layer has a clip; their squares add up to the square of the clip."""

  def clipped(self, update):
    size = sum(each.size for each in update)
    return np.concatenate(
      [
        math.sqrt(each.size / size)
        * super(_ClipsOfLayers, self).clipped(
          [each / np.float32(math.sqrt(each.size / size))]
        )
        for each in update
      ]
    )


class _ClipOfTheSum(_Sound):
  """The mean is clipped, not each update."""

  def clipped(self, update):
    vector = np.concatenate([each.ravel() for each in update]).astype(float)
    return np.nan_to_num(vector, posinf=0.0)

  def summed(self, vectors, examples):
    total = np.sum(vectors, 0)
    most = _CLIP * _CLIENTS
    with np.errstate(over='ignore'):
      total = total * min(1.0, most / max(np.linalg.norm(total), 1e-300))
    return np.trunc(total / _STEP) * _STEP


class _SameNoiseForTwoSums(_Sound):
  def check_replay(self, t, total):
    pass


class _NewNoise(_Sound):
  """A replay of a round, with whatever sum, draws again."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self._random = np.random.default_rng(3)

  def check_replay(self, t, total):
    pass

  def normals(self, t, size):
    return self._random.normal(size=size)


# Questions that fail for each fault, and no others.
_FAULTS = {
  _Float32Sums: {'low_bits', 'sums'},
  _TailsCut: {'tails'},
  _FloatNoise: {'low_bits', 'sums'},
  _DataDependentDivisor: {'divisor'},
  _ZerosOfFewClients: {'divisor', 'tails'},
  _WeightsByExamples: {'divisor'},
  _LittleNoiseInOneCoordinate: {'size'},
  _LittleNoiseInOneRound: {'size'},
  _NoNoise: {'correlation', 'low_bits', 'size', 'tails'},
  _SameNoise: {'correlation', 'influence', 'low_bits', 'size', 'tails'},
  _SameNoiseInTwoLayers: {'correlation'},
  _NoClipOfNan: {'influence'},
  _NanPasses: {'influence'},
  _ClipByLayer: {'influence'},
  _ClipOfAbsoluteValues: {'influence'},
  _ClipOfTheSum: {'influence'},
  _SameNoiseForTwoSums: {'replay'},
  _NewNoise: {'replay'},
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
  """Fewer coordinates, so that a run of the large updates takes no seconds."""
  monkeypatch.setattr(conformance, '_MANY_SHAPES', ((1 << 13,), (64, 128)))


def _statement(matrix=_INDEPENDENT, clients=_CLIENTS):
  return conformance.Statement(_CLIP, _Z, clients, matrix)


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
@pytest.mark.parametrize('sound', [_Sound, _ClipsOfLayers])
@pytest.mark.parametrize('matrix', [_INDEPENDENT, _BANDED])
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
  'made, stated', [(_INDEPENDENT, _BANDED), (_BANDED, _INDEPENDENT)]
)
def test_correlation_that_is_not_stated_is_found(made, stated):
  make = functools.partial(_Sound, matrix=made)
  answers = _answers(make, _statement(stated))
  assert answers['correlation'].verdict == FAIL
  assert answers['correlation'].statistic > 20


@pytest.mark.slow
@pytest.mark.parametrize('size', [0.95, 1.05])
def test_noise_of_another_size_is_found(size):
  statement = dataclasses.replace(_statement(), z_stddev=_Z / size)
  answers = _answers(_Sound, statement)
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
    (_Sound, None),
    (_ClipByLayer, 'influence'),
    (_NanPasses, 'influence'),
    (_ClipOfTheSum, 'influence'),
    (_DataDependentDivisor, 'divisor'),
    (_WeightsByExamples, 'divisor'),
    (_LittleNoiseInOneCoordinate, 'size'),
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
  statement = conformance.Statement(_CLIP, 50.0, 2, np.eye(4))
  answers = _verdicts(
    _answers(functools.partial(_function, _VeryNoisy), statement, draws=1)
  )
  assert answers.pop('size') == PASS
  assert answers.pop('correlation') == PASS
  assert set(answers.values()) == {CANNOT_TELL}


class _VeryNoisy(_Sound):
  """Two clients a round, and a standard deviation of 50 clips."""

  def normals(self, t, size):
    return super().normals(t, size) * (50.0 / _Z)

  def divisor(self, updates):
    return 2


def test_one_client_a_round():
  class One(_Sound):
    def divisor(self, updates):
      return 1

  answers = _answers(One, _statement(clients=1))
  assert _verdicts(answers) == {
    **_SOUND, 'sums': CANNOT_TELL, 'divisor': CANNOT_TELL
  }  # fmt: skip


@pytest.mark.slow
def test_draws_that_reach_the_end_of_float32_normals_tell(monkeypatch):
  monkeypatch.setattr(arithmetic_attacks, 'TAIL', 3.2)
  assert _answers(_Sound)['tails'].verdict == PASS
  found = _answers(_TailsCut)['tails']
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
        np.rint(half * 16) * 2.0**-20 / _CLIENTS, 2.0**-10, _CLIENTS
      )
      for half in np.split(normals, 2)
    )
    return conformance._low_bits(subject, without, present)

  assert _alarms(ask, 40) <= scipy.stats.binom.isf(1e-6, 40, _RATE)


class _CoarseNoiseInOddRounds(_Sound):
  """A sound lattice whose step is not the same in all rounds."""

  def noise(self, t, size):
    step = _STEP * (256 if t % 2 else 1)
    return np.rint(super().noise(t, size) / step) * step

  def summed(self, vectors, examples):
    # A multiple of both steps.
    step = _STEP * 256
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
      _function, functools.partial(_Sound, seed=100 + seed)
    )
    subject = conformance.Subject(make, _statement(), _RATE, seed, lambda: None)
    questions = conformance.influence, conformance.divisor
    counts.update(ask(subject).verdict for ask in questions)
  assert counts[FAIL] <= scipy.stats.binom.isf(1e-6, 2 * trials, _RATE)
  assert counts[PASS] == 2 * trials - counts[FAIL]


# The command.


_FLAGS = '--l2-norm-clip 0.5 --z-stddev 0.6 --clients-per-round 100'


def _command(tmp_path, monkeypatch, name):
  """Returns the arguments of the command for a class of this file."""
  (tmp_path / 'of_a_user.py').write_text(
    f'import sys\naggregator = sys.modules["{__name__}"].{name}\n'
  )
  monkeypatch.chdir(tmp_path)
  sys.modules.pop('of_a_user', None)
  return (
    *('audit', '--aggregator', 'of_a_user:aggregator', *_FLAGS.split()),
    *('--rounds', _ROUNDS, '--draws', 1 << 20),
  )


@pytest.mark.slow
@pytest.mark.parametrize('name, status', [('_Sound', 0), ('_ClipByLayer', 1)])
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
  status, out, _ = run(*_command(tmp_path, monkeypatch, '_Sound'))
  assert status == 1 and out.count('cannot tell ') == 1


@pytest.mark.slow
def test_command_takes_a_strategy(run_json, tmp_path, monkeypatch):
  """A noise multiplier is relative to the sensitivity of the strategy."""
  monkeypatch.setattr(arithmetic_attacks, 'TAIL', 3.2)
  command = _command(tmp_path, monkeypatch, '_Banded')
  strategy = strategies.BandedToeplitz(_ROUNDS, [1.0, 0.6, 0.3])
  strategies.save(strategy, 'c.json', participation=participation.MinSep(3))
  at = command.index('--z-stddev')
  sensitivity = np.linalg.norm([1.0, 0.6, 0.3]) * 4
  record = run_json(
    *command[:at], *command[at + 2 :], 'c.json',
    *('--noise-multiplier', _Z / sensitivity),
  )  # fmt: skip
  assert record['holds'] and record['family'] == 'banded-toeplitz'
  assert record['z_stddev'] == pytest.approx(_Z * _CLIP)


class _Banded(_Sound):
  def __init__(self, like, noise):
    super().__init__(like, noise, matrix=_BANDED)


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
