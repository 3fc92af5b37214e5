"""Versions of packages, for a report."""

from __future__ import annotations

import importlib.metadata
import platform

_PACKAGES = (
  'tff-bandmf',
  'tensorflow-federated',
  'tensorflow',
  'tensorflow-privacy',
  'dp-accounting',
  'numpy',
  'scipy',
)


def versions() -> dict[str, str]:
  """Returns the versions of Python and of the packages behind a claim."""
  installed = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      installed[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      installed[package] = 'not installed'
  return installed
