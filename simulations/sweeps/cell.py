"""One cell of a sweep: a run of one experiment with one rate and one seed."""

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
from tff_bandmf.run_files import metrics, run_json, run_ledger

# Seed of the tuning cells, the runs that search for a server learning rate.
TUNING_SEED = 0


@dataclasses.dataclass(frozen=True)
class Cell:
  """A run of one experiment with one server learning rate and one seed.

  Attributes:
    row: the experiment, a row of the grid.
    exponent: exponent i of the server learning rate 1.7^i; if None, the row or
      its rule gives the rate.
    seed: seed, >= 0, of initial weights, cohorts and the order of sentences.
    constant: constant of the row's rule for server learning rates; None if the
      row has no rule, or if the constant is not fitted yet.
  """

  row: grid_lib.Row
  exponent: Optional[int]
  seed: int
  constant: Optional[float] = None

  @property
  def name(self) -> str:
    """Returns the path of the run directory below the sweep's directory."""
    rate = '' if self.exponent is None else f'_rate{self.exponent:+d}'
    return f'{self.row.name}/seed{self.seed}{rate}'

  def config(self, noise: float = 0.0) -> config_lib.Config:
    """Returns the experiment.

    Args:
      noise: `Result.noise` of the experiment, from which the row's rule
        computes the server learning rate; if it is 0, the largest rate is used.
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
    rate: server learning rate, > 0.
    test_loss: mean cross-entropy of the last model on the test split, in nats a
      word.
    test_accuracy: accuracy of the last model on the test split, in [0, 1].
    validation: triples (number of rounds done, loss in nats a word, accuracy in
      [0, 1]) on the validation split.
    epsilon: epsilon that the report of the run claims; None if it claims none.
    noise: L >= 0, standard deviation, in clips, of the noise in one coordinate
      of a prefix sum of mean updates, as a root mean square over the rounds. L
      is known before the training.
    momentum_noise: L >= 0 for weighted sums in place of prefix sums, with the
      weights of the server's momentum and learning rate schedule.
    copies: number of arrays as large as the model that the noise keeps.
    seconds: duration of all rounds, in seconds; None if the durations are
      secret.
  """

  rate: float
  test_loss: float
  test_accuracy: float
  validation: tuple[tuple[int, float, float], ...]
  epsilon: Optional[float]
  noise: float
  momentum_noise: float
  copies: int
  seconds: Optional[float]

  @property
  def validation_loss(self) -> float:
    """Returns the mean validation loss over the last fifth of the rounds."""
    last = self.validation[-1][0]
    return statistics.fmean(
      loss for done, loss, _ in self.validation if done > 0.8 * last
    )


def read(cell: Cell, sweep: pathlib.Path) -> Optional[Result]:
  """Returns the result of a cell; None if the cell has not finished.

  Args:
    cell: cell of the sweep.
    sweep: directory of the sweep.

  Raises:
    ValueError: the directory of the cell holds a run with another
      configuration, or is damaged.
  """
  directory = sweep / cell.name
  if not all(
    (directory / name).exists()
    for name in (run_json.RESULT_FILE, report.JSON_FILE)
  ):
    return None
  run = run_json.RunDetails.read(directory)
  plan = run_json.read_plan(directory)
  strategy, z_stddev = plan.strategy, plan.guarantee.z_stddev_per_clip
  config = cell.config(_noise(strategy, z_stddev, cell.config()))
  expected = config_keys.to_tree(config)
  del expected['compare']
  if run.config != json.loads(json.dumps(expected)):
    raise errors.value_error(
      f'out={directory}: holds a run with another configuration; give the grid '
      'and the --set of the sweep in this directory, or another directory'
    )
  config.privacy.check_file(plan.planned_strategy)
  rows = metrics.exported(directory)
  seconds = [float(row['seconds']) for row in rows if row.get('seconds')]
  result = run_ledger.results(directory) or {}
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
    plan.copies,
    sum(seconds) if seconds else None,
  )


def _noise(
  strategy: strategies.Strategy,
  z_stddev_per_clip: float,
  config: config_lib.Config,
  workload: workloads.Workload = workloads.PREFIX,
) -> float:
  """Returns L for a workload: for prefix sums, it is `Result.noise`."""
  mean_error, _ = strategy.errors(workload)
  clients = config.training.clients_per_round
  return z_stddev_per_clip * mean_error**0.5 / clients


def run(
  cell: Cell,
  sweep: pathlib.Path,
  cores: frozenset[int],
  alive: Optional[multiprocessing.connection.Connection] = None,
) -> None:
  """Runs or resumes a cell in a process that does nothing else.

  Standard output and standard error go to `log_file`.

  Args:
    cell: cell to run.
    sweep: directory of the sweep.
    cores: indices of the processor cores that the process uses.
    alive: read end of a pipe without data. When the process of the sweep ends,
      the write end closes, and this process kills itself. None if no other
      process started this one.
  """
  if alive is not None:
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
  os.sched_setaffinity(0, cores)
  log = log_file(cell, sweep)
  log.parent.mkdir(parents=True, exist_ok=True)
  with open(log, 'ab') as stream:
    os.dup2(stream.fileno(), sys.stdout.fileno())
    os.dup2(stream.fileno(), sys.stderr.fileno())
  # SIGTERM raises SystemExit, so that clean-up removes the file of past noise.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  # Ctrl-C reaches this process, too. The sweep alone handles it and ends its
  # cells.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  from simulations import training
  from tff_bandmf.tff import runtime

  directory = sweep / cell.name
  # PRIVACY: If two processes resumed one run, they could add the same noise to
  # two different sums, and the difference of the two releases would have no
  # noise. With this lock, the second process waits for the end of the first.
  # Guard: sweep_runs_test.test_killed_sweep_goes_on_where_it_was.
  with _files.locked(log.with_suffix('.lock')):
    config = cell.config()
    corpus = training.load_corpus(config.data)
    clients = corpus.train.num_clients
    strategy = _cached_strategy(config, clients, sweep / 'strategies')
    plan = training.plan(config, strategy, clients)
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
  """Returns the path of a cell's log, which is not in the run directory."""
  return sweep / 'logs' / f'{cell.name}.log'


def _cached_strategy(
  config: config_lib.Config, clients: int, folder: pathlib.Path
) -> strategies.Strategy:
  """Returns the strategy of an experiment, optimised once in a sweep.

  Args:
    config: the experiment.
    clients: number of clients of the train split.
    folder: folder of the strategy files that the cells of a sweep share.
  """
  from simulations import training

  if config.privacy.is_file:
    return training.find_strategy(config, clients)
  # The noise of sampled cohorts is among the arguments.
  arguments = training.search_arguments(config, clients)
  key = f'{version} {arguments}'
  digest = hashlib.sha256(key.encode()).hexdigest()[:16]
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'{config.privacy.family}-{digest}.json'
  with _files.locked(path.with_suffix('.lock')):
    if not path.exists():
      strategies.save(
        training.find_strategy(config, clients),
        path,
        participation=arguments['participation'],
      )
  strategy, _ = strategies.load(path)
  return strategy
