"""What a learning process lets past its aggregator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, Union

import tensorflow_federated as tff

from tff_bandmf import errors
from tff_bandmf import query as query_lib

# Whether a value depends on what clients hold: one answer for all of it, or one
# for each element.
_Taint = Union[bool, tuple['_Taint', ...]]
_Function = Callable[[Any], Any]

# (function, value) -> value
_MAPS = {
  'federated_apply',
  'federated_map',
  'federated_map_all_equal',
  'sequence_map',
}
# Value -> the same value elsewhere or of all clients, element by element.
_CARRIERS = {
  'federated_broadcast',
  'federated_max',
  'federated_mean',
  'federated_min',
  'federated_sum',
  'federated_value_at_clients',
  'federated_value_at_server',
  'federated_zip_at_clients',
  'federated_zip_at_server',
  'sequence_sum',
}
_EVALUATIONS = {'federated_eval_at_clients', 'federated_eval_at_server'}


def check_process(
  process: Union[
    tff.templates.IterativeProcess, tff.templates.AggregationProcess
  ],
) -> list[str]:
  """Returns the names of what a round releases without noise.

  Such as 'metrics.client_work.train.loss', which TFF's federated averaging
  measures: numbers that depend on clients' values and are outside the
  guarantee. Keep them to yourself, or name them where the guarantee is
  stated.

  The values that clients hold are followed through `process.next`, each TFF
  operation and each TensorFlow graph; of a graph with any client's value in
  it all results count. The release of one `dp_aggregator` is where they may
  leave; nothing else of the next state may depend on them.

  PRIVACY: the guarantee is about the release of the aggregator alone. Guard:
  check_process_test.test_mime_sends_gradients_past_the_aggregator.

  Args:
    process: TFF's, with a `next` of (state, values of clients).

  Raises:
    ValueError: the next state depends on clients' values past the aggregator,
      as in TFF's Mime; or the process has no aggregator of ours, or several,
      each of which spends the budget of a run.
  """
  following = _Following()
  computation = process.next
  signature = computation.type_signature
  result = following.value(computation.to_building_block(), {})(
    _clients_hold(signature.parameter)
  )
  names = list(_leaves(signature.result, result))
  if following.releases != 1:
    raise errors.value_error(
      'process',
      f'{following.releases} releases of a dp_aggregator',
      'must have 1 a round: the guarantee is about one release',
      'give the process one tff_bandmf.aggregator.dp_aggregator',
    )
  state_name = next(iter(_elements(signature.result)))[0]
  past = [name for name in names if name.split('.')[0] == state_name]
  if past:
    raise errors.value_error(
      'process',
      ', '.join(past),
      'in the next state depends on clients past the noise of the '
      'aggregator, so there is no guarantee',
      'use an algorithm that sends updates through its model_aggregator '
      'alone, such as tff.learning.algorithms.build_unweighted_fed_avg',
    )
  return names


class _Following:
  """An interpreter of TFF's language whose values are taints.

  Attributes:
    releases: how often the release of an aggregator was met.
  """

  def __init__(self):
    self.releases = 0

  def value(self, block: Any, names: dict[str, Any]) -> Any:
    """Returns the taint of a block; of a function, what it does to taints."""
    language = tff.framework
    if isinstance(block, language.Reference):
      return names[block.name]
    if isinstance(block, language.Selection):
      source = self.value(block.source, names)
      return source if isinstance(source, bool) else source[block.as_index()]
    if isinstance(block, language.Struct):
      return tuple(self.value(each, names) for each in block.children())
    if isinstance(block, language.Block):
      for name, local in block.locals:
        names = {**names, name: self.value(local, names)}
      return self.value(block.result, names)
    if isinstance(block, language.Lambda):
      return lambda argument: self.value(
        block.result, {**names, block.parameter_name: argument}
      )
    if isinstance(block, language.Call):
      argument = (
        False if block.argument is None else self.value(block.argument, names)
      )
      return self.value(block.function, names)(argument)
    if isinstance(block, language.Intrinsic):
      return lambda argument: _intrinsic(block.uri, argument)
    if isinstance(block, language.CompiledComputation):
      return lambda argument: self._graph(block, argument)
    if isinstance(block, (language.Data, language.Literal, language.Placement)):
      return False
    raise TypeError(f'unknown building block {type(block).__name__}')

  def _graph(self, block: Any, argument: Any) -> bool:
    tainted = _any(argument)
    if tainted and query_lib.RELEASE_NAME.encode() in (
      block.proto.SerializeToString()
    ):
      self.releases += 1
      return False
    return tainted


def _intrinsic(uri: str, argument: Any) -> Any:
  if uri in _MAPS:
    function, value = argument
    return function(value)
  if uri in _EVALUATIONS:
    return argument(False)
  if uri in _CARRIERS:
    return argument
  # An aggregation, of any kind.
  return _any(argument)


def _any(value: Any) -> bool:
  if isinstance(value, tuple):
    return any(map(_any, value))
  # A function that closes over a client's value could hide it.
  return _any(value(False)) if callable(value) else value


def _clients_hold(value_type: tff.Type) -> Any:
  """Returns the taint of a parameter."""
  if isinstance(value_type, tff.StructType):
    return tuple(_clients_hold(each) for _, each in _elements(value_type))
  return (
    isinstance(value_type, tff.FederatedType)
    and value_type.placement is tff.CLIENTS
  )


def _leaves(
  value_type: tff.Type, taint: _Taint, path: tuple[str, ...] = ()
) -> Iterator[str]:
  """Yields the names of what is tainted."""
  if isinstance(value_type, tff.FederatedType):
    yield from _leaves(value_type.member, taint, path)
  elif isinstance(value_type, tff.StructType):
    for i, (name, each) in enumerate(_elements(value_type)):
      yield from _leaves(
        each, taint if isinstance(taint, bool) else taint[i], (*path, name)
      )
  elif _any(taint):
    yield '.'.join(path)


def _elements(value_type: tff.StructType) -> list[tuple[str, tff.Type]]:
  """Returns the elements of a structure and their names, or their places."""
  return [
    (str(i) if name is None else name, each)
    for i, (name, each) in enumerate(tff.structure.iter_elements(value_type))
  ]
