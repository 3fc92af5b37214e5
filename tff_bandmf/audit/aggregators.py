"""Aggregators that others wrote, run round by round.

`bandmf audit --aggregator MODULE:FUNCTION` calls FUNCTION(like, noise) for a
new aggregator. `like` is an update of zeros: a list of float32 arrays, one per
layer. If `noise` is False, FUNCTION returns the same aggregator without noise,
or None if there is no variant without noise. An aggregator has one of four
forms:

| form                                | a round                             |
|-------------------------------------|-------------------------------------|
| function                            | `mean = f(updates, examples)`       |
| object with `initialize` and `next` | `state, mean = next(state, updates, |
|                                     | examples)`                          |
| TFF's `AggregationProcess`          | `next`, with the examples as        |
|                                     | weights if it is weighted           |
| factory of `tff.aggregators`        | the process that it creates         |

`updates` is a list with one update per client. `mean` and each update are lists
like `like`. `examples` is the list of the clients' numbers of examples. An
aggregator refuses a round by an exception. The rounds of a function cannot be
replayed, because the audit does not see its state. If an aggregator has a
method `close`, the audit calls it after the last round. The module of a TFF
aggregator has to import TFF at its top: the command starts TFF's runtime only
if TFF is imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_bandmf import errors

# An update: one array per layer.
Update = list[np.ndarray]
# (like, noise) -> aggregator; see the docstring of this module.
Make = Callable[[Update, bool], Any]


class Refusal(ValueError):
  """An aggregator raised an exception instead of releasing a mean."""


def load(name: str, again: bool = False) -> Make:
  """Returns the function MODULE:FUNCTION; the working directory is searched.

  Args:
    name: MODULE:FUNCTION.
    again: whether to run the module once more if it was imported before.

  Raises:
    ValueError: the name is not MODULE:FUNCTION, the module or one of its own
      imports is missing, or the module has no such function.
  """
  module, colon, function = name.partition(':')
  if not (module and colon and function):
    raise errors.value_error(
      f'aggregator={name}: must be MODULE:FUNCTION; such as mine:aggregator'
    )
  sys.path.insert(0, os.getcwd())
  try:
    imported = importlib.import_module(module)
    if again:
      imported = importlib.reload(imported)
    make = getattr(imported, function, None)
  except ModuleNotFoundError as error:
    raise errors.value_error(
      f'aggregator={name}: {error}; run the command in the folder of the module'
    ) from error
  finally:
    sys.path.remove(os.getcwd())
  if not callable(make):
    raise errors.value_error(
      f'aggregator={name}: {module} has no {function}; correct the name'
    )
  return make


class Run:
  """A run of an aggregator.

  Attributes:
    like: an update of zeros.
    state: state before the next round; None if `has_state` is False.
    has_state: whether the audit sees the state of the aggregator.
  """

  def __init__(
    self, aggregator: Any, like: Update, on_round: Callable[[], object]
  ):
    """Creates the process if a factory is given, and then the first state."""
    self.like = like
    self._on_round = on_round
    if hasattr(aggregator, 'create'):
      aggregator = _created(aggregator, like)
    self.has_state = hasattr(aggregator, 'initialize')
    self.state = aggregator.initialize() if self.has_state else None
    self._aggregator = aggregator

  def _next(self, updates: list[Update], examples: list[float]) -> Any:
    """Returns the mean of a round; replaces the state if there is one."""
    if not self.has_state:
      return self._aggregator(updates, examples)
    # An object with this attribute is taken for a process of TFF.
    is_weighted = getattr(self._aggregator, 'is_weighted', None)
    if is_weighted is None:
      self.state, mean = self._aggregator.next(self.state, updates, examples)
      return mean
    weights = [list(map(float, examples))] if is_weighted else []
    output = self._aggregator.next(self.state, updates, *weights)
    self.state = output.state
    return output.result

  def round(
    self, updates: Sequence[Update], examples: Optional[Sequence[float]] = None
  ) -> np.ndarray:
    """Returns the mean of a round: the coordinates of all layers, [d] float64.

    Args:
      updates: one update per client.
      examples: number of examples per client, >= 1; if None, 1 per client.

    Raises:
      Refusal: the aggregator raised an exception.
      ValueError: the mean and an update have different sizes.
    """
    try:
      mean = self._next(list(updates), list(examples or [1] * len(updates)))
    except Exception as error:
      raise Refusal(
        errors.invalid(
          f'aggregator={type(error).__name__}: a round was refused ({error}); '
          'correct the function or the specification'
        )
      ) from error
    finally:
      self._on_round()
    vector, size = flat(mean), flat(self.like).size
    if vector.size != size:
      raise errors.value_error(
        f'mean={vector.size} numbers: must have {size}; give an array per layer'
      )
    return vector


def flat(update: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the coordinates of an update, [d] float64."""
  return np.concatenate(
    [np.asarray(each, np.float64).ravel() for each in update]
  )


def layers(vector: np.ndarray, like: Update) -> Update:
  """Returns the update, in float32, that has the coordinates of a vector."""
  ends = np.cumsum([each.size for each in like])[:-1]
  with np.errstate(over='ignore'):
    return [
      part.astype(np.float32).reshape(each.shape)
      for part, each in zip(np.split(vector, ends), like)
    ]


def _created(factory: Any, like: Update) -> Any:
  """Returns the process that a factory of TFF creates."""
  from tff_bandmf.tff import names as tff

  weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
  return factory.create(
    tff.types.to_type([(np.float32, each.shape) for each in like]),
    *([tff.types.to_type(np.float32)] if weighted else []),
  )
