"""The public report of one or several runs.

A public report has only facts of a whitelist. Cohort sizes and numbers of
clients, which the report of a run states without noise, are not in this list.
The public report names the few facts that it states without noise. Privacy
losses are rounded up to three digits, and noise multipliers are rounded down.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, Optional

from tff_bandmf import _files, errors
from tff_bandmf.report import (
  assumptions,
  browser_check,
  caveats,
  pages,
  plot,
  statement,
)
from tff_bandmf.report import claim as claim_lib
from tff_bandmf.report import report as report_lib
from tff_bandmf.report import source as source_lib
from tff_bandmf.run_files import run_json

FORMAT = 'tff_bandmf.public_report'
VERSION = 1

HTML_FILE = 'public.html'

_UP, _DOWN = (
  decimal.Context(prec=3, rounding=rounding)
  for rounding in (decimal.ROUND_CEILING, decimal.ROUND_FLOOR)
)
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


def publish(
  sources: Sequence[source_lib.Source],
  notes: Optional[Mapping[str, str]] = None,
) -> Public:
  """Returns the public report of runs on the same clients.

  Args:
    sources: the runs; the report takes the owner, the covered data and the
      trusted parties from the last run.
    notes: maps names in `report.NAMED` to texts; each text replaces the text of
      the runs.

  Raises:
    ValueError: there is no run, a run is given twice, the adjacencies or units
      of privacy differ, or the name of a note is unknown.
  """
  _check(sources, notes or {})
  last = sources[-1]
  delta = max(source.claim.delta for source in sources)
  several = len(sources) > 1 or bool(last.before)
  together = report_lib.composed(sources, delta) if several else None
  rows = [_row(source) for source in sources]
  claimed: _files.JsonObject = {'epsilon': None, 'rho': None}
  if together or not several:
    claimed = _numbers(together) if together else rows[0]
  curve = (
    []
    if last.claim.amplified
    else report_lib.epsilon_curve(last.claim.held, last.claim.delta)
  )
  accuracies = {
    row['name']: source.accuracy for row, source in zip(rows, sources)
  }
  figures = {
    'accuracy': plot.accuracy(accuracies),
    'epsilon': None
    if several or not curve
    else plot.epsilon(curve, (rows[0]['epsilon'], delta)),
  }
  run = last.run
  units = max(source.claim.held.clients_per_unit for source in sources)
  content = {
    'format': FORMAT,
    'version': VERSION,
    **{
      name: getattr(run, name)
      if len(sources) == 1 or name not in _OF_ONE_RUN
      else None
      for name in report_lib.NAMED
    },
    'title': run.title if run.title and len(sources) == 1 else _TITLE,
    **(notes or {}),
    'unit_of_privacy': run.unit_of_privacy,
    'unit': statement.unit(run, units),
    'clients_per_unit': units,
    'warnings': _warnings(sources),
    'epsilon': claimed['epsilon'],
    'delta': delta,
    'rho': claimed['rho'],
    # This number is rounded down, so 1 / once_in is at least delta.
    'once_in': int(1 / decimal.Decimal(repr(delta))),
    'factor': _factor(claimed['epsilon']),
    'attack': statement.attack(
      together or {'epsilon': None}
      if several
      else {
        **claim_lib.figures(last.claim.claimed, delta),
        'rho': last.claim.held.rho,
      }
    ),
    'adjacency': last.claim.held.cohorts.adjacency,
    'adjacency_meaning': statement.ADJACENCY,
    'runs': rows,
    'check': _recomputed(sources, together, delta),
    'together': together
    and {**_numbers(together), 'composition': together['composition']},
    'named_before': sorted(
      pathlib.PurePath(name).name
      for run_id, name in {
        run_id: name
        for source in sources
        for run_id, (name, _) in source.before.items()
      }.items()
      if run_id not in {each.run.run_id for each in sources}
    ),
    'setting': statement.setting(run),
    'released': run.released,
    'covered': statement.covered(run),
    'not_covered': list(
      dict.fromkeys(item for each in sources for item in each.run.not_covered)
    ),
    'data_accesses': statement.data_accesses(run),
    'accounting': statement.public_accounting(last.claim),
    'assumptions': _assumptions(sources),
    'told': [
      *(
        [_DISCLOSURE]
        if any(row['observed_epsilon'] is not None for row in rows)
        else []
      ),
      *(['Accuracy on validation clients.'] if figures['accuracy'] else []),
    ],
  }
  return Public(
    pages.signed(content),
    {name: figure for name, figure in figures.items() if figure},
  )


def three(value: Optional[float], up: bool = True) -> Optional[float]:
  """Returns a number with three digits, rounded up or down; None for None.

  PRIVACY: an epsilon that is rounded down, or a noise multiplier that is
  rounded up, would claim too much. Callers round privacy loss up and noise
  down.
  Guard: public_test.test_figures_are_rounded_to_the_safe_side.
  """
  if value is None:
    return None
  # `repr` gives the shortest decimal of the float, so 1.2 stays 1.2.
  return float((_UP if up else _DOWN).create_decimal(repr(float(value))))


def _check(
  sources: Sequence[source_lib.Source], notes: Mapping[str, str]
) -> None:
  run_json.check_visible(notes)
  for name in notes.keys() - set(report_lib.NAMED):
    raise errors.value_error(
      f'{name}={notes[name]}: is not a note of a public report; use one of '
      f'{", ".join(report_lib.NAMED)}'
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


def _numbers(together: _files.JsonObject) -> _files.JsonObject:
  return {name: three(together[name]) for name in ('epsilon', 'rho')}


def _row(source: source_lib.Source) -> _files.JsonObject:
  """Returns the public facts of a run."""
  claim, run = source.claim, source.run
  schema = claim.planned.cohorts.schema
  rounds = claim.planned_rounds
  return {
    'name': run.title or source.name,
    'model': run.model,
    'date': run.date,
    'epsilon': three(claim.claimed.proved_epsilon(claim.delta)),
    'rho': three(claim.held.rho),
    'delta': claim.delta,
    'amplification': claim.amplification,
    'epsilon_unamplified': three(claim.held.proved_epsilon(claim.delta)),
    'planned_epsilon': three(
      (claim.amplified or claim.planned).proved_epsilon(claim.delta)
    ),
    # PRIVACY: amplification assumes secret cohorts, and an observed epsilon
    # shows how often a client was drawn. The public report of an amplified run
    # leaves the observed epsilon out.
    # Guard: report_sampling_test.test_report_keeps_what_was_drawn_to_itself.
    'observed_epsilon': None
    if claim.amplified or claim.seen is None
    else three(claim.seen.proved_epsilon(claim.delta)),
    'kept': not claim.violated,
    'completed': source.completed,
    'elsewhere': source.elsewhere,
    'rounds': rounds,
    'clients_per_round': claim.clients_per_round,
    'min_sep': None if schema.min_sep is None else schema.separation(rounds),
    'participations': schema.participations(claim.held.strategy.rounds),
    'family': claim.held.strategy.family,
    'noise_multiplier': three(claim.claimed.noise_multiplier, up=False),
    'l2_norm_clip': None
    if run.claim.get('adaptive_clip')
    else claim.l2_norm_clip,
    'strategy_sha256': claim.held.strategy.digest(),
    'code_sha256': run.code_sha256,
  }


def _recomputed(
  sources: Sequence[source_lib.Source],
  together: Optional[_files.JsonObject],
  delta: float,
) -> Optional[_files.JsonObject]:
  """Returns the numbers from which a browser recomputes the claims."""
  runs = report_lib.all_runs(sources)
  # PRIVACY: if clients broke the plan, the claim follows from their actual
  # rounds, and its exact numbers could show the rounds of one client. The
  # public page then has no exact numbers, and no claim is recomputed.
  # Guard: public_test.test_exact_numbers_of_what_clients_did_are_not_public.
  if any(claim.violated for _, claim in runs):
    return None
  claims: list[tuple[str, Sequence[int], float, Optional[float]]] = []
  if len(runs) > 1:
    if not together:
      return None
    chance = any(claim.amplified for _, claim in runs)
    amplified = three(together['epsilon']) if chance else None
    claims.append(('all runs together', range(len(runs)), delta, amplified))
  names = [source.run.title or source.name for source in sources]
  names += [pathlib.PurePath(name).name for name, _ in runs[len(sources) :]]
  guarantees, places = report_lib.recomputed(
    [(name, claim) for name, (_, claim) in zip(names, runs)], len(sources)
  )
  for name, place, source in zip(names, places, sources):
    claim = source.claim
    epsilon = claim.claimed.proved_epsilon(claim.delta)
    amplified = three(epsilon) if claim.amplified else None
    claims.append((name, [place], claim.delta, amplified))
  return browser_check.numbers(guarantees, claims, three)


def _factor(epsilon: Optional[float]) -> Optional[str]:
  """Returns e^epsilon as text, rounded up."""
  if epsilon is None:
    return None
  if epsilon > _LARGEST_FACTOR:
    return f'e^{epsilon:g}'
  return f'{_UP.create_decimal_from_float(math.exp(epsilon)):,f}'


def _warnings(sources: Sequence[source_lib.Source]) -> list[str]:
  """Returns the public warnings of all runs."""
  by_text: dict[str, list[str]] = {}
  for source in sources:
    warning_pairs = caveats.warnings(
      source.claim, source.run, source.completed, source.elsewhere
    )
    texts = [text for _, text in warning_pairs if text]
    for text in texts + source.warned_before:
      by_text.setdefault(text, []).append(source.run.title or source.name)
  return [
    text if len(sources) == 1 else f'{", ".join(names)}: {text}'
    for text, names in by_text.items()
  ]


def _assumptions(sources: Sequence[source_lib.Source]) -> list[dict[str, str]]:
  """Returns the assumptions of all runs, each once."""
  merged: dict[str, dict[str, dict[str, None]]] = {}
  for source in sources:
    for row in assumptions.rows(source.claim, source.run, source.elsewhere):
      columns = merged.setdefault(
        row['assumption'], {'enforced_by': {}, 'checked': {}}
      )
      for name, texts in columns.items():
        texts[row[name]] = None
  return [
    {
      'assumption': assumption,
      **{name: '; '.join(texts) for name, texts in columns.items()},
    }
    for assumption, columns in merged.items()
  ]
