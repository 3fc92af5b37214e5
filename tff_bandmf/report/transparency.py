"""What a report was made from: versions and digests."""

from __future__ import annotations

import hashlib
import importlib.metadata
import pathlib
import platform

from tff_bandmf.program import run_record

_PACKAGES = (
  'tff-bandmf',
  'tensorflow-federated',
  'tensorflow',
  'tensorflow-privacy',
  'dp-accounting',
  'numpy',
  'scipy',
)
# By name: never a folder, which could hold the key.
_HASHED = (
  run_record.RUN_FILE,
  run_record.STRATEGY_FILE,
  run_record.LEDGER_FILE,
  run_record.METRICS_FILE,
  run_record.RESULT_FILE,
)


def versions() -> dict[str, str]:
  """Returns the versions of what the claim depends on, for `run.json`."""
  found = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      found[package] = 'not installed'
  return found


def file_digests(directory: pathlib.Path) -> dict[str, str]:
  """Returns the SHA-256 of the files of a run that its report is made from."""
  return {
    name: hashlib.sha256((directory / name).read_bytes()).hexdigest()
    for name in _HASHED
    if (directory / name).exists()
  }
