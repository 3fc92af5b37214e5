"""Checks that clients' values enter the next state only through the aggregator.

`check_process` evaluates the computation `process.next` on taints instead of
values. The taint of a value says whether the value depends on clients' data.

  names = check_process(process)   # such as ['metrics.client_work.train.loss']
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Union

from tff_bandmf import errors
from tff_bandmf import query as query_lib
from tff_bandmf.tff import names as tff

# Whether a value depends on clients' data: one bool for the whole value, a
# tuple of taints for its elements, or a function from taint to taint.
_Taint = Any
# A `ComputationBuildingBlock` of TFF's language.
_Block = Any

# Intrinsics with arguments (function, value) that return function(value).
_MAPS = frozenset(
  'federated_apply federated_map federated_map_all_equal sequence_map'.split()
)
# Intrinsics for which element i of the result depends on element i of the
# argument only.
_CARRIERS = frozenset(
  'federated_broadcast federated_max federated_mean federated_min '
  'federated_sum federated_value_at_clients federated_value_at_server '
  'federated_zip_at_clients federated_zip_at_server sequence_sum'.split()
)
_EVALUATIONS = {'federated_eval_at_clients', 'federated_eval_at_server'}


def check_process(
  process: Union[
    tff.templates.IterativeProcess, tff.templates.AggregationProcess
  ],
) -> list[str]:
  """Returns the names of values that a round releases without noise.

  An example is 'metrics.client_work.train.loss', which TFF's federated
  averaging measures. Such values depend on clients' data and are outside the
  guarantee. Keep them secret, or name them where the guarantee is stated.

  The check follows clients' values through `process.next`, through every TFF
  operation and every TensorFlow graph. If one input of a graph depends on
  clients, all results of the graph count as dependent. Only the release of the
  `dp_aggregator` ends the dependence.

  **Formal guarantee.** Assumptions: the process does what its computation says,
  and only the library's graph of a release has the name `query.RELEASE_NAME` in
  it. Statement: if the check returns, all elements of the next state and all
  outputs outside of the returned list depend on clients' values only through
  the release of exactly one `dp_aggregator`, and through the number of clients.
  Source: the rules of `_Following`, which end a dependence on clients' values
  only at the release.

  PRIVACY: If clients' values bypass the aggregator, they have no noise, and the
  algorithm has no guarantee. A process whose next state depends on values that
  bypass the aggregator is refused.
  Guard: check_process_test.test_mime_sends_gradients_past_the_aggregator.

  Args:
    process: process of TFF whose `next` takes (state, values of clients).

  Raises:
    TypeError: `process` is of another kind.
    ValueError: the next state depends on clients' values that bypass the
      aggregator, as in TFF's Mime; or the process does not have exactly one
      `dp_aggregator`.
  """
  if not hasattr(getattr(process, 'next', None), 'to_building_block'):
    raise errors.type_error(
      f'process={type(process).__name__}: must be a process of TFF; give a '
      'tff.learning.templates.LearningProcess or an IterativeProcess'
    )
  following = _Following()
  computation = process.next
  signature = computation.type_signature
  function = following.value(computation.to_building_block(), {})
  result = function(_clients_hold(signature.parameter))
  names = list(_leaves(signature.result, result))
  if following.releases != 1:
    raise errors.value_error(
      f'process={following.releases} releases of a dp_aggregator: must have 1 '
      'in each round, to which the guarantee applies; give the process one '
      'tff_bandmf.aggregator.dp_aggregator'
    )
  state_name = tff.elements(signature.result)[0][0]
  bypassing = [name for name in names if name.split('.')[0] == state_name]
  if bypassing:
    raise errors.value_error(
      f'process={", ".join(bypassing)}: these values of the next state depend '
      'on clients and bypass the noise of the aggregator, so there is no '
      'guarantee; use an algorithm that sends updates through its '
      'model_aggregator alone, such as '
      'tff.learning.algorithms.build_unweighted_fed_avg'
    )
  return names


class _Following:
  """An interpreter of TFF's language that computes taints instead of values.

  Attributes:
    releases: number of releases by aggregators that the interpreter has found.
  """

  def __init__(self):
    self.releases = 0

  def value(self, block: _Block, names: dict[str, _Taint]) -> _Taint:
    """Returns the taint of a block.

    The taint of a function is a Python function from taint to taint.

    Args:
      block: building block of TFF's language.
      names: taint of each name in scope.
    """
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

  def _graph(self, block: _Block, argument: _Taint) -> bool:
    tainted = _any(argument)
    name = query_lib.RELEASE_NAME.encode()
    if tainted and name in block.proto.SerializeToString():
      self.releases += 1
      return False
    return tainted


def _intrinsic(uri: str, argument: _Taint) -> _Taint:
  if uri in _MAPS:
    function, value = argument
    return function(value)
  if uri in _EVALUATIONS:
    return argument(False)
  if uri in _CARRIERS:
    return argument
  # The result of any other intrinsic depends on all of its arguments.
  return _any(argument)


def _any(value: _Taint) -> bool:
  if isinstance(value, tuple):
    return any(map(_any, value))
  # A function can use clients' values from its scope. So a function counts as
  # tainted if its result for an untainted argument is tainted.
  return _any(value(False)) if callable(value) else value


def _clients_hold(kind: tff.Type) -> _Taint:
  """Returns the taint of a parameter: True for values of clients."""
  if isinstance(kind, tff.StructType):
    return tuple(_clients_hold(each) for _, each in tff.elements(kind))
  return isinstance(kind, tff.FederatedType) and kind.placement is tff.CLIENTS


def _leaves(
  value_type: tff.Type, taint: _Taint, path: tuple[str, ...] = ()
) -> Iterator[str]:
  """Yields the dotted names of the tainted elements of a value."""
  if isinstance(value_type, tff.FederatedType):
    yield from _leaves(value_type.member, taint, path)
  elif isinstance(value_type, tff.StructType):
    for i, (name, each) in enumerate(tff.elements(value_type)):
      part = taint if isinstance(taint, bool) else taint[i]
      yield from _leaves(each, part, (*path, name))
  elif _any(taint):
    yield '.'.join(path)
