"""Sabotage that tests must notice: marked lines change, and guards must fail.

A `# PRIVACY:` comment names the tests that guard the statement after it, or the
function after it; a docstring names those of its function, class or module:
`Guard: participation_test.test_x`. `make mutants` changes a node of the syntax
tree of each statement that is marked, in a copy of the tree, and runs the
guards there; `mutations.py` has the changes. ARGS='word ...' takes the marks
whose file or guards contain a word.

Guards notice a statement if they fail for one of its first changes. If the
statement is a refusal or a call, they must fail without it, too. A mark holds,
and the next one is tried, if the guards notice half of its statements.
`--all` tries all of these changes, and shows which ones survive; some mean the
same program. An error that any program without a meaning has, such as a wrong
type, does not count, unless the change took a refusal out.

The main process imports the packages that the guards need, and a child tries a
change. A test that hangs has failed. A mark is skipped if pytest skips its
guards: `make mutants-flower` tries those of the strategy for Flower, which is
not installed beside TensorFlow.

Exit status: 0 all marks hold, 1 one does not, 2 a guard fails without a change.
"""

import collections
import dataclasses
import importlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import mutations
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The most changes of a statement that are tried.
_TRIES = 8

# What a copy of the tree does without.
_LEFT_OUT = (
  '.venv*', '.git', '.*cache*', '.hypothesis', '__pycache__', 'runs', 'build',
  'dist', '*.egg-info',
)  # fmt: skip
# Tests that take longer than this, and than three times their time without a
# change, hang.
_SECONDS = 60

NOTICED, SURVIVED, NO_PROGRAM = 'noticed', 'survived', 'no program'
# The guards pass without the statement.
NEEDLESS = 'needless'
_NO_PROGRAM = (TypeError, AttributeError, NameError, ImportError)

_MARK = re.compile(r'(# |^\s*|""")PRIVACY:')
_GUARDS = re.compile(r'\b[Gg]uards?(?::| are)(.*)')
_TEST = re.compile(r'\b(?:(\w+_test)\.)?(test_\w+)')


@dataclasses.dataclass(frozen=True)
class Mark:
  """A comment, or a paragraph of a docstring, that says PRIVACY.

  Attributes:
    file: path from the root of the tree.
    line: where it begins, from 1.
    guards: names like `participation_test.test_x` that it gives.
  """

  file: str
  line: int
  guards: tuple[str, ...]

  def __str__(self) -> str:
    return f'{self.file}:{self.line}'


def _name(item: pytest.Item) -> str:
  return f'{item.path.stem}.{getattr(item, "originalname", item.name)}'


class _Outcomes:
  """A plugin of pytest that collects which tests passed, and how others fail.

  Attributes:
    passed: seconds of tests, by names like `participation_test.test_x`.
    failed: names of tests.
    is_program: whether a test failed with another error than those of a program
      without a meaning.
  """

  def __init__(self, tests: Sequence[str]):
    self._tests = tests
    self.passed: collections.Counter[str] = collections.Counter()
    self.failed: set[str] = set()
    self.is_program = False

  @pytest.hookimpl(trylast=True)
  def pytest_collection_modifyitems(self, items):
    items[:] = [
      item for test in self._tests for item in items if _name(item) == test
    ]

  def pytest_runtest_makereport(self, item, call):
    name = _name(item)
    if call.excinfo is None:
      if call.when == 'call':
        self.passed[name] += call.duration
    elif not isinstance(call.excinfo.value, pytest.skip.Exception):
      self.failed.add(name)
      self.is_program |= not isinstance(call.excinfo.value, _NO_PROGRAM)


class _Tree:
  """A copy of the tree, in which files are changed and tests are run."""

  def __init__(self, root: pathlib.Path, folder: pathlib.Path):
    self._root = root
    self._folder = folder
    self._copy = folder / 'tree'
    self._number = 0
    self._output = folder / 'output'
    self._answer = folder / 'answer'
    shutil.copytree(root, self._copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))

  def source(self, file: str) -> mutations.Source:
    """Returns a file of the copy."""
    return mutations.Source((self._copy / file).read_text())

  def output(self) -> str:
    """Returns the end of what the last tests printed."""
    return self._output.read_text(errors='replace')[-3000:]

  def unchanged(
    self, tests: Sequence[str]
  ) -> tuple[dict[str, float], Sequence[str]]:
    """Returns the seconds of tests that passed, and the tests that failed.

    It imports what they did, for the children that come.
    """
    answer = self._run(tests, _SECONDS * (10 + len(tests)), True)
    if answer is None:
      return {}, tests
    for name in answer['modules']:
      if name not in sys.modules:
        try:
          importlib.import_module(name)
        except Exception:  # The tests import it themselves.
          pass
    return answer['passed'], answer['failed']

  def changed(
    self, file: str, content: str, tests: Sequence[str], seconds: float
  ) -> str:
    """Returns what tests say of a file with another content.

    Args:
      file: path from the root of the tree.
      content: what the file has.
      tests: the tests that run, until one fails.
      seconds: what they take without a change.
    """
    path = self._copy / file
    original, times = path.read_bytes(), path.stat()
    # No compiled file has this time.
    self._number += 1
    path.write_text(content)
    os.utime(path, (0, self._number))
    answer = self._run(tests, max(_SECONDS, 3 * seconds), False)
    path.write_bytes(original)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if answer is None:
      return NOTICED
    if answer['failed']:
      return NOTICED if answer['is_program'] else NO_PROGRAM
    return SURVIVED if answer['passed'] else NO_PROGRAM

  def _run(
    self, tests: Sequence[str], seconds: float, compiles: bool
  ) -> Optional[dict[str, Any]]:
    """Returns what a child says after its tests, or None if it hangs."""
    self._answer.write_text('{"passed": {}, "failed": [], "modules": []}')
    child = os.fork()
    if not child:
      try:
        self._be_child(tests, compiles)
      finally:
        os._exit(0)
    ends = time.monotonic() + seconds
    while hangs := os.waitpid(child, os.WNOHANG) == (0, 0):
      if time.monotonic() > ends:
        break
      time.sleep(0.02)
    try:
      # With what the tests left behind.
      os.killpg(child, signal.SIGKILL)
      os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
      pass
    return None if hangs else json.loads(self._answer.read_text())

  def _be_child(self, tests: Sequence[str], compiles: bool) -> None:
    """Runs tests in the copy, and writes what came of them."""
    os.setsid()
    with open(os.devnull) as nothing, open(self._output, 'w') as output:
      os.dup2(nothing.fileno(), 0)
      os.dup2(output.fileno(), 1)
      os.dup2(output.fileno(), 2)
    os.chdir(self._copy)
    tests_here = str(pathlib.Path(__file__).parent)
    sys.path[:] = [
      str(self._copy), *(each for each in sys.path if each != tests_here)
    ]  # fmt: skip
    sys.dont_write_bytecode = not compiles
    os.environ.update(PYTHONPATH=str(self._copy), PYTHONDONTWRITEBYTECODE='1')
    files = {test.partition('.')[0] for test in tests}
    outcomes = _Outcomes(tests)
    arguments = ['-q', '-p', 'no:cacheprovider']
    arguments += [f'--basetemp={self._folder / "pytest"}']
    arguments += [
      str(path)
      for file in sorted(files)
      for path in sorted((self._copy / 'tests').rglob(f'{file}.py'))
    ]
    pytest.main(arguments if compiles else ['-x', *arguments], [outcomes])
    modules = [
      name
      for name, module in list(sys.modules.items())
      if 'site-packages' in str(getattr(module, '__file__', None))
    ]
    answer = {
      'passed': outcomes.passed,
      'failed': sorted(outcomes.failed),
      'is_program': outcomes.is_program,
      'modules': modules,
    }
    self._answer.write_text(json.dumps(answer))


def marks(root: pathlib.Path = ROOT) -> Iterator[Mark]:
  """Yields the PRIVACY marks of the packages of a tree."""
  for folder in ('tff_bandmf', 'simulations'):
    for path in sorted((root / folder).rglob('*.py')):
      lines = path.read_text().splitlines()
      guards: tuple[str, ...] = ()
      for i, line in enumerate(lines):
        if _MARK.search(line):
          guards = _guards(lines[i:], guards)
          yield Mark(str(path.relative_to(root)), i + 1, guards)


def _guards(lines: Sequence[str], before: tuple[str, ...]) -> tuple[str, ...]:
  """Returns the tests that the mark at the beginning of the lines names.

  Args:
    lines: from the mark on.
    before: what 'Guard: the same' is, the guards of the mark before.
  """
  comment = lines[0].lstrip().startswith('#')
  text = [lines[0]]
  for line in lines[1:]:
    stripped = line.strip()
    ends = not stripped.startswith('#') if comment else stripped in ('', '"""')
    if ends or 'PRIVACY:' in line:
      break
    text.append(stripped.lstrip('# '))
  found = _GUARDS.search(' '.join(text))
  if found and found.group(1).strip().startswith('the same'):
    return before
  names, file = [], None
  for of, test in _TEST.findall(found.group(1)) if found else ():
    # Only the first of several in one file names the file.
    file = of or file
    names.append(f'{file}.{test}')
  return tuple(names)


def main(arguments: Sequence[str], root: pathlib.Path = ROOT) -> int:
  """Tries the marks that contain a word; returns the exit status."""
  words = [each for each in arguments if each != '--all']
  chosen = [
    mark for mark in marks(root)
    if not words or any(
      word in text for word in words for text in (mark.file, *mark.guards))
  ]  # fmt: skip
  counts: collections.Counter[str] = collections.Counter()
  fail, weak = [], []
  print(f'{len(chosen)} marks', flush=True)
  with tempfile.TemporaryDirectory(prefix='mutants-') as folder:
    tree = _Tree(root, pathlib.Path(folder))
    for file, in_file in itertools.groupby(chosen, lambda mark: mark.file):
      of_file = list(in_file)
      guards = sorted({guard for mark in of_file for guard in mark.guards})
      passed, failed = tree.unchanged(guards)
      if failed:
        fail += failed
        print(f'{failed} fail without a change of {file}\n{tree.output()}')
      for mark in of_file:
        if not set(mark.guards) <= set(passed) - set(failed):
          print(f'skipped {mark} ({", ".join(mark.guards)})', flush=True)
          counts['skipped'] += 1
          continue
        outcomes = _outcomes(tree, mark, passed, '--all' in arguments)
        noticed = outcomes.count(NOTICED)
        holds = noticed and 2 * noticed >= len(outcomes)
        weak += [] if holds else [mark]
        counts['held' if holds else 'weak'] += 1
        print(
          f'{"held" if holds else "WEAK"} {mark}: {noticed} of '
          f'{len(outcomes)} statements',
          flush=True,
        )
  print(dict(counts))
  for mark in weak:
    print(f'weak: {mark} ({", ".join(mark.guards)})')
  return 2 if fail else 1 if weak else 0


def _outcomes(
  tree: _Tree, mark: Mark, passed: Mapping[str, float], every: bool
) -> list[str]:
  """Returns what became of each statement of a mark."""
  # The fastest one first.
  guards = sorted(set(mark.guards), key=passed.__getitem__)
  limit = sum(passed[guard] for guard in guards)
  outcomes = []
  statements = tree.source(mark.file).mutations(mark.line)
  for statement in statements:
    if 2 * outcomes.count(NOTICED) >= len(statements) and not every:
      break
    tried: set[str] = set()
    for mutation in itertools.islice(statement, _TRIES):
      outcome = tree.changed(mark.file, mutation.content, guards, limit)
      if outcome == NO_PROGRAM and mutation.takes_refusal_out:
        outcome = NOTICED
      if outcome == SURVIVED and mutation.takes_statement_out:
        outcome = NEEDLESS
      tried.add(outcome)
      line = f'{outcome:10} line {mutation.line}: {mutation.change}'
      print(f'  {line}', flush=True)
      if outcome in (NEEDLESS, NOTICED) and not every:
        break
    worst_first = NEEDLESS, NOTICED, SURVIVED
    outcomes += [each for each in worst_first if each in tried][:1]
  return outcomes


if __name__ == '__main__':
  # Before anything imports NumPy or TensorFlow.
  os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  sys.exit(main(sys.argv[1:]))
