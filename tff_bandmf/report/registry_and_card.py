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
from typing import Optional

import yaml

from tff_bandmf import _files, errors
from tff_bandmf.report import document, pages, sentences
from tff_bandmf.report import public as public_lib
from tff_bandmf.run_files import run_json

REGISTRY_FILE = 'registry.yaml'
CARD_FILE = 'card.md'

SECTORS = (
  *('Technology', 'Healthcare', 'Education'),
  *('Government', 'Energy', 'Finance'),
)
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
_PARAMETERS = (
  'Each number has three digits, is rounded up, and covers every released '
  'model. '
)
_DATA_SOURCE = (
  'A client computes an update on the data that it holds in that round.'
)
_LATER_USE = 'The server optimiser, and all other uses of released models.'
_NOTES = (
  'A program wrote this record from the privacy report of the training run; '
  '`bandmf verify public.json` recomputes the claim.'
)
# A text of more than this number of characters becomes a folded block. The
# registry wants no quotes, and a folded block needs none.
_LINE = 60


class _Dumper(yaml.SafeDumper):
  """Writes long texts as folded blocks."""


_Dumper.add_representer(
  str,
  lambda dumper, text: dumper.represent_scalar(
    'tag:yaml.org,2002:str', text, style='>' if len(text) > _LINE else None
  ),
)


def registry_record(content: document.Public, data: str) -> _files.JsonObject:
  """Returns the registry's record of a public report.

  Args:
    content: content of a `Public` report.
    data: a few words on the corpus, `RunDetails.data`.

  Raises:
    ValueError: the report has no guarantee, a field of tier 1 is missing, a
      note is blank, an owner is named twice, the date is not YYYY-MM-DD, or the
      registry lacks the sector.
  """
  run_json.check_visible(
    {
      'data': data,
      **{key: content[key] for key in document.NOTES},  # type: ignore[literal-required]
      **content['data_accesses'],
    }
  )
  deployment: dict[str, _files.JsonObject] = {}
  unknown: dict[str, tuple[int, str]] = {}
  for title, section in fields(content, data).items():
    deployment[title] = {}
    for name, (tier, note, value) in section.items():
      if value is None:
        unknown[name] = tier, note or ''
      else:
        deployment[title][name] = value
  first = [note for tier, note in unknown.values() if tier == 1]
  if first:
    raise errors.value_error(
      f'{", ".join(first)}=None: is not stated, and the registry needs it; use '
      'run.note(NAME=TEXT), or bandmf report --note NAME=TEXT'
    )
  _check(content)
  administrative = deployment['administrative']
  if unknown:
    administrative['notes'] += f' This record lacks {", ".join(unknown)}.'
  administrative['registry_authors'] = _curators(content['owner'])
  return {
    'url_slug': re.sub('[^a-z0-9]+', '_', content['title'].lower()).strip('_'),
    'status': 'Draft',
    'tier': min((tier for tier, _ in unknown.values()), default=4) - 1,
    'deployment': deployment,
  }


def to_yaml(tree: _files.JsonObject) -> str:
  """Returns the text of a record's file."""
  return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def card(content: document.Public) -> str:
  """Returns the model card of a public report, in Markdown.

  The front matter of the card has the tags that model hubs look for.

  Raises:
    ValueError: the report has no guarantee.
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
      (sentences.ACCESSES[name], text)
      for name, text in content['data_accesses'].items()
    ),
  ]
  table = ''.join(
    f'| {name} | {pages.cell(value)} |\n'
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


def fields(
  content: document.Public, data: str
) -> dict[str, dict[str, tuple[int, Optional[str], _files.Json]]]:
  """Returns the fields of a record by section and name.

  A field is its tier, the name of the note that fills it, and its value. The
  name is None for a field that no note fills, and the value is None for a
  missing note.
  """
  accesses = content['data_accesses']
  digests = '; '.join(
    f'{row["name"]}: strategy {row["strategy_sha256"]}, '
    f'code {row["code_sha256"] or "not stated"}'
    for row in content['runs']
  )
  parameters = {
    name: value
    for name, value in content.items()
    if name in ('epsilon', 'delta', 'rho') and value is not None
  }
  tuned = '; '.join(
    f'{sentences.ACCESSES[name]}: {text}' for name, text in accesses.items()
  )
  models = [content['model'], *(row['model'] for row in content['runs'])]
  hidden = [*content['not_covered'], *content['told']]
  composed = content['accounting']
  if content['together']:
    composition = content['together']['composition']
    composed += f' Runs on the same clients together: {composition}.'
  mechanisms = '; '.join(map(_mechanism, content['runs']))
  unprotected = '; '.join(text.rstrip('.') for text in hidden)
  # PRIVACY: training outside this library may have used floating-point
  # noise that leaks data, and a record that describes safe arithmetic would
  # be false. The record of such training says that nobody checked it.
  # Guard: elsewhere_test.test_record_does_not_vouch_for_other_arithmetic.
  elsewhere = any(row['elsewhere'] for row in content['runs'])
  arithmetic = _ARITHMETIC_ELSEWHERE if elsewhere else _ARITHMETIC
  return {
    'basic': {
      'name': (1, 'title', content['title']),
      'data_curators': (1, 'owner', _curators(content['owner'])),
      'description': (1, 'model', next(filter(None, models), None)),
      'intended_use': (1, 'intended_use', content['intended_use']),
      'data_product_type': (1, None, 'Machine learning model'),
      'data_product_region': (1, 'region', content['region']),
      'publication_date': (1, 'date', content['date']),
      'data_product_sector': (1, 'sector', content['sector']),
    },
    'dp_variant': {
      'variant_name': (2, None, 'Approximate DP'),
      'data_domain': (3, 'data', _stated(data)),
      'unprotected_quantities': (3, None, unprotected or 'None is named.'),
    },
    'privacy_loss': {
      'privacy_unit': (2, 'unit_of_privacy', content['unit']),
      'privacy_unit_details': (3, None, content['adjacency_meaning']),
      'privacy_parameters': (2, None, parameters),
      'privacy_parameters_details': (3, None, _PARAMETERS + _claim(content)),
    },
    'deployment_model': {
      'model_name': (2, None, 'Central'),
      'actors': (3, None, content['setting']),
      'release_type': (2, None, 'Many releases'),
      'data_source_type': (2, None, 'Dynamic'),
      'data_source_type_details': (3, None, _DATA_SOURCE),
      'access_type': (2, None, 'Non-interactive'),
      'access_type_details': (3, None, content['released']),
    },
    'accounting': {
      'post_processing': (3, None, _LATER_USE),
      'composition': (3, None, composed),
    },
    'implementation': {
      'preprocessing_and_hyperparameter_tuning': (
        3,
        'tuning, model_selection and pre_training',
        tuned if all(map(_stated, map(str, accesses.values()))) else None,
      ),
      'mechanisms': (3, None, mechanisms),
      'justification': (3, None, arithmetic),
    },
    'administrative': {
      'sources': (1, None, f'SHA-256 of {digests}.'),
      'notes': (1, None, _NOTES),
    },
  }


def _check(content: document.Public) -> None:
  """Raises ValueError if the registry refuses the date or the sector."""
  try:
    datetime.date.fromisoformat(content['date'] or '')
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
  """Returns the names in the note `owner`, split at semicolons.

  Raises:
    ValueError: a name is empty, or occurs twice.
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


def _stated(text: Optional[str]) -> Optional[str]:
  """Returns the text; None if it is empty or begins with 'not stated'."""
  return None if not text or text.startswith('not stated') else text


def _claim(content: document.Public) -> str:
  """Returns the claim and the bound on an attacker's success.

  Raises:
    ValueError: the report has no guarantee.
  """
  attack = content['attack']
  if attack is None:
    raise errors.value_error(
      'epsilon=None: a registry record or a model card states a guarantee, and '
      'this release has none; use bandmf report without --registry and --card'
    )
  return (
    f'({content["epsilon"]}, {content["delta"]})-differential privacy for '
    f'{content["unit"]}. {attack["sentence"]}'
  )


def _mechanism(row: document.PublicRun) -> str:
  """Returns the mechanism of a run in a few words."""
  apart, clip = row['min_sep'], row['l2_norm_clip']
  return (
    f'{row["family"]} matrix factorization, {row["rounds"]} rounds of '
    f'{row["clients_per_round"]:g} clients, at most {row["participations"]} '
    f'rounds of a client{"" if apart is None else f", {apart} apart or more"}, '
    f'noise multiplier {row["noise_multiplier"]:g}, L2 clip '
    + ('adapted in every round' if clip is None else f'{clip:g}')
  )
