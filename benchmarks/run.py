"""Benchmarks of a run: its overhead, many rounds, and admission of clients."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import clock, memory

_CLIENTS = 4
_MIN_SEP = 8


@contextlib.contextmanager
def _syncs() -> Iterator[list[int]]:
  """Yields a list to which every `os.fsync` appends its file descriptor."""
  counts: list[int] = []
  real = os.fsync

  def sync(handle):
    counts.append(handle)
    real(handle)

  with mock.patch.object(os, 'fsync', sync):
    yield counts


def overhead(rounds: int = 30) -> list[dict[str, Any]]:
  """Returns the time that a run adds to a round of its aggregator.

  Rounds with and without a `tff_bandmf.Run` alternate. `added` is the median
  difference in seconds, and `share` is `added` divided by the time of a round
  without the run. `syncs` is the number of `os.fsync` calls in a round; each of
  the round's two commits of the ledger makes a further fsync in SQLite.

  Args:
    rounds: number of rounds of each kind.
  """
  import tensorflow_federated as tff

  import tff_bandmf
  from tff_bandmf import aggregator, participation, strategies
  from tff_bandmf.tff import runtime

  results = []
  with runtime.local_runtime():
    for parameters, goal in (
      (1_000, {'goal_added': 0.02}),
      (4_050_748, {'goal_share': 0.05}),
    ):
      plan = tff_bandmf.Plan(
        rounds=rounds,
        clients_per_round=_CLIENTS,
        cohorts=participation.MinSep(_MIN_SEP),
        delta=1e-6,
        l2_norm_clip=1.0,
        noise_multiplier=1.0,
        mechanism=strategies.BandedToeplitz(rounds, [1.0, 0.5]),
      )
      value_type = tff.TensorType(np.float32, [parameters])
      values = [np.full(parameters, 1e-3, np.float32)] * _CLIENTS
      seconds: list[tuple[float, float]] = []
      with (
        tempfile.TemporaryDirectory() as folder,
        tff_bandmf.Run(pathlib.Path(folder, 'run'), plan) as run,
        aggregator.dp_aggregator(
          1.0,
          _CLIENTS,
          l2_norm_clip=1.0,
          strategy=plan.strategy,
          participation=participation.MinSep(_MIN_SEP),
        ) as factory,
        _syncs() as syncs,
      ):
        bare = factory.create(value_type)
        state = bare.initialize()
        process = run.aggregator.create(value_type)
        mine = run.restore(process.initialize)
        opened = run.rounds(clients=_CLIENTS * _MIN_SEP)
        syncs.clear()
        for _ in range(rounds):
          began = time.perf_counter()
          state = bare.next(state, values).state
          between = time.perf_counter()
          each = next(opened)
          mine = each.finish(process.next(mine, values).state)
          seconds.append((between - began, time.perf_counter() - between))
      added = statistics.median(whole - bare for bare, whole in seconds)
      alone = statistics.median(bare for bare, _ in seconds)
      results.append(
        {
          'parameters': parameters,
          'clients': _CLIENTS,
          'seconds': statistics.median(whole for _, whole in seconds),
          'bare_seconds': alone,
          'added': added,
          'share': added / alone,
          'syncs': len(syncs) / rounds,
          **goal,
        }
      )
  return results


def large(parameters: int = 10**8, rounds: int = 5) -> list[dict[str, Any]]:
  """Returns the time and memory of `Round.release` for a large model.

  Rounds have two clients and do not use TFF. Each mechanism has its own
  process. `peak_memory_bytes` includes the update, 4 bytes for each parameter.
  `noise_bytes` is the size of the past noise.

  Args:
    parameters: number of parameters of the model.
    rounds: number of rounds to measure.
  """
  return [_in_a_process(_released, name, parameters, rounds) for name in _LARGE]


_LARGE = ('blt-4', 'inverse-4')


def _in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
  with concurrent.futures.ProcessPoolExecutor(
    1, multiprocessing.get_context('spawn')
  ) as process:
    return process.submit(function, *arguments).result()


def _released(name: str, parameters: int, rounds: int) -> dict[str, Any]:
  """Returns the result of `large` for one mechanism."""
  import tff_bandmf
  from tff_bandmf import strategies

  planned = 100
  strategy = {
    'blt-4': lambda: strategies.Blt(
      planned, np.full(4, 0.1), np.array([0.99, 0.9, 0.7, 0.4])
    ),
    'inverse-4': lambda: strategies.BandedInverseSqrt(planned, 4),
  }[name]()
  plan = tff_bandmf.Plan(
    rounds=planned,
    clients_per_round=2,
    cohorts=tff_bandmf.MinSep(10),
    delta=1e-8,
    l2_norm_clip=1.0,
    noise_multiplier=0.4,
    mechanism=strategy,
    dimension=parameters,
  )
  seconds, cpu = [], []
  with (
    tempfile.TemporaryDirectory() as folder,
    tff_bandmf.Run(pathlib.Path(folder, 'run'), plan) as run,
  ):
    like = np.zeros(parameters, np.float32)
    update = np.full(parameters, parameters**-0.5, np.float32)
    for opened in itertools.islice(run.rounds(clients=40), rounds):
      began, used = time.perf_counter(), time.process_time()
      opened.release([update, update], like=like)
      seconds.append(time.perf_counter() - began)
      cpu.append(time.process_time() - used)
      # The checkpoint is a number in place of the model, because writing a
      # model would take most of the time.
      opened.finish(np.array(opened.index))
  return {
    'mechanism': name,
    'parameters': parameters,
    'seconds': statistics.median(seconds),
    'first_seconds': seconds[0],
    'cpu_seconds': statistics.median(cpu),
    'noise_bytes': 8 * strategy.memory_copies * parameters,
    'peak_memory_bytes': memory.peak_bytes(),
  }


def many_rounds() -> list[dict[str, Any]]:
  """Returns memory, open files and time of a round, early and late in a run.

  Each case has its own process. `tff` is TFF's federated averaging with TFF's
  `gaussian_fixed` and without a run: it shows the growth in TFF itself. The
  early figures are of the `_SPAN` rounds that follow the first `_SPAN` rounds,
  and the late figures of the last `_SPAN` rounds. `mib` is the resident memory
  of the program, `worker_mib` the memory of its child processes, `shared_mib`
  the shared part of `mib`, and `files` the number of open files.
  """
  return [
    _in_a_process(_many, 'run.rounds', 5_000),
    _in_a_process(_many, 'run.train', 1_000),
    _in_a_process(_many, 'tff', 1_000),
  ]


_SPAN = 50


def _many(way: str, rounds: int) -> dict[str, Any]:
  """Returns the result of `many_rounds` for one way of driving rounds."""
  import tff_bandmf

  plan = tff_bandmf.Plan(
    rounds=rounds,
    clients_per_round=_CLIENTS,
    cohorts=tff_bandmf.MinSep(_MIN_SEP),
    delta=1e-6,
    l2_norm_clip=1.0,
    noise_multiplier=1.0,
    mechanism='banded-sqrt',
  )
  drive = {
    'run.rounds': _releases, 'run.train': _trains, 'tff': _averages
  }[way]  # fmt: skip
  seconds, figures = [], {}
  with tempfile.TemporaryDirectory() as folder:
    began = time.perf_counter()
    for t, _ in enumerate(drive(pathlib.Path(folder, 'run'), plan), 1):
      seconds.append(time.perf_counter() - began)
      if t in (2 * _SPAN, rounds):
        figures[t] = {'seconds': statistics.median(seconds[-_SPAN:]), **_held()}
      began = time.perf_counter()
  return {
    'way': way,
    'rounds': rounds,
    **{f'early_{name}': value for name, value in figures[2 * _SPAN].items()},
    **{f'late_{name}': value for name, value in figures[rounds].items()},
  }


def _held() -> dict[str, float]:
  """Returns memory and open files of this process and its children."""
  tasks = pathlib.Path('/proc/self/task').glob('*/children')
  workers = ' '.join(each.read_text() for each in tasks).split()
  return {
    'mib': memory.resident_bytes() / 2**20,
    'worker_mib': sum(map(memory.resident_bytes, workers)) / 2**20,
    'shared_mib': memory.resident_bytes('self', 'RssShmem') / 2**20,
    'files': len(os.listdir('/proc/self/fd')),
  }


def _releases(folder, plan) -> Iterator[None]:
  import tff_bandmf

  like = np.zeros(200, np.float32)
  updates = [np.full(200, 1e-2, np.float32)] * _CLIENTS
  with tff_bandmf.Run(folder, plan) as run:
    for opened in run.rounds(clients=_CLIENTS * _MIN_SEP):
      opened.finish(opened.release(updates, like=like))
      yield


def _process(aggregator):
  """Returns federated averaging of a linear model, and data of a client."""
  import tensorflow as tf
  import tensorflow_federated as tff

  inputs = np.random.default_rng(0).normal(size=[10, 1]).astype('f')
  data = tf.data.Dataset.from_tensor_slices((inputs, 3 * inputs - 1)).batch(5)
  model = tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1])]),
    tf.keras.losses.MeanSquaredError(),
    data.element_spec,
  )
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model,
    tff.learning.optimizers.build_sgdm(0.2),
    model_aggregator=aggregator,
  )
  return process, data


def _trains(folder, plan) -> Iterator[None]:
  import tff_bandmf
  from tff_bandmf.tff import runtime

  with runtime.local_runtime(), tff_bandmf.Run(folder, plan) as run:
    process, data = _process(run.aggregator)
    for _ in run.train(
      process, lambda client, t: data, clients=_CLIENTS * _MIN_SEP
    ):
      yield


def _averages(folder, plan) -> Iterator[None]:
  import tensorflow_federated as tff

  from tff_bandmf.tff import runtime

  del folder
  with runtime.local_runtime():
    process, data = _process(
      tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
        1.0, _CLIENTS, clip=1.0
      )
    )
    state = process.initialize()
    for _ in range(plan.rounds):
      state = process.next(state, [data] * _CLIENTS).state
      yield


def admission(
  clients: int = 10**7, cohort: int = 10**4, repetitions: int = 6
) -> Iterator[dict[str, Any]]:
  """Yields the time to admit and record the clients that arrive in a round.

  The ledger is a SQLite file in which each client has taken part once.
  `seconds` is the median time of a round. `first_seconds` is the time of the
  first round of a restarted program, which also opens the ledger. The rules are
  a `MinSep`, and a `Budget`, for which all earlier rounds of a client are read.

  Args:
    clients: number of clients in the ledger.
    cohort: number of clients that arrive in a round.
    repetitions: number of rounds to measure.
  """
  from tff_bandmf import participation, sensitivity, strategies

  rounds = clients // cohort
  strategy = strategies.BandedSqrt(rounds + repetitions, 400)
  budget = participation.Budget(400, 5)
  for schema in (
    participation.MinSep(2),
    sensitivity.budget.completed(budget, strategy),
  ):
    yield {
      'rule': schema.name,
      **_admission(schema, clients, cohort, repetitions),
    }


def _admission(
  schema: Any, clients: int, cohort: int, repetitions: int
) -> dict[str, Any]:
  """Returns the result of `admission` for one rule."""
  from tff_bandmf import cohorts
  from tff_bandmf import ledger as ledger_lib

  rounds = clients // cohort
  generator = np.random.default_rng(0)
  came = [generator.integers(clients, size=cohort) for _ in range(repetitions)]
  taken = []
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'ledger.sqlite')
    with ledger_lib.Ledger(path) as ledger:
      for t in range(rounds):
        ledger.start_round(t, np.arange(t * cohort, (t + 1) * cohort))
        ledger.fail_round(t)
    timer = clock.Clock()
    with ledger_lib.Ledger(path, create=False) as ledger:
      for t, ids in enumerate(came, rounds):
        past = ledger.past(ids, t, whole=schema.costs is not None)
        admitted = cohorts.admit(ids, t, schema, t + 1, past).admitted
        ledger.start_round(t, ids[admitted])
        taken.append(timer.read())
        timer = clock.Clock()
  return {
    'clients': clients,
    'cohort': cohort,
    **{f'first_{name}': value for name, value in taken[0].items()},
    'goal_first_cpu_seconds': 2.0,
    **{
      name: statistics.median(each[name] for each in taken[1:])
      for name in taken[0]
    },
    'goal_seconds': 0.5,
  }
