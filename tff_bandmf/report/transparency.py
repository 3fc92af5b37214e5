"""Versions of packages and digests of files, for a report."""

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
# The ledger is not in the list, because its file changes while the run is open.
# The report states the head of the ledger's hash chain instead.
_HASHED = (run_json.RUN_FILE, run_json.PLAN_FILE)


def versions() -> dict[str, str]:
  """Returns the versions of Python and of the packages behind a claim."""
  installed = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      installed[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      installed[package] = 'not installed'
  return installed


def file_digests(directory: pathlib.Path) -> dict[str, str]:
  """Returns {file name: SHA-256} of the files that a report is made from."""
  return {name: _files.sha256(directory / name) for name in _HASHED}
