"""The tasks of `side_by_side`, done with jax_privacy.

Functions are compiled before the clock starts. Only the time of an optimisation
includes compilation, because a user runs an optimisation once.
"""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import matrix_factorization as mf
from jax_privacy import noise_addition

from benchmarks import clock

# Rounds before the clock starts.
_WARM = 4


def _optimize(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  watch = clock.Clock()
  # The documentation of jax_privacy uses the default of 100 steps.
  coefficients = mf.banded.optimize(task['rounds'], bands=task['bands'])
  jax.block_until_ready(coefficients.params)
  measured = watch.read()
  with jax.enable_x64():
    exact = type(coefficients)(params=coefficients.params.astype(jnp.float64))
    np.save(folder / 'optimum.npy', np.asarray(exact.materialize()))
  return measured


def _optimize_toeplitz(
  task: dict[str, Any], folder: pathlib.Path
) -> dict[str, Any]:
  watch = clock.Clock()
  coefficients = mf.toeplitz.optimize_banded_toeplitz(
    task['rounds'], task['bands']
  )
  coefficients.block_until_ready()
  measured = watch.read()
  np.save(folder / 'optimum.npy', np.asarray(coefficients, np.float64))
  return measured


def _optimize_blt(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  with jax.enable_x64():
    watch = clock.Clock()
    blt = mf.buffered_toeplitz.optimize(
      n=task['rounds'],
      min_sep=task['min_sep'],
      max_participations=task['max_participations'],
      error=task['objective'],
      min_buffers=task['buffers'],
      max_buffers=task['buffers'],
    )
    jax.block_until_ready(blt.buf_decay)
    measured = watch.read()
    np.save(
      folder / 'optimum.npy', np.asarray(blt.toeplitz_coefs(task['rounds']))
    )
  return measured


def _noise(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  del folder  # This task reads and writes no file.
  key = jax.random.key(0)
  if task['bands'] == 1:
    privatizer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=key)
  else:
    j = np.arange(1, task['bands'])
    coefficients = np.concatenate([[1.0], np.cumprod((j - 0.5) / j)])
    privatizer = noise_addition.matrix_factorization_privatizer(
      mf.toeplitz.inverse_as_streaming_matrix(
        jnp.asarray(coefficients, jnp.float32)
      ),
      stddev=1.0,
      prng_key=key,
    )
  zero = jnp.zeros(task['dimension'], jnp.float32)
  state = privatizer.init(zero)
  update = jax.jit(privatizer.update, donate_argnums=1)
  for _ in range(_WARM):
    noisy, state = update(zero, state)
    noisy.block_until_ready()
  # A round has the same cost with full and with empty buffers, so 16 rounds are
  # enough.
  rounds = min(task['rounds'], 16)
  total = 0.0
  watch = clock.Clock()
  for _ in range(rounds):
    noisy, state = update(zero, state)
    total += float(noisy[0])
  return watch.read(rounds)


def _sensitivity(task: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
  with jax.enable_x64():
    matrix = jnp.asarray(np.load(folder / 'given.npy'))
    bands = int(np.max(np.subtract(*np.nonzero(np.asarray(matrix))))) + 1
    exact = bands <= task['min_sep']
    compute = (
      mf.sensitivity.get_sensitivity_banded
      if exact
      else mf.sensitivity.get_min_sep_sensitivity_upper_bound
    )
    return _timed(
      lambda: compute(matrix, task['min_sep'], task['max_participations']),
      'exact' if exact else 'upper_bound',
    )


def _toeplitz_sensitivity(
  task: dict[str, Any], folder: pathlib.Path
) -> dict[str, Any]:
  del folder  # This task reads and writes no file.
  with jax.enable_x64():
    j = np.arange(1, task['rounds'])
    coefficients = jnp.asarray(
      np.concatenate([[1.0], np.cumprod((j - 0.5) / j)])
    )
    return _timed(
      lambda: jnp.sqrt(
        mf.toeplitz.minsep_sensitivity_squared(
          coefficients,
          task['min_sep'],
          n=task['rounds'],
          max_participations=task['max_participations'],
        )
      ),
      'exact',
    )


def _timed(compute: Any, method: str) -> dict[str, Any]:
  float(compute())
  watch = clock.Clock()
  value = float(compute())
  return {**watch.read(), 'value': value, 'method': method}


_TASKS = {
  'optimize banded': _optimize,
  'optimize banded-toeplitz': _optimize_toeplitz,
  'optimize blt': _optimize_blt,
  'noise': _noise,
  'sensitivity': _sensitivity,
  'toeplitz_sensitivity': _toeplitz_sensitivity,
}

if __name__ == '__main__':
  given = json.loads(sys.argv[1])
  answer = _TASKS[given['task']](given, pathlib.Path(sys.argv[2]))
  print(
    json.dumps({**answer, 'version': importlib.metadata.version('jax_privacy')})
  )
