"""Names and reading of the files of a run directory."""

from __future__ import annotations

import csv
import json
import pathlib
from typing import Any

from tff_bandmf import errors

RUN_FORMAT = 'tff_bandmf.run'
RUN_VERSION = 1

RUN_FILE = 'run.json'
STRATEGY_FILE = 'strategy.json'
LEDGER_FILE = 'ledger.sqlite'
METRICS_FILE = 'metrics.csv'
RESULT_FILE = 'result.json'
COMPARE_DIRECTORY = 'compare'
MARKDOWN_FILE = 'report.md'
RESULT_KEYS = ('test_accuracy', 'test_loss', 'parameters')
_RUN_KEYS = (
    'config', 'claim', 'unit_of_privacy', 'population', 'data', 'released',
    'not_covered', 'side_releases')
_CLAIM_KEYS = (
    'min_sep', 'max_participations', 'noise_multiplier', 'z_stddev_per_clip',
    'delta', 'l2_norm_clip', 'clients_per_round')

JSON_FILE = 'report.json'
PLOT_FILE = 'accuracy.png'


def read_run(directory: pathlib.Path) -> dict[str, Any]:
  """Returns what `run.json` says.

  Raises:
    ValueError: there is none, or it is of another format or version.
  """
  path = directory / RUN_FILE
  try:
    run = json.loads(path.read_text())
  except FileNotFoundError as error:
    raise ValueError(
        errors.invalid(
            'run', directory, f'has no {RUN_FILE}',
            'give the output directory of a training run')) from error
  except ValueError as error:
    raise ValueError(
        errors.invalid('run', path, 'is damaged', 'train again')) from error
  if not isinstance(run, dict) or (
      run.get('format'), run.get('version')) != (RUN_FORMAT, RUN_VERSION):
    raise ValueError(
        errors.invalid(
            'run', path, f'must be {RUN_FORMAT} version {RUN_VERSION}',
            'use the release that trained it'))
  missing = [
      name for name in (*_RUN_KEYS, *(f'claim.{key}' for key in _CLAIM_KEYS))
      if not _has(run, name)]
  if missing:
    raise ValueError(
        errors.invalid(
            'run', path, f'lacks {", ".join(missing)}', 'restore the file'))
  return run


def _has(tree: Any, name: str) -> bool:
  for part in name.split('.'):
    if not isinstance(tree, dict) or part not in tree:
      return False
    tree = tree[part]
  return True


def read_result(directory: pathlib.Path) -> dict[str, Any]:
  """Returns what `result.json` says; nothing for a run that has not ended."""
  path = directory / RESULT_FILE
  if not path.exists():
    return {}
  try:
    result = json.loads(path.read_text())
    return {key: float(result[key]) for key in RESULT_KEYS}
  except (ValueError, TypeError, KeyError) as error:
    raise ValueError(
        errors.invalid(
            'result', path, 'is damaged', 'remove it and resume the run')
    ) from error


def read_accuracy(directory: pathlib.Path) -> list[tuple[int, float]]:
  """Returns (rounds done, validation accuracy) wherever it was measured."""
  path = directory / METRICS_FILE
  if not path.exists():
    return []
  with open(path, newline='') as stream:
    return [
        (int(row['round']) + 1, float(row['accuracy']))
        for row in csv.DictReader(stream) if row['accuracy']
    ]
