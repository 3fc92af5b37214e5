"""Tests of TFF's names: with TFF 0.87, or with federated_language alone.

`requirements/test_names.sh` runs them with federated_language on Python 3.12,
the Python of TFF's next release.
"""

import ast
import collections
import importlib.metadata
import importlib.util
import pathlib
import re
import sys
import types

import numpy as np
import pytest

try:
  importlib.metadata.version('tensorflow-federated')
  _HAS_TFF = True
except importlib.metadata.PackageNotFoundError:
  _HAS_TFF = False
if not _HAS_TFF:
  pytest.importorskip('federated_language', reason='has neither it nor TFF')
  # What the tests have in common skips all that imports TFF.
  sys.modules['tensorflow_federated'] = None
from tff_bandmf.tff import names

if not _HAS_TFF:
  del sys.modules['tensorflow_federated']

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# What TFF's next release keeps; the head of its repository has them.
_STAY = re.compile(
  r'(aggregators|backends|learning|simulation|templates|tensorflow)\.'
  r'|framework\.(RemoteExecutor|RemoteExecutorGrpcStub'
  r'|ResourceManagingExecutorFactory)$'
  r'|types\.structure_from_tensor_type_tree$'
)
# Of a round of the aggregation process with TFF 0.87.
_STATE = (
  '<query_state=<round=int64,noise=<tape_id=int64,run=int64>,clip=<>>,'
  'agg_state=<>,dp_event=<module_name=str,class_name=str>,is_init_state=bool>'
)
_RECORD = '<a=float32[3],b=float32[2]>'
_SIGNATURE = (
  f'(<state={_STATE}@SERVER,value={{{_RECORD}}}@CLIENTS> -> '
  f'<state={_STATE}@SERVER,result={_RECORD}@SERVER,measurements=<free=<'
  'round=int64,z_stddev=float32,noise_placement=str,noise_checked=bool,'
  'rounds_ahead=int32>>@SERVER>)'
)


def _paths():
  for package in ('tff_bandmf', 'simulations'):
    yield from sorted((_ROOT / package).rglob('*.py'))


def _used():
  """Returns the names of TFF that the code takes, such as 'program.Value'."""
  used = set()
  for path in _paths():
    for node in ast.walk(ast.parse(path.read_text())):
      parts = []
      while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
      if isinstance(node, ast.Name) and node.id == 'tff' and parts:
        used.add('.'.join(parts[::-1]))
      # check_process has the building blocks by another name.
      if parts and isinstance(node, ast.Name) and node.id == 'language':
        used.add(f'framework.{parts[-1]}')
  # A module is not a name of its own.
  return sorted(
    name
    for name in used
    if not any(other.startswith(f'{name}.') for other in used)
    and name not in ('elements', 'folder')
  )


@pytest.mark.parametrize('name', _used())
def test_name_is_where_tff_has_it(name):
  value = names
  if not _HAS_TFF and _STAY.match(name):
    with pytest.raises(ImportError, match='needs TensorFlow Federated'):
      for part in name.split('.'):
        value = getattr(value, part)
    return
  for part in name.split('.'):
    value = getattr(value, part)
  if _HAS_TFF:
    import tensorflow_federated as tff

    # Nothing changes with 0.87.
    expected = tff
    for part in name.split('.'):
      expected = getattr(expected, part)
    assert value is expected


def test_names_are_those_that_the_code_takes():
  used = _used()
  assert {
    'federated_sum',
    'framework.RemoteExecutor',
    'program.ReleaseManager',
    'learning.programs.train_model',
    'types.to_type',
  } <= set(used)
  assert len(used) > 50


def test_no_other_module_imports_tff():
  for path in _paths():
    if path == _ROOT / 'tff_bandmf' / 'tff' / 'names.py':
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      modules = []
      if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        modules = [node.module or '']
      for module in modules:
        assert module.split('.')[0] not in (
          'tensorflow_federated',
          'federated_language',
        ), path


def test_name_that_nobody_has_is_refused():
  error = AttributeError if _HAS_TFF else ImportError
  with pytest.raises(error, match='framework.*nothing'):
    _ = names.framework.nothing
  with pytest.raises(error, match='nothing'):
    _ = names.nothing


def _dict(**members):
  return collections.OrderedDict(members)


def test_types_are_those_of_a_round():
  """Built of the names; with federated_language they read as with 0.87."""
  record = names.types.to_type(_dict(a=(np.float32, [3]), b=(np.float32, [2])))
  state = names.types.to_type(
    _dict(
      query_state=_dict(
        round=np.int64, noise=_dict(tape_id=np.int64, run=np.int64), clip=()
      ),
      agg_state=(),
      dp_event=_dict(module_name=np.str_, class_name=np.str_),
      is_init_state=np.bool_,
    )
  )
  free = names.StructType(
    [
      ('round', names.TensorType(np.int64)),
      ('z_stddev', names.TensorType(np.float32)),
      ('noise_placement', names.TensorType(np.str_)),
      ('noise_checked', names.TensorType(np.bool_)),
      ('rounds_ahead', names.TensorType(np.int32)),
    ]
  )
  server = names.FederatedType(state, names.SERVER)
  built = names.FunctionType(
    names.StructType(
      [
        ('state', server),
        ('value', names.FederatedType(record, names.CLIENTS)),
      ]
    ),
    names.StructType(
      [
        ('state', server),
        ('result', names.FederatedType(record, names.SERVER)),
        (
          'measurements',
          names.FederatedType(names.StructType([('free', free)]), names.SERVER),
        ),
      ]
    ),
  )
  assert str(built) == _SIGNATURE


def test_round_has_the_signature():
  pytest.importorskip('tensorflow_federated', reason='needs TFF 0.87')
  from tff_bandmf import aggregator, participation, strategies

  with aggregator.dp_aggregator(
    0.4,
    4,
    l2_norm_clip=1.0,
    strategy=strategies.Identity(4),
    participation=participation.MinSep(2),
  ) as factory:
    process = factory.create(
      names.to_type(_dict(a=(np.float32, [3]), b=(np.float32, [2])))
    )
    assert str(process.next.type_signature) == _SIGNATURE


def _check_process():
  """Returns the module, without TensorFlow, which its package imports."""
  path = _ROOT / 'tff_bandmf' / 'aggregator' / 'check_process.py'
  spec = importlib.util.spec_from_file_location('check_process', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize('noised', [False, True])
def test_values_of_clients_are_followed(noised):
  """Through building blocks of either package; here nothing releases them."""

  @names.federated_computation(
    names.FederatedType(np.int32, names.SERVER),
    names.FederatedType((np.float32, [3]), names.CLIENTS),
  )
  def next_fn(state, value):
    total = names.federated_sum(value)
    sent = names.federated_broadcast(state)
    return _dict(
      state=names.federated_zip((state, total)) if noised else state,
      mean=total,
      count=names.federated_sum(sent),
    )

  module = _check_process()
  following = module._Following()
  signature = next_fn.type_signature
  result = following.value(next_fn.to_building_block(), {})(
    module._clients_hold(signature.parameter)
  )
  # A zip carries the taint of each of its values.
  expected = ['state.1', 'mean'] if noised else ['mean']
  assert list(module._leaves(signature.result, result)) == expected
  with pytest.raises(ValueError, match='process=0 releases'):
    module.check_process(types.SimpleNamespace(next=next_fn))
