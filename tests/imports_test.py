"""Tests that packages import one way only, and nothing heavy by accident."""

import ast
import functools
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent

# Each package imports only from the packages before it. The table of
# architecture.md and the docstring of tff_bandmf show these lines:
#   python tests/imports_test.py  writes both.
_FLOORS = {
  'Core: the mechanism and its guarantee': {
    'errors': 'one-line error messages: name=value, the rule, the remedy',
    '_blas': 'the number of threads of BLAS',
    '_checks': 'checks of arguments that many packages use',
    '_files': 'atomic writes, locks, and files that hold secrets',
    '_figures': 'pictures of strategies, plans, runs and reports',
    'workloads': 'the workload matrix A: prefix sums, momentum, learning rates',
    'participation': 'schemas: the rounds in which one client may take part',
    'clipping_norm': 'the norm of clipped updates, constant or adaptive',
    'strategies': 'the strategy matrix C, its errors and its file',
    'sensitivity': 'the sensitivity of C, exact or bounded',
    'optimize': 'the search for C',
    'accounting': 'noise, zCDP and epsilon, also for sampled cohorts',
    'choosing': 'families of C, ranked by error at the same (epsilon, delta)',
    'noise': 'the noise C^-1 Z from a key, in NumPy or in a TensorFlow graph',
    'query': 'clipping, sums and noise, in NumPy or as a TF Privacy query',
    'tff': "TFF's functions and types, its local runtime, worker processes",
    'aggregator': 'a `tff.aggregators` factory (needs TensorFlow Federated)',
    'plan': 'the rounds, strategy, noise and guarantee of a run',
  },
  'Applications: runs and their reports': {
    'cohorts': 'the clients that may take part in a round',
    'ledger': 'the durable list of the clients of each round',
    'run_files': 'the folder of a run on disk',
    'report': 'privacy reports of runs, and of training outside this library',
    'run': 'the rounds of a run, from its plan to its report',
    'flower': 'training with Flower, whose server rounds are rounds of a run',
    'verify': 'the check of a run or a report, without the other packages',
  },
  'Additions, and the command': {
    'reproduction': 'published tables, computed again',
    'audit': 'attacks on a claimed epsilon',
    'cli': 'the `bandmf` command',
    '__main__': 'the same command, as `python -m tff_bandmf`',
  },
}
_ROOMS = {
  name: text for floor in _FLOORS.values() for name, text in floor.items()
}
_ORDER = list(_ROOMS)

_WITHOUT_TENSORFLOW = [
  'errors',
  '_blas',
  '_checks',
  '_files',
  '_figures',
  'workloads',
  'participation',
  'clipping_norm',
  'strategies',
  'sensitivity',
  'accounting',
  'choosing',
  'reproduction',
  'report',
  'verify',
  'cli',
]

_TENSORFLOW = ('tensorflow', 'tensorflow_privacy', 'tensorflow_federated')

_FILES = sorted(
  path.relative_to(_ROOT)
  for package in ('tff_bandmf', 'simulations')
  for path in (_ROOT / package).rglob('*.py')
)


def _modules(nodes):
  """Yields the dotted names that import statements among the nodes name."""
  for node in nodes:
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield alias.name
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, 'imports are absolute'
      for alias in node.names:
        yield f'{node.module}.{alias.name}'


@functools.cache
def _tree(path):
  return ast.parse((_ROOT / path).read_text())


@functools.cache
def _imports(path):
  """Returns what a file imports, functions included."""
  return set(_modules(ast.walk(_tree(path))))


def _is_for_type_checkers(node):
  return isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING'


def _executed(node):
  """Yields the nodes that importing a module executes."""
  for child in ast.iter_child_nodes(node):
    if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
      continue
    if _is_for_type_checkers(child):
      continue
    yield child
    yield from _executed(child)


@functools.cache
def _imports_at_run_time(path):
  """Returns what a file imports, but for what its annotations alone name."""
  named = {
    name
    for node in ast.walk(_tree(path))
    if _is_for_type_checkers(node)
    for name in _modules(ast.walk(node))
  }
  return _imports(path) - named


@functools.cache
def _imports_at_module_level(path):
  return set(_modules(_executed(_tree(path))))


def _package(path):
  """Returns the name in `_ORDER` of a file of tff_bandmf; '' for its root."""
  if path == pathlib.Path('tff_bandmf/__init__.py'):
    return ''
  return path.parts[1].replace('.py', '')


def _own(imports):
  """Returns the packages of tff_bandmf that are imported."""
  return {
    name.split('.')[1] for name in imports if name.startswith('tff_bandmf.')
  }


def _of(imports, tops):
  return {name for name in imports if name.split('.')[0] in tops}


def _table():
  """Returns the rows of rooms in docs/architecture.md."""
  paths = {
    name: f'tff_bandmf/{name}'
    + ('.py' if (_ROOT / 'tff_bandmf' / f'{name}.py').exists() else '')
    for name in _ORDER
  }
  return ''.join(
    f'| **{floor}** | |\n'
    + ''.join(f'| `{paths[name]}` | {text} |\n' for name, text in rooms.items())
    for floor, rooms in _FLOORS.items()
  )


def _list():
  """Returns the lines of rooms in the docstring of tff_bandmf."""
  width = max(map(len, _ORDER)) + 1
  return '\n'.join(
    f'{floor}\n'
    + ''.join(f'  {name:{width}} {text}\n' for name, text in rooms.items())
    for floor, rooms in _FLOORS.items()
  )


_PAGES = (
  (
    _ROOT / 'docs' / 'architecture.md',
    r'(room for \|\n\|---\|---\|\n)((?:\| [`*].*\n)+?)(?=\| `simulations)',
    _table,
  ),
  (
    _ROOT / 'tff_bandmf' / '__init__.py',
    r'(from the packages before it:\n\n)((?:.*\n)+?)(?=\nAn import)',
    _list,
  ),
)


@pytest.mark.parametrize(
  'path, pattern, rooms', _PAGES, ids=['page', 'package']
)
def test_rooms_are_listed_as_they_are_ordered(path, pattern, rooms):
  assert re.search(pattern, path.read_text())[2] == rooms()


def test_every_package_has_its_place():
  packages = {
    _package(path) for path in _FILES if path.parts[0] == 'tff_bandmf'
  }
  assert packages - {''} == set(_ORDER)


_LIBRARY = [path for path in _FILES if path.parts[0] != 'simulations']


@pytest.mark.slow
def test_imports_go_one_way():
  for path in _LIBRARY:
    package = _package(path)
    # The face of the library is imported name by name, when one is used.
    imports = _imports(path) if package else _imports_at_module_level(path)
    assert not _of(imports, ['simulations', 'tests']), path
    allowed = set()
    if package:
      allowed = set(_ORDER[: _ORDER.index(package) + 1]) | {'__version__'}
    assert _own(imports) <= allowed, path


def test_tensorflow_federated_is_imported_where_it_is_needed():
  for path in _LIBRARY:
    imported = _imports_at_run_time(path)
    packages = ['tensorflow_federated', 'federated_language']
    assert not _of(imported, packages), path
    if _package(path) != 'aggregator' and path.parts[1:] not in (
      ('tff', 'runtime.py'),
      ('tff', 'remote_workers.py'),
      ('audit', 'aggregators.py'),
      ('audit', 'canaries.py'),
      ('run', 'train_model.py'),
    ):
      assert 'tff_bandmf.tff.names' not in imported, path


def test_matplotlib_is_imported_when_something_is_drawn():
  for path in _LIBRARY:
    if _package(path) not in ('_figures', 'reproduction'):
      assert not _of(_imports_at_run_time(path), ['matplotlib']), path
      assert 'tff_bandmf._figures' not in _imports_at_module_level(path), path


def test_jax_is_imported_by_its_backend_only():
  for path in _FILES:
    if path.name not in ('jax_generator.py', 'jax_devices.py'):
      assert not _of(_imports(path), ['jax', 'jaxlib']), path
      # Else it would be imported with NumPy's backend too.
      assert not {
        name.rsplit('.', 1)[-1] for name in _imports_at_module_level(path)
      } & {'jax_generator', 'jax_devices'}, path


@pytest.mark.parametrize('package', _WITHOUT_TENSORFLOW)
def test_tensorflow_is_not_imported_with_the_module(package):
  todo = [
    path
    for path in _FILES
    if path.parts[0] == 'tff_bandmf' and _package(path) == package
  ]
  assert todo
  _follow(todo)


@pytest.mark.parametrize(
  'module',
  [
    'run/run',
    'query/noisy_mean',
    'cohorts/__init__',
    'audit/auditing',
    'flower',
  ],
)
def test_tensorflow_is_not_imported_with_a_release_in_numpy(module):
  _follow([pathlib.Path(f'tff_bandmf/{module}.py')])


def _follow(todo):
  """Follows what files import when they are imported, module by module."""
  seen, files = set(), set(_FILES)
  while todo:
    path = todo.pop()
    if path in seen or path not in files:
      continue
    seen.add(path)
    imports = _imports_at_module_level(path)
    assert not _of(imports, _TENSORFLOW), path
    # This one imports TFF by its name.
    assert 'tff_bandmf.tff.names' not in imports, path
    for name in imports:
      parts = name.split('.')
      # Each package on the way runs its __init__.
      for end in range(1, len(parts) + 1):
        stem = pathlib.Path(*parts[:end])
        todo += stem / '__init__.py', stem.with_suffix('.py')


def _module(path):
  """Returns the dotted name of a file."""
  stem = path.parent if path.name == '__init__.py' else path.with_suffix('')
  return '.'.join(stem.parts)


def test_no_modules_import_each_other_in_a_circle():
  modules = {_module(path): path for path in _FILES}
  imported = {}
  for name, path in modules.items():
    found = set()
    for each in _imports(path):
      while each and each not in modules:
        each = each.rpartition('.')[0]
      found.add(each)
    imported[name] = (found & set(modules)) - {name}
  while imported:
    ready = [name for name, found in imported.items() if not found]
    assert ready, f'in a circle, or above one: {sorted(imported)}'
    for name in ready:
      del imported[name]
    for found in imported.values():
      found.difference_update(ready)


@pytest.mark.slow
def test_no_test_imports_another():
  for path in (_ROOT / 'tests').rglob('*.py'):
    modules = {name.partition('.')[0] for name in _imports(path)}
    assert not [name for name in modules if name.endswith('_test')], path


def test_checks_see_what_they_forbid(tmp_path):
  path = tmp_path / 'module.py'
  path.write_text(
    'import tensorflow as tf\n'
    'def f():\n'
    '  from tff_bandmf import cli\n'
    'class C:\n'
    '  import tensorflow_federated.x\n'
  )
  assert _own(_imports(path)) == {'cli'}
  assert _own(_imports_at_module_level(path)) == set()
  assert _of(_imports_at_module_level(path), _TENSORFLOW) == {
    'tensorflow',
    'tensorflow_federated.x',
  }


if __name__ == '__main__':
  for path, pattern, rooms in _PAGES:
    text = path.read_text()
    there = re.search(pattern, text)
    path.write_text(text[: there.start(2)] + rooms() + text[there.end(2) :])
