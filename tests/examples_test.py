"""The programs in examples/ run and print what they say."""

import contextlib
import difflib
import pathlib
import runpy
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow
_EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / 'examples'
_NAMES = sorted(path.stem for path in _EXAMPLES.glob('*.py'))


def _promised(name):
  """Returns what the docstring of a program says that it prints."""
  docstring = (_EXAMPLES / f'{name}.py').read_text().split('"""')[1]
  return textwrap.dedent(docstring.split('prints\n\n')[1])


@contextlib.contextmanager
def _context_kept():
  """Gives other tests their TFF worker back."""
  import tensorflow_federated as tff

  context = tff.framework.get_context_stack().current
  yield
  tff.framework.set_default_context(context)


@pytest.mark.parametrize(
  'name', [n for n in _NAMES if n not in ('account', 'without_tff')]
)
def test_example_prints_what_it_says(name, capsys):
  with _context_kept():
    runpy.run_path(str(_EXAMPLES / f'{name}.py'), run_name='__main__')
  assert capsys.readouterr().out == _promised(name)


def test_accounting_needs_no_tensorflow():
  # In a process of its own, which has not imported TensorFlow.
  done = subprocess.run(
    [sys.executable, str(_EXAMPLES / 'account.py')],
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == _promised('account')


_WITHOUT_TFF = """
import runpy, sys
sys.modules['tensorflow_federated'] = None
runpy.run_path(sys.argv.pop(1), run_name='__main__')
"""


def test_killed_run_without_tff_goes_on(tmp_path):
  path = str(_EXAMPLES / 'without_tff.py')
  command = [sys.executable, '-c', _WITHOUT_TFF, path, str(tmp_path / 'run')]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
    lines = [killed.stdout.readline() for _ in range(2)]
    killed.kill()
  done = subprocess.run(command, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  # Each round is done once; the program may have gone on before it was killed.
  *promised, slope, report = _promised('without_tff').splitlines(keepends=True)
  *rounds, found, claimed = done.stdout.splitlines(keepends=True)
  assert lines == promised[:2] and rounds == promised[-len(rounds) :]
  assert len(rounds) <= 2 and (found, claimed) == (slope, report)


def test_port_is_two_lines():
  def train(name):
    text = (_EXAMPLES / f'{name}.py').read_text()
    return text.split('def train')[1].split('if __name__')[0].splitlines()

  changed = [
    line[0]
    for line in difflib.ndiff(train('port_before'), train('port_after'))
    if line[0] in '+-'
  ]
  assert changed == ['-', '+', '-', '+']
