"""BUILD says what the imports say, and Bazel reads it."""

import ast
import collections
import dataclasses
import functools
import glob
import pathlib
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_FOLDERS = (
  'benchmarks',
  'docs',
  'examples',
  'simulations',
  'tests',
  'tff_bandmf',
)


@dataclasses.dataclass(frozen=True)
class _Target:
  kind: str
  srcs: frozenset
  deps: frozenset
  data: frozenset


def _read_as_python():
  """Returns the targets of BUILD by name; BUILD is valid Python."""
  targets = {}

  def rule(kind):
    def add(name, srcs, deps=(), data=(), **_):
      assert name not in targets
      assert len(set(srcs)) == len(srcs)
      targets[name] = _Target(
        kind,
        frozenset(srcs),
        frozenset(dep.lstrip(':') for dep in deps),
        frozenset(data),
      )

    return add

  def find(include, exclude=()):
    found, left_out = (
      {
        str(pathlib.Path(path).relative_to(_ROOT))
        for pattern in patterns
        for path in glob.glob(str(_ROOT / pattern), recursive=True)
        if pathlib.Path(path).is_file()
      }
      for patterns in (include, exclude)
    )
    return sorted(found - left_out)

  def ignore(*args, **kwargs):
    pass

  kinds = ('py_library', 'py_binary', 'py_test')
  exec(
    (_ROOT / 'BUILD').read_text(),
    {
      **{kind: rule(kind) for kind in kinds},
      'glob': find,
      'load': ignore,
      'package': ignore,
      'licenses': ignore,
      'exports_files': ignore,
    },
  )
  return targets


_TARGETS = _read_as_python()
_LIBRARY_OF = {
  path: name
  for name, target in _TARGETS.items()
  if target.kind == 'py_library'
  for path in target.srcs
}


def _of_kind(kind):
  return sorted(
    name for name, target in _TARGETS.items() if target.kind == kind
  )


@functools.cache
def _imported_modules(path):
  """Returns what a file may import, and what is around that, as paths."""
  found = set()
  for node in ast.walk(ast.parse((_ROOT / path).read_text())):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      names = [f'{node.module}.{alias.name}' for alias in node.names]
    else:
      continue
    for name in names:
      parts = name.split('.')
      for end in range(1, len(parts) + 1):
        found.add('/'.join(parts[:end]))
  return found


def _imported_libraries(paths):
  """Returns the libraries that hold what files import."""
  found = set()
  for path in paths:
    for module in _imported_modules(path):
      # Tests import helpers, and files beside them, by their bare names.
      for file in (
        f'{module}.py',
        f'{module}/__init__.py',
        f'tests/helpers/{module}.py',
        f'{pathlib.Path(path).parent}/{module}.py',
      ):
        found |= {_LIBRARY_OF[file]} if file in _LIBRARY_OF else set()
  return found


def _reached(names):
  """Returns targets and all that they depend on."""
  reached = set()
  todo = list(names)
  while todo:
    name = todo.pop()
    if name not in reached:
      reached.add(name)
      todo += _TARGETS[name].deps
  return reached


def test_deps_are_the_imports():
  for name in _of_kind('py_library'):
    target = _TARGETS[name]
    assert target.srcs, name
    # The package's own __init__ comes with every dependency.
    assert name == 'tff_bandmf' or target.deps - {'tff_bandmf'} == (
      _imported_libraries(target.srcs) - {name, 'tff_bandmf'}
    ), name


def test_dependencies_are_not_cyclic():
  for name, target in _TARGETS.items():
    assert name not in _reached(target.deps), name


def test_every_source_is_in_one_library_or_test():
  listed = collections.Counter(
    path
    for target in _TARGETS.values()
    if target.kind != 'py_binary'
    for path in target.srcs
  )
  written = {
    str(path.relative_to(_ROOT))
    for folder in _FOLDERS
    for path in (_ROOT / folder).rglob('*.py')
  }
  assert set(listed) == written
  # Where all tests start.
  assert {path for path, count in listed.items() if count > 1} == {
    'tests/run.py'
  }


def test_every_data_file_is_with_its_package():
  listed = {
    path for name in _of_kind('py_library') for path in _TARGETS[name].data
  }
  written = {
    str(path.relative_to(_ROOT))
    for folder in ('tff_bandmf', 'simulations')
    for path in (_ROOT / folder).rglob('*')
    if path.is_file() and path.suffix not in ('.py', '.pyc')
  }
  assert written <= listed
  assert all((_ROOT / path).is_file() for path in listed)


@pytest.mark.parametrize('name', _of_kind('py_binary'))
def test_binary_is_of_the_library_that_it_depends_on(name):
  target = _TARGETS[name]
  assert {_LIBRARY_OF[path] for path in target.srcs} == target.deps


def test_test_reaches_what_it_imports():
  for name in _of_kind('py_test'):
    target = _TARGETS[name]
    assert f'tests/{name}.py' in target.srcs
    assert _imported_libraries(target.srcs) <= _reached(target.deps), name


def test_rules_come_from_the_module_that_each_bazel_has():
  """Bazel has no rules of Python from version 9 on, and no WORKSPACE."""
  calls = collections.defaultdict(dict)

  def read(path):
    def record(kind):
      return lambda *args, **kwargs: calls[path, kind].update(
        {kwargs.get('name', str(args[:1])): (args, kwargs)}
      )

    kinds = ('module', 'bazel_dep', 'workspace', 'local_repository', 'load')
    rules = {*kinds, *('package', 'licenses', 'exports_files', 'glob')}
    rules |= {f'py_{kind}' for kind in ('library', 'binary', 'test')}
    names = {kind: record(kind) for kind in rules}
    names['glob'] = lambda *_, **__: []
    exec((_ROOT / path).read_text(), names)

  for path in ('BUILD', 'MODULE.bazel', 'WORKSPACE'):
    read(path)
  ((loaded, _),) = calls['BUILD', 'load'].values()
  assert loaded[0] == '@rules_python//python:defs.bzl'
  assert {*loaded[1:]} == {target.kind for target in _TARGETS.values()}
  assert {*calls['MODULE.bazel', 'module']} == {'tff_bandmf'}
  assert {*calls['MODULE.bazel', 'bazel_dep']} == {'rules_python'}
  _, local = calls['WORKSPACE', 'local_repository']['rules_python']
  native = (_ROOT / local['path'] / 'python' / 'defs.bzl').read_text()
  assert all(f'{kind} = native.{kind}\n' in native for kind in loaded[1:])


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('bazel'), reason='bazel is not installed')
def test_bazel_reads_the_same(tmp_path):
  bazel = ['bazel', '--nohome_rc', f'--output_user_root={tmp_path}', '--batch']
  query = subprocess.run(
    [*bazel, 'query', '--noshow_progress', '--output=xml', '//...'],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert query.returncode == 0, query.stderr
  # It says XML 1.1, of which Python reads no more than its first line.
  read = {
    rule.get('name').removeprefix('//:'): _Target(
      rule.get('class'),
      *(
        frozenset(
          label.get('value').removeprefix('//:')
          for label in rule.iterfind(f'list[@name="{field}"]/label')
        )
        for field in ('srcs', 'deps', 'data')
      ),
    )
    for rule in ElementTree.fromstring(
      query.stdout.replace('version="1.1"', 'version="1.0"')
    ).iterfind('rule')
  }
  assert read == _TARGETS
