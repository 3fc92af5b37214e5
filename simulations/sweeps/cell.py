"""One cell of a sweep: an experiment of a grid with its rate and its seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing.connection
import os
import pathlib
import signal
import statistics
import sys
import threading
from typing import Optional

from simulations import config as config_lib
from simulations import config_keys
from simulations.sweeps import grid as grid_lib
from tff_bandmf import __version__ as version
from tff_bandmf import _files, errors, report, strategies, workloads
from tff_bandmf.run_files import metrics, run_json

# The seed of runs that search for a rate.
TUNING_SEED = 0


@dataclasses.dataclass(frozen=True)
class Cell:
  """An experiment to run.

  Attributes:
    row: row of the grid.
    exponent: exponent of the server learning rate; None takes the rate of the
      row.
    seed: seed, >= 0, of initial weights, cohorts and the order of sentences.
    constant: constant of the row's rule; None for a rate that does not follow
      from it.
  """

  row: grid_lib.Row
  exponent: Optional[int]
  seed: int
  constant: Optional[float] = None

  @property
  def name(self) -> str:
    """Returns the path of its run directory below that of the sweep."""
    rate = '' if self.exponent is None else f'_rate{self.exponent:+d}'
    return f'{self.row.name}/seed{self.seed}{rate}'

  def config(self, noise: float = 0.0) -> config_lib.Config:
    """Returns the experiment.

    Args:
      noise: L of its strategy, from which a rule computes the learning rate.
    """
    config = self.row.config(
      None if self.exponent is None else grid_lib.rate(self.exponent)
    )
    if self.constant is not None and self.row.rule is not None:
      largest = config.training.server_learning_rate
      config = self.row.config(
        self.row.rule.rate(self.constant, noise, largest)
      )
    return config_lib.with_seed(config, self.seed)


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of a finished cell.

  Attributes:
    rate: learning rate of the server, > 0.
    test_loss: nats a word of the test split, of the last model.
    test_accuracy: accuracy on the test split, of the last model, in [0, 1].
    validation: (rounds done, loss, accuracy) of the validation split.
    epsilon: epsilon that its report claims.
    noise: L, the root mean squared error of the sum of all updates so far, from
      noise alone, over clip times clients a round: the cost of the mechanism
      for the model, before any training.
    momentum_noise: the same error of the models, after the server's momentum
      and schedule.
    seconds: duration of all rounds, in seconds; None where it is secret.
  """

  rate: float
  test_loss: float
  test_accuracy: float
  validation: tuple[tuple[int, float, float], ...]
  epsilon: Optional[float]
  noise: float
  momentum_noise: float
  seconds: Optional[float]

  @property
  def validation_loss(self) -> float:
    """Returns the mean loss over the last fifth of the rounds."""
    last = self.validation[-1][0]
    return statistics.fmean(
      loss for done, loss, _ in self.validation if done > 0.8 * last
    )


def read(cell: Cell, sweep: pathlib.Path) -> Optional[Result]:
  """Returns the result of a cell; None if it has not finished.

  Raises:
    ValueError: its directory holds another run, or is damaged.
  """
  directory = sweep / cell.name
  if not all(
    (directory / name).exists()
    for name in (report.RESULT_FILE, report.JSON_FILE)
  ):
    return None
  run = run_json.RunRecord.read(directory)
  strategy, _ = strategies.load(directory / report.STRATEGY_FILE)
  z_stddev = run.claim['z_stddev_per_clip']
  config = cell.config(_noise(strategy, z_stddev, cell.config()))
  expected = config_keys.to_tree(config)
  del expected['compare']
  if run.config != json.loads(json.dumps(expected)):
    raise errors.value_error(
      f'out={directory}: holds a run with another configuration; give the grid '
      'and the --set of that sweep, or another directory'
    )
  rows = metrics.rows(directory)
  seconds = [float(row['seconds']) for row in rows if row.get('seconds')]
  result, _ = run_json.read_result(directory)
  written = json.loads((directory / report.JSON_FILE).read_text())
  return Result(
    config.training.server_learning_rate,
    result['test_loss'],
    result['test_accuracy'],
    tuple(
      (int(row['round']) + 1, float(row['loss']), float(row['accuracy']))
      for row in rows
      if row.get('loss')
    ),
    written['epsilon'],
    _noise(strategy, z_stddev, config),
    _noise(strategy, z_stddev, config, config.training.server_schedule),
    sum(seconds) if seconds else None,
  )


def _noise(
  strategy: strategies.Strategy,
  z_stddev_per_clip: float,
  config: config_lib.Config,
  workload: workloads.Workload = workloads.PREFIX,
) -> float:
  """Returns L; see `Result`."""
  mean_error, _ = strategy.errors(workload)
  clients = config.training.clients_per_round
  return z_stddev_per_clip * mean_error**0.5 / clients


def run(
  cell: Cell,
  sweep: pathlib.Path,
  cores: frozenset[int],
  alive: Optional[multiprocessing.connection.Connection] = None,
) -> None:
  """Runs a cell, or goes on with it, in a process that does nothing else.

  Standard output and error go to its log.

  Args:
    cell: cell to run.
    sweep: directory of the sweep.
    cores: cores that the process uses.
    alive: pipe without data; its other end is closed when the sweep's process
      ends, and then this process ends, too.
  """
  if alive is not None:
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
  os.sched_setaffinity(0, cores)
  log = log_file(cell, sweep)
  log.parent.mkdir(parents=True, exist_ok=True)
  with open(log, 'ab') as stream:
    os.dup2(stream.fileno(), sys.stdout.fileno())
    os.dup2(stream.fileno(), sys.stderr.fileno())
  # SIGTERM raises SystemExit, so that clean-up removes the noise on the tape.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  # On Ctrl-C the sweep itself ends its cells.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  from simulations import training
  from tff_bandmf.tff import runtime

  directory = sweep / cell.name
  # PRIVACY: Two processes in one run directory could add the same noise to two
  # different sums. A lock admits one process.
  # Guard: sweep_runs_test.test_killed_sweep_goes_on_where_it_was.
  with _files.locked(log.with_suffix('.lock')):
    config = cell.config()
    strategy = _cached_strategy(config, sweep / 'strategies')
    corpus = training.load_corpus(config.data)
    plan = training.plan(config, strategy, corpus.train.num_clients)
    z_stddev = plan.guarantee.z_stddev_per_clip
    with runtime.local_runtime(len(cores)):
      training.run(
        cell.config(_noise(strategy, z_stddev, config)),
        corpus,
        directory,
        resume=True,
        strategy=strategy,
      )
    report.write(directory)


def _end_with(alive: multiprocessing.connection.Connection) -> None:
  alive.poll(None)
  os.kill(os.getpid(), signal.SIGKILL)


def log_file(cell: Cell, sweep: pathlib.Path) -> pathlib.Path:
  """Returns the path of a cell's log, outside of its run directory."""
  return sweep / 'logs' / f'{cell.name}.log'


def _cached_strategy(
  config: config_lib.Config, folder: pathlib.Path
) -> strategies.Strategy:
  """Returns the strategy of an experiment, optimised once for a sweep."""
  from simulations import training

  key = f'{version} {training.strategy_request(config)}'
  digest = hashlib.sha256(key.encode()).hexdigest()[:16]
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'{config.privacy.family}-{digest}.json'
  with _files.locked(path.with_suffix('.lock')):
    if not path.exists():
      strategies.save(
        training.find_strategy(config),
        path,
        participation=training.planned_participation(config),
      )
  strategy, _ = strategies.load(path)
  return strategy
