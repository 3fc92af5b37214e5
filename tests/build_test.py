"""BUILD says what the imports say."""

import ast
import glob
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent


def _targets():
  """Returns the py_library targets of BUILD by name; BUILD is valid Python."""
  libraries = {}

  def py_library(name, srcs, deps=(), data=()):
    libraries[name] = (srcs, {dep.lstrip(':') for dep in deps}, data)

  def find(patterns):
    return sorted(
        str(pathlib.Path(path).relative_to(_ROOT))
        for pattern in patterns for path in glob.glob(str(_ROOT / pattern)))

  def ignore(*args, **kwargs):
    pass

  exec((_ROOT / 'BUILD').read_text(), {
      'py_library': py_library, 'py_binary': ignore, 'py_test': ignore,
      'glob': find, 'package': ignore, 'licenses': ignore,
      'exports_files': ignore})
  return libraries


def _target_of(module):
  """Returns the target that holds a module of ours; None for other modules."""
  parts = module.split('.')
  if parts[0] == 'simulations':
    return 'simulations'
  if parts[0] == 'tff_bandmf':
    return parts[1] if len(parts) > 1 else 'tff_bandmf'
  return None


def _imported_targets(path):
  for node in ast.walk(ast.parse((_ROOT / path).read_text())):
    if isinstance(node, ast.Import):
      modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      modules = [f'{node.module}.{alias.name}' for alias in node.names]
    else:
      continue
    for module in modules:
      target = _target_of(module)
      if target is not None:
        yield target


_LIBRARIES = _targets()


@pytest.mark.parametrize('name', sorted(set(_LIBRARIES) - {'tff_bandmf'}))
def test_deps_are_the_imports(name):
  srcs, deps, _ = _LIBRARIES[name]
  assert srcs
  imported = {
      target for path in srcs for target in _imported_targets(path)}
  # The package's own __init__ comes with every dependency.
  assert deps - {'tff_bandmf'} == imported - {name, 'tff_bandmf'}


def test_every_source_has_a_target():
  listed = {path for srcs, _, _ in _LIBRARIES.values() for path in srcs}
  written = {
      str(path.relative_to(_ROOT))
      for folder in ('tff_bandmf', 'simulations')
      for path in (_ROOT / folder).rglob('*.py')}
  assert listed == written
