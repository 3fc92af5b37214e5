"""Aggregators that others wrote, run round by round.

`bandmf audit --aggregator MODULE:FUNCTION` calls FUNCTION(like, noise):

| argument | meaning                                                          |
|----------|------------------------------------------------------------------|
| `like`   | zeros in the form of an update: a list of float32 arrays, one per |
|          | layer                                                            |
| `noise`  | True, or False for the same aggregator without noise             |

FUNCTION returns a new aggregator, or None if `noise` is False and it has no
variant without noise. An aggregator has one of four forms:

| form                                | a round                             |
|-------------------------------------|-------------------------------------|
| function                            | `mean = f(updates, examples)`       |
| object with `initialize` and `next` | `state, mean = next(state, updates, |
|                                     | examples)`                          |
| TFF's `AggregationProcess`          | as TFF runs it                      |
| factory of `tff.aggregators`        | the process that it creates         |

`updates` is a list with one update per client, each in the form of `like`, and
so is `mean`. `examples` is the list of the clients' numbers of examples. An
aggregator that refuses a round raises an exception. A function keeps its state
to itself, so its rounds cannot be replayed. If an aggregator has `close`, that
method is called when its last round is over. A module of a TFF aggregator has
to import TFF when it is imported.

  def mine(like, noise):
    generator = np.random.default_rng()

    def mean(updates, examples):
      ...
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_bandmf import errors

# An update: one array per layer.
Update = list[np.ndarray]
# (like, noise) -> aggregator; see the docstring of this module.
Make = Callable[[Update, bool], Any]


class Refusal(ValueError):
  """An aggregator raised an exception instead of releasing a mean."""


def load(name: str) -> Make:
  """Returns the function MODULE:FUNCTION; the working directory is searched.

  Raises:
    ValueError: the name has no colon, or the module has no such function.
  """
  module, colon, function = name.partition(':')
  if not (module and colon and function):
    raise errors.value_error(
      f'aggregator={name}: must be MODULE:FUNCTION; such as mine:aggregator'
    )
  sys.path.insert(0, os.getcwd())
  try:
    make = getattr(importlib.import_module(module), function, None)
  except ModuleNotFoundError as error:
    raise errors.value_error(
      f'aggregator={name}: {error}; run the command in the folder of the module'
    ) from error
  finally:
    sys.path.remove(os.getcwd())
  if not callable(make):
    raise errors.value_error(
      f'aggregator={name}: {module} has no function {function}; correct the '
      'name'
    )
  return make


class Run:
  """A run of an aggregator.

  Attributes:
    like: an update of zeros.
    state: state before the next round; None if the aggregator keeps it.
    has_state: whether the state is a value outside the aggregator.
  """

  def __init__(
    self, aggregator: Any, like: Update, on_round: Callable[[], object]
  ):
    """Creates the process of a factory, and its first state."""
    self.like = like
    self._on_round = on_round
    self.state: Any = None
    if hasattr(aggregator, 'create'):
      aggregator = _created(aggregator, like)
    self.has_state = hasattr(aggregator, 'initialize')
    self._aggregator = aggregator
    if self.has_state:
      self.state = aggregator.initialize()

  def _next(self, updates: list[Update], examples: list[int]) -> Any:
    """Returns the mean of the next round, and goes on to its state."""
    if not self.has_state:
      return self._aggregator(updates, examples)
    # Only processes of TFF say whether they are weighted.
    is_weighted = getattr(self._aggregator, 'is_weighted', None)
    if is_weighted is None:
      self.state, mean = self._aggregator.next(self.state, updates, examples)
      return mean
    weights = [list(map(float, examples))] if is_weighted else []
    output = self._aggregator.next(self.state, updates, *weights)
    self.state = output.state
    return output.result

  def round(
    self, updates: Sequence[Update], examples: Optional[Sequence[int]] = None
  ) -> np.ndarray:
    """Returns the mean of a round, [d] float64: the layers one by one.

    Args:
      updates: one update per client.
      examples: number of examples per client; None is 10 each.

    Raises:
      Refusal: the aggregator raised an exception.
      ValueError: the mean has another size than an update.
    """
    examples = [10] * len(updates) if examples is None else list(examples)
    try:
      mean = self._next(list(updates), examples)
    except Exception as error:
      raise Refusal(
        errors.invalid(
          f'aggregator={type(error).__name__}: a round was refused ({error}); '
          'correct the function or the statement'
        )
      ) from error
    finally:
      self._on_round()
    vector = flat(mean)
    if vector.size != sum(each.size for each in self.like):
      raise errors.value_error(
        f'mean={vector.size} numbers: must have '
        f'{sum(each.size for each in self.like)}, as an update has; return a '
        'list of arrays, one per layer'
      )
    return vector

  def replayed(
    self, state: object, updates: Sequence[Update]
  ) -> Optional[np.ndarray]:
    """Returns the mean of a round from a copy of a state; None if refused."""
    self.state = copy.deepcopy(state)
    try:
      return self.round(updates)
    except Refusal:
      return None


@contextlib.contextmanager
def opened(
  make: Make,
  shapes: Sequence[tuple[int, ...]],
  noise: bool,
  on_round: Callable[[], object],
) -> Iterator[Optional[Run]]:
  """Yields a new run; None if there is no aggregator without noise.

  Args:
    make: function that returns a new aggregator.
    shapes: shapes of the layers of an update.
    noise: whether the aggregator adds noise.
    on_round: function that is called after every round.

  Raises:
    ValueError: there is no aggregator with noise.
  """
  like = [np.zeros(shape, np.float32) for shape in shapes]
  try:
    aggregator = make(like, noise)
  except Exception as error:
    raise errors.value_error(
      f'aggregator={type(error).__name__}: cannot be made ({error}); give a '
      'function of (like, noise)'
    ) from error
  if aggregator is None and noise:
    raise errors.value_error(
      'aggregator=None: the function returned nothing; return an aggregator'
    )
  if aggregator is None:
    yield None
    return
  try:
    yield Run(aggregator, like, on_round)
  finally:
    getattr(aggregator, 'close', lambda: None)()


def flat(update: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the coordinates of an update, [d] float64."""
  return np.concatenate(
    [np.asarray(each, np.float64).ravel() for each in update]
  )


def layers(vector: np.ndarray, like: Update) -> Update:
  """Returns a vector in the form of an update, as float32."""
  ends = np.cumsum([each.size for each in like])[:-1]
  with np.errstate(over='ignore'):
    return [
      part.astype(np.float32).reshape(each.shape)
      for part, each in zip(np.split(vector, ends), like)
    ]


def _created(factory: Any, like: Update) -> Any:
  """Returns the process that a factory of TFF creates."""
  from tff_bandmf.tff import names as tff

  create = functools.partial(
    factory.create,
    tff.types.to_type([(np.float32, each.shape) for each in like]),
  )
  if isinstance(factory, tff.aggregators.WeightedAggregationFactory):
    return create(tff.types.to_type(np.float32))
  return create()
