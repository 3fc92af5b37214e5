"""Aggregators with one fault each, sound ones, ours, and false alarms.

A sound aggregator fails any question with probability 1e-6.
"""

import collections
import dataclasses
import functools
import inspect
import json
import sys

import faulty_aggregators as faulty
import numpy as np
import pytest
import scipy.stats

from tff_bandmf import participation, strategies
from tff_bandmf.audit import (
  aggregators,
  arithmetic_attacks,
  conformance,
  probes,
  whitened,
)
from tff_bandmf.audit import answers as answers_lib

FAIL, PASS = conformance.FAIL, conformance.PASS
CANNOT_TELL = conformance.CANNOT_TELL


@pytest.fixture(autouse=True)
def _small(monkeypatch):
  """Fewer coordinates, so that a run of the large updates takes no seconds."""
  monkeypatch.setattr(conformance, '_MANY_SHAPES', ((1 << 13,), (64, 128)))


def _specification(matrix=faulty.INDEPENDENT, clients=faulty.CLIENTS):
  return conformance.Specification(faulty.CLIP, faulty.Z, clients, matrix)


def _answers(make, specification=None, **keywords):
  keywords = {'draws': 1 << 20, 'seed': 0, **keywords}
  answers = conformance.answers(
    make, specification or _specification(), **keywords
  )
  return {each.question: each for each in answers}


class _Audit:
  """An aggregator whose runs are made for the questions that are asked."""

  def __init__(
    self,
    make,
    specification=None,
    draws=1,
    seed=None,
    false_alarm=1e-6,
    again=None,
  ):
    self.subject = probes.Subject(
      make, specification or _specification(), false_alarm, seed, lambda: None
    )
    self._draws, self._again = draws, again

  @functools.cached_property
  def runs(self):
    return conformance.Runs(self.subject, self._again)

  @functools.cached_property
  def many(self):
    return conformance.many_coordinates(self.subject, self._draws)

  @functools.cached_property
  def noises(self):
    return conformance.Noises(self.runs, self.many.noise)

  def answer(self, question):
    ask = getattr(conformance, question)
    return ask(
      *(getattr(self, name) for name in inspect.signature(ask).parameters)
    )


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


# A fault for each part of a question: probes, statistics, intervals, marks.
_PARTS = {
  'size': (
    'NoneWithoutClients HalfForPartOfTheClients NoneWhereTheSumIsZero '
    'LessIfTheSumIsLarge ByLargestNorm LessForHugeNorms NoneForTinyNorms '
    'LessForAZeroUpdate NoneIfAnUpdateIsNotFinite LittleInOneCoordinate '
    'LessInTheFirstLayer NonePastManyCoordinates LittleInOneRound '
    'NoneInTheLastRound LessInOddCoordinatesOfLaterRounds NoneInScalars '
    'NoneAfterTheLastRound'
  ),
  'correlation': (
    'ReversedInTwoLayers ShiftedByOneEachRound PairsOfOppositeRounds '
    'PartlyTheSameInAllRuns SameLayerInAllRuns SeedOfTheSum '
    'NextRunOneRoundLater'
  ),
  'tails': 'LaplaceFirstLayer StudentT Coarse',
  'influence': (
    'UnclippedJustAbove UnclippedIfHuge UnclippedIfSparse ByCoordinate '
    'ScalarsLeftOut Float32Norm NanKeptInTheLastCoordinate MinusInfinityKept '
    'LateClientsUnclipped NanOfTwoClientsKept SumRemembered WeightsUpToTen '
    'WeightNan'
  ),
  'divisor': 'ByNumberOfFewClients ZerosOfFewClients WeightsByExamples',
}


def _faults(*questions):
  """Parametrizes a test by the faults that questions find."""

  def marks(name, question):
    repeats = question in _PARTS and name not in _PARTS[question].split()
    return pytest.mark.deep if repeats else ()

  return pytest.mark.parametrize(
    'make, question',
    [
      pytest.param(make, question, id=name, marks=marks(name, question))
      for name, (make, question) in faulty.FAULTS.items()
      if question in questions
    ],
  )


def _fails(answer):
  # The number that the answer states is outside the limits that it states.
  return answer.verdict == FAIL and not (
    answer.least <= answer.statistic <= answer.most
  )


@pytest.mark.slow
@_faults('size', 'correlation', 'tails', 'low_bits')
def test_fault_of_the_noise_fails_its_question(make, question):
  draws = 1 << 22 if question == 'low_bits' else 1
  assert _fails(_Audit(make, draws=draws).answer(question))


@pytest.mark.slow
@_faults('influence', 'divisor')
def test_fault_of_the_sum_fails_its_question(make, question):
  assert _fails(_Audit(make).answer(question))


@_faults('sums')
def test_sum_that_is_not_exact_fails(make, question):
  assert _fails(_Audit(make).answer(question))


@_faults('replay')
def test_second_release_of_a_round_fails(make, question):
  """Whether the noise of the second release is old or new."""
  answer = _Audit(make).answer(question)
  assert answer.verdict == FAIL and 'released too: ' in answer.unit


@pytest.mark.slow
@pytest.mark.parametrize('sound', faulty.SOUND)
@pytest.mark.parametrize('matrix', [faulty.INDEPENDENT, faulty.BANDED])
@pytest.mark.deep(
  but=('matrix0-Usual', 'matrix0-Repeats', 'matrix1-ClipsOfL', 'matrix1-Sound')
)
def test_sound_aggregator_passes(matrix, sound):
  make = functools.partial(sound, matrix=matrix)
  assert _verdicts(_answers(make, _specification(matrix))) == _SOUND


@pytest.mark.slow
def test_answer_says_where_it_was_measured_and_what_was_refused():
  answers = _answers(faulty.UsualCohortsAlone, draws=1)
  zeros = {'all clients: zeros', 'half: zeros', 'one client: zeros'}
  for question in ('influence', 'size', 'correlation', 'tails', 'divisor'):
    assert not set(answers[question].probes) & set(answers[question].refused)
  assert zeros <= set(answers['size'].refused)
  assert 'no client: no update' in answers['size'].refused
  assert 'norm in clips, all clients: 1.0001' in answers['influence'].probes
  text = '\n'.join(answers_lib.texts(list(answers.values())))
  assert 'norm in clips, all clients: 1, 1.0001, 1.001, 1.01' in text
  assert 'the probes of size' in text
  sound = _answers(faulty.Sound, draws=1)
  assert not any(each.refused for each in sound.values() if each.question != (
    'replay'
  ))  # fmt: skip
  assert zeros <= set(sound['size'].probes)


@pytest.mark.slow
def test_shares_of_the_false_alarm_add_up_to_it():
  answers = _answers(faulty.Sound, draws=1, false_alarm=1e-3)
  assert sum(each.false_alarm for each in answers.values()) == pytest.approx(
    1e-3, rel=1e-12
  )


def _passes_all(monkeypatch, make, rounds, releases):
  """Whether an aggregator of the benchmarks passes, with a near TAIL."""
  benchmarks = pytest.importorskip('benchmarks.aggregators')
  monkeypatch.setattr(arithmetic_attacks, 'TAIL', 2.8)
  monkeypatch.setattr(conformance, '_RELEASES', releases)
  specification = conformance.Specification(
    benchmarks.CLIP, benchmarks.Z_STDDEV, benchmarks.CLIENTS, np.eye(rounds)
  )
  verdicts = _verdicts(_answers(make, specification, draws=1 << 18))
  return verdicts == dict.fromkeys(_SOUND, PASS)


@pytest.mark.slow
def test_ours_passes_every_question_in_numpy(monkeypatch):
  make = pytest.importorskip('benchmarks.aggregators').Ours
  assert _passes_all(monkeypatch, make, 32, 2)


@pytest.fixture
def ours_in_tff(runtime):
  """Returns `make` of our aggregator in TFF."""
  factory = pytest.importorskip('benchmarks.tff_aggregators').ours

  # To create a process takes seconds. One that adds noise serves one run.
  @functools.cache
  def process(*shapes):
    like = [np.zeros(shape, np.float32) for shape in shapes]
    return aggregators._created(factory(like, False), like)

  def make(like, noise):
    if noise:
      return factory(like, True)
    return process(*(each.shape for each in like))

  return make


@pytest.mark.slow
def test_ours_in_tff_sums_exactly_and_releases_once(ours_in_tff):
  benchmarks = pytest.importorskip('benchmarks.aggregators')
  specification = conformance.Specification(
    benchmarks.CLIP, benchmarks.Z_STDDEV, benchmarks.CLIENTS, np.eye(2)
  )
  audit = _Audit(ours_in_tff, specification, seed=0)
  assert audit.answer('sums').verdict == PASS
  assert audit.answer('replay').verdict == PASS


@pytest.mark.slow
@pytest.mark.deep
def test_ours_passes_every_question_in_tff(monkeypatch, ours_in_tff):
  assert _passes_all(monkeypatch, ours_in_tff, 32, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
  'made, stated',
  [(faulty.INDEPENDENT, faulty.BANDED), (faulty.BANDED, faulty.INDEPENDENT)],
)
@pytest.mark.deep(but=('made0',))
def test_correlation_that_is_not_stated_is_found(made, stated):
  make = functools.partial(faulty.Sound, matrix=made)
  answer = _Audit(make, _specification(stated), seed=0).answer('correlation')
  assert answer.verdict == FAIL
  assert answer.statistic > 20


@pytest.mark.slow
@pytest.mark.parametrize('size', [0.95, 1.05])
@pytest.mark.deep(but=('0.95',))
def test_noise_of_another_size_is_found(size):
  specification = dataclasses.replace(
    _specification(), z_stddev=faulty.Z / size
  )
  audit = _Audit(faulty.Sound, specification, seed=0)
  answer = audit.answer('size')
  assert answer.verdict == FAIL
  assert answer.statistic == pytest.approx(size, rel=0.02)
  assert audit.answer('correlation').verdict == PASS


@pytest.mark.slow
@pytest.mark.parametrize(
  'fault, question',
  [
    ('Sound', None),
    ('ByLayer', 'influence'),
    ('NanKept', 'influence'),
    ('ClipOfTheSum', 'influence'),
    ('WeightNan', 'influence'),
    ('ByNumberOfAllClients', 'divisor'),
    ('WeightsByExamples', 'divisor'),
    ('LittleInOneCoordinate', 'size'),
    ('NoneIfAllAreZero', 'size'),
    ('FixedSeed', 'correlation'),
  ],
)
@pytest.mark.deep(
  but=('Sound', 'NanKept', 'ByNumberOfAllClients', 'LittleInOneCoordinate')
)
def test_function_without_a_variant_without_noise(fault, question):
  """The noise hides neither a clip nor a divisor of 100 clients."""
  make = faulty.FAULTS[fault][0] if question else faulty.Sound
  make = functools.partial(faulty.function, make)
  if question:
    assert _Audit(make, seed=0).answer(question).verdict == FAIL
  else:
    expected = {**_SOUND, 'sums': CANNOT_TELL, 'replay': CANNOT_TELL}
    assert _verdicts(_answers(make)) == expected


@pytest.mark.slow
def test_much_noise_and_few_clients_cannot_tell():
  """No answer passes whose test could not have failed."""
  specification = conformance.Specification(faulty.CLIP, 50.0, 2, np.eye(4))
  make = functools.partial(faulty.function, faulty.VeryNoisy)
  answers = _verdicts(_answers(make, specification, draws=1))
  assert answers.pop('size') == PASS
  assert answers.pop('correlation') == PASS
  assert set(answers.values()) == {CANNOT_TELL}


@pytest.mark.slow
def test_same_noise_at_every_start_is_found(tmp_path, monkeypatch):
  """The generator of a module is the same whenever a program starts."""
  (tmp_path / 'starts.py').write_text(
    'import faulty_aggregators as faulty, numpy as np\n'
    'generator = np.random.default_rng(5)\n'
    'class Aggregator(faulty.Sound):\n'
    '  def normals(self, t, size):\n'
    '    return generator.normal(size=size)\n'
  )
  monkeypatch.chdir(tmp_path)
  name = 'starts:Aggregator'
  make = aggregators.load(name)
  again = functools.partial(aggregators.load, name, again=True)
  answer = _Audit(make, seed=0, again=again).answer('correlation')
  assert answer.verdict == FAIL and 'two runs' in answer.unit


@pytest.mark.slow
def test_one_client_a_round():
  class One(faulty.Sound):
    def divisor(self, updates):
      return 1

  answers = _answers(One, _specification(clients=1))
  assert _verdicts(answers) == {
    **_SOUND, 'sums': CANNOT_TELL, 'divisor': CANNOT_TELL
  }  # fmt: skip


@pytest.mark.slow
def test_draws_that_reach_the_end_of_float32_normals_tell(monkeypatch):
  monkeypatch.setattr(arithmetic_attacks, 'TAIL', 3.2)
  sound, cut = (
    _Audit(make, draws=1 << 20, seed=0).answer('tails')
    for make in (faulty.Sound, faulty.FAULTS['TailCut'][0])
  )
  assert sound.verdict == PASS
  assert cut.verdict == FAIL and cut.statistic < cut.least


def _noise(normals, runs=1):
  """Whitened noise of runs of two probes, with two layers."""
  names = ['a', 'b'] * (len(normals) // runs // 2)
  starts = [0, 32, normals.shape[1]]
  return [
    whitened.Noise(each, names, starts) for each in np.split(normals, runs)
  ]


def _many(normals, draws, beyond, thresholds, grids=None):
  return conformance.Many(
    _noise(normals)[0], draws, thresholds, np.array(beyond), grids
  )


def test_default_draws_tell_whether_tails_end_at_float32():
  draws = arithmetic_attacks.TAIL_DRAWS
  thresholds = arithmetic_attacks.TAIL, 5.4
  expected = 2 * draws * scipy.stats.norm.sf(thresholds)
  tests = conformance.counts_beyond
  for at_tail, failed in ((round(expected[0]), False), (0, True)):
    beyond = at_tail, round(expected[1])
    found = tests(draws, thresholds, beyond, arithmetic_attacks.FALSE_ALARM)
    assert found[0].least > 0 and found[0].failed == failed


# False alarms, at a rate that is large enough to be counted.


_RATE, _TRIALS = 0.1, 200
# The number of alarms at this rate is between these but for one time in 10^6.
_FEWEST, _MOST = scipy.stats.binom.interval(1 - 1e-6, _TRIALS, _RATE)


def _alarms(ask, trials=_TRIALS):
  """Returns how many of sound samples fail a test."""
  random = np.random.default_rng(5)
  return sum(ask(random.normal(size=[24, 96])) for _ in range(trials))


@pytest.mark.slow
def test_false_alarms_of_sizes_are_at_most_as_stated():
  """Sums over rows and sums over columns have some of their normals alike."""

  def ask(normals):
    return whitened.sizes(_noise(normals), [normals[0]], _RATE).failed

  assert 0 < _alarms(ask) <= _MOST


@pytest.mark.slow
def test_false_alarms_of_correlations_are_at_most_as_stated():
  def ask(normals):
    return whitened.correlations([_noise(normals, 2)], _RATE)[0].failed

  assert 0 < _alarms(ask) <= _MOST


@pytest.mark.slow
def test_false_alarms_of_shape_are_at_most_as_stated():
  def ask(normals):
    return whitened.shape(_noise(normals)[0], 'here', _RATE).failed

  assert 0 < _alarms(ask) <= _MOST


def test_false_alarms_of_large_normals_are_at_most_as_stated():
  def ask(normals):
    beyond = [np.sum(np.abs(normals) > each) for each in (2.5, 1.5)]
    tests = conformance.counts_beyond(normals.size, (2.5, 1.5), beyond, _RATE)
    return any(test.failed for test in tests)

  assert 0 < _alarms(ask) <= _MOST


@pytest.mark.slow
def test_false_alarms_of_low_bits_are_at_most_as_stated():
  subject = _Audit(None, false_alarm=_RATE / conformance._SHARE).subject

  def ask(normals):
    grids = [
      # Releases that are small, on a lattice.
      conformance._on_grids(
        np.rint(half * 16) * 2.0**-20 / faulty.CLIENTS, 2.0**-10, faulty.CLIENTS
      )
      for half in np.split(normals, 2)
    ]
    many = _many(normals, normals.size, (0, 0), (1.0, 1.0), np.array(grids))
    return conformance.low_bits(subject, many).verdict == FAIL

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
  audit = _Audit(_CoarseNoiseInOddRounds, draws=1 << 22, seed=0)
  assert audit.answer('low_bits').verdict == PASS


@pytest.mark.slow
def test_false_alarms_of_influence_and_divisor_are_at_most_as_stated():
  """The noise hides what clients add."""
  counts = collections.Counter()
  trials = 10
  make = functools.partial(faulty.function, faulty.Sound)
  for seed in range(trials):
    audit = _Audit(make, seed=seed, false_alarm=_RATE / conformance._SHARE)
    counts.update(
      audit.answer(question).verdict for question in ('influence', 'divisor')
    )
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
@pytest.mark.parametrize(
  'name, status', [('Sound', 0), ('FirstClientTwice', 1)]
)
def test_command_exits_with_0_only_if_all_pass(
  run, tmp_path, monkeypatch, name, status
):
  monkeypatch.setattr(arithmetic_attacks, 'TAIL', 3.2)
  command = _command(tmp_path, monkeypatch, name)
  found, out, _ = run(*command)
  assert found == status
  assert out.count(' pass  ') + out.count('fail  ') == 8
  assert (out.count('fail  ') > 0) == bool(status)
  if status:
    found, out, _ = run(*command, '--json')
    record = json.loads(out)
    assert (found, record['holds']) == (status, False)
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
      'noise_multiplier=None: exactly one of noise_multiplier and z_stddev',
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
