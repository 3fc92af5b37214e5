"""Benchmarks: `python -m simulations.bench [NAME ...]`.

One JSON line a case on standard output, and nothing else there. Seconds are
wall clock where nothing is said. Compare the ratios of one run, not the seconds
of two: the machine may be busy.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
from typing import Any

import click

from simulations import bench_optimize

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# The StackOverflow next-word LSTM of TFF's baselines: 670 units, embedding of
# 96, vocabulary of 10,000; 4,050,748 parameters.
_MODEL_SHAPES = (
    (10_004, 96), (96, 2680), (670, 2680), (2680,), (670, 96), (96,),
    (96, 10_004), (10_004,))
_ROUNDS = 2052
_MIN_SEP = 342


def _strategy(bands: int):
  """Returns a strategy of 2052 rounds; how good it is does not matter here."""
  from tff_bandmf import strategies

  return strategies.BandedToeplitz(
      _ROUNDS, [(1 + s)**-0.5 for s in range(bands)])


def aggregation(
    bands: int = 64, clients: int = 4, repetitions: int = 24
) -> dict[str, Any]:
  """Returns the cost of a round with a tape and of one of `gaussian_fixed`.

  The two alternate, driven directly, on the same updates; `ratio` is that of
  the medians. The tape's noise is made meanwhile, on whatever core is free:
  `charged_ratio` adds all of the producer's CPU time to the tape's rounds, as
  if none ever were. `net_ratio` leaves out what a plain sum takes, which is
  mostly the updates' way into the worker.
  """
  import numpy as np
  import psutil
  import tensorflow as tf
  import tensorflow_federated as tff

  from tff_bandmf import aggregator, participation
  from tff_bandmf.program import runtime

  value_type = tff.types.to_type(
      tuple((np.float32, shape) for shape in _MODEL_SHAPES))
  generator = np.random.default_rng(0)
  updates = [
      tuple(generator.normal(size=shape).astype(np.float32)
            for shape in _MODEL_SHAPES) for _ in range(clients)]
  seconds = {'tape': [], 'gaussian_fixed': [], 'sum': []}
  with runtime.local_runtime(), aggregator.correlated_noise_aggregator(
      1.0, float(clients), 1.0,
      tuple(tf.TensorSpec(shape, tf.float32) for shape in _MODEL_SHAPES),
      strategy=_strategy(bands),
      participation=participation.MinSep(_MIN_SEP),
      noise_placement='tape') as factory:
    worker, = psutil.Process().children()
    fixed = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
        1.0, float(clients), 1.0)
    processes = {
        'tape': factory.create(value_type),
        'gaussian_fixed': fixed.create(value_type),
        'sum': tff.aggregators.SumFactory().create(value_type)}
    states = {name: each.initialize() for name, each in processes.items()}
    for repetition in range(repetitions + 1):
      for name, process in processes.items():
        began = time.perf_counter()
        states[name] = process.next(states[name], updates).state
        if repetition:  # The first one compiles.
          seconds[name].append(time.perf_counter() - began)
    memory = {
        'python': _peak_memory(os.getpid()), 'worker': _peak_memory(worker.pid)}
  parameters = sum(update.size for update in updates[0])
  tape_seconds, fixed_seconds, sum_seconds = map(
      statistics.median, seconds.values())
  producer = _produce(bands, parameters, rounds=48)['cpu_seconds']
  return {
      'parameters': parameters, 'bands': bands, 'clients': clients,
      'repetitions': repetitions,
      'tape_seconds': tape_seconds, 'gaussian_fixed_seconds': fixed_seconds,
      'sum_seconds': sum_seconds,
      'tape_quartiles': statistics.quantiles(seconds['tape']),
      'gaussian_fixed_quartiles': statistics.quantiles(
          seconds['gaussian_fixed']),
      'ratio': tape_seconds / fixed_seconds,
      'producer_cpu_seconds': producer,
      'charged_ratio': (tape_seconds + producer) / fixed_seconds,
      'net_ratio': (
          (tape_seconds - sum_seconds) / (fixed_seconds - sum_seconds)),
      'peak_memory_bytes': memory,
  }


def _peak_memory(pid: int) -> int:
  """Returns the most bytes that the process ever had in memory."""
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  return 1024 * int(re.search(r'VmHWM:\s+(\d+) kB', status).group(1))


def _produce(bands: int, parameters: int, rounds: int) -> dict[str, float]:
  """Returns what the producer takes a round when nobody makes it wait."""
  from tff_bandmf import noise

  with tempfile.TemporaryDirectory(
      dir='/dev/shm' if os.path.isdir('/dev/shm') else None) as parent:
    tape = noise.Tape(
        pathlib.Path(parent) / 'tape', noise.Plan.of(_strategy(bands)),
        parameters, noise.Key.from_entropy())
    try:
      for t in range(rounds + 1):
        path = tape.directory / f'{t:08d}.noise'
        while not path.exists():
          time.sleep(0.001)
        if t == 0:
          began, cpu_began = time.perf_counter(), time.process_time()
        # As a reader does that takes no time.
        path.with_suffix('.reached').touch()
      elapsed = time.perf_counter() - began
      cpu = time.process_time() - cpu_began
    finally:
      tape.close()
  return {'seconds': elapsed / rounds, 'cpu_seconds': cpu / rounds}


def producer(
    parameters: int = 1_000_000, rounds: int = 96
) -> dict[str, Any]:
  """Returns the cost of a round's noise, next to iid normals of that size."""
  import tensorflow as tf

  from tff_bandmf import noise

  words = tf.constant(noise.Key.from_entropy().words())
  noise.standard_normal(words, 0, 0, parameters)
  began, cpu_began = time.perf_counter(), time.process_time()
  for t in range(rounds):
    noise.standard_normal(words, t, 0, parameters).numpy()
  iid = {
      'seconds': (time.perf_counter() - began) / rounds,
      'cpu_seconds': (time.process_time() - cpu_began) / rounds}
  result = {'parameters': parameters, 'rounds': rounds, 'iid': iid}
  for bands in (1, 64, 342):
    made = _produce(bands, parameters, rounds)
    result[f'bands_{bands}'] = {
        **made,
        'ratio': made['seconds'] / iid['seconds'],
        'cpu_ratio': made['cpu_seconds'] / iid['cpu_seconds']}
  return result


_CASES = {
    'aggregation': aggregation,
    'large_optimisation': bench_optimize.large_optimisations,
    'loss': bench_optimize.losses,
    'optimisation': bench_optimize.optimisations,
    'producer': producer,
}


@click.command()
@click.argument('names', nargs=-1, type=click.Choice(sorted(_CASES)))
def main(names: tuple[str, ...]) -> None:
  """Runs the benchmarks NAMES, or all of them."""
  # Whatever a library prints goes to standard error.
  output = os.fdopen(os.dup(sys.stdout.fileno()), 'w', buffering=1)
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  for name in names or sorted(_CASES):
    results = _CASES[name]()
    for result in results if isinstance(results, list) else [results]:
      print(json.dumps({'case': name, **result}), file=output)


if __name__ == '__main__':
  main()
