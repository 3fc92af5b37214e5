"""The benchmark of releases in NumPy and in TensorFlow's graph."""

from __future__ import annotations

import contextlib
import hashlib
import math
import multiprocessing
import multiprocessing.connection
import statistics
from typing import Any, Callable, Union

import numpy as np

from benchmarks import clock, memory

_CLIENTS = 2


def releases(parameters: int = 10**8, rounds: int = 3) -> dict[str, Any]:
  """Returns the cost of a release in NumPy, and in TensorFlow's graph.

  Both sides clip the same two updates, one of which exceeds the clip, and add
  the same independent noise, which a thread of each process makes. TensorFlow's
  side is the query that TFF's aggregation evaluates, without the runtime of
  TFF. Each side has its own process, and the rounds of the two sides alternate.
  The first round, which compiles functions, is left out. `ratio` is the median
  of NumPy's CPU seconds divided by TensorFlow's CPU seconds.
  `peak_memory_bytes` includes the updates, and `added_bytes` is
  `peak_memory_bytes` minus the memory before the first round.

  Args:
    parameters: number of parameters of the model.
    rounds: number of rounds, >= 2.
  """
  context = multiprocessing.get_context('spawn')
  results: dict[str, list[dict[str, Any]]] = {side: [] for side in _SIDES}
  before: dict[str, int] = {}
  with contextlib.ExitStack() as processes:
    pipes = {}
    for side in _SIDES:
      pipes[side], theirs = context.Pipe()
      process = context.Process(
        target=_serve, args=(theirs, side, parameters, rounds), daemon=True
      )
      process.start()
      processes.callback(process.join)
      before[side] = pipes[side].recv()
    for _ in range(rounds):
      for side, pipe in pipes.items():
        pipe.send(None)
        results[side].append(pipe.recv())
  digests = [[each['digest'] for each in results[side]] for side in _SIDES]
  if digests[0] != digests[1]:
    raise ValueError('the releases of NumPy and TensorFlow differ')
  peaks = {side: results[side][-1]['peak_bytes'] for side in _SIDES}

  def ratio(name: str) -> float:
    return statistics.median(
      mine[name] / theirs[name]
      for mine, theirs in zip(*(results[side][1:] for side in _SIDES))
    )

  return {
    'parameters': parameters,
    'clients': _CLIENTS,
    **{
      side: {
        **{
          name: statistics.median(each[name] for each in results[side][1:])
          for name in ('seconds', 'cpu_seconds')
        },
        'peak_memory_bytes': peaks[side],
        'added_bytes': peaks[side] - before[side],
      }
      for side in _SIDES
    },
    'ratio': ratio('cpu_seconds'),
    'goal_ratio': 1.5,
    'memory_ratio': peaks['numpy'] / peaks['tensorflow'],
    'goal_memory_ratio': 1.0,
  }


def _serve(
  pipe: multiprocessing.connection.Connection,
  side: str,
  parameters: int,
  rounds: int,
) -> None:
  """Releases one round for each message, and answers with its cost."""
  generator = np.random.default_rng(0)
  updates = []
  for norm in 0.5, 2.0:
    update = generator.standard_normal(parameters, np.float32)
    update *= np.float32(norm / math.sqrt(parameters))
    updates.append(update)
  with contextlib.closing(_SIDES[side](parameters)) as mechanism:
    pipe.send(memory.reset())
    for t in range(rounds):
      pipe.recv()
      timer = clock.Clock()
      mean = mechanism.release(t, updates)
      pipe.send(
        {
          **timer.read(),
          'digest': hashlib.sha256(mean.tobytes()).hexdigest(),
          'peak_bytes': memory.peak_bytes(),
        }
      )


def _options() -> dict[str, Any]:
  """Returns the arguments that both sides share."""
  from tff_bandmf import accounting, participation, strategies

  return {
    'guarantee': accounting.Guarantee(
      strategies.Identity(100),
      participation.MinSep(2),
      0.4,
    ),
    'bounds': (1.0, None, math.inf),
    'clients_per_round': float(_CLIENTS),
    'largest_cohort': _CLIENTS,
  }


class _Numpy:
  """`query.NoisyMean`, with which `Round.release` computes a release."""

  def __init__(self, parameters: int):
    from tff_bandmf import noise, query
    from tff_bandmf.noise import placements

    self._mean = query.NoisyMean(
      like=np.zeros(parameters, np.float32),
      placement=placements.Tape(key=noise.Key.from_seed(0)),
      **_options(),
    )

  def release(self, t: int, updates: list[np.ndarray]) -> np.ndarray:
    return self._mean.release(t, updates).mean

  def close(self) -> None:
    self._mean.close()


class _Graph:
  """The query that TFF's aggregation evaluates, in TensorFlow functions."""

  def __init__(self, parameters: int):
    import tensorflow as tf

    from tff_bandmf import noise, query
    from tff_bandmf.noise import placements

    self._query = query.CorrelatedNoiseQuery(
      record_specs=tf.TensorSpec([parameters], tf.float32),
      noise_from=placements.Tape(key=noise.Key.from_seed(0)),
      **_options(),
    )
    self._state = self._query.begin(self._query.initial_global_state())
    self._add = tf.function(
      lambda state, total, update: self._query.accumulate_record(
        self._query.derive_sample_params(state), total, update
      ),
      autograph=False,
    )
    self._release = tf.function(
      lambda total, state: self._query.get_noised_result(total, state)[:2],
      autograph=False,
    )

  def release(self, t: int, updates: list[np.ndarray]) -> np.ndarray:
    del t  # The state holds the index of the round.
    total = self._query.initial_sample_state()
    for update in updates:
      total = self._add(self._state, total, update)
    mean, self._state = self._release(total, self._state)
    return mean.numpy()

  def close(self) -> None:
    self._query.close()


_SIDES: dict[str, Callable[[int], Union[_Numpy, _Graph]]] = {
  'numpy': _Numpy,
  'tensorflow': _Graph,
}
