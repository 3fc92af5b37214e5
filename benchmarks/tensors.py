"""Aggregators of models with many weight tensors."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any, Callable

# Shapes of the weights of a block of layers; a model repeats them.
_SHAPES = ((64, 64), (64,), (3, 3, 8, 8), (8,))
_CLIENTS = 4
_STEPS = ('create', 'first_round', 'second_round')


def tensors() -> Iterator[dict[str, Any]]:
  """Yields the cost of an aggregator by the number of weight tensors.

  A case creates TFF's `gaussian_fixed` and `tff.learning.dp_aggregator`, and
  ours, for the same model, and runs two rounds of each with the same updates.
  Each figure is the CPU time of Python and of the worker together. A ratio
  divides our seconds by TFF's seconds. The first round includes `initialize`.
  At 20 tensors, the noise takes most of our time for `create`: about 350 of 770
  operations, a number that does not grow with the tensors, and a thread for the
  first rounds. Without noise the ratio is 1.2.
  """
  import numpy as np
  import psutil
  import tensorflow_federated as tff

  from tff_bandmf import aggregator, participation, strategies
  from tff_bandmf.tff import runtime

  clients = float(_CLIENTS)
  factories: dict[str, Callable[[], Any]] = {
    'gaussian_fixed': lambda: (
      tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
        1.0, clients, 1.0
      )
    ),
    'learning': lambda: tff.learning.dp_aggregator(1.0, 25 * clients),
    'ours': lambda: aggregator.dp_aggregator(
      1.0,
      clients,
      l2_norm_clip=1.0,
      strategy=strategies.BandedToeplitz(64, np.ones(4)),
      participation=participation.MinSep(4),
    ),
  }

  with runtime.local_runtime():
    (worker,) = psutil.Process().children()

    def seconds() -> float:
      return time.process_time() + sum(worker.cpu_times()[:2])

    def measured(name: str, count: int) -> np.ndarray:
      shapes = (_SHAPES * count)[:count]
      updates = [
        [np.full(shape, 1e-3, np.float32) for shape in shapes]
      ] * _CLIENTS
      value_type = tff.types.to_type([(np.float32, each) for each in shapes])
      factory = factories[name]()
      gc.collect()
      instants = [seconds()]
      process = factory.create(value_type)
      instants.append(seconds())
      state = process.initialize()
      for _ in range(2):
        state = process.next(state, updates).state
        instants.append(seconds())
      if name == 'ours':
        factory.close()
      return np.diff(instants)

    # The first measurement imports modules and starts threads.
    for name in factories:
      measured(name, 2)
    for count in 20, 160, 320:
      # Measure once: the runtime caches the graphs that it has compiled.
      costs = {name: measured(name, count) for name in factories}
      case: dict[str, Any] = {'tensors': count}
      for name, values in costs.items():
        case[name] = dict(zip(_STEPS, values.tolist()))
      for other in 'gaussian_fixed', 'learning':
        for step, ratio in zip(_STEPS, costs['ours'] / costs[other]):
          case[f'{step}_over_{other}'] = float(ratio)
          case[f'goal_{step}_over_{other}'] = 1.5
      yield case
