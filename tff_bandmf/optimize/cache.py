"""A cache of the results of searches, on the disk.

The result of a search is a function of its request and of the code. The name of
a cached file contains a digest of the request and the code, and a digest of the
strategy. If the strategy in the file has another digest than the name of the
file, the file is ignored. No privacy guarantee depends on the cache, because
errors and sensitivity are computed from the strategy that was read.

The environment variable BANDMF_CACHE is the path of the cache folder, by
default `$XDG_CACHE_HOME/tff_bandmf/strategies`. The folder may be removed at
any time. If the variable is empty, nothing is cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from typing import Callable, Optional

from tff_bandmf import _files, strategies
from tff_bandmf.optimize import solver

VARIABLE = 'BANDMF_CACHE'


def load_or_search(
  request: solver.Request,
  search: Callable[[solver.Request], solver.Optimized],
) -> solver.Optimized:
  """Returns the result of `search`, from the cache if the cache has it.

  A result from the cache has 0 evaluations. The result of a search that did not
  converge is not stored.
  """
  named = os.environ.get(VARIABLE)
  if named == '':
    return search(request)
  folder = pathlib.Path(named or _files.cache_directory() / 'strategies')
  key = _key(request)
  for path in sorted(folder.glob(f'{key}-*.npz')):
    strategy = _read(path)
    if strategy is not None:
      return request.evaluated(strategy)
  optimized = search(request)
  if optimized.converged:
    # If the strategy cannot be stored, the next call searches again.
    with contextlib.suppress(OSError):
      folder.mkdir(parents=True, exist_ok=True)
      name = f'{key}-{optimized.strategy.digest()}.npz'
      strategies.save(optimized.strategy, folder / name)
  return optimized


def _key(request: solver.Request) -> str:
  """Returns the SHA-256 of the request and of the code of the search."""
  content = [
    _files.code_digest(),
    request.family.name,
    request.rounds,
    request.participation.to_dict(),
    request.workload.to_dict(),
    request.objective,
    dict(request.parameters),
    request.memory_copies,
    request.noise and request.noise.to_dict(),
  ]
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _read(path: pathlib.Path) -> Optional[strategies.Strategy]:
  """Returns the strategy of a cached file.

  The result is None if the file is missing, damaged or unreadable.
  """
  try:
    strategy, _ = strategies.load(path)
  except (OSError, ValueError):
    return None
  _, digest = path.stem.split('-')
  return strategy if strategy.digest() == digest else None
