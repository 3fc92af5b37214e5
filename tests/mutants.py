"""Sabotage that tests must notice: one line is changed, named tests must fail.

`make mutants` applies the entries of `mutants.toml`, one at a time, to a copy
of the tree and runs their tests there; ARGS='word ...' takes the entries whose
file or tests contain a word. An entry is

  [[mutant]]
  file = 'tff_bandmf/participation/schemas.py'
  old = '''fit = -(-rounds // self.min_sep)'''
  new = '''fit = rounds // self.min_sep'''
  tests = ['participation_test.test_participations_is_the_longest_pattern']

Several changes that the same tests must notice are one entry, in which a list
`changes` of [old, new] stands in the place of `old` and `new`.

Tests of the strategy for Flower run where Flower is installed, which is not
beside TensorFlow: `make mutants-flower` tries their entries.

`old` stands in the file once; where the line alone does not, lines around it
are in both. Exit status: 0 all were noticed, 1 one was not, 2 a test fails
without any change, or an entry is wrong.
"""

import dataclasses
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

if sys.version_info >= (3, 11):
  import tomllib
else:
  import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = pathlib.Path('tests', 'mutants.toml')

# What a copy of the tree does without.
_LEFT_OUT = (
  '.venv*', '.git', '.*cache*', '.hypothesis', '__pycache__', 'runs', 'build',
  'dist', '*.egg-info',
)  # fmt: skip
_SECONDS = 900
_FLOWER = 'tff_bandmf/flower.py'
# Exit statuses of pytest.
_PASSED = 0
_FAILED = 1

_MARK = re.compile(r'(# |^\s*|""")PRIVACY:')
_GUARDS = re.compile(r'\b[Gg]uards?(?::| are)(.*)')
_TEST = re.compile(r'\b(?:(\w+_test)\.)?(test_\w+)')


@dataclasses.dataclass(frozen=True)
class Mutant:
  """A change of a line, and who must notice it.

  Attributes:
    file: path from the root of the tree.
    old: what stands in the file once.
    new: what is put in its place.
    tests: names like `participation_test.test_x`, each of a function.
  """

  file: str
  old: str
  new: str
  tests: tuple[str, ...]

  def applied(self, content: str) -> str:
    """Returns the content of the file with the change.

    Raises:
      ValueError: the old line is not there once.
    """
    count = content.count(self.old)
    if count != 1:
      raise ValueError(
        f'{LIST}: in {self.file} this stands {count} times, not once: '
        f'{self.old}'
      )
    return content.replace(self.old, self.new)

  def __str__(self) -> str:
    return f'{self.file}: {" ".join(self.new.split())}'


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


def read(root: pathlib.Path = ROOT) -> list[Mutant]:
  """Returns the list of a tree."""
  entries = tomllib.loads((root / LIST).read_text())['mutant']
  return [
    Mutant(entry['file'], old, new, tuple(entry['tests']))
    for entry in entries
    for old, new in entry.get('changes') or [(entry['old'], entry['new'])]
  ]


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


def main(words: Sequence[str], root: pathlib.Path = ROOT) -> int:
  """Tries the mutants that contain a word; returns the exit status."""
  chosen = [
    mutant for mutant in read(root)
    if not words or any(
      word in text for word in words for text in (mutant.file, *mutant.tests))
  ]  # fmt: skip
  if not importlib.util.find_spec('flwr'):
    chosen = [each for each in chosen if each.file != _FLOWER]
  survived = []
  with tempfile.TemporaryDirectory(prefix='mutants-') as folder:
    copy = pathlib.Path(folder, 'tree')
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    print(f'{len(chosen)} mutants, {len(tests)} tests', flush=True)
    if _run(copy, tests) != _PASSED:
      print(f'the tests fail without any change:\n{_tail(copy)}')
      return 2
    for number, mutant in enumerate(chosen, 1):
      path = copy / mutant.file
      content = path.read_text()
      started = time.monotonic()
      path.write_text(mutant.applied(content))
      status = _run(copy, mutant.tests)
      path.write_text(content)
      seconds = time.monotonic() - started
      said = {_FAILED: 'noticed', _PASSED: 'SURVIVED'}.get(status, 'BROKEN')
      print(f'{number:3} {said:8} {seconds:4.0f} s  {mutant}', flush=True)
      if status not in (_FAILED, _PASSED):
        print(_tail(copy))
        return 2
      if status == _PASSED:
        survived.append(mutant)
  print(f'{len(chosen) - len(survived)} of {len(chosen)} were noticed')
  for mutant in survived:
    print(f'survived: {mutant} ({", ".join(mutant.tests)})')
  return 1 if survived else 0


def _run(copy: pathlib.Path, tests: Sequence[str]) -> int:
  """Returns the exit status of pytest; a test that hangs has failed."""
  names = [
    f'{path}::{function}'
    for file, function in (test.split('.') for test in tests)
    for path in (copy / 'tests').rglob(f'{file}.py')
  ]
  environment = {
    **os.environ,
    'PYTHONPATH': str(copy),
    # What was compiled from another mutant could be taken for this one.
    'PYTHONDONTWRITEBYTECODE': '1',
  }
  # To a file, since processes that tests leave behind would hold a pipe open.
  with open(copy.parent / 'output', 'w') as output:
    process = subprocess.Popen(
      [sys.executable, '-m', 'pytest', '-q', '-x', '-p', 'no:cacheprovider',
       *names],
      cwd=copy, env=environment, stdin=subprocess.DEVNULL, stdout=output,
      stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
      return process.wait(_SECONDS * len(tests))
    except subprocess.TimeoutExpired:
      return _FAILED
    finally:
      try:
        os.killpg(process.pid, signal.SIGKILL)
      except ProcessLookupError:
        pass
      process.wait()


def _tail(copy: pathlib.Path) -> str:
  return (copy.parent / 'output').read_text()[-3000:]


if __name__ == '__main__':
  try:
    sys.exit(main(sys.argv[1:]))
  except ValueError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
