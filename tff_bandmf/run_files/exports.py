"""Exports of a run: files that repeat values of the plan and the ledger.

| file            | repeats                                              |
|-----------------|------------------------------------------------------|
| `strategy.json` | the strategy matrix C and the schema of `plan.json`  |
| `result.json`   | the results in the ledger, and the head of its chain |

The module `metrics` writes a third export, `metrics.csv`. The library only
compares exports with the plan and the ledger. When a run is opened, missing
exports are written.
"""

from __future__ import annotations

import pathlib
from typing import Optional

from tff_bandmf import _files, errors, strategies
from tff_bandmf.ledger import chain
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.run_files import run_json


def check(
  directory: pathlib.Path, plan: plan_lib.Plan, ended: Optional[chain.End]
) -> list[tuple[pathlib.Path, _files.JsonObject]]:
  """Returns the missing exports, as pairs (path, content).

  Args:
    directory: folder of the run.
    plan: plan of the run.
    ended: the end of the run in the ledger; None if the run has not ended.

  Raises:
    ValueError: an export differs from the plan or the ledger.
  """
  missing = []
  strategy = strategies.to_document(plan.strategy, plan.schema)
  results: Optional[_files.JsonObject] = None
  if ended is not None:
    results = {**ended.results, run_json.LEDGER_HEAD: ended.head}
  for name, source, content in (
    (run_json.STRATEGY_FILE, run_json.PLAN_FILE, strategy),
    (run_json.RESULT_FILE, 'the ledger', results),
  ):
    path = directory / name
    # PRIVACY: suppose that somebody restored the ledger of an earlier moment,
    # or removed clients from it and computed its chain again. The run would
    # repeat rounds, or claim too small an epsilon. The export then has another
    # head or other results than the ledger, and is refused.
    # Guard: consistency_test.test_client_cut_out_of_two_cohorts_is_refused.
    if path.exists():
      try:
        exported = _files.read_json(path)
      except ValueError:
        exported = None
      digest = _files.json_digest
      if content is None or digest(exported) != digest(content):
        raise errors.value_error(
          f'{path.stem}={path}: differs from {source}, of which it is an '
          f'export; restore the files of this run, or remove {name}'
        )
    elif content is not None:
      missing.append((path, content))
  return missing
