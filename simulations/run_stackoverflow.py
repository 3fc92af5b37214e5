"""Federated next-word prediction with differential privacy.

  python -m simulations.run_stackoverflow --config=F[:ROW] --output_dir=D

Trains the main run of the configuration and the runs of its table `compare`,
each in its own directory, and writes a privacy report for each run. After
Ctrl-C, --resume continues from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import resource
import signal
import statistics
import sys
import warnings
from typing import Any, Callable, Optional

import click

from simulations import config as config_lib
from simulations import config_keys
from simulations.sweeps import grid
from tff_bandmf import errors


def _print_keys(
  context: click.Context, _: click.Parameter, given: bool
) -> None:
  if given:
    click.echo(config_keys.list_keys())
    context.exit()


_EXPERIMENT_OPTIONS = (
  click.option(
    '--config',
    'config_path',
    required=True,
    metavar='FILE[:ROW]',
    help='TOML file of the experiment, or of a grid and one of its rows.',
  ),
  click.option(
    '--set',
    'settings',
    multiple=True,
    metavar='KEY=VALUE',
    help='Changes a setting, for instance training.rounds=10.',
  ),
  click.option(
    '--list',
    'show',
    flag_value='list',
    help='Prints a line for each row of FILE, and trains nothing: its name ROW '
    '(CORPUS_MECHANISM_epsilonE in a grid), epsilon and strategy family.',
  ),
  click.option(
    '--print',
    'show',
    flag_value='print',
    help='Prints the experiment as TOML, and trains nothing.',
  ),
  click.option(
    '--list-keys',
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_keys,
    help='Prints all settings that --set can change, and trains nothing.',
  ),
  click.option(
    '--out',
    '--output_dir',
    'output_dir',
    default='',
    metavar='DIR',
    help='Folder of the run.',
  ),
)

# Default of --round-timeout in seconds, far above the duration of a round.
_ROUND_SECONDS = 3600.0
# Least limit of open files with which a run may start; a small run opens 28.
_FILES = 64

Runs = dict[str, tuple[config_lib.Config, pathlib.Path]]


def experiment_options(command: Callable[..., None]) -> Callable[..., None]:
  """Decorates a command with the options that select an experiment."""
  for option in reversed(_EXPERIMENT_OPTIONS):
    command = option(command)
  return command


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
  """Decorates a command: bad input gives one line and exit status 2.

  After SIGTERM or Ctrl-C, the command cleans up and ends.
  """

  @functools.wraps(command)
  def wrapped(*args, **kwargs):
    # These two lines suppress TensorFlow's messages about missing GPUs and
    # graph rewrites, and a dependency's warning about pkg_resources.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    warnings.filterwarnings('ignore', 'pkg_resources is deprecated')
    # SIGTERM raises SystemExit, so that clean-up deletes files of past noise.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
      command(*args, **kwargs)
    except KeyboardInterrupt:
      click.echo('Interrupted; continue with --resume.', err=True)
      sys.exit(130)
    except Exception as error:
      line = _line(error)
      if line is None:
        raise
      click.echo(line, err=True)
      sys.exit(2)

  return wrapped


def _line(error: Exception) -> Optional[str]:
  """Returns a message of one line; None for an error in the program itself."""
  text = str(errors.missing(error, 'an experiment') or error)
  tensorflow = sys.modules.get('tensorflow')
  if tensorflow is not None and isinstance(
    error,
    (
      tensorflow.errors.ResourceExhaustedError,
      tensorflow.errors.PermissionDeniedError,
    ),
  ):
    # TensorFlow writes the name of an operation, then '}}', a path and the
    # system's error. Only the path and the system's error are shown.
    message = error.message.splitlines()[0].rpartition('}}')[2].strip()
    return errors.invalid(
      f'system={message}: ended the run; remove the cause and use --resume'
    )
  if isinstance(error, OSError) and error.filename is not None:
    return errors.invalid(
      f'file={error.filename}: cannot be used ({error.strerror}); check disk '
      'space, permissions and limits of the system'
    )
  if isinstance(
    error, (ValueError, TypeError, OSError, ImportError, RuntimeError)
  ):
    return None if '\n' in text else text
  return None


def check_system(directory: str) -> None:
  """Raises ValueError if limits of the system would make a run fail later.

  Args:
    directory: folder of the run, as given on the command line.
  """
  files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  if files < _FILES:
    raise errors.value_error(
      f'files={files}: so few files may be open at once, but a run needs '
      f'{_FILES}; use ulimit -n {_FILES}'
    )
  from tff_bandmf.run_files import folder

  folder.check_name(pathlib.Path(directory))


def planned_runs(config: config_lib.Config, directory: pathlib.Path) -> Runs:
  """Returns {name: (experiment, folder)} of the main run and its comparisons.

  The name of the main run is the name of its strategy family.

  Raises:
    ValueError: a comparison has the name of the main run.
  """
  runs = {config.privacy.family: (config, directory)}
  for name, changes in config.compare.items():
    if name in runs:
      raise errors.value_error(
        f'compare={name}: is the name of the main run, which is its '
        'privacy.family; rename the comparison'
      )
    runs[name] = (
      config_keys.changed(config, changes),
      directory / 'compare' / name,
    )
  return runs


def train_all(
  runs: Runs,
  resume: bool,
  workers: Optional[str] = None,
  stop_after: Optional[int] = None,
  round_timeout: Optional[float] = None,
  **run_options: Any,
) -> dict[str, dict[str, Any]]:
  """Trains the runs one after the other and writes their reports.

  Args:
    runs: result of `planned_runs`.
    resume: whether to continue the runs that exist.
    workers: 'host:port,...', addresses of the workers that train the clients;
      if None, the clients train in the TFF context of this process.
    stop_after: number of rounds, >= 1, after which this call stops each run; if
      None, all rounds are run.
    round_timeout: maximum number of seconds that a worker may take for its part
      of a round; None for no limit.
    **run_options: arguments `moved` and `keep_key` of `tff_bandmf.Run`.

  Returns:
    The results of the finished runs, by name.

  Raises:
    ValueError: `resume` is False and a folder holds a run.
    RuntimeError: a worker does not answer in time.
  """
  # The import of TensorFlow Federated takes 10 s. It comes after checks of the
  # input, so that most bad input is reported at once.
  _say('loading TensorFlow Federated')
  from simulations import training
  from tff_bandmf import report
  from tff_bandmf.run_files import folder
  from tff_bandmf.tff import remote_workers, runtime

  if not resume:
    for _, directory in runs.values():
      folder.refuse_existing(directory)
  results = {}
  _say('reading the corpus')
  corpus = training.load_corpus(next(iter(runs.values()))[0].data)
  _say('checking that all cohorts can be filled')
  for config, _ in runs.values():
    training.check_cohorts(config, corpus)
  wait_policy = runtime.WaitPolicy(round_timeout)
  with (
    runtime.local_runtime(wait_policy=wait_policy),
    contextlib.ExitStack() as stack,
  ):
    connected_workers = (
      None
      if workers is None
      else stack.enter_context(
        remote_workers.connected(workers.split(','), wait_policy)
      )
    )
    for name, (config, directory) in runs.items():
      _say(f'{name}: optimising the noise, then training')
      result = training.run(
        config,
        corpus,
        directory,
        resume,
        workers=connected_workers,
        stop_after=stop_after,
        **run_options,
      )
      if result is not None:
        results[name] = result
      _say(f'{name}: writing the report')
      report.write(directory)
  return results


def _say(phase: str) -> None:
  """Prints the name of a phase that starts and takes several seconds."""
  click.echo(f'{phase} ...', err=True)


@dataclasses.dataclass(frozen=True)
class _Flags:
  config_path: str
  settings: tuple[str, ...]
  show: Optional[str]
  output_dir: str
  data_dir: Optional[str]
  workers: Optional[str]
  stop_after: Optional[int]
  round_timeout: float
  resume: bool
  moved: bool
  keep_key: bool


@click.command(
  help=__doc__.split('\n')[0],
  # Click accepts --output-dir for --output_dir.
  context_settings={
    'token_normalize_func': lambda name: name.replace('-', '_')
  },
)
@experiment_options
@click.option(
  '--data-dir',
  metavar='DIR',
  help='Folder of the corpus: stackoverflow.sqlite or '
  'stackoverflow.sqlite.lzma, or dataset.json for chitchat.',
)
@click.option(
  '--workers',
  metavar='HOST:PORT,...',
  help='Addresses of TFF workers on which the clients of a round train.',
)
@click.option(
  '--stop-after',
  type=click.IntRange(min=1),
  metavar='ROUNDS',
  help='Stops every run after this number of rounds; --resume continues it.',
)
@click.option(
  '--round-timeout',
  type=click.FloatRange(min=0, min_open=True),
  metavar='SECONDS',
  default=_ROUND_SECONDS,
  show_default=True,
  help='Time limit of a worker for its part of a round. If a worker takes '
  'longer, the run ends; --resume continues it.',
)
@click.option('--resume', is_flag=True, help='Continues the runs in DIR.')
@click.option(
  '--moved',
  is_flag=True,
  help='States that DIR was moved or restored, and that no other copy of the '
  'run continues.',
)
@click.option(
  '--keep-key',
  is_flag=True,
  help='Keeps the noise key after the end of a run; the report says so.',
)
@one_line_errors
def main(**given: Any) -> None:
  flags = _Flags(**given)
  settings = flags.settings
  if flags.show is None:
    check_system(flags.output_dir)
  if flags.data_dir is not None:
    name = json.dumps(flags.data_dir, ensure_ascii=False)
    settings += (f'data.data_dir={name}',)
  if flags.show == 'list':
    click.echo(grid.load(flags.config_path, settings).listing())
    return
  experiment = grid.one(flags.config_path, settings)
  if flags.show == 'print':
    click.echo(experiment.toml(), nl=False)
    return
  if not flags.output_dir:
    raise errors.value_error(
      f'output_dir={flags.output_dir}: must be a folder; give --output_dir'
    )
  config = experiment.config()
  directory = pathlib.Path(flags.output_dir)
  runs = planned_runs(config, directory)
  train_all(
    runs,
    flags.resume,
    flags.workers,
    flags.stop_after,
    flags.round_timeout,
    moved=flags.moved,
    keep_key=flags.keep_key,
  )
  # The report of the main run was written before the runs of `compare` had
  # results. So it is written again.
  from tff_bandmf import report
  from tff_bandmf.run_files import metrics

  written = report.write(directory)
  click.echo(written['summary'])
  for name, (_, folder) in runs.items():
    for line in speed(name, metrics.exported(folder)):
      click.echo(line)
  for row in written['runs']:
    accuracy = 100 * row['test_accuracy']
    click.echo(
      f'{row["name"]}: test loss {row["test_loss"]:.3f}, '
      f'accuracy {accuracy:.2f}%'
    )
  click.echo(f'Report: {directory / report.MARKDOWN_FILE}')


def speed(name: str, rows: list[dict[str, str]]) -> list[str]:
  """Returns [a line with the median duration of a round], or [] if unknown.

  Args:
    name: name of the run.
    rows: rows of the run's metrics. A run with sampled cohorts keeps durations
      secret, so its rows have no `seconds`.
  """
  seconds = [float(row['seconds']) for row in rows if row.get('seconds')]
  if not seconds:
    return []
  return [f'{name}: {statistics.median(seconds):.2f} seconds a round']


if __name__ == '__main__':
  main()
