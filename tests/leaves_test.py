"""The verifier compares every value that it is given, or says that it does not.

An attacker edits one value of one file of a run, and computes every digest and
the ledger's chain again. The verifier must refuse the run, or name the value
among those that it did not check.
"""

import collections
import json
import shutil

import doctored_runs
import pytest

import tff_bandmf
from tff_bandmf import report, verify

pytestmark = pytest.mark.slow

_FILES = ('run.json', 'plan.json', 'strategy.json', 'result.json')
_MIN_SEP = tff_bandmf.MinSep(4)
# Name of the run: cohorts, other options of `doctored_runs.train`.
_RUNS = {
  'enforced': (tff_bandmf.MinSep(3, 2), {'clients_per_unit': 2}),
  'adaptive': (
    _MIN_SEP,
    {'l2_norm_clip': tff_bandmf.AdaptiveClip(0.1, until=5)},
  ),
  'simulated': (_MIN_SEP, {'stands_for': 9, 'mechanism': 'blt'}),
  'budget': (tff_bandmf.Budget(4, 2, apart=2), {}),
  'fixed-epoch': (tff_bandmf.FixedEpoch(4), {}),
  'cyclic-poisson': (tff_bandmf.CyclicPoisson(population=120), {}),
  'balls-in-bins': (tff_bandmf.BallsInBins(8, population=48), {'epsilon': 4.0}),
  'b-min-sep': (
    tff_bandmf.BMinSep(4, 0.05, population=120),
    {'clients_per_round': 5, 'epsilon': 4.0},
  ),
  'open': (_MIN_SEP, {'stop': 6}),
}
_DEEP = ('simulated', 'fixed-epoch', 'balls-in-bins')
_NOTES = {
  'title': 'A model',
  'owner': 'Somebody',
  'not_covered': ['tuning on other data'],
  'side_releases': ['a count of clients', 'a picture'],
  'tuning': 'none',
}


@pytest.fixture(scope='module')
def runs(request, tmp_path_factory):
  """Returns the folder of all runs that the chosen tests read."""
  folder = tmp_path_factory.mktemp('runs')
  doctored_runs.train(folder / 'first', _MIN_SEP, notes=_NOTES)
  doctored_runs.train(folder / 'after', _MIN_SEP, [folder / 'first'])
  for name, (cohorts, options) in _RUNS.items():
    if name not in _DEEP or request.config.getoption('--deep'):
      doctored_runs.train(folder / name, cohorts, notes=_NOTES, **options)
  return folder


@pytest.fixture(autouse=True)
def _drawn_once(monkeypatch):
  """Most edits leave a claim as it is: the verifier draws its delta once."""
  draw, drawn = verify.sampled_delta, {}

  def once(claim, c, gap, e):
    key = repr((sorted(claim.items()), c.tobytes(), gap, e))
    if key not in drawn:
      drawn[key] = draw(claim, c, gap, e)
    return drawn[key]

  monkeypatch.setattr(verify, 'sampled_delta', once)


def _leaves(value, place=()):
  """Yields (place, value) of the scalars and the empty parts of a value."""
  if isinstance(value, (dict, list)) and value:
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
      yield from _leaves(part, (*place, key))
  else:
    yield place, value


def _others(value):
  """Returns other values of a leaf: larger, smaller, or another word."""
  if isinstance(value, bool):
    return [not value]
  if isinstance(value, int):
    return [value + 1, value - 1]
  if isinstance(value, float):
    return [1.1 * value + 1e-3, 0.9 * value - 1e-3]
  return ['another']


def _edited(content, place, edit):
  """Returns the content with another value of a leaf; None removes the leaf."""
  content = json.loads(json.dumps(content))
  *parents, last = place
  part = content
  for parent in parents:
    part = part[parent]
  if edit is None:
    part.pop(last)
  else:
    part[last] = edit[0]
  return content


def _name(place):
  """Returns the name of a leaf among those that are not checked."""
  return '.'.join(key for key in place if isinstance(key, str))


def _thinned(leaves):
  """Yields the leaves without most points of a curve and of a series."""
  for place, value in leaves:
    in_curve = place[0] == 'epsilon_curve' and len(place) > 1
    if not in_curve or place[1] in (0, 30):
      yield place, value


class _Attack:
  """Edits files of a copied run or report, and verifies it."""

  def __init__(self, source, folder):
    self.path = folder / source.name
    if source.is_dir():
      shutil.copytree(source, self.path)
    else:
      shutil.copy(source, self.path)
    self._files = {
      path: path.read_bytes()
      for path in ([self.path] if source.is_file() else self.path.iterdir())
      if path.is_file()
    }
    self.unchecked = self.verified()

  def verified(self):
    """Returns the names of leaves that are not checked, by the file."""
    listed = verify.verify(self.path)['not_checked']
    return {
      file: {name.replace(' (words)', '') for name in names}
      for file, names in listed.items()
    }

  def write(self, file, content):
    path = self.path if self.path.is_file() else self.path / file
    doctored_runs.write_signed(path, content)
    ended = (self.path / 'result.json').exists()
    if self.path.is_dir() and ended and file != 'report.json':
      doctored_runs.rechained(self.path)

  def outcome(self, file, content):
    """Returns the names that are not checked of an edited file.

    The result is None if the verifier refuses the files, or if the ledger
    cannot be written for them. The files are restored.
    """
    try:
      self.write(file, content)
      return self.verified()[file]
    except (AssertionError, ValueError):
      return None
    finally:
      for path, before in self._files.items():
        path.write_bytes(before)


def _names(folder, file):
  """Returns the names of the leaves of a file; [] for a missing file."""
  path = folder / file
  content = json.loads(path.read_bytes()) if path.exists() else {}
  return {_name(place) for place, _ in _leaves(content)}


def _passed(attack, file, common=(), turn=0):
  """Returns the edits of a file that are neither refused nor named.

  Args:
    attack: the attack.
    file: name of the file.
    common: names of leaves that get one of their edits.
    turn: number that says which edit that is.
  """
  path = attack.path if attack.path.is_file() else attack.path / file
  content = json.loads(path.read_bytes())
  passed = []
  for number, (place, value) in enumerate(_thinned(_leaves(content)), turn):
    # The attacker computes the digests anew.
    hashes = {'content_sha256', *['ledger_head'] * (file == 'result.json')}
    if _name(place) in hashes | attack.unchecked[file]:
      continue
    edits = [*([other] for other in _others(value)), None]
    if _name(place) in common:
      edits = [edits[number % len(edits)]]
    for edit in edits:
      named = attack.outcome(file, _edited(content, place, edit))
      if named is not None and _name(place) not in named:
        passed.append((place, value, edit))
  return passed


@pytest.mark.parametrize('name', [*_RUNS, 'after'])
@pytest.mark.deep(but=[*_RUNS.keys() - _DEEP, 'after'])
def test_edited_value_of_a_run_is_refused_or_named(name, runs, tmp_path):
  """A leaf that most runs have gets another edit in each of them."""
  shutil.copytree(runs / 'first', tmp_path / 'first')
  attack = _Attack(runs / name, tmp_path)
  # Without an end, the chain is in checkpoints alone.
  files = ['report.json', *(_FILES if name != 'open' else ())]
  turn, passed = [*_RUNS, 'after'].index(name), []
  others = [other for other in _RUNS if (runs / other).exists()]
  for file in files:
    counts = collections.Counter(
      each for other in others for each in _names(runs / other, file)
    )
    common = {each for each, count in counts.items() if count > len(others) / 2}
    passed += _passed(attack, file, common, turn)
  assert not passed


@pytest.mark.parametrize(
  'names',
  [['first'], ['first', 'after'], ['cyclic-poisson'], ['b-min-sep'], ['open']],
)
def test_edited_value_of_a_public_report_is_refused_or_named(
  names, runs, tmp_path
):
  sources = [report.of_run(runs / name) for name in names]
  report.publish(sources).write(tmp_path / 'written')
  attack = _Attack(tmp_path / 'written' / 'public.json', tmp_path)
  assert _passed(attack, 'public.json') == []


@pytest.mark.parametrize(
  'names', [['b-min-sep'], ['cyclic-poisson', 'first']], ids=str
)
def test_amplified_epsilon_without_its_run_is_named_as_not_checked(
  names, runs, tmp_path
):
  """Its copies agree, and the report lacks what it follows from."""
  sources = [report.of_run(runs / name) for name in names]
  report.publish(sources).write(tmp_path)
  path = tmp_path / 'public.json'
  together = ['together.epsilon'] * (len(names) > 1)
  expected = {'epsilon', 'runs.epsilon', 'check.claims.amplified', *together}
  listed = verify.verify(path)
  assert expected <= {*listed['not_checked']['public.json']}
  assert 'Not checked in public.json' in verify.verdict(listed)
  # The verifier itself claims no more than what holds without chance.
  assert listed['epsilon'] > json.loads(path.read_bytes())['epsilon']


@pytest.mark.parametrize('file', ['run.json', 'plan.json', 'report.json'])
def test_key_that_nobody_checks_is_named(file, runs, tmp_path):
  """The list follows from the file, so new keys are in it."""
  attack = _Attack(runs / 'enforced', tmp_path)
  content = json.loads((attack.path / file).read_bytes())
  attack.write(file, {**content, 'novelty': {'part': [1]}})
  assert 'novelty.part' in attack.verified()[file]
