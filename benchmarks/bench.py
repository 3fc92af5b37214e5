"""Benchmarks: `python -m benchmarks.bench [NAME ...]`.

Standard output has JSON lines: the measurements of a case and, as `goal_NAME`,
the largest value that the measurement NAME should have. Seconds are wall-clock
time unless the name says otherwise. The machine may be busy, so compare ratios
within one run rather than seconds of two runs.
"""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable

import click
import numpy as np

from benchmarks import accelerator
from benchmarks import cohorts as bench_cohorts
from benchmarks import data as bench_data
from benchmarks import logs as bench_logs
from benchmarks import memory as memory_lib
from benchmarks import noise as bench_noise
from benchmarks import optimizers as bench_optimize
from benchmarks import release as bench_release
from benchmarks import run as bench_run
from benchmarks import tensors as bench_tensors
from benchmarks import training as bench_training

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# The cache is off, because a cached optimisation takes no time.
os.environ['BANDMF_CACHE'] = ''

# Shapes of the weights of the StackOverflow next-word LSTM of TFF's baselines:
# 670 units, embedding of 96, vocabulary of 10,000; 4,050,748 parameters.
_MODEL_SHAPES = (
  (10_004, 96),
  (96, 2680),
  (670, 2680),
  (2680,),
  (670, 96),
  (96,),
  (96, 10_004),
  (10_004,),
)
_ROUNDS = 2052
_MIN_SEP = 342
_Z_STEPS = 2.0**16


def _strategy(bands: int):
  """Returns a strategy of 2052 rounds, whose error does not matter here."""
  from tff_bandmf import strategies

  return strategies.BandedToeplitz(_ROUNDS, np.arange(1.0, bands + 1) ** -0.5)


def aggregation(
  bands: int = 342, clients: int = 4, repetitions: int = 24
) -> dict[str, Any]:
  """Returns the cost of a round with a tape and with TFF's own aggregators.

  The tape is the default aggregator, whose noise a producer writes to files
  ahead of time. The aggregators alternate on the same updates. `ratio` is the
  median over repetitions of the tape's seconds divided by the seconds of
  `gaussian_fixed`; `tree_ratio` divides by the seconds of `tree_aggregation`.
  The producer runs at the same time on a free core. `charged_ratio` and
  `charged_tree_ratio` add the producer's CPU time to the tape's seconds, as if
  no core were free.

  Args:
    bands: number of bands of the tape's strategy.
    clients: number of clients of a round.
    repetitions: number of rounds of each aggregator.
  """
  import numpy as np
  import psutil
  import tensorflow as tf
  import tensorflow_federated as tff

  from tff_bandmf import aggregator, participation
  from tff_bandmf.tff import runtime

  specs = tuple(tf.TensorSpec(shape, tf.float32) for shape in _MODEL_SHAPES)
  value_type = tff.types.to_type(
    tuple((np.float32, shape) for shape in _MODEL_SHAPES)
  )
  generator = np.random.default_rng(0)
  updates = [
    tuple(
      generator.normal(size=shape).astype(np.float32) for shape in _MODEL_SHAPES
    )
    for _ in range(clients)
  ]
  tff_factory = tff.aggregators.DifferentiallyPrivateFactory
  with (
    runtime.local_runtime(),
    aggregator.dp_aggregator(
      1.0,
      float(clients),
      l2_norm_clip=1.0,
      strategy=_strategy(bands),
      participation=participation.MinSep(_MIN_SEP),
    ) as factory,
  ):
    (worker,) = psutil.Process().children()
    processes = {
      name: each.create(value_type)
      for name, each in (
        ('tape', factory),
        (
          'gaussian_fixed',
          tff_factory.gaussian_fixed(1.0, float(clients), 1.0),
        ),
        (
          'tree_aggregation',
          tff_factory.tree_aggregation(1.0, float(clients), 1.0, specs),
        ),
        ('sum', tff.aggregators.SumFactory()),
      )
    }
    states = {name: each.initialize() for name, each in processes.items()}
    seconds: dict[str, list[float]] = {name: [] for name in processes}
    worker_seconds: dict[str, list[float]] = {name: [] for name in processes}
    for repetition in range(repetitions + 1):
      for name, process in processes.items():
        worker_began = sum(worker.cpu_times()[:2])
        began = time.perf_counter()
        states[name] = process.next(states[name], updates).state
        elapsed = time.perf_counter() - began
        if repetition:  # The first round compiles functions, and is left out.
          seconds[name].append(elapsed)
          worker_seconds[name].append(
            sum(worker.cpu_times()[:2]) - worker_began
          )
    memory = {
      'python': memory_lib.peak_bytes(),
      'worker': memory_lib.peak_bytes(worker.pid),
    }
  parameters = sum(update.size for update in updates[0])
  producer = _produce(bands, parameters)['cpu_seconds']

  def ratio(other, added=0.0):
    return statistics.median(
      (tape + added) / each
      for tape, each in zip(seconds['tape'], seconds[other])
    )

  return {
    'parameters': parameters,
    'bands': bands,
    'clients': clients,
    'repetitions': repetitions,
    **{
      name: {
        'seconds': statistics.median(seconds[name]),
        'quartiles': statistics.quantiles(seconds[name]),
        'worker_cpu_seconds': statistics.median(worker_seconds[name]),
        'state_bytes': sum(
          np.asarray(leaf).nbytes for leaf in tf.nest.flatten(state)
        ),
      }
      for name, state in states.items()
    },
    'ratio': ratio('gaussian_fixed'),
    'goal_ratio': 1.1,
    'tree_ratio': ratio('tree_aggregation'),
    'producer_cpu_seconds': producer,
    'charged_ratio': ratio('gaussian_fixed', producer),
    'charged_tree_ratio': ratio('tree_aggregation', producer),
    'peak_memory_bytes': memory,
  }


def _produce(bands: int, parameters: int) -> dict[str, float]:
  """Returns the seconds of the producer for a round, without waiting.

  The time is measured over a whole block, once the memory of past noise is
  full.

  Args:
    bands: number of bands of the strategy.
    parameters: number of parameters of the model.
  """
  from tff_bandmf import noise
  from tff_bandmf.noise.tape import writer as tape_lib

  recursion = _strategy(bands).recursion()
  key = noise.Key.from_entropy()
  stream = noise.Stream(recursion, _Z_STEPS, parameters, key)
  block = stream.block_rounds
  warm = -(-recursion.memory // block) * block
  with tempfile.TemporaryDirectory(
    dir='/dev/shm' if os.path.isdir('/dev/shm') else None
  ) as parent:
    tape = tape_lib.Tape(pathlib.Path(parent) / 'tape', stream)
    try:
      for t in range(warm + block + 1):
        path = tape.directory / f'{t:08d}.noise'
        while not path.exists():
          time.sleep(0.001)
        if t == warm:
          began, cpu_began = time.perf_counter(), time.process_time()
        # This file tells the producer that a reader has read the round.
        path.with_suffix('.reached').touch()
      elapsed = time.perf_counter() - began
      cpu = time.process_time() - cpu_began
    finally:
      tape.close()
  return {'seconds': elapsed / block, 'cpu_seconds': cpu / block}


_CASES: dict[str, Callable[[], Any]] = {
  'accelerator': accelerator.cases,
  'admission': bench_run.admission,
  'aggregation': aggregation,
  'calibration': bench_cohorts.calibration,
  'client_ids': bench_data.client_ids,
  'choice': bench_optimize.choices,
  'large': bench_run.large,
  'large_optimisation': bench_optimize.large_optimisation,
  'long_optimisation': bench_optimize.long_optimisation,
  'in_tensorflow': bench_optimize.in_tensorflow,
  'largest_error': bench_optimize.largest_error,
  'loss': bench_optimize.losses,
  'many_rounds': bench_run.many_rounds,
  'normals': bench_noise.normals,
  'observe': bench_logs.observe,
  'optimisation': bench_optimize.optimisations,
  'producer': bench_noise.producer,
  'regeneration': bench_noise.regeneration,
  'release': bench_release.releases,
  'run': bench_run.overhead,
  'sampled': bench_cohorts.sampled,
  'tail': bench_noise.tail,
  'tensors': bench_tensors.tensors,
  'training': bench_training.training,
}


@click.command()
@click.argument('names', nargs=-1, type=click.Choice(sorted(_CASES)))
def main(names: tuple[str, ...]) -> None:
  """Runs the benchmarks NAMES, or all benchmarks, each in its own process.

  If a benchmark fails, the others run nevertheless, and the exit status is 1.
  """
  names = names or tuple(sorted(_CASES))
  if len(names) > 1:
    command = [sys.executable, '-m', 'benchmarks.bench']
    failed = [name for name in names if subprocess.call([*command, name])]
    if failed:
      raise click.ClickException(f'failed: {", ".join(failed)}')
    return
  # Text that libraries print goes to standard error.
  output = os.fdopen(os.dup(sys.stdout.fileno()), 'w', buffering=1)
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  (name,) = names
  case = _CASES[name]
  about = str(inspect.getdoc(case)).split('\n')[0]
  results = case()
  for result in [results] if isinstance(results, dict) else results:
    line = {'case': name, 'about': about, **result}
    print(json.dumps(line), file=output)


if __name__ == '__main__':
  main()
