"""The list of mutants fits the tree, and every PRIVACY mark has its guard."""

import ast
import functools
import pathlib

import mutants
import pytest

_MUTANTS = mutants.read()
_MARKS = list(mutants.marks())
# Here every mark needs a mutant. Elsewhere some still lack one.
_EVERY_MARK = (
  'tff_bandmf/accounting/',
  'tff_bandmf/cli/',
  'tff_bandmf/optimize/',
  'tff_bandmf/_files.py',
  'tff_bandmf/flower.py',
  'tff_bandmf/participation/',
  'tff_bandmf/cohorts/',
  'tff_bandmf/ledger/',
  'tff_bandmf/plan/',
  'tff_bandmf/run_files/',
  'tff_bandmf/tff/',
  'tff_bandmf/sensitivity/',
  'tff_bandmf/strategies/',
)


@functools.cache
def _tests(name):
  """Returns the names of the test functions of a file."""
  return frozenset(
    node.name
    for path in (mutants.ROOT / 'tests').rglob(f'{name}.py')
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.FunctionDef)
  )


def _exists(test):
  file, _, name = test.partition('.')
  return name in _tests(file)


@functools.cache
def _statements(content):
  """Returns the statements of a file, and not its comments."""
  return [ast.dump(each) for each in ast.parse(content).body]


@pytest.mark.parametrize('mutant', _MUTANTS, ids=str)
def test_mutant_changes_the_program(mutant):
  content = (mutants.ROOT / mutant.file).read_text()
  changed = mutant.applied(content)
  assert changed != content
  if mutant.file.endswith('.py'):
    # Not only a comment.
    assert _statements(content) != _statements.__wrapped__(changed)


@pytest.mark.parametrize('mutant', _MUTANTS, ids=str)
def test_tests_of_a_mutant_exist(mutant):
  assert mutant.tests
  assert [test for test in mutant.tests if not _exists(test)] == []


def test_no_mutant_is_there_twice():
  assert len({(m.file, m.old, m.new) for m in _MUTANTS}) == len(_MUTANTS)


def test_every_privacy_mark_names_a_guard_that_exists():
  assert len(_MARKS) > 80
  assert [
    f'{mark.file}:{mark.line}: {mark.guards or "no guard"}'
    for mark in _MARKS
    if not mark.guards or not all(map(_exists, mark.guards))
  ] == []


def test_no_privacy_mark_is_overlooked():
  """The word stands in no form that `mutants.marks` does not read."""
  found = {(mark.file, mark.line) for mark in _MARKS}
  assert [
    f'{path.relative_to(mutants.ROOT)}:{line}: {text}'
    for folder in ('benchmarks', 'docs', 'simulations', 'tff_bandmf')
    for path in sorted((mutants.ROOT / folder).rglob('*.py'))
    for line, text in enumerate(path.read_text().splitlines(), 1)
    if 'PRIVACY' in text
    and (str(path.relative_to(mutants.ROOT)), line) not in found
  ] == []


def test_every_privacy_mark_has_a_mutant():
  """Folders that this covers are in `_EVERY_MARK`; mutants.py tells more."""
  noticed = {(m.file, test) for m in _MUTANTS for test in m.tests}
  assert [
    f'{mark.file}:{mark.line}: {mark.guards}'
    for mark in _MARKS
    if mark.file.startswith(_EVERY_MARK)
    and not any((mark.file, guard) in noticed for guard in mark.guards)
  ] == []


def test_marks_are_read_with_their_guards(tmp_path):
  (tmp_path / 'tff_bandmf').mkdir()
  (tmp_path / 'tff_bandmf' / 'a.py').write_text('''
"""PRIVACY: a docstring. Guards: a_test.test_a and
test_b.

Guard: a_test.test_c
"""
# PRIVACY: one after another. Guard:
# a_test.test_d.
# PRIVACY: none is named.
x = 1  # PRIVACY: too few. Guard: they differ.
# PRIVACY: guards are a_test.test_a and
# b_test.test_b.
# PRIVACY: another line. Guard: the same.
''')
  assert [(mark.line, mark.guards) for mark in mutants.marks(tmp_path)] == [
    (2, ('a_test.test_a', 'a_test.test_b')),
    (7, ('a_test.test_d',)),
    (9, ()),
    (10, ()),
    (11, ('a_test.test_a', 'b_test.test_b')),
    (13, ('a_test.test_a', 'b_test.test_b')),
  ]


_ENTRY = """
[[mutant]]
file = 'program.py'
old = 'return a + b'
new = '{}'
tests = ['program_test.test_sum']
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  ('test', 'changes', 'status', 'said'),
  [
    ('program.add(1, 2) == 3', ['return a - b'], 0, '1 of 1 were noticed'),
    (
      'program.add(1, 0) == 1',
      ['return a - b', 'return b'],
      1,
      'survived: program.py: return a - b',
    ),
    ('program.add(1, 2) == 4', ['return b'], 2, 'fail without any change'),
  ],
)
def test_survivors_are_reported(
  tmp_path, capsys, monkeypatch, test, changes, status, said
):
  root = tmp_path / 'tree'
  (root / 'tests').mkdir(parents=True)
  program = 'def add(a, b):\n  return a + b\n'
  (root / 'program.py').write_text(program)
  (root / 'tests' / 'program_test.py').write_text(
    f'import program\n\n\ndef test_sum():\n  assert {test}\n'
  )
  (root / mutants.LIST).write_text(
    ''.join(_ENTRY.format(change) for change in changes)
  )
  assert mutants.main([], root) == status
  assert said in capsys.readouterr().out
  assert (root / 'program.py').read_text() == program


def test_change_that_does_not_fit_is_refused():
  mutant = mutants.Mutant('program.py', 'x', 'y', ('a_test.test_a',))
  for content in ('no such line', 'x = x'):
    with pytest.raises(ValueError, match='not once'):
      mutant.applied(content)
  assert mutant.applied('x = 1') == 'y = 1'


def test_list_is_where_make_looks_for_it():
  recipe = pathlib.Path(mutants.ROOT, 'Makefile').read_text()
  assert 'tests/mutants.py $(ARGS)' in recipe
