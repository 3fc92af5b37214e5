"""What a report was made from: versions and digests."""

from __future__ import annotations

import importlib.metadata
import pathlib
import platform

from tff_bandmf import _files
from tff_bandmf.run_files import run_json

_PACKAGES = (
  'tff-bandmf',
  'tensorflow-federated',
  'tensorflow',
  'tensorflow-privacy',
  'dp-accounting',
  'numpy',
  'scipy',
)
# By name: never a folder, which could hold the key. The ledger has its head:
# the bytes of its file change while it is open, and lack what its log has.
_HASHED = (
  run_json.RUN_FILE,
  run_json.PLAN_FILE,
  run_json.STRATEGY_FILE,
  run_json.METRICS_FILE,
  run_json.RESULT_FILE,
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
    name: _files.sha256(directory / name)
    for name in _HASHED
    if (directory / name).exists()
  }
