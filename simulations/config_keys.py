"""Reads, changes and lists the keys of an experiment's configuration."""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib
import re
from typing import Any, Optional

from simulations import config as config_lib
from simulations import tables
from tff_bandmf import errors, strategies

_LIST_KEYS = 'python -m simulations.run_stackoverflow --list-keys'


def changed(
  config: config_lib.Config, changes: dict[str, Any]
) -> config_lib.Config:
  """Returns the experiment with new values for some keys, and no comparisons.

  If the changes give a new family, parameters that the new family does not take
  are removed.

  Args:
    config: the experiment.
    changes: new values by key, such as 'training.rounds'.

  Raises:
    ValueError: a key is unknown, or a value is out of range.
  """
  tree = to_tree(config)
  tree['compare'] = {}
  family = _family(changes.get('privacy.family', config.privacy.family))
  for name in config.privacy.parameters:
    if family is None or not family.takes(name):
      del tree['privacy'][name]
  for key, value in changes.items():
    tables.assign(tree, key, value)
  return from_tree(tree)


def _family(name: Any) -> Optional[strategies.Family]:
  """Returns the family with this name; None for a file, or without noise."""
  if name == config_lib.NO_NOISE or pathlib.Path(str(name)).suffix:
    return None
  return strategies.families.get(name)


def to_tree(config: config_lib.Config) -> dict[str, Any]:
  """Returns the experiment as nested tables, the content of a TOML file."""
  tree = copy.deepcopy(dataclasses.asdict(config))
  tree['privacy'].update(tree['privacy'].pop('parameters'))
  return tree


def from_tree(tree: dict[str, Any]) -> config_lib.Config:
  """Returns the experiment of a parsed TOML file, after checks.

  Raises:
    ValueError: a key is unknown or missing, or a value is out of range.
  """
  offers = {
    key: f'{group}.{key}' for group in config_lib.GROUPS for key in _keys(group)
  }
  offers.update({group: group for group in config_lib.GROUPS})
  tables.check_keys(
    '', tree, tables.names(config_lib.Config), _LIST_KEYS, offers
  )
  for group in config_lib.GROUPS:
    if isinstance(tree.get(group), dict):
      tables.check_keys(group, tree[group], _keys(group), _LIST_KEYS, offers)
  if isinstance(tree.get('privacy'), dict):
    privacy = dict(tree['privacy'])
    privacy['parameters'] = {
      name: privacy.pop(name)
      for name in strategies.PARAMETERS
      if name in privacy
    }
    tree = {**tree, 'privacy': privacy}
  config = tables.parse(config_lib.Config, tree, 'config')
  for name, changes in config.compare.items():
    check_plain_name('compare', name)
    for key in changes:
      if not key.startswith(('training.', 'privacy.')):
        raise errors.value_error(
          f'compare.{name}={key}: must begin with training. or privacy.; '
          'compared runs have the same data and model'
        )
    changed(config, changes)
  return config


def _keys(group: str) -> list[str]:
  """Returns the keys of a table, the parameters of families last."""
  keys = tables.names(config_lib.GROUPS[group])
  if group == 'privacy':
    keys.remove('parameters')
    keys += strategies.PARAMETERS
  return keys


def list_keys() -> str:
  """Returns one line for each key: name, default value, description."""
  lines = []
  for group, kind in config_lib.GROUPS.items():
    descriptions = dict(
      re.findall(
        r'^    (\w+): (.+(?:\n {6}.+)*)', kind.__doc__ or '', re.MULTILINE
      )
    )
    for field in dataclasses.fields(kind):
      if field.name == 'parameters':
        lines += [
          f'privacy.{each.name} (may be left out): {each.about}'
          for each in strategies.PARAMETERS.values()
        ]
        continue
      default = (
        'to be given'
        if field.default is dataclasses.MISSING
        else 'may be left out'
        if field.default is None
        else json.dumps(field.default)
      )
      text = ' '.join(descriptions[field.name].split())
      lines.append(f'{group}.{field.name} ({default}): {text}')
  return '\n'.join(lines)


def check_plain_name(name: str, value: str) -> None:
  """Raises ValueError unless a value consists of letters, digits, '-' and '_'.

  Args:
    name: name of the value for the message.
    value: name of a folder, or a part of it.
  """
  if not value.replace('-', '').replace('_', '').isalnum():
    raise errors.value_error(
      f'{name}={value}: must consist of letters, digits, - and _, because it '
      'names a folder; rename it'
    )
