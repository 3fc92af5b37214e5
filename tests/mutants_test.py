"""Every PRIVACY mark has guards and changes; guards that fail are reported."""

import ast
import functools
import itertools
import pathlib
import subprocess
import sys

import mutants
import mutations
import pytest

_MARKS = list(mutants.marks())


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


def test_every_privacy_mark_names_a_guard_that_exists():
  assert len(_MARKS) > 500
  assert [
    f'{mark}: {mark.guards or "no guard"}'
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


@pytest.mark.slow
def test_every_privacy_mark_has_a_change():
  without = []
  for file, of_file in itertools.groupby(_MARKS, lambda mark: mark.file):
    source = mutations.Source((mutants.ROOT / file).read_text())
    for mark in of_file:
      changes = itertools.chain(*source.mutations(mark.line))
      without += [] if next(changes, None) else [str(mark)]
  assert without == []


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


@pytest.mark.parametrize(
  ('statement', 'changes'),
  [
    (
      'if x < y: raise',
      ['if False: raise', 'if x <= y: raise', 'if x < y: pass'],
    ),
    ('if not x and y: y = 1', ['if y: y = 1', 'if x and y: y = 1']),
    ('x = min(x, y)', ['x = max(x, y)', 'x = x']),
    ('return math.ceil(x)', ['return math.floor(x)', 'return x']),
    ('return x * y + 1', ['return x * y', 'return x * y - 1', 'return y + 1']),
    ('f(x, key=y)', ['pass', 'f(x)', 'x']),
    ('f(x, y)', ['f(y, x)']),
    ('return f(x.part)', ['return f(x.part + 1)']),
    ('y[0] = x', ['pass', 'y[1] = x']),
    ('z = 0\n  return x', ['z = 0\n  return z', 'z = 1\n  return x']),
    ('return x.part + x.rest', ['return x.rest + x.rest']),
    ('return x if y else 0', ['return x', 'return 0']),
    ('return x[1:]', ['return x']),
    (
      'return x > 0.5',
      [
        'return x > 1.0',
        'return x > 0.25',
        'return x > 0.0',
        'return x >= 0.5',
      ],
    ),
    ('return [z for z in x if y]', ['return [z for z in x]']),
    ('return {x: 1, y: 2}', ['return {y: 2}', 'return {x: 1}']),
    ('for z in x: f(z)', ['for z in (): f(z)', 'for z in x: pass']),
    ('with x: f(y)', ['if True: f(y)', 'with x: pass']),
    ('try: f()\n  except E: y', ['try: f()\n  except ZeroDivisionError: y']),
  ],
)
def test_statement_after_a_mark_is_changed(statement, changes):
  head = 'def function(x, y):\n  # PRIVACY: a sentence.\n  '
  (of_file,) = [mutations.Source(f'{head}{statement}\n').mutations(2)]
  results = [each.content for each in itertools.chain(*of_file)]
  assert len(set(results)) == len(results)
  assert {
    ast.unparse(ast.parse(f'{head}{each}')) + '\n' for each in changes
  } - {f'{each.strip()}\n' for each in results} <= set()


def test_mark_is_about_the_node_after_it_or_its_function():
  source = mutations.Source("""
def function(x):
  '''Returns a sum.

  PRIVACY: a docstring.
  '''
  y = f(
    # PRIVACY: an argument.
    x,
    g(x),
  )
  # PRIVACY: an assignment, and the statement that reads it.
  z = x + 1
  if y: raise
  return z

# PRIVACY: a function.
def other(x):
  if x: return g(x)
  return -x
""")

  def lines(line):
    return [{each.line for each in of} for of in source.mutations(line)]

  assert lines(5) == [{7, 10}, {13}, {14}, {14}, {15}]
  assert lines(8) == [{7}]
  assert lines(12) == [{13}, {14}]
  assert lines(17) == [set(), {19}, {19}, {20}]


_PROGRAM = """
def add(a, b):
  # PRIVACY: a sentence. Guard: program_test.test_sum.
  return a + b


# PRIVACY: a sentence. Guard: program_test.test_none.
def double(a):
  return 2 * a


def check(a):
  # PRIVACY: a sentence. Guard: program_test.test_zero.
  if a < 0:
    raise ValueError
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  ('test', 'status', 'report'),
  [
    (
      'program.add(1, 2) == 3',
      1,
      'weak: tff_bandmf/program.py:7 (program_test.test_none)\n'
      'weak: tff_bandmf/program.py:13 (program_test.test_zero)\n',
    ),
    ('program.add("1", 2)', 2, 'fail without a change'),
  ],
  ids=['weak', 'fails'],
)
def test_marks_whose_guards_notice_too_little_are_reported(
  tmp_path, test, status, report
):
  (tmp_path / 'tests').mkdir()
  program = tmp_path / 'tff_bandmf' / 'program.py'
  program.parent.mkdir()
  program.write_text(_PROGRAM)
  (tmp_path / 'tests' / 'program_test.py').write_text(
    f'from tff_bandmf import program\n\ndef test_sum():\n  assert {test}\n\n'
    'def test_none():\n  assert callable(program.double)\n\n'
    # It fails for `a <= 0`, and passes without the statement.
    'def test_zero():\n  program.check(0)\n'
  )
  call = f'import mutants, pathlib; r = pathlib.Path({str(tmp_path)!r})'
  done = subprocess.run(
    [sys.executable, '-c', f'{call}; raise SystemExit(mutants.main([], r))'],
    env={'PYTHONPATH': str(mutants.ROOT / 'tests')},
    capture_output=True,
    text=True,
  )
  assert (done.returncode, done.stderr) == (status, '')
  assert report in done.stdout
  assert program.read_text() == _PROGRAM


def test_marks_are_where_make_looks_for_them():
  recipe = pathlib.Path(mutants.ROOT, 'Makefile').read_text()
  assert 'tests/mutants.py $(ARGS)' in recipe
