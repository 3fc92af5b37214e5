"""Strategies that a search has found before, on the disk.

The result of a search is a function of its request and of the code. A strategy
is kept in a file that is named after the digests of both and of the strategy; a
file whose content is not that is as if it were not there. No claim rests on
it: errors and sensitivity are computed of the strategy that was read.

BANDMF_CACHE names the folder, which may be removed at any time, by default
`$XDG_CACHE_HOME/tff_bandmf/strategies`. If it is empty, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from typing import Callable, Optional

from tff_bandmf import _files, strategies
from tff_bandmf.optimize import request as request_lib
from tff_bandmf.optimize import solver

VARIABLE = 'BANDMF_CACHE'


def found_before(
  request: request_lib.Request,
  search: Callable[[request_lib.Request], solver.Optimized],
) -> solver.Optimized:
  """Returns what `search` gives, or gave before for the same request.

  A stored result has no evaluations. A search that did not converge is not
  stored.
  """
  folder = _folder()
  if folder is None:
    return search(request)
  key = _key(request)
  for path in sorted(folder.glob(f'{key}-*.npz')):
    strategy = _read(path)
    if strategy is not None:
      return request.evaluated(strategy)
  optimized = search(request)
  if optimized.converged:
    # A strategy that cannot be stored is searched for again.
    with contextlib.suppress(OSError):
      folder.mkdir(parents=True, exist_ok=True)
      name = f'{key}-{optimized.strategy.digest()}.npz'
      strategies.save(optimized.strategy, folder / name)
  return optimized


def _folder() -> Optional[pathlib.Path]:
  named = os.environ.get(VARIABLE)
  if named is None:
    return _files.cache_directory() / 'strategies'
  return pathlib.Path(named) if named else None


def _key(request: request_lib.Request) -> str:
  """Returns the SHA-256 of all that a search is a function of."""
  content = [
    _files.code_digest(),
    request.family.name,
    request.rounds,
    request.participation.to_dict(),
    request.workload.to_dict(),
    request.objective,
    dict(request.parameters),
    request.noise_copies,
  ]
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _read(path: pathlib.Path) -> Optional[strategies.Strategy]:
  """Returns the strategy that a file is named after; None if it is not there.

  A damaged file, or one that nobody may read, is searched for again.
  """
  try:
    strategy, _ = strategies.load(path)
  except (OSError, ValueError):
    return None
  _, digest = path.stem.split('-')
  return strategy if strategy.digest() == digest else None
