"""Tests of the file of the numbers that define the noise of a run."""

import dataclasses
import json
import os
import subprocess
import sys

import mpmath
import numpy as np
import pytest

from tff_bandmf import noise, participation, sensitivity, strategies
from tff_bandmf.noise import definition as definition_lib

_ROUNDS = 24
_KEY = noise.Key.from_seed(3)
_STRATEGIES = {
  'tree': strategies.Tree(_ROUNDS),
  'online-tree': strategies.OnlineTree(_ROUNDS),
  'window of y': strategies.BandedSqrt(_ROUNDS, 5),
  'window of z': strategies.BandedInverseSqrt(_ROUNDS, 5),
  'normalised': strategies.ColumnNormalized(strategies.BandedSqrt(_ROUNDS, 5)),
  'blt, normalised': strategies.ColumnNormalized(
    strategies.Blt(_ROUNDS, [0.3, 0.2], [0.95, 0.6])
  ),
}


def _computed(strategy, z_steps=3000.0):
  return definition_lib.Definition(
    strategy.recursion(), noise.Lattice(20, 10, z_steps)
  )


def _moved(definition):
  """The definition as a machine with other last digits computes it."""
  definition.recursion.use(
    {
      name: array * (1 + 2.0**-50)
      for name, array in definition.recursion.numbers().items()
    }
  )
  lattice = definition.lattice
  z_steps = np.nextafter(lattice.z_steps, 0)
  return definition._replace(
    lattice=dataclasses.replace(lattice, z_steps=float(z_steps))
  )


def _rows(definition):
  stream = noise.Stream(
    definition.recursion, definition.lattice.z_steps, 50, _KEY
  )
  return np.stack([y.copy() for y in stream.rows() if y is not None])


@pytest.mark.parametrize('name', _STRATEGIES)
def test_another_machine_makes_the_same_noise(tmp_path, name):
  path = tmp_path / 'definition.npz'
  first = _computed(_STRATEGIES[name]).in_file(path, make=True)
  assert path.stat().st_mode & 0o777 == 0o600
  other = _moved(_computed(_STRATEGIES[name]))
  assert other.recursion.digest != first.recursion.digest
  other = other.in_file(path, make=True)
  assert other.recursion.digest == first.recursion.digest
  assert other.lattice == first.lattice
  assert np.array_equal(_rows(other), _rows(first))


@pytest.mark.parametrize('name', _STRATEGIES)
def test_coordinates_of_a_tape_follow_from_its_key(tmp_path, name):
  path, coordinates = tmp_path / 'definition.npz', [0, 17, 49]
  first = _computed(_STRATEGIES[name]).in_file(path, make=True)
  other = _moved(_computed(_STRATEGIES[name])).in_file(path, make=False)
  y = other.noise(_KEY, coordinates, _ROUNDS - 1)
  assert np.array_equal(y, _rows(first)[:-1, coordinates])


def test_file_is_made_only_where_told(tmp_path):
  path = tmp_path / 'definition.npz'
  computed = _computed(_STRATEGIES['tree'])
  assert computed.in_file(path, make=False) is computed
  assert computed.in_file(None, make=True) is computed
  assert not path.exists()


def _rewritten(path, **changes):
  with np.load(path) as stored:
    content = {**stored, **changes}
  np.savez(path, **content)


@pytest.mark.parametrize('name', ['tree', 'window of z', 'online-tree'])
def test_numbers_that_differ_are_refused(tmp_path, name):
  path = tmp_path / 'definition.npz'
  _computed(_STRATEGIES[name]).in_file(path, make=True)
  content = path.read_bytes()
  numbers = _STRATEGIES[name].recursion().numbers()
  changes = [{'z_steps': np.float64(2999.999)}]
  for each, array in numbers.items():
    changes.append({each: array * (1 + 1e-9)})
    changes.append({each: array[:-1]})
    changes.append({each: array.astype(np.float32)})
  for change in changes:
    _rewritten(path, **change)
    with pytest.raises(ValueError, match='file=.*defines another noise'):
      _computed(_STRATEGIES[name]).in_file(path, make=True)
    path.write_bytes(content)
  _computed(_STRATEGIES[name]).in_file(path, make=True)


def _ill_conditioned(rounds):
  coefficients = np.ones(1)
  for _ in range(4):
    coefficients = np.convolve(coefficients, [1.0, -0.95])
  return strategies.BandedInverse(rounds, coefficients)


@pytest.mark.parametrize('sign', ['up', 'down', 'less', 'in turn'])
@pytest.mark.parametrize(
  'strategy',
  [
    strategies.BandedSqrt(60, 60),
    strategies.BandedInverseSqrt(60, 8),
    _ill_conditioned(600),
  ],
  ids=lambda each: each.family,
)
def test_sensitivity_covers_numbers_that_are_accepted(tmp_path, strategy, sign):
  """Each coefficient is moved nearly as far as the file may move it."""
  path = tmp_path / 'definition.npz'
  recursion = strategy.recursion()
  definition_lib.Definition(recursion, noise.Lattice(20, 10, 3e3)).in_file(
    path, make=True
  )
  row = recursion.numbers()['row']
  signs = {
    'up': 1,
    'down': -1,
    # Every coefficient decreases, so that C grows where C^-1 is nearly 0.
    'less': -np.sign(row),
    'in turn': (-1) ** np.arange(len(row)),
  }[sign]
  far = 2.0**-53 * (60 + 4 * np.arange(len(row)))
  _rewritten(path, row=row * (1 + signs * far))
  loaded = definition_lib.Definition(
    strategy.recursion(), noise.Lattice(20, 10, 3e3)
  ).in_file(path, make=True)
  with mpmath.workdps(60):
    column = [mpmath.mpf(x) for x in loaded.recursion.numbers()['row']]
    if recursion.keeps == 'z':
      inverse, column = column, []
      for t in range(strategy.rounds):
        past = sum(r * c for r, c in zip(inverse[1:], column[::-1]))
        column.append((int(t == 0) - past) / inverse[0])
    value = sensitivity.sensitivity(strategy, participation.Single()).value
    claimed = value * (1 + mpmath.mpf(sensitivity.rounding(strategy, 1)))
    assert sum(entry**2 for entry in column) <= claimed**2
  _rewritten(path, row=row * (1 + signs * 1.2 * far))
  with pytest.raises(ValueError, match='defines another noise'):
    definition_lib.Definition(
      strategy.recursion(), noise.Lattice(20, 10, 3e3)
    ).in_file(path, make=True)


def test_file_of_another_strategy_or_lattice_is_refused(tmp_path):
  path = tmp_path / 'definition.npz'
  _computed(strategies.DpCgd(9, 0.5)).in_file(path, make=True)
  other = _computed(strategies.DpCgd(9, 0.5000000001))
  finer = other._replace(lattice=noise.Lattice(21, 10, 3000.0))
  for each in (other, finer):
    with pytest.raises(ValueError, match='file=.*defines another noise'):
      each.in_file(path, make=True)


@pytest.mark.parametrize('content', [b'', b'text', b'PK\x03\x04' + bytes(99)])
def test_damaged_file_is_refused(tmp_path, content):
  path = tmp_path / 'definition.npz'
  path.write_bytes(content)
  with pytest.raises(ValueError, match='file=.*restore it') as raised:
    _computed(_STRATEGIES['tree']).in_file(path, make=True)
  assert '\n' not in str(raised.value)


_ELSEWHERE = """
import json, pathlib, sys
from tff_bandmf import noise, strategies
from tff_bandmf.noise import definition
recursion = strategies.Tree(200).recursion()
computed = definition.Definition(recursion, noise.Lattice(20, 10, 3000.0))
before = recursion.digest
held = computed.in_file(pathlib.Path(sys.argv[1]), make=True)
stream = noise.Stream(held.recursion, 3000.0, 8, noise.Key.from_seed(3))
rows = [y.tolist() for y in stream.rows() if y is not None]
print(json.dumps([before, held.recursion.digest, rows]))
"""


@pytest.mark.slow
def test_run_goes_on_with_other_kernels_of_blas(tmp_path):
  """Each kernel has its own last digits of a tree; the file has one."""
  found = []
  for kernel in ('Prescott', 'Nehalem', 'Haswell'):
    environment = {
      **os.environ,
      'OPENBLAS_CORETYPE': kernel,
      'PYTHONPATH': os.pathsep.join(sys.path),
    }
    environment.pop('OPENBLAS_L2_SIZE', None)
    done = subprocess.run(
      [sys.executable, '-c', _ELSEWHERE, str(tmp_path / 'definition.npz')],
      env=environment,
      stdout=subprocess.PIPE,
      check=True,
      timeout=300,
    )
    found.append(json.loads(done.stdout))
  assert len({digest for digest, _, _ in found}) > 1
  assert len({digest for _, digest, _ in found}) == 1
  assert all(rows == found[0][2] for _, _, rows in found)
