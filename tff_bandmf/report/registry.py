"""A public report in two other formats: a registry record and a model card.

OpenDP keeps a registry of deployments of differential privacy, with one YAML
file per release. Each field of the file belongs to a tier. The tier of a record
is the highest tier such that the record has all fields of this tier and of the
tiers below it. Some fields need a fact that the run cannot know: the owner
states the fact in a note of the run.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any, Optional

import yaml

from tff_bandmf import errors
from tff_bandmf.report import document, statement
from tff_bandmf.report import public as public_lib
from tff_bandmf.run_files import run_json

REGISTRY_FILE = 'registry.yaml'
CARD_FILE = 'card.md'

SECTORS = (
  'Technology',
  'Healthcare',
  'Education',
  'Government',
  'Energy',
  'Finance',
)
# Maps a field to its tier and to the name of the note that fills it, if any.
FIELDS: Mapping[str, tuple[int, Optional[str]]] = {
  'deployment.basic.name': (1, 'title'),
  'deployment.basic.data_curators': (1, 'owner'),
  'deployment.basic.description': (1, 'model'),
  'deployment.basic.intended_use': (1, 'intended_use'),
  'deployment.basic.data_product_type': (1, None),
  'deployment.basic.data_product_region': (1, 'region'),
  'deployment.basic.publication_date': (1, 'date'),
  'deployment.basic.data_product_sector': (1, 'sector'),
  'deployment.dp_variant.variant_name': (2, None),
  'deployment.dp_variant.data_domain': (3, 'data'),
  'deployment.dp_variant.unprotected_quantities': (3, None),
  'deployment.privacy_loss.privacy_unit': (2, 'unit_of_privacy'),
  'deployment.privacy_loss.privacy_unit_details': (3, None),
  'deployment.privacy_loss.privacy_parameters': (2, None),
  'deployment.privacy_loss.privacy_parameters_details': (3, None),
  'deployment.deployment_model.model_name': (2, None),
  'deployment.deployment_model.actors': (3, None),
  'deployment.deployment_model.release_type': (2, None),
  'deployment.deployment_model.data_source_type': (2, None),
  'deployment.deployment_model.data_source_type_details': (3, None),
  'deployment.deployment_model.access_type': (2, None),
  'deployment.deployment_model.access_type_details': (3, None),
  'deployment.accounting.post_processing': (3, None),
  'deployment.accounting.composition': (3, None),
  'deployment.implementation.preprocessing_and_hyperparameter_tuning': (
    3,
    'tuning, model_selection and pre_training',
  ),
  'deployment.implementation.mechanisms': (3, None),
  'deployment.implementation.justification': (3, None),
  'deployment.administrative.sources': (1, None),
  'deployment.administrative.notes': (1, None),
}
_ARITHMETIC = (
  'Floating point: records, sums and noise are 32-bit integers on one lattice, '
  'ChaCha20 generates the noise, and epsilon and delta include a proved bound '
  'on the privacy loss of this arithmetic. Timing: the server makes the noise; '
  'the claim does not cover its timing.'
)
_ARITHMETIC_ELSEWHERE = (
  'Floating point: training ran elsewhere, and nobody checked how its noise '
  'was computed; epsilon and delta hold for noise on the integer lattice of '
  'tff_bandmf. Timing: not checked.'
)
# A text with more characters becomes a folded block. The registry wants no
# quotes, and a folded block needs none.
_LINE = 60


class _Dumper(yaml.SafeDumper):
  """Writes long texts as folded blocks."""


_Dumper.add_representer(
  str,
  lambda dumper, text: dumper.represent_scalar(
    'tag:yaml.org,2002:str', text, style='>' if len(text) > _LINE else None
  ),
)


def record(content: Mapping[str, Any], data: str) -> dict[str, Any]:
  """Returns the registry's record of a public report.

  Args:
    content: content of a `Public` report.
    data: a few words on the corpus, `RunRecord.data`.

  Raises:
    ValueError: the report has no guarantee, a field of tier 1 is missing, a
      note is blank, an owner is named twice, the date is not YYYY-MM-DD, or the
      registry lacks the sector.
  """
  if content['epsilon'] is None:
    raise errors.value_error(
      'epsilon=None: a registry lists guarantees, and this release has none; '
      'use bandmf report without --registry'
    )
  run_json.check_visible(
    {
      'data': data,
      **{name: content[name] for name in document.NOTES},
      **content['data_accesses'],
    }
  )
  values = _values(content, data)
  unknown = missing(values)
  first = [name for name in unknown if FIELDS[name][0] == 1]
  if first:
    notes = [str(FIELDS[name][1]) for name in first]
    raise errors.value_error(
      f'{", ".join(notes)}=None: is not stated, and a record of the registry '
      'needs it; give it by run.note(NAME=TEXT), or bandmf report --note '
      'NAME=TEXT'
    )
  _check(content)
  tier = min((FIELDS[name][0] for name in unknown), default=4) - 1
  if unknown:
    lacking = ', '.join(name.rpartition('.')[2] for name in unknown)
    values['deployment.administrative.notes'] += (
      f' This record lacks {lacking}.'
    )
  tree: dict[str, Any] = {
    'url_slug': re.sub('[^a-z0-9]+', '_', content['title'].lower()).strip('_'),
    'status': 'Draft',
    'tier': tier,
  }
  for name, value in values.items():
    *parents, leaf = name.split('.')
    room = tree
    for parent in parents:
      room = room.setdefault(parent, {})
    if value is not None:
      room[leaf] = value
  return tree


def missing(values: Mapping[str, Any]) -> list[str]:
  """Returns the names in `FIELDS` whose value in `values` is None."""
  return [name for name in FIELDS if values[name] is None]


def to_yaml(tree: Mapping[str, Any]) -> str:
  """Returns the text of a record's file."""
  return yaml.dump(
    dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True
  )


def card(content: Mapping[str, Any]) -> str:
  """Returns the model card of a public report, in Markdown.

  The front matter of the card has the tags that model hubs look for.
  """
  claim = _claim(content)
  rows = [
    ('unit of privacy', content['unit']),
    ('adjacency', content['adjacency']),
    ('epsilon', content['epsilon']),
    ('delta', content['delta']),
    ('rho (zCDP)', content['rho']),
    ('mechanism', '; '.join(map(_mechanism, content['runs']))),
    ('not covered', '; '.join(content['not_covered']) or 'nothing is named'),
    *(
      (statement.ACCESSES[name], text)
      for name, text in content['data_accesses'].items()
    ),
  ]
  table = ''.join(
    f'| {name} | {" ".join(str(value).split()).replace("|", chr(92) + "|")} |\n'
    for name, value in rows
    if value is not None
  )
  return (
    '---\ntags:\n- differential-privacy\n- federated-learning\n---\n\n'
    f'## Differential privacy\n\n{claim}\n\n'
    f'| | |\n|---|---|\n{table}\n'
    f'The whole report is `{public_lib.HTML_FILE}`. To check it: '
    '`bandmf verify public.json`, or `python verify.py public.json`.\n'
  )


def _values(content: Mapping[str, Any], data: str) -> dict[str, Any]:
  """Returns {name of a field: value}; None for a missing statement."""
  accesses = content['data_accesses']
  digests = '; '.join(
    f'{row["name"]}: strategy {row["strategy_sha256"]}, '
    f'code {row["code_sha256"] or "not stated"}'
    for row in content['runs']
  )
  parameters = {
    name: content[name]
    for name in ('epsilon', 'delta', 'rho')
    if content[name] is not None
  }
  tuned = '; '.join(
    f'{statement.ACCESSES[name]}: {text}' for name, text in accesses.items()
  )
  values: dict[str, Any] = {
    'basic.name': content['title'],
    'basic.data_curators': _curators(content['owner']),
    'basic.description': content['model'] or _first(content, 'model'),
    'basic.intended_use': content['intended_use'],
    'basic.data_product_type': 'Machine learning model',
    'basic.data_product_region': content['region'],
    'basic.publication_date': content['date'],
    'basic.data_product_sector': content['sector'],
    'dp_variant.variant_name': 'Approximate DP',
    'dp_variant.data_domain': _stated(data),
    'dp_variant.unprotected_quantities': '; '.join(
      text.rstrip('.') for text in (*content['not_covered'], *content['told'])
    )
    or 'None is named.',
    'privacy_loss.privacy_unit': content['unit'],
    'privacy_loss.privacy_unit_details': content['adjacency_meaning'],
    'privacy_loss.privacy_parameters': parameters,
    'privacy_loss.privacy_parameters_details': (
      'Each number has three digits, is rounded up, and covers every released '
      f'model. {_claim(content)}'
    ),
    'deployment_model.model_name': 'Central',
    'deployment_model.actors': content['setting'],
    'deployment_model.release_type': 'Many releases',
    'deployment_model.data_source_type': 'Dynamic',
    'deployment_model.data_source_type_details': (
      'A client computes an update on the data that it holds in that round.'
    ),
    'deployment_model.access_type': 'Non-interactive',
    'deployment_model.access_type_details': content['released'],
    'accounting.post_processing': (
      'The server optimiser, and all other uses of released models.'
    ),
    'accounting.composition': content['accounting']
    + (
      f' Runs on the same clients together: '
      f'{content["together"]["composition"]}.'
      if content['together']
      else ''
    ),
    'implementation.preprocessing_and_hyperparameter_tuning': (
      tuned if all(map(_stated, accesses.values())) else None
    ),
    'implementation.mechanisms': '; '.join(map(_mechanism, content['runs'])),
    # PRIVACY: training outside this library may have used floating-point noise
    # that leaks data, and a record that describes safe arithmetic would be
    # false. The record of such training says that nobody checked it.
    # Guard: elsewhere_test.test_record_does_not_vouch_for_other_arithmetic.
    'implementation.justification': _ARITHMETIC_ELSEWHERE
    if any(row['elsewhere'] for row in content['runs'])
    else _ARITHMETIC,
    'administrative.sources': f'SHA-256 of {digests}.',
    'administrative.notes': (
      'A program wrote this record from the privacy report of the training '
      'run; `bandmf verify public.json` recomputes the claim.'
    ),
    'administrative.registry_authors': _curators(content['owner']),
  }
  return {f'deployment.{name}': value for name, value in values.items()}


def _check(content: Mapping[str, Any]) -> None:
  """Raises ValueError unless the registry accepts the date and the sector."""
  try:
    datetime.date.fromisoformat(content['date'])
  except ValueError:
    raise errors.value_error(
      f'date={content["date"]}: is not YYYY-MM-DD; give the day of release'
    ) from None
  if content['sector'] not in SECTORS:
    raise errors.value_error(
      f'sector={content["sector"]}: is not a sector of the registry; use one '
      f'of {", ".join(SECTORS)}'
    )


def _curators(owner: Optional[str]) -> Optional[list[str]]:
  """Returns the names in the note `owner`, which semicolons separate.

  Raises:
    ValueError: a name is empty, or is there twice.
  """
  if owner is None:
    return None
  names = [' '.join(name.split()) for name in owner.split(';')]
  if len({name.casefold() for name in names}) < len(names) or not all(names):
    raise errors.value_error(
      f'owner={owner}: must name each owner once, with a semicolon between two '
      'owners; give bandmf report --note owner="A; B"'
    )
  return names


def _first(content: Mapping[str, Any], name: str) -> Optional[str]:
  """Returns the first statement of this name among the runs, or None."""
  return next((row[name] for row in content['runs'] if row[name]), None)


def _stated(text: Optional[str]) -> Optional[str]:
  """Returns the text; None if it is empty or begins with 'not stated'."""
  return None if not text or text.startswith('not stated') else text


def _claim(content: Mapping[str, Any]) -> str:
  """Returns the claim and the bound on an attacker's success."""
  return (
    f'({content["epsilon"]}, {content["delta"]})-differential privacy for '
    f'{content["unit"]}. {content["attack"]["sentence"]}'
  )


def _mechanism(row: Mapping[str, Any]) -> str:
  """Returns the mechanism of a run in a few words."""
  apart = row['min_sep']
  clip = row['l2_norm_clip']
  return (
    f'{row["family"]} matrix factorization, {row["rounds"]} rounds of '
    f'{row["clients_per_round"]:g} clients, at most {row["participations"]} '
    f'rounds of a client{"" if apart is None else f", {apart} apart or more"}, '
    f'noise multiplier {row["noise_multiplier"]:g}, L2 clip '
    + ('adapted in every round' if clip is None else f'{clip:g}')
  )
