"""The report of a run: Markdown, JSON and a page of HTML.

`document.Report` documents every field of the JSON file. The Markdown file and
the page show the same content.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Sequence
from typing import ClassVar, Optional, Union

import numpy as np

from tff_bandmf import _files, accounting, clipping_norm, errors, participation
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

MARKDOWN_FILE = 'report.md'
JSON_FILE = 'report.json'
HTML_FILE = 'report.html'

# Range of delta in the curve of epsilon, and the number of points of the curve.
_LARGEST_DELTA, _SMALLEST_DELTA, _POINTS = 1e-2, 1e-14, 61

# Packages whose versions a report states.
_PACKAGES = (
  *('tff-bandmf', 'tensorflow-federated', 'tensorflow', 'tensorflow-privacy'),
  *('dp-accounting', 'numpy', 'scipy'),
)


@dataclasses.dataclass(frozen=True)
class Report(pages.Pages):
  """The report of a run; the keys of `figures` are in `content['plots']`."""

  NAME: ClassVar[str] = 'report'

  content: document.Report

  @property
  def statement(self) -> str:
    """Returns the formal statement."""
    return self.content['formal_statement']

  def files(self) -> dict[str, bytes]:
    """Returns {name of the file: its content} for all files, plots included."""
    return {**self._images('png'), **super().files()}


def build(directory: Union[str, os.PathLike]) -> Report:
  """Returns the report of a run; writes nothing.

  Args:
    directory: folder of the run. Its folder `compare/` may have runs that the
      report compares with this run.

  Raises:
    TypeError: a value in `run.json` that must be a number has another type.
    ValueError: the files do not support a claim.
    OSError: a file cannot be read.
  """
  return from_source(inputs.of_run(directory))


def from_source(source: inputs.Source) -> Report:
  """Returns the report of a run, or of training outside this library."""
  run, claim = source.run, source.claim
  numbers, delta = claim.to_dict(), claim.delta
  rows = [(numbers['family'], source)]
  rows += [(each.name, each) for each in source.compared]
  # An amplified claim has no curve: each point could need many random samples.
  curve = [] if claim.amplified else epsilon_curve(claim.unamplified, delta)
  deltas = {delta, *(() if claim.amplified else browser_check.DELTAS)}
  adaptive = _adaptive(source)
  figures = pages.figures(
    {name: each.accuracy for name, each in rows},
    curve,
    (numbers['epsilon'], delta),
    epsilon_curve(claim.planned, delta) if claim.violated else None,
    [tuple(each.values()) for each in adaptive['path']] if adaptive else (),
  )
  figures = {f'{name}.png': figure for name, figure in figures.items()}
  together = composed([source], delta) if source.composes else None
  alone = dataclasses.replace(source, releases=())
  joint = composed([alone], delta) if together and source.before else None
  content = {
    **sentences.common(claim, run, claim.unamplified.clients_per_unit),
    **vars(source),
    **numbers,
    'format': 'tff_bandmf.report',
    'summary': _summary(numbers, source, together),
    'warnings': caveats.warnings(source),
    'simulated': claim.plan.simulated is not None,
    'enforced': claim.enforced,
    'together': together,
    'other_releases': sentences.other_releases(source.releases),
    'attack': sentences.attack(together or numbers),
    'adaptive_clip': adaptive,
    'epsilons': [
      {'delta': each, 'epsilon': claim.claimed.proved_epsilon(each)}
      for each in sorted(deltas, reverse=True)
    ],
    'epsilon_curve': curve,
    'check': browser_check.of_runs(
      all_runs([source])[: None if joint else 1], 1, joint
    ),
    'accounting': sentences.AMPLIFIED
    if claim.amplified
    else sentences.ACCOUNTING,
    'formal_statement': sentences.formal(claim, numbers, run),
    'assumptions': list(assumptions.rows(source)),
    'generator': None if source.elsewhere else sentences.generator(run),
    'runs': [_row(name, each) for name, each in rows]
    if source.completed and source.results
    else [],
    'plots': sorted(figures),
    'versions': run.versions or {},
    'report_versions': versions(),
    'report_code_sha256': _files.code_digest(),
    # PRIVACY: a ledger that was edited after this report could support a
    # smaller epsilon. An edit changes the head of the ledger's hash chain, so
    # the report states this head.
    # Guard:
    # run_folder_test.test_report_of_an_open_run_has_the_head_of_its_ledger.
    'ledger_head': claim.observed.head,
  }
  return Report(document.with_digest(document.Report, content), figures)


def composed(
  sources: Sequence[inputs.Source], delta: float
) -> Optional[_files.JsonObject]:
  """Returns the guarantee of runs, their predecessors and other releases.

  Predecessors are the earlier runs on the same clients. The result is None if
  one of these runs has no noise, or if no joint epsilon is proved.

  Args:
    sources: the runs, each once.
    delta: delta of the composed claim.

  Raises:
    ValueError: the runs have different adjacencies.
  """
  names = {source.run.run_id: source.name for source in sources}
  for source in sources:
    for run_id, (name, _) in source.before.items():
      names.setdefault(run_id, name)
  parts = [source.guarantee for source in sources]
  if not all(run.noise_multiplier for each in parts for run in each.guarantees):
    return None
  together = accounting.compose(parts)
  runs = [names[run_id] for run_id in together.run_ids]
  numbers = together.to_dict(delta)
  return {'runs': runs, **numbers} if numbers['epsilon'] is not None else None


def all_runs(
  sources: Sequence[inputs.Source],
) -> list[tuple[str, claim_lib.Claim]]:
  """Returns (name, claim) of each run, then of each predecessor, once."""
  runs = [(source.name, source.claim) for source in sources]
  run_ids = {source.run.run_id for source in sources}
  for source in sources:
    for run_id, (name, claim) in source.before.items():
      if run_id not in run_ids:
        run_ids.add(run_id)
        runs.append((name, claim))
  return runs


def write(directory: Union[str, os.PathLike]) -> _files.JsonObject:
  """Writes a run's report into the run's folder; returns the report's content.

  Raises:
    TypeError, ValueError: the errors of `build`; nothing is written.
    OSError: a file cannot be read or written.
  """
  return build(directory).write(directory)


def what_if(
  directory: Union[str, os.PathLike],
  min_sep: Optional[int] = None,
  max_participations: Optional[int] = None,
) -> _files.JsonObject:
  """Returns the guarantee that the noise of a run gives under another b or k.

    noise_multiplier = z_stddev / (clip * sens(C; b, k))

  The result is not a claim about the run, whose clients may have taken part
  more often or in closer rounds. A sentence under `summary` says so. The
  function writes no file.

  Args:
    directory: folder of the run.
    min_sep: b, >= 1; if None, the planned b.
    max_participations: k, >= 1; if None, the planned k or, if the plan has no
      k, the largest k that min_sep allows.

  Raises:
    TypeError: b or k is not an integer.
    ValueError: neither b nor k is given, a value is out of range, or the files
      do not support a claim.
  """
  if min_sep is None and max_participations is None:
    raise errors.value_error(
      'what_if=None: has no value; give min_sep, max_participations or both'
    )
  claim = claim_lib.from_run(pathlib.Path(directory))
  planned, observed = claim.planned.cohorts.schema, claim.observed
  if min_sep is None:
    # A plan with one participation per client has no min_sep.
    min_sep = planned.min_sep or 1
  if max_participations is None:
    max_participations = planned.max_participations
  schema = participation.MinSep(min_sep, max_participations)
  guarantee = claim.planned.for_cohorts(schema)
  figures = claim_lib.figures(guarantee, claim.delta)
  numbers = guarantee.to_dict()
  del numbers['z_stddev_per_clip']
  # If clients took part more often, or closer together, than this schema
  # allows, the result does not hold for this run.
  worse = not observed.log.satisfies(schema, claim.unamplified.strategy.rounds)
  proved = 'no guarantee: this run has no noise'
  if figures['epsilon'] is not None:
    proved = f'({pages.number(figures["epsilon"])}, {claim.delta})-DP'
  summary = (
    f'Had min_sep been {min_sep} and participations at most '
    f'{numbers["participations"]}, with the noise of this run: {proved}.'
  )
  if worse:
    summary += (
      f' This guarantee does not hold for the run: the ledger has min_sep '
      f'{observed.min_sep} and {observed.max_participations} participations of '
      'a client.'
    )
  return {
    'summary': summary,
    **numbers,
    'z_stddev': claim.z_stddev,
    **figures,
    'observed_min_sep': observed.min_sep,
    'observed_participations': observed.max_participations,
    'observed_is_worse': worse,
  }


def epsilon_curve(
  guarantee: accounting.Guarantee, delta: float
) -> list[dict[str, float]]:
  """Returns points (epsilon, delta), from large to small delta.

  The points have equal distances in epsilon, because delta at a given epsilon
  has a formula, and epsilon at a given delta needs a search. The list is empty
  if there is no noise, or if no epsilon is proved at the first or last delta.
  """
  smallest = guarantee.proved_epsilon(max(delta, _LARGEST_DELTA))
  # The curve ends at the first of these deltas that has a proved epsilon.
  deltas = min(delta, _SMALLEST_DELTA), *reversed(browser_check.DELTAS), delta
  proved = map(guarantee.proved_epsilon, deltas)
  largest = next((each for each in proved if each is not None), None)
  if smallest is None or largest is None:
    return []
  epsilons = np.linspace(smallest, largest, _POINTS).tolist()
  return [
    {'epsilon': epsilon, 'delta': each}
    for epsilon, each in zip(epsilons, map(guarantee.delta, epsilons))
  ]


def versions() -> dict[str, str]:
  """Returns the versions of Python and of the packages behind a claim."""
  installed = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      installed[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      installed[package] = 'not installed'
  return installed


def _adaptive(source: inputs.Source) -> Optional[_files.JsonObject]:
  """Returns the rule and the path of the clip; None if it does not adapt."""
  adaptive = source.claim.adaptive_clip
  if not adaptive:
    return None
  layers = clipping_norm.layers(source.claim.plan.l2_norm_clip)
  first = clipping_norm.norm(layers)
  path = [(0, first), *source.clips]
  return {
    **adaptive,
    'first_l2_norm_clip': first,
    'last_l2_norm_clip': path[-1][1],
    'path': [{'rounds': rounds, 'l2_norm_clip': clip} for rounds, clip in path],
  }


def _row(name: str, source: inputs.Source) -> document.Results:
  """Returns a row of the table of results."""
  numbers = source.claim.to_dict()
  del numbers['parameters']
  results = dict(source.results)
  return document.select(
    document.Results, {**results, **numbers, 'name': name, 'results': results}
  )


def _summary(
  numbers: _files.JsonObject,
  source: inputs.Source,
  together: Optional[_files.JsonObject],
) -> str:
  """Returns the claim in a few sentences."""
  simulated = source.claim.plan.simulated is not None
  leads = 'SIMULATED, no claim for a deployment: ' * simulated
  if numbers['rho'] is None:
    return f'{leads}This run added no noise and guarantees nothing.'
  if numbers['epsilon'] is None:
    return (
      f'{leads}This run added too little noise for a claim: nothing is proved '
      'about its arithmetic.'
    )
  # PRIVACY: A reader may quote the summary alone, and think that its epsilon is
  # the planned epsilon. If the planned claim does not hold, a sentence before
  # the first epsilon says so.
  # Guards: run_budget_test.test_report_refuses_the_planned_claim,
  # after_test.test_broken_claim_of_a_simulation_comes_before_earlier_runs.
  leads += sentences.BROKEN * source.claim.violated
  leads += sentences.UNCHECKED * source.claim.process_unknown
  rounds = sentences.count(numbers['observed']['rounds'], 'round')
  clients = sentences.count(numbers['clients_per_round'], 'client')
  text = (
    f'({pages.number(numbers["epsilon"])}, {numbers["delta"]})-differential '
    f'privacy for {source.run.unit_of_privacy}, {numbers["adjacency"]} '
    f'adjacency, {rounds} of {clients}, {numbers["family"]} noise.'
  )
  if numbers['amplification'] != 'none':
    other = numbers['sampling']['epsilon_unamplified']
    text = (
      f'{text[:-1]}, amplified by {numbers["amplification"]} sampling; without '
      f'amplification {sentences.epsilon_text(other, pages.number)}.'
    )
  if not source.composes:
    return leads + text
  others = {'earlier run': source.before, 'other release': source.releases}
  before = ' and '.join(
    sentences.count(len(each), noun) for noun, each in others.items() if each
  )
  if together is None:
    return f'{leads}{text} Together with {before}: no guarantee.'
  return (
    f'{leads}Together with {before} on the same clients: '
    f'({pages.number(together["epsilon"])}, {together["delta"]})-differential '
    f'privacy. This run alone: {text}'
  )
