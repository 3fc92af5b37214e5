"""Names and reading of the files of a run directory.

`run.json` is written before the first round, by whoever trains. It holds

| key                                 | says                                   |
|-------------------------------------|----------------------------------------|
| `format`, `version`                 | `RUN_FORMAT`, `RUN_VERSION`            |
| `run_id`, `noise_key_id`            | which run, and which key: what the     |
|                                     | ledger is bound to, 63 bits, as 16     |
|                                     | hexadecimal digits                     |
| `config`                            | the experiment; the report shows none  |
| `claim`                             | `PrivacySpec.to_dict()`, `delta`,      |
|                                     | `l2_norm_clip`, `clients_per_round`    |
| `unit_of_privacy`                   | whose contributions become zero        |
| `population`                        | clients that may be drawn              |
| `data`                              | the corpus, in a few words             |
| `released`                          | what the guarantee is for              |
| `not_covered`, `side_releases`      | lists of sentences                     |

and, where it is known, the optional keys

| key                                 | says                                   |
|-------------------------------------|----------------------------------------|
| `setting`, `covered`, `noise_key`   | a sentence each: who is trusted, what  |
|                                     | data accesses the guarantee counts,    |
|                                     | where the key came from                |
| `noise_generator`                   | 'chacha20'                             |
| `tuning`, `model_selection`,        | a sentence each: what the run used     |
| `pre_training`                      |                                        |
| `enforced`                          | `min_sep`, `max_participations`, `by`  |
| `clipped_by`                        | a sentence: who clips an update        |
| `simulated`                         | what a larger cohort, that the run's   |
|                                     | stands for, would have; the report     |
|                                     | then claims nothing for a deployment   |
| `versions`                          | package to version                     |
| `code_sha256`, `train_sha256`       | digests of the code, of the train data |

What the optional keys do not say the report calls 'not stated'.
"""

from __future__ import annotations

import csv
import hashlib
import math
import pathlib
import re
import unicodedata
from typing import Any, Optional

from tff_bandmf import _files, errors

RUN_FORMAT = 'tff_bandmf.run'
RUN_VERSION = 2
RUN_ID = 'run_id'
NOISE_KEY_ID = 'noise_key_id'
# What stands in `run.json` and follows from the rest and the key.
IDENTITY_KEYS = (RUN_ID, NOISE_KEY_ID)

RUN_FILE = 'run.json'
STRATEGY_FILE = 'strategy.json'
LEDGER_FILE = 'ledger.sqlite'
METRICS_FILE = 'metrics.csv'
RESULT_FILE = 'result.json'
COMPARE_DIRECTORY = 'compare'
MARKDOWN_FILE = 'report.md'
JSON_FILE = 'report.json'
HTML_FILE = 'report.html'
RESULT_KEYS = ('test_accuracy', 'test_loss', 'parameters')
LEDGER_HEAD = 'ledger_head'
CHECKPOINTS = 'private/checkpoints'

# What it must hold, and of which kind.
_RUN_KEYS = {
  RUN_ID: str,
  NOISE_KEY_ID: str,
  'config': dict,
  'claim': dict,
  'unit_of_privacy': str,
  'population': int,
  'data': str,
  'released': str,
  'not_covered': list,
  'side_releases': list,
}
_OPTIONAL_KEYS = {
  'setting': str,
  'covered': str,
  'noise_key': str,
  'noise_generator': str,
  'tuning': str,
  'model_selection': str,
  'pre_training': str,
  'enforced': dict,
  'clipped_by': str,
  'simulated': dict,
  'versions': dict,
  'code_sha256': str,
  'train_sha256': str,
}
_CLAIM_KEYS = (
  'noise_multiplier',
  'z_stddev_per_clip',
  'delta',
  'l2_norm_clip',
  'clients_per_round',
)
_IDENTITY = re.compile('[0-7][0-9a-f]{15}')
_HEAD = re.compile('[0-9a-f]{64}')
_ENFORCED_KEYS = ('min_sep', 'max_participations', 'by')


def read_run(directory: pathlib.Path) -> dict[str, Any]:
  """Returns what `run.json` says.

  Raises:
    ValueError: there is none, or it is of another format or version.
  """
  path = directory / RUN_FILE
  try:
    run = _files.read_json(path)
  except FileNotFoundError as error:
    raise ValueError(
      errors.invalid(
        'run',
        directory,
        f'has no {RUN_FILE}',
        'give the output directory of a training run',
      )
    ) from error
  except ValueError as error:
    raise ValueError(
      errors.invalid('run', path, 'is damaged', 'train again')
    ) from error
  if not isinstance(run, dict) or (run.get('format'), run.get('version')) != (
    RUN_FORMAT,
    RUN_VERSION,
  ):
    raise ValueError(
      errors.invalid(
        'run',
        path,
        f'must be {RUN_FORMAT} version {RUN_VERSION}',
        'end it with the release that began it, or train again',
      )
    )
  wrong = [
    name
    for name, kind in _RUN_KEYS.items()
    if not isinstance(run.get(name), kind)
  ]
  wrong += [
    name
    for name, kind in _OPTIONAL_KEYS.items()
    if name in run and not isinstance(run[name], kind)
  ]
  wrong += [
    f'claim.{name}'
    for name in _CLAIM_KEYS
    if 'claim' not in wrong and name not in run['claim']
  ]
  wrong += [
    f'enforced.{name}'
    for name in _ENFORCED_KEYS
    if 'enforced' in run
    and 'enforced' not in wrong
    and name not in run['enforced']
  ]
  wrong += [
    name
    for name in IDENTITY_KEYS
    if name not in wrong and not _IDENTITY.fullmatch(run[name])
  ]
  wrong += [name for name, value in run.items() if not _is_printable(value)]
  if wrong:
    raise ValueError(
      errors.invalid(
        'run',
        path,
        f'lacks {", ".join(wrong)}, or holds another kind',
        'restore the file',
      )
    )
  return run


def read_result(directory: pathlib.Path) -> dict[str, float]:
  """Returns what `result.json` measures; nothing for a run that goes on."""
  return _read_result(directory)[0]


def result_head(directory: pathlib.Path) -> Optional[str]:
  """Returns the head of the ledger's chain when the run ended; None before."""
  return _read_result(directory)[1]


def _read_result(
  directory: pathlib.Path,
) -> tuple[dict[str, float], Optional[str]]:
  path = directory / RESULT_FILE
  if not path.exists():
    return {}, None
  try:
    result = _files.read_json(path)
    numbers = {key: float(result[key]) for key in RESULT_KEYS}
    if not all(map(math.isfinite, numbers.values())):
      raise ValueError('NaN or infinity')
    if not _HEAD.fullmatch(result[LEDGER_HEAD]):
      raise ValueError('no head')
    return numbers, result[LEDGER_HEAD]
  except (ValueError, TypeError, KeyError, OverflowError) as error:
    raise ValueError(
      errors.invalid(
        'result', path, 'is damaged', 'remove it and resume the run'
      )
    ) from error


def read_metrics(directory: pathlib.Path) -> list[dict[str, str]]:
  """Returns the rows of `metrics.csv`, column to text; [] without the file.

  Raises:
    ValueError: a row has no round, or other columns than the first.
  """
  return _read_metrics(directory)[1]


def metrics_lines(directory: pathlib.Path) -> dict[int, str]:
  """Returns the rows of `metrics.csv` as they stand there: round to line.

  Raises:
    ValueError: as `read_metrics`; or a round is there twice.
  """
  lines, rows = _read_metrics(directory)
  found = {int(row['round']): line for row, line in zip(rows, lines[1:])}
  if len(found) < len(rows):
    raise _damaged_metrics(directory)
  return found


def metrics_digests(directory: pathlib.Path) -> dict[int, bytes]:
  """Returns the digest of every row of `metrics.csv`: round to SHA-256.

  Raises:
    ValueError: as `metrics_lines`.
  """
  found = metrics_lines(directory)
  if not found:
    return {}
  header = _read_metrics(directory)[0][0]
  return {t: row_digest(header, line) for t, line in found.items()}


def row_digest(header: str, line: str) -> bytes:
  """Returns what the ledger keeps of a row of metrics; see `record_row`.

  Args:
    header: first line of the file.
    line: of the row, with its end.
  """
  return hashlib.sha256((header + line).encode()).digest()


def _read_metrics(
  directory: pathlib.Path,
) -> tuple[list[str], list[dict[str, str]]]:
  """Returns the lines of the file and, of all but the first, the rows."""
  path = directory / METRICS_FILE
  if not path.exists():
    return [], []
  try:
    lines = _files.read(path).decode().splitlines(keepends=True)
    rows = list(csv.DictReader(lines, strict=True))
    for row in rows:
      int(row['round']), int(row.get('clients') or 0)
      float(row.get('accuracy') or 0)
      if None in row or None in row.values():
        raise ValueError('a row of another length')
    if len(rows) != max(len(lines) - 1, 0):
      raise ValueError('a row of more than a line')
  except (ValueError, TypeError, KeyError, csv.Error) as error:
    raise _damaged_metrics(directory) from error
  return lines, rows


def _damaged_metrics(directory: pathlib.Path) -> ValueError:
  return ValueError(
    errors.invalid(
      'metrics',
      directory / METRICS_FILE,
      'is damaged',
      'restore the file, or remove it',
    )
  )


def _is_printable(value: Any) -> bool:
  """Returns whether no text in a JSON value has control characters.

  They, and halves of characters, could make a report read as another one.
  """
  if isinstance(value, dict):
    return all(map(_is_printable, (*value, *value.values())))
  if isinstance(value, list):
    return all(map(_is_printable, value))
  return not isinstance(value, str) or not any(
    unicodedata.category(character) in ('Cc', 'Cs') for character in value
  )


def accuracy(rows: list[dict[str, str]]) -> list[tuple[int, float]]:
  """Returns (rounds done, validation accuracy) wherever it was measured."""
  return [
    (int(row['round']) + 1, float(row['accuracy']))
    for row in rows
    if row.get('accuracy')
  ]
