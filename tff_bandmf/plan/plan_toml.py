"""The request of a plan in TOML: the arguments of `Plan` by their names.

  rounds = 2000
  clients_per_round = 100
  epsilon = 8.0
  delta = 1e-8
  l2_norm_clip = 0.3

  [cohorts]
  participation = "min-sep"
  min_sep = 400

A missing key has the default of `Plan`. The tables `cohorts`, `workload` and
`l2_norm_clip` have the keys of plan.json. The mechanism is a text, or a table
with a family and its parameters.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Union

import attrs

from tff_bandmf import _files, accounting, clipping_norm, errors, workloads
from tff_bandmf.plan import mechanism as mechanism_lib
from tff_bandmf.plan import plan_json
from tff_bandmf.plan import request as request_lib


def load(path: Union[str, os.PathLike]) -> dict[str, Any]:
  """Returns the arguments of `Plan` in a TOML file.

  The path of a strategy file is relative to the folder of the TOML file.

  Raises:
    TypeError: a value has a wrong type.
    ValueError: the file is not TOML, or a key or a value is wrong.
    OSError: the file cannot be read.
  """
  path = pathlib.Path(path)
  arguments = _files.read_toml(path, 'plan')
  known = attrs.fields_dict(request_lib.Request)
  for name in arguments.keys() - known.keys():
    raise errors.value_error(
      f'{name}={arguments[name]}: is unknown to plans, in {path}; use the '
      'names of the arguments of Plan'
    )
  for name, field in known.items():
    if field.default is attrs.NOTHING and name not in arguments:
      raise errors.value_error(
        f'{name}=None: {path} does not have it, and a plan needs it; write it '
        'in the file'
      )
  tables: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    'cohorts': accounting.from_dict,
    'workload': lambda table: workloads.from_name(
      **{'name' if key == 'workload' else key: table[key] for key in table}
    ),
    'l2_norm_clip': lambda table: clipping_norm.AdaptiveClip(**table),
    'mechanism': lambda table: mechanism_lib.Mechanism(**table),
  }
  for name, from_table in tables.items():
    table = arguments.get(name)
    if isinstance(table, dict):
      try:
        arguments[name] = from_table(table)
      except TypeError as error:
        raise errors.type_error(
          f'{name}={table}: {error}, in {path}; use the keys of plan.json'
        ) from error
  mechanism = arguments.get('mechanism')
  if isinstance(mechanism, str) and pathlib.Path(mechanism).suffix:
    arguments['mechanism'] = str(path.parent / mechanism)
  return arguments


def to_text(request: request_lib.Request) -> str:
  """Returns a request in TOML, without values that equal the defaults.

  Raises:
    ValueError: the request has a strategy that is in no file.
  """
  document = plan_json.to_document(request)
  if request.file:
    document['mechanism'] = os.path.abspath(request.file)
  elif 'digest' in document['mechanism']:
    raise errors.value_error(
      'mechanism=a strategy: has no words in TOML; save the strategy, and plan '
      'with the path of its file'
    )
  fields = attrs.fields_dict(request_lib.Request)
  stated = {
    name: value
    for name, value in document.items()
    if getattr(request, name) != fields[name].default
  }
  return '\n'.join(_files.toml_lines(stated))
