"""The tasks of `side_by_side`, done with opake."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import sys
from typing import Any

import numpy as np
import torch
from opake.dpftrl import noise

from benchmarks import clock

# Rounds before the clock starts.
_WARM = 4


def _optimize_toeplitz(
  task: dict[str, Any], folder: pathlib.Path
) -> dict[str, Any]:
  watch = clock.Clock()
  strategy = noise.band_mf_strategy(bands=task['bands'])
  coefficients = strategy.coefficients(n_steps=task['rounds'])
  measured = watch.read()
  np.save(folder / 'optimum.npy', coefficients.numpy())
  return measured


def _optimize_blt(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  # `blt_strategy` can neither minimise the mean error nor fix the number of
  # buffers, so a private module of opake is used.
  from opake.api.dpftrl.noise import _blt_math

  watch = clock.Clock()
  blt = _blt_math.optimize(
    n=task['rounds'],
    min_sep=task['min_sep'],
    max_participations=task['max_participations'],
    error=task['objective'],
    min_buffers=task['buffers'],
    max_buffers=task['buffers'],
  )
  measured = watch.read()
  coefficients = _blt_math.toeplitz_coefs(blt, task['rounds'])
  np.save(folder / 'optimum.npy', coefficients.detach().numpy())
  return measured


def _noise(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  del folder  # This task reads and writes no file.
  from opake import random
  from opake.types import ClippedPytree

  bands = task['bands']
  strategy = (
    noise.identity_strategy()
    if bands == 1
    else noise.bsr_strategy(bandwidth=bands, alpha=1.0, beta=0.0)
  )
  zero = torch.zeros(task['dimension'])
  # A round has the same cost with full and with empty buffers, so 16 rounds are
  # enough.
  rounds = min(task['rounds'], 16)
  add, state = noise.mf_gaussian_noise(
    zero,
    strategy,
    n_steps=_WARM + rounds,
    noise_multiplier=1.0,
    key=random.key(0),
  )
  total = 0.0
  for t in range(_WARM + rounds):
    if t == _WARM:
      watch = clock.Clock()
    noisy, state = add(ClippedPytree(zero, 1.0), state)
    total += float(noisy.pytree[0])
  return watch.read(rounds)


def _coefficients(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  strategy = noise.band_mf_strategy(bands=task['bands'])
  np.save(
    folder / 'coefficients.npy',
    strategy.coefficients(n_steps=task['rounds']).numpy(),
  )
  return {}


def _b_min_sep(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  del folder  # The strategy optimises its coefficients again.
  from opake.dpftrl import accounting

  strategy = noise.band_mf_strategy(bands=task['bands'])
  coefficients = strategy.coefficients(n_steps=task['rounds'])
  watch = clock.Clock()
  process = accounting.b_min_sep(
    accounting.mf_gaussian(task['noise'], strategy),
    n_steps=task['rounds'],
    p0=task['rate'],
  )
  loss = process.pld(mc_resolution=task['resolution'])
  return {
    **watch.read(),
    'noise': task['noise'],
    'delta': loss.delta_at(task['epsilon']),
    'failure_probability': loss.mc_failure_probability,
    'resolution': loss.mc_resolution,
    'sampling_prob': process.sampling_prob,
    'coefficients': coefficients.tolist(),
  }


_TASKS = {
  'b_min_sep': _b_min_sep,
  'coefficients': _coefficients,
  'noise': _noise,
  'optimize banded-toeplitz': _optimize_toeplitz,
  'optimize blt': _optimize_blt,
}

if __name__ == '__main__':
  given = json.loads(sys.argv[1])
  answer = _TASKS[given['task']](given, pathlib.Path(sys.argv[2]))
  print(json.dumps({**answer, 'version': importlib.metadata.version('opake')}))
