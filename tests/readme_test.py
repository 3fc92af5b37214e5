"""Code blocks of the README and of plain pages run, as a reader would run them.

The blocks of a file run in order in one folder: Python in one namespace, shell
commands in one shell. `{code-cell}` blocks run when the site is built, see
docs_test. What does not run as it stands is listed here, with the reason.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import markdown_it
import pytest
import wheel_check

from simulations.sweeps import grid

pytestmark = pytest.mark.slow
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_FILES = sorted(
  path.relative_to(_ROOT)
  for pattern in ('*.md', 'docs/**/*.md')
  for path in _ROOT.glob(pattern)
)
_SECONDS = 900
# Blocks without a language, or of text, that start so are of the shell too.
_PROGRAM = re.compile(
  r'(\w+=\S+ )*(bandmf(-data)?|python[\d.]*|make|pip|srun|\.venv/\S+) '
)
_NO_PROGRAM = ('', 'text', 'diff', 'json', 'toml', 'csv', 'bibtex')

# Commands that do not run, by how they start.
_NOT_RUN = {
  'pip install ': 'changes the environment; environment_test reads extras',
  'make ': 'minutes, or run by other tests; the target is looked up',
  'python -m simulations.run_stackoverflow': (
    'minutes; training_test runs it, here its experiment is read'
  ),
  'python -m simulations.sweep': (
    'an hour; sweep_runs_test runs small ones, grid_test reads its grid'
  ),
  'python -m simulations.attacks': (
    'trains for minutes; people_attacks_test runs it on a small file'
  ),
  'python docs/generate.py': 'writes pages; generated_pages_test runs it',
  'python docs/budget.py': 'reads runs that take minutes',
  'bandmf report runs/demo': (
    'reads what make demo leaves; the tutorial on reports runs it'
  ),
  'bandmf audit small.json': 'audit_test runs it on such a strategy',
  'bandmf audit [FILE]': 'a synopsis; conformance_test runs such commands',
  'bandmf audit --aggregator MODULE': 'a synopsis too',
  'python examples/flower_private.py': 'needs Flower; flower_test runs it',
  'bandmf verify ~/flower_run': 'reads the run of that example',
  '. .venv/bin/activate': 'this environment is active',
  'TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m pytest': 'is what runs this',
  'python3.11 -m venv .venv-jax': 'installs another library',
  'python3.13 -m venv .venv-opake': 'installs another library',
  '.venv/bin/python -m benchmarks.side_by_side': 'needs that other library',
  '.venv/lib/': 'a worker for other machines; workers_test starts some',
  'srun ': 'needs a cluster',
  'sbatch ': 'needs a cluster',
}
# What runs in the place of a command, by how that starts.
_SHORTER = {
  # An accelerator makes the noise of 10^8 parameters.
  'python -m benchmarks.accelerator': (
    'python -m benchmarks.accelerator identity --parameters 1000 '
    '--repetitions 1'
  ),
  # All tables take 4 minutes.
  'bandmf reproduce': 'bandmf reproduce gboard_report',
  # All families take minutes at so many rounds.
  'bandmf choose --rounds': (
    'bandmf choose --rounds 2052 --min-sep 342 --epsilon 8 --delta 1e-6 '
    '--memory-copies 8 --families identity,dp-cgd'
  ),
}

# What a program that a page tells its reader to save has in it, and its file.
_SAVED = "Run('runs/numpy'", 'train.py'
# The quick start, which runs when the site is built, trains as many clients.
_FEWER_CLIENTS = {'README.md': ('clients_per_round=10', 'clients_per_round=2')}


def _blocks(path):
  """Returns (language, code) of the blocks of a Markdown file."""
  tokens = markdown_it.MarkdownIt().parse((_ROOT / path).read_text())
  return [
    (
      'bash'
      if token.info.strip() in ('', 'text') and _PROGRAM.match(token.content)
      else token.info.strip(),
      token.content,
    )
    for token in tokens
    if token.type in ('fence', 'code_block')
  ]


def _commands(code):
  """Returns the lines of a shell block, without comments, continued ones as
  one."""
  lines = [
    re.sub(r'(^|\s+)#.*', '', line)
    for line in re.sub(r' *\\\n *', ' ', code).splitlines()
  ]
  return [line for line in lines if line.strip()]


def _runnable(command):
  """Returns what is to run for a command; None if nothing is."""
  target = re.match(r'make (\S+)', command)
  if target:
    assert re.search(
      f'^{target.group(1)}:', (_ROOT / 'Makefile').read_text(), re.MULTILINE
    )
  if command.startswith('python -m simulations.run_stackoverflow') and (
    '...' not in command
  ):
    source = re.search(r'--config=(\S+)', command).group(1)
    read = grid.load if '--list' in command else grid.one
    assert read(str(_ROOT / source), tuple(re.findall(r'--set (\S+)', command)))
  if command.startswith(tuple(_NOT_RUN)):
    return None
  for start, shorter in _SHORTER.items():
    if command.startswith(start):
      return shorter
  return command


class _Shell:
  """A shell that lives as long as a file has blocks."""

  def __init__(self, folder):
    programs = pathlib.Path(sys.executable).parent
    self._process = subprocess.Popen(
      ['bash', '-euo', 'pipefail'],
      cwd=folder,
      text=True,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      start_new_session=True,
      env={
        **os.environ,
        'PYTHONPATH': str(_ROOT),
        'PATH': f'{programs}{os.pathsep}{os.environ["PATH"]}',
      },
    )

  def run(self, commands):
    """Runs lines and raises AssertionError if one fails."""
    end = '--- end of block'
    self._process.stdin.write('\n'.join([*commands, f"echo '{end}'\n"]))
    self._process.stdin.flush()
    shown = []
    timer = threading.Timer(_SECONDS, self.close)
    timer.start()
    for line in self._process.stdout:
      if line.strip() == end:
        timer.cancel()
        return
      shown.append(line)
    timer.cancel()
    raise AssertionError('\n'.join(commands) + '\n' + ''.join(shown))

  def close(self):
    # What it started in the background is in its group too.
    os.killpg(self._process.pid, signal.SIGKILL)
    self._process.wait()


@pytest.fixture
def shell(tmp_path):
  shell = _Shell(tmp_path)
  yield shell
  shell.close()


def _given():
  """Returns what the pages take from their readers: a model, data, a plan."""
  import tensorflow as tf
  import tensorflow_federated as tff

  import tff_bandmf
  from tff_bandmf import accounting, cohorts, participation, strategies

  element_spec = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
  guarantee = accounting.Guarantee(
    strategies.BandedToeplitz(4, [1.0, 0.5]), participation.MinSep(2), 0.7
  )
  return {
    'tf': tf,
    'tff': tff,
    'record_specs': (tf.TensorSpec([2, 1]), tf.TensorSpec([1])),
    'model': tff.learning.models.functional_model_from_keras(
      tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])]),
      tf.keras.losses.MeanSquaredError(),
      element_spec,
    ),
    'client_optimizer': tff.learning.optimizers.build_sgdm(0.1),
    'server_optimizer': tff.learning.optimizers.build_sgdm(1.0),
    'guarantee': guarantee,
    'plan': tff_bandmf.Plan(
      rounds=4,
      clients_per_round=2,
      cohorts=guarantee.cohorts,
      l2_norm_clip=1.0,
      noise_multiplier=0.7,
      mechanism=guarantee.strategy,
    ),
    'clients_per_round': 2,
    'l2_norm_clip': 1.0,
    'element_spec': element_spec,
    'dataset': lambda client, round_index: tf.data.Dataset.from_tensors(
      (tf.ones([3, 2]), tf.ones([3, 1]))
    ),
    'sampler': cohorts.CohortSampler(8, 2, 4, guarantee.cohorts, seed=0),
    'clients': 300,
    'outputs': tff.program.LoggingReleaseManager(),
  }


@contextlib.contextmanager
def _context_kept():
  """Gives other tests their TFF worker back."""
  import tensorflow_federated as tff

  context = tff.framework.get_context_stack().current
  yield
  tff.framework.set_default_context(context)


# Pages whose commands other tests run, each with options of its own.
_DEEP = {
  'docs/guide/elsewhere.md': 'elsewhere_test, cli_observe_test, core_run_test',
  'docs/guide/noise_server.md': 'cli.noise_server_test, served_tape_test',
  'docs/guide/amplified.md': 'cli_plan_test, run_sampling_test',
  'docs/guide/your_text.md': 'import_data_test, corpus_file_test',
  'docs/guide/publish.md': 'public_test, registry_test, report_pages_test',
  'docs/reference/commands.md': 'cli_test, cli_families_test, cli_plan_test',
}


def test_every_command_and_program_can_be_read():
  for path in _FILES:
    for language, code in _blocks(path):
      if language == 'bash':
        list(map(_runnable, _commands(code)))
      elif language == 'python':
        compile(code, str(path), 'exec')


@pytest.mark.parametrize(
  'path',
  [
    pytest.param(path, marks=[pytest.mark.deep] * (str(path) in _DEEP))
    for path in _FILES
  ],
  ids=str,
)
def test_code_blocks_run(path, shell, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  namespace = {}
  for language, code in _blocks(path):
    if language == 'bash':
      shell.run(filter(None, map(_runnable, _commands(code))))
    elif language == 'python' and _SAVED[0] in code:
      (tmp_path / _SAVED[1]).write_text(code)
    elif language == 'python':
      code = code.replace(*_FEWER_CLIENTS.get(str(path), ('', '')))
      run = compile(code, str(path), 'exec')
      if 'tff' in code:
        namespace = {**_given(), **namespace}
        with _context_kept():
          exec(run, namespace)
      else:
        exec(run, namespace)
    else:
      assert language.startswith('{') or language in _NO_PROGRAM


def test_first_example_prints_what_the_readme_shows(capsys):
  code, printed = wheel_check.first_example()
  assert len(code.strip().splitlines()) <= 15
  exec(code, {})
  assert capsys.readouterr().out == printed


def test_exceptions_are_needed():
  commands = [
    command
    for path in _FILES
    for language, code in _blocks(path)
    if language == 'bash'
    for command in _commands(code)
  ]
  for start in [*_NOT_RUN, *_SHORTER]:
    assert any(each.startswith(start) for each in commands), start


@pytest.mark.parametrize(
  'command',
  ['bandmf optimize --family identity --out c.json', 'false', 'exit 0'],
)
def test_failing_command_is_seen(shell, command):
  with pytest.raises(AssertionError, match=command):
    shell.run([command])


def test_command_that_does_not_run_is_looked_at():
  with pytest.raises(AssertionError):
    _runnable('make no-such-target')
  with pytest.raises(ValueError, match='no_such_key'):
    _runnable(
      'python -m simulations.run_stackoverflow --config=configs/demo.toml '
      '--set training.no_such_key=1'
    )
