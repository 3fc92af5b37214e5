"""Tests that packages import one way only, and nothing heavy by accident."""

import ast
import functools
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent

# Each imports only from those before it.
_ORDER = [
  'errors',
  '_checks',
  '_files',
  'workloads',
  'participation',
  'clips',
  'strategies',
  'sensitivity',
  'optimize',
  'accounting',
  'choosing',
  'reproduction',
  'noise',
  'query',
  'aggregator',
  'program',
  'audit',
  'report',
  'run',
  'cli',
]

_WITHOUT_TENSORFLOW = [
  'errors',
  '_checks',
  '_files',
  'workloads',
  'participation',
  'clips',
  'strategies',
  'sensitivity',
  'accounting',
  'choosing',
  'reproduction',
  'report',
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
def _imports(path):
  """Returns what a file imports, functions included."""
  return set(_modules(ast.walk(ast.parse((_ROOT / path).read_text()))))


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
def _imports_at_module_level(path):
  return set(_modules(_executed(ast.parse((_ROOT / path).read_text()))))


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


def test_every_package_has_its_place():
  packages = {
    _package(path) for path in _FILES if path.parts[0] == 'tff_bandmf'
  }
  assert packages - {''} == set(_ORDER)


@pytest.mark.parametrize('path', _FILES, ids=str)
def test_imports_go_one_way(path):
  package = _package(path)
  # The face of the library is imported name by name, when one is used.
  imports = _imports(path) if package else _imports_at_module_level(path)
  if path.parts[0] == 'simulations':
    return
  assert not _of(imports, ['simulations', 'tests'])
  allowed = set()
  if package:
    allowed = set(_ORDER[: _ORDER.index(package) + 1]) | {'__version__'}
  assert _own(imports) <= allowed


@pytest.mark.parametrize('path', _FILES, ids=str)
def test_tensorflow_federated_is_imported_where_it_is_needed(path):
  if path.parts[0] == 'simulations':
    return
  if _package(path) == 'aggregator' or path.parts[1:] in (
    ('program', 'runtime.py'),
    ('program', 'data_source.py'),
    ('program', 'workers.py'),
    ('audit', 'canaries.py'),
    ('run', 'train_model.py'),
  ):
    return
  assert not _of(_imports(path), ['tensorflow_federated'])


@pytest.mark.parametrize('path', _FILES, ids=str)
def test_jax_is_imported_by_its_backend_only(path):
  if path.name not in ('jax_generator.py', 'jax_devices.py'):
    assert not _of(_imports(path), ['jax', 'jaxlib'])
    # Else it would be imported with NumPy's backend too.
    assert not {
      name.rsplit('.', 1)[-1] for name in _imports_at_module_level(path)
    } & {'jax_generator', 'jax_devices'}


@pytest.mark.parametrize('package', _WITHOUT_TENSORFLOW)
def test_tensorflow_is_not_imported_with_the_module(package):
  """Follows the imports of a package, module by module."""
  todo = [
    path
    for path in _FILES
    if path.parts[0] == 'tff_bandmf' and _package(path) == package
  ]
  assert todo
  seen = set()
  while todo:
    path = todo.pop()
    if path in seen:
      continue
    seen.add(path)
    imports = _imports_at_module_level(path)
    assert not _of(imports, _TENSORFLOW), path
    for name in imports:
      parts = name.split('.')
      # Each package on the way runs its __init__.
      for end in range(1, len(parts) + 1):
        stem = pathlib.Path(*parts[:end])
        for file in (stem / '__init__.py', stem.with_suffix('.py')):
          if file in _FILES:
            todo.append(file)


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
