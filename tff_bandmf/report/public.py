"""The public report of one or several runs.

A public report has only the facts that `document.Public` declares. These facts
exclude cohort sizes and numbers of clients, which the report of a run states
without noise. The public report names the few facts that it states without
noise. Privacy losses are rounded up to three digits, and noise multipliers are
rounded down.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Optional

import attrs

from tff_bandmf import errors
from tff_bandmf.report import (
  assumptions,
  browser_check,
  caveats,
  document,
  inputs,
  pages,
  sentences,
)
from tff_bandmf.report import claim as claim_lib
from tff_bandmf.report import report as report_lib
from tff_bandmf.run_files import run_json

HTML_FILE = 'public.html'

# Largest epsilon whose factor e^epsilon is written as a number.
_LARGEST_FACTOR = 16.0
_TITLE = 'Privacy of what was trained'
# Notes that a report of several runs leaves out, since the runs may differ.
_OF_ONE_RUN = ('title', 'date', 'model')
# The fact about participation that the report states without noise.
_DISCLOSURE = (
  'The observed epsilon, in three digits: it shows about how many rounds the '
  'most frequent client had, and identifies no client.'
)


@dataclasses.dataclass(frozen=True)
class Public(pages.Pages):
  """A public report."""

  NAME: ClassVar[str] = 'public'

  content: document.Public


def publish(
  sources: Sequence[inputs.Source],
  notes: Optional[Mapping[str, str]] = None,
) -> Public:
  """Returns the public report of runs on the same clients.

  Args:
    sources: the runs; the report takes the owner, the covered data and the
      trusted parties from the last run.
    notes: maps names in `document.NOTES` to texts; each text replaces the text
      of the runs.

  Raises:
    ValueError: there is no run, a run is given twice, the adjacencies or units
      of privacy differ, or the name of a note is unknown.
  """
  _check(sources, notes or {})
  last = sources[-1]
  delta = max(source.claim.delta for source in sources)
  several = len(sources) > 1 or last.composes
  releases = [each for source in sources for each in source.releases]
  together = report_lib.composed(sources, delta) if several else None
  rows = [_row(source) for source in sources]
  claimed = together or dict.fromkeys(('epsilon', 'rho'))
  if not several:
    claimed = claim_lib.figures(last.claim.claimed, delta)
    claimed['rho'] = last.claim.unamplified.rho
  epsilon = document.three(claimed['epsilon'])
  curve = []
  if not several and not last.claim.amplified:
    curve = report_lib.epsilon_curve(last.claim.unamplified, delta)
  figures = pages.figures(
    {row['name']: each.accuracy for row, each in zip(rows, sources)},
    curve if epsilon else [],
    (epsilon or 0.0, delta),
  )
  disclosures = []
  if any(row['observed_epsilon'] is not None for row in rows):
    disclosures.append(_DISCLOSURE)
  if 'accuracy' in figures:
    disclosures.append('Accuracy on validation clients.')
  run, runs = last.run, report_lib.all_runs(sources)
  # PRIVACY: if clients broke the plan, the claim follows from their actual
  # rounds, and its exact numbers could show the rounds of one client. The
  # public page then has no exact numbers, and no claim is recomputed.
  # Guard: public_test.test_exact_numbers_of_what_clients_did_are_not_public.
  broken = any(claim.violated for _, claim in runs)
  clients = max(source.claim.unamplified.clients_per_unit for source in sources)
  earlier = [pathlib.PurePath(name).name for name, _ in runs[len(sources) :]]
  names = [*(row['name'] for row in rows), *earlier]
  content = {
    **sentences.common(last.claim, run, clients),
    **(dict.fromkeys(_OF_ONE_RUN) if len(sources) > 1 else {}),
    'format': 'tff_bandmf.public_report',
    'title': run.title if run.title and len(sources) == 1 else _TITLE,
    **(notes or {}),
    'warnings': _warnings(sources),
    'epsilon': epsilon,
    'delta': delta,
    'rho': claimed['rho'],
    # This number is rounded down, so 1 / once_in is at least delta.
    'once_in': int(1 / decimal.Decimal(repr(delta))),
    'factor': _factor(epsilon),
    'attack': sentences.attack(claimed),
    'adjacency': last.claim.unamplified.cohorts.adjacency,
    'runs': rows,
    'check': None
    if broken or releases or several and not together
    else browser_check.of_runs(
      [(name, claim) for name, (_, claim) in zip(names, runs)],
      len(sources),
      together,
      public=True,
    ),
    'together': together and document.select(document.PublicTogether, together),
    'named_before': sorted(earlier),
    'other_releases': sentences.other_releases(releases),
    'not_covered': list(
      dict.fromkeys(item for each in sources for item in each.run.not_covered)
    ),
    'accounting': sentences.PUBLIC_ACCOUNTING
    + sentences.PUBLIC_AMPLIFIED * bool(last.claim.amplified),
    'assumptions': _assumptions(sources),
    'told': disclosures,
  }
  return Public(document.with_digest(document.Public, content), figures)


def _check(sources: Sequence[inputs.Source], notes: Mapping[str, str]) -> None:
  run_json.check_visible(notes)
  for name in notes.keys() - set(document.NOTES):
    raise errors.value_error(
      f'{name}={notes[name]}: is not a note of a public report; use one of '
      f'{", ".join(document.NOTES)}'
    )
  if not sources:
    raise errors.value_error('runs=none: a report needs a run; give at least 1')
  ids = [source.run.run_id for source in sources if source.run.run_id]
  if len(set(ids)) < len(ids):
    raise errors.value_error(
      f'runs={" and ".join(ids)}: must be different; give each run once'
    )
  units = sorted({source.run.unit_of_privacy for source in sources})
  if len(units) > 1:
    raise errors.value_error(
      f'unit_of_privacy={" and ".join(units)}: must be the same in all runs; '
      'make a report of each run'
    )


def _row(source: inputs.Source) -> document.PublicRun:
  """Returns the public facts of a run."""
  claim, run = source.claim, source.run
  numbers = claim.to_dict()
  promised = claim.amplified or claim.planned
  return document.select(
    document.PublicRun,
    {
      **attrs.asdict(run, recurse=False),
      **vars(source),
      **numbers,
      'name': run.title or source.name,
      'epsilon_unamplified': claim.unamplified.proved_epsilon(claim.delta),
      'planned_epsilon': promised.proved_epsilon(claim.delta),
      # For an amplified claim, `Claim.to_dict` hides the observed epsilon.
      'observed_epsilon': numbers['observed']['epsilon'],
      'kept': not claim.violated,
      'min_sep': numbers['planned']['min_sep'],
      'participations': numbers['planned']['participations'],
      'l2_norm_clip': None if claim.adaptive_clip else claim.plan.clip,
    },
  )


def _factor(epsilon: Optional[float]) -> Optional[str]:
  """Returns e^epsilon as text, rounded up."""
  if epsilon is None:
    return None
  if epsilon > _LARGEST_FACTOR:
    return f'e^{epsilon:g}'
  return f'{document.UP.create_decimal_from_float(math.exp(epsilon)):,f}'


def _warnings(sources: Sequence[inputs.Source]) -> list[str]:
  """Returns the public warnings of all runs."""
  by_text: dict[str, list[str]] = {}
  for source in sources:
    name = source.run.title or source.name
    for text in caveats.warnings(source, public=True):
      by_text.setdefault(text, []).append(name)
  return [
    text if len(sources) == 1 else f'{", ".join(names)}: {text}'
    for text, names in by_text.items()
  ]


def _assumptions(sources: Sequence[inputs.Source]) -> list[dict[str, str]]:
  """Returns the assumptions of all runs, each once."""
  merged: dict[str, list[Any]] = {}
  for source in sources:
    for row in assumptions.rows(source):
      merged.setdefault(row['assumption'], []).append(row)
  return [
    {
      name: '; '.join(dict.fromkeys(row[name] for row in rows))
      for name in rows[0]
    }
    for rows in merged.values()
  ]
