"""A run of six rounds whose files are written by hand, for tests of reports."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Collection
from typing import Optional

import numpy as np

import tff_bandmf
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import participation, strategies
from tff_bandmf.run_files import metrics, run_json

ROUNDS = 6
RESULTS = {'test_accuracy': 0.123, 'test_loss': 5.0, 'parameters': 10}


@dataclasses.dataclass(frozen=True)
class Written:
  """What `make_run` writes, beside who took part and the keys of `run.json`.

  The noise of `verified` rounds was checked, by default of all; what was
  enforced is signed in those that are `held`, with their `stated` number of
  rounds.
  """

  noise_multiplier: float = 0.6
  strategy: strategies.Strategy = strategies.BandedToeplitz(
    ROUNDS, [1.0, 0.5, 0.4]
  )
  schema: participation.Participation = participation.MinSep(3, 2)
  clients_per_unit: int = 1
  key: bytes = b'key'
  measured: bool = True
  ended: bool = True
  held: Collection[int] = ()
  stated: Optional[int] = None
  verified: Collection[int] = range(ROUNDS + 1)
  burnt: Collection[int] = ()


def make_run(directory: pathlib.Path, cohorts, noise_multiplier=0.6, **changes):
  """Writes the files of a run by hand; returns the spec.

  `changes` are of `Written`, or of `RunDetails`.
  """
  changes['noise_multiplier'] = noise_multiplier
  plan_changes = {
    name: changes.pop(name)
    for name in ('stands_for', 'delta', 'clients_per_round')
    if name in changes
  }
  written = Written(
    **{
      field.name: changes.pop(field.name)
      for field in dataclasses.fields(Written)
      if field.name in changes
    }
  )
  plan = tff_bandmf.Plan(
    **{
      'rounds': written.strategy.rounds,
      'clients_per_round': 2,
      'cohorts': written.schema,
      'delta': 1e-5,
      'l2_norm_clip': 0.5,
      'noise_multiplier': written.noise_multiplier,
      'mechanism': written.strategy,
      'clients_per_unit': written.clients_per_unit,
      **plan_changes,
    }
  )
  spec = plan.guarantee
  identity = [
    int.from_bytes(hashlib.sha256(written.key + part).digest()[:8], 'big') >> 1
    for part in (b'run', b'key')
  ]
  run = {
    'format': run_json.RUN_FORMAT,
    'version': run_json.RUN_VERSION,
    **{
      name: f'{value:016x}'
      for name, value in zip(run_json.IDENTITY_KEYS, identity)
    },
    'released': 'the model',
    **changes,
  }
  notes = {
    'unit_of_privacy': 'one client',
    'population': 12,
    'data': 'some text',
    'not_covered': ['tuning'],
    'side_releases': ['a count'],
  }
  for name in {*run} & {*run_json.NOTES}:
    notes[name] = run.pop(name)
  directory.mkdir(parents=True, exist_ok=True)
  (directory / run_json.RUN_FILE).write_text(json.dumps(run))
  plan.save(directory / run_json.PLAN_FILE)
  strategies.save(
    plan.strategy,
    directory / run_json.STRATEGY_FILE,
    participation=plan.schema,
  )
  enforced = run_json.RunDetails.read(directory).enforced_digest(directory)
  rows = [
    {
      'round': str(t),
      'clients': str(len(cohort)),
      'non_finite': '0',
      'fraction': '0.3',
      'accuracy': str(0.02 * t) if t % 2 else '',
    }
    for t, cohort in enumerate(cohorts)
  ]
  folder = directory / run_json.PRIVATE / 'metrics'
  folder.mkdir(parents=True, exist_ok=True)
  for t, row in enumerate(rows):
    content = {'row': row, 'measured': {}}
    (folder / f'{t:08d}.json').write_text(json.dumps(content))
  lines = [','.join(row.values()) + '\n' for row in rows]
  header = 'round,clients,non_finite,fraction,accuracy\n'
  (directory / run_json.METRICS_FILE).write_text(''.join([header, *lines]))
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    ledger.bind(run=identity[0], noise_key=identity[1])
    ledger.note(notes)
    for t, cohort in enumerate(cohorts):
      row = metrics.digest(rows[t])
      ledger.start_round(
        t,
        np.array(cohort),
        enforced if t in written.held else None,
        written.stated,
      )
      ledger.finish_round(
        t,
        spec.z_stddev_per_clip * 0.5 if written.measured else None,
        bytes([t]) * 32,
        noise_checked=t in written.verified,
        row=row,
        flags=['examined'],
      )
      if t in written.burnt:
        ledger.abandon_round(t, row)
    if written.ended:
      end(directory, ledger)
  return spec


def end(directory, ledger, results=RESULTS):
  """Ends a run whose rounds are over, and writes `result.json`."""
  ledger.record_end(results)
  content = {**results, run_json.LEDGER_HEAD: ledger.head()}
  (directory / run_json.RESULT_FILE).write_text(json.dumps(content))


KEPT = [[0, 1], [2, 3], [4, 5], [0, 6], [2, 7], [4, 8]]
