"""Noise on accelerators with JAX: `python -m benchmarks.accelerator`.

The program needs the packages of `pip install '.[jax]'` and JAX for the
accelerator, but neither TensorFlow nor TFF. The output is one JSON line for
each case, a strategy and a number of parameters. Each case runs in its own
process. y is the noise, and the past is the memory of past noise.

  seconds         time of the noise of one round on the devices, without copies
  iid_seconds     time of as many normals from the same generator
  ratio           seconds divided by iid_seconds
  bytes           least number of bytes that memory must move in a round: the
                  past is read; y and the changes of the past are written
  limit_seconds   time to move `bytes` at the bandwidth of the memory
  times_limit     seconds divided by limit_seconds
  host_seconds    time to copy a row of y to the host
  peak_bytes      peak memory of the first device, or of the process on CPUs
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import numpy as np

from benchmarks import memory
from tff_bandmf import noise, strategies
from tff_bandmf.noise.producer import stream as stream_lib

ROUNDS = 2052
Z_STEPS = 2.0**16
# Numbers of parameters of the next-word LSTM of TFF's baselines, and of a large
# model.
_PARAMETERS = (4_050_748, 10**8)
_REPETITIONS = 7
_COPIED_BYTES = 2**30

STRATEGIES: dict[str, Callable[[], strategies.Strategy]] = {
  'identity': lambda: strategies.Identity(ROUNDS),
  'bands_64': lambda: _banded(64),
  'bands_342': lambda: _banded(342),
  'blt_4': lambda: strategies.Blt(
    ROUNDS, np.full(4, 0.1), np.array([0.99, 0.9, 0.7, 0.4])
  ),
  'inverse_4': lambda: strategies.BandedInverseSqrt(ROUNDS, 4),
  'dp_cgd': lambda: strategies.DpCgd(ROUNDS, 0.9),
}
# The strategy whose noise keeps nothing, and draws past normals again.
AGAIN = 'dp_cgd'
# Goals for accelerators; the goal of blt_4 is for 10^8 parameters.
_GOALS = {
  'bands_64': {'goal_ratio': 1.3},
  'bands_342': {'goal_ratio': 1.6},
  'blt_4': {'goal_times_limit': 3.0},
}


def _banded(bands: int) -> strategies.Strategy:
  """Returns a strategy of 2052 rounds, whose error does not matter here."""
  return strategies.BandedToeplitz(ROUNDS, np.arange(1.0, bands + 1) ** -0.5)


def producer(
  name: str, parameters: int, key: noise.Key, **how: Any
) -> noise.Stream:
  """Returns the stream of noise of a strategy.

  Args:
    name: name in `STRATEGIES`.
    parameters: number of coordinates of the noise.
    key: key of the noise.
    **how: other arguments of `noise.Stream`.
  """
  return noise.Stream(
    STRATEGIES[name]().recursion(),
    Z_STEPS,
    parameters,
    key,
    stream_lib.Memory(copies=0 if name == AGAIN else None),
    **how,
  )


def measure(name: str, parameters: int, repetitions: int) -> dict[str, Any]:
  """Returns the measured cost of the noise of one strategy.

  Args:
    name: name in `STRATEGIES`.
    parameters: number of coordinates of the noise.
    repetitions: number of blocks of rounds to measure.
  """
  # These imports are here, so that `STRATEGIES` can be read without JAX.
  import jax

  from tff_bandmf.noise import jax_generator
  from tff_bandmf.noise.producer import jax_devices

  devices = jax.devices()
  kind = devices[0].device_kind
  stream = producer(
    name, parameters, noise.Key.from_entropy(), backend=stream_lib.JAX
  )
  m = stream.block_rounds
  moved, held = _bytes(stream)
  result = {
    'strategy': name,
    'parameters': parameters,
    'devices': f'{len(devices)} x jax {jax.__version__} {kind}',
    'block_rounds': m,
    'bytes': moved,
    'past_bytes': held,
  }
  limit = (devices[0].memory_stats() or {}).get('bytes_limit', np.inf)
  if held > limit * len(devices):
    return {**result, 'fits': False}
  seconds, iid_seconds = [], []
  # The last block of the stream, which is shorter, is not reached.
  blocks = itertools.islice(stream._blocks(), repetitions + 1)
  with stream._maker() as maker:
    assert isinstance(maker, jax_devices.Devices)
    for block in blocks:
      began = time.perf_counter()
      for _ in maker.advance(block):
        pass
      seconds.append((time.perf_counter() - began) / m)
      began = time.perf_counter()
      with jax_generator.precise():
        drawn = collections.deque(
          (maker.draw(i, block) for i in range(len(maker.chunks))),
          len(devices),
        )
      for each in drawn:
        each.block_until_ready()
      iid_seconds.append((time.perf_counter() - began) / m)
    y = np.empty(parameters, np.int32)
    maker.copy_row(1, y)
    began = time.perf_counter()
    maker.copy_row(0, y)
    host_seconds = time.perf_counter() - began
    stats = devices[0].memory_stats() or {}
    peak = stats.get('peak_bytes_in_use', memory.peak_bytes())
  # The first measurements include compilation.
  del seconds[0], iid_seconds[0]
  bandwidth = _bandwidth(devices[0], repetitions) * len(devices)
  goals = {} if devices[0].platform == 'cpu' else _GOALS.get(name, {})
  return {
    **result,
    'fits': True,
    'seconds': statistics.median(seconds),
    'iid_seconds': statistics.median(iid_seconds),
    'ratio': statistics.median(
      each / iid for each, iid in zip(seconds, iid_seconds)
    ),
    'bytes_per_second': bandwidth,
    'limit_seconds': moved / bandwidth,
    'times_limit': statistics.median(seconds) * bandwidth / moved,
    'host_seconds': host_seconds,
    'peak_bytes': peak,
    **goals,
  }


def _bytes(output: noise.Stream) -> tuple[float, int]:
  """Returns `bytes` of the module docstring, and the size of the past."""
  recursion, m = output.recursion, output.block_rounds
  rows, size = output.memory_rows, 4 if recursion.keeps == 'y' else 8
  changed = rows if recursion.keeps == 'buffers' else m
  coordinates = len(output.coordinates)
  y = 0 if rows and recursion.keeps == 'y' else 4 * m
  past = size * (rows + changed) if rows else 0
  return coordinates * (past + y) / m, coordinates * size * rows


def _bandwidth(device: Any, repetitions: int) -> float:
  """Returns the memory bandwidth of a copy, in bytes a second."""
  import jax

  with jax.default_device(device):
    rows = jax.numpy.zeros(_COPIED_BYTES // 4, np.int32)
    # The array is changed in place, because new memory is slow on a host.
    copy = jax.jit(lambda rows: rows + 1, donate_argnums=0)
    rows = copy(rows).block_until_ready()
    seconds = []
    for _ in range(repetitions):
      began = time.perf_counter()
      rows = copy(rows).block_until_ready()
      seconds.append(time.perf_counter() - began)
  return 2 * _COPIED_BYTES / statistics.median(seconds)


def cases(
  parameters: int = 1_000_000,
  names: Iterable[str] = tuple(STRATEGIES),
  repetitions: int = _REPETITIONS,
) -> Iterator[dict[str, Any]]:
  """Yields the cost of noise on the devices of JAX for each strategy."""
  for name in names:
    with concurrent.futures.ProcessPoolExecutor(
      1, multiprocessing.get_context('spawn')
    ) as process:
      yield process.submit(measure, name, parameters, repetitions).result()


def main() -> None:
  """Prints one JSON line for each case."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    'names',
    nargs='*',
    metavar='NAME',
    help=f'strategies, all by default: {", ".join(STRATEGIES)}',
  )
  parser.add_argument(
    '--parameters',
    nargs='*',
    type=int,
    default=_PARAMETERS,
    metavar='D',
    help='numbers of coordinates of the noise',
  )
  parser.add_argument(
    '--repetitions',
    type=int,
    default=_REPETITIONS,
    help='number of blocks of rounds to measure',
  )
  given = parser.parse_args()
  for parameters in given.parameters:
    for case in cases(
      parameters, given.names or tuple(STRATEGIES), given.repetitions
    ):
      print(json.dumps(case), flush=True)


if __name__ == '__main__':
  main()
