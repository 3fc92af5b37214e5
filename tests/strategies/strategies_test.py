"""Tests of strategies, their errors and their files."""

import importlib
import json
import pathlib
import pickle
import re
import sys

import hypothesis
import hypothesis.extra.numpy as hypothesis_numpy
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_bandmf import participation, strategies
from tff_bandmf.strategies import files

_few_examples = hypothesis.settings(max_examples=50)


def _dense_errors(matrix):
  """Returns (mean, max) of squared row norms of A C^-1, by inversion."""
  decoder = np.tril(np.ones_like(matrix)) @ np.linalg.inv(matrix)
  squared = (decoder**2).sum(1)
  return squared.mean(), squared.max()


def _dense_toeplitz(coefficients, rounds):
  return sum(
    c * np.eye(rounds, k=-s) for s, c in enumerate(coefficients[:rounds])
  )


def _square_root(bands):
  j = np.arange(1, bands)
  return np.concatenate([[1.0], np.cumprod((j - 0.5) / j)])


@pytest.mark.parametrize('rounds', [1, 2, 7, 40])
def test_errors_of_identity_against_dense(rounds):
  np.testing.assert_allclose(
    strategies.Identity(rounds).errors(),
    _dense_errors(np.eye(rounds)),
    rtol=1e-13,
  )


def test_errors_of_identity_in_the_published_setting():
  mean, largest = strategies.Identity(2052).errors()
  assert (mean, largest) == (1026.5, 2052)
  assert np.sqrt(6 * mean) == pytest.approx(78.479, abs=5e-4)


@_few_examples
@hypothesis.given(
  first=st.floats(0.5, 2),
  rest=st.lists(st.floats(-1, 1), max_size=5),
  extra=st.integers(0, 20),
)
def test_errors_of_toeplitz_against_dense(first, rest, extra):
  coefficients = [first, *rest]
  strategy = strategies.BandedToeplitz(len(coefficients) + extra, coefficients)
  expected = _dense_toeplitz(coefficients, strategy.rounds)
  np.testing.assert_array_equal(strategy.matrix(), expected)
  np.testing.assert_allclose(
    strategy.errors(), _dense_errors(expected), rtol=1e-6
  )


@pytest.mark.parametrize(
  'coefficients',
  [_square_root(8), [1, 0.9], [0.3], [1, 0.5, -0.2, 0.1], [1, -0.999]],
)
@pytest.mark.parametrize('rounds', [4095, 4097, 30_000])
def test_errors_of_toeplitz_with_closed_tail_against_every_term(
  coefficients, rounds
):
  # One row of the recursion after the other, no tail closed.
  w = []
  for t in range(rounds):
    past = sum(
      c * w[t - s] for s, c in enumerate(coefficients[1:], 1) if s <= t
    )
    w.append((1 - past) / coefficients[0])
  errors = np.cumsum(np.square(w))
  np.testing.assert_allclose(
    strategies.BandedToeplitz(rounds, coefficients).errors(),
    (errors.mean(), errors.max()),
    rtol=1e-11,
  )


def test_errors_of_few_rounds_have_the_bits_of_the_filter_of_scipy(monkeypatch):
  importlib.import_module('scipy.signal')
  few = [
    strategies.BandedToeplitz(200, _square_root(bands)) for bands in (2, 9, 70)
  ]
  filtered = [strategy.errors() for strategy in few]
  monkeypatch.delitem(sys.modules, 'scipy.signal')
  assert [strategy.errors() for strategy in few] == filtered


@pytest.mark.parametrize('coefficients', [[1, -1], [1, 1], [1, -2], [2, 1, -4]])
def test_errors_of_toeplitz_without_limit_are_added_up(coefficients):
  # C^-1 1 grows, or swings for ever.
  np.testing.assert_allclose(
    strategies.BandedToeplitz(9, coefficients).errors(),
    _dense_errors(_dense_toeplitz(coefficients, 9)),
    rtol=1e-9,
  )


def test_errors_of_toeplitz_that_overflow_are_refused():
  strategy = strategies.BandedToeplitz(5000, [1.0, -3.0])
  with pytest.raises(ValueError, match='C=.*overflow'):
    strategy.errors()


def test_errors_of_toeplitz_at_a_million_rounds():
  mean, largest = strategies.BandedToeplitz(10**6, [1.0, 1e-9]).errors()
  # C is nearly I.
  assert mean == pytest.approx(500_000.5, rel=1e-8)
  assert largest == pytest.approx(1e6, rel=1e-8)


@_few_examples
@hypothesis.given(
  values=hypothesis_numpy.arrays(np.float64, (6, 6), elements=st.floats(-1, 1))
)
def test_errors_of_dense_against_inverse(values):
  matrix = np.tril(values, -1) + np.diag(1 + np.abs(np.diag(values)))
  np.testing.assert_allclose(
    strategies.Dense(matrix).errors(), _dense_errors(matrix), rtol=1e-9
  )


def test_errors_of_dense_that_overflow_are_refused():
  matrix = np.eye(40) - 1e10 * np.eye(40, k=-1)
  with pytest.raises(ValueError, match='C=.*overflow'):
    strategies.Dense(matrix).errors()


@pytest.mark.parametrize(
  'strategy',
  [
    strategies.Identity(5),
    strategies.BandedToeplitz(5, [1.0, 0.5, 0.25]),
    strategies.Dense(np.tril(np.arange(1.0, 26).reshape(5, 5))),
    strategies.Dense(np.eye(5) + np.eye(5, k=-3)),
  ],
)
def test_band_rows_are_the_bands_of_the_matrix(strategy):
  matrix = strategy.matrix()
  t, i = np.nonzero(matrix)
  assert strategy.bands == np.max(t - i) + 1
  rows = strategy.band_rows(1, 5)
  assert rows.shape == (4, strategy.bands)
  for t in range(1, 5):
    for s in range(strategy.bands):
      assert rows[t - 1, s] == (matrix[t, t - s] if t >= s else 0)


def test_arrays_are_read_only_copies():
  coefficients = np.array([1.0, 0.5])
  strategy = strategies.BandedToeplitz(3, coefficients)
  coefficients[1] = 7
  assert strategy.coefficients[1] == 0.5
  with pytest.raises(ValueError, match='read-only'):
    strategy.coefficients[0] = 2


@pytest.mark.parametrize(
  ('rounds', 'coefficients', 'message'),
  [
    (2, [1, 0.5, 0.2], 'bands=3: .*rounds=2'),
    (0, [1], 'rounds=0: .*least'),
    (3, [], 'coefficients.shape=.*one-dimensional'),
    (3, [[1.0]], 'coefficients.shape=.*one-dimensional'),
    (3, [1, np.nan], 'coefficients=NaN or infinity: .*finite'),
    (3, [1, np.inf], 'coefficients=NaN or infinity: .*finite'),
    (3, [0, 1], 'coefficients=.*diagonal'),
    (3, [-1, 1], 'coefficients=.*diagonal'),
  ],
)
def test_toeplitz_refuses(rounds, coefficients, message):
  with pytest.raises(ValueError, match=message):
    strategies.BandedToeplitz(rounds, np.asarray(coefficients, float))


@pytest.mark.parametrize(
  ('matrix', 'message'),
  [
    (np.ones((2, 3)), 'C.shape=.*square'),
    (np.ones((0, 0)), 'C.shape=.*square'),
    (np.ones(3), 'C.shape=.*square'),
    (np.ones((2, 2)), 'C=.*triangular'),
    (np.diag([1.0, 0.0]), 'C=0.0: .*diagonal'),
    (np.diag([1.0, np.nan]), 'C=NaN or infinity: .*finite'),
    (np.diag([1.0, np.inf]), 'C=NaN or infinity: .*finite'),
  ],
)
def test_dense_refuses(matrix, message):
  with pytest.raises(ValueError, match=message):
    strategies.Dense(matrix)


@pytest.mark.parametrize(
  'values', [np.eye(2) * 1j, [['1']], [[True]], [[None]]]
)
def test_values_that_are_no_real_numbers_are_refused(values):
  with pytest.raises(TypeError, match='C.dtype=.*real'):
    strategies.Dense(values)


def test_rounds_may_be_a_numpy_integer(tmp_path):
  for make in (
    strategies.Identity,
    lambda rounds: strategies.BandedToeplitz(rounds, [1.0]),
  ):
    strategies.save(make(np.int64(9)), tmp_path / 'strategy.json')
    _same(_load(tmp_path / 'strategy.json'), make(9))


@pytest.mark.parametrize('scale', [1e-200, 1e-31, 1e31, 1e200])
def test_extreme_scale_is_refused(scale):
  # 1e-200 squared is 0: a sensitivity of 0 would ask for no noise at all.
  with pytest.raises(ValueError, match='coefficients=.*multiply'):
    strategies.BandedToeplitz(3, [scale])
  with pytest.raises(ValueError, match='C=.*multiply'):
    strategies.Dense(np.eye(3) * scale)


def test_digest_depends_on_what_defines_the_matrix():
  digests = {
    strategy.digest()
    for strategy in (
      strategies.Identity(3),
      strategies.Identity(4),
      strategies.BandedToeplitz(3, [1.0]),
      strategies.BandedToeplitz(4, [1.0]),
      strategies.BandedToeplitz(3, [1.0, 0.0]),
      strategies.BandedToeplitz(3, [1.0, 5e-324]),
    )
  }
  assert len(digests) == 6


# Files.


def _load(path):
  """Returns the strategy alone."""
  return strategies.load(path)[0]


def _same(left, right):
  assert left.family == right.family
  assert left.rounds == right.rounds
  assert left.digest() == right.digest()
  left, right = left.arrays(), right.arrays()
  assert left.keys() == right.keys()
  for name, array in left.items():
    assert array.dtype == right[name].dtype == np.float64
    assert array.tobytes() == right[name].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize('suffix', ['.json', '.npz'])
@_few_examples
@hypothesis.given(
  coefficients=st.lists(
    st.floats(-1e30, 1e30, allow_subnormal=True), min_size=1, max_size=5
  ),
  rounds=st.integers(6, 2**70),
)
def test_file_gives_toeplitz_back_bit_for_bit(
  tmp_path_factory, suffix, coefficients, rounds
):
  coefficients[0] = max(1e-30, abs(coefficients[0]))
  strategy = strategies.BandedToeplitz(rounds, coefficients)
  path = tmp_path_factory.mktemp('files') / f'strategy{suffix}'
  strategies.save(strategy, path)
  _same(_load(path), strategy)


@pytest.mark.parametrize('suffix', ['.json', '.npz'])
@pytest.mark.parametrize(
  'strategy',
  [
    strategies.Identity(2052),
    strategies.Dense(np.tril(np.random.default_rng(0).random((7, 7)))),
  ],
)
def test_file_gives_other_families_back(tmp_path, suffix, strategy):
  path = tmp_path / f'strategy{suffix}'
  strategies.save(strategy, path, optimized={'objective': 'mean'})
  _same(_load(path), strategy)
  assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize('suffix', ['.json', '.npz'])
@pytest.mark.parametrize(
  'schema',
  [
    None,
    participation.Single(),
    participation.MinSep(342),
    participation.MinSep(3, 2),
    participation.FixedEpoch(np.int64(4), 10**30),
  ],
)
def test_file_keeps_the_schema(tmp_path, suffix, schema):
  path = tmp_path / f'strategy{suffix}'
  strategies.save(strategies.Identity(9), path, participation=schema)
  strategy, found = strategies.load(path)
  assert found == schema
  assert strategy == strategies.Identity(9)


def test_npy_file_is_the_matrix(tmp_path):
  matrix = np.tril(np.random.default_rng(1).random((5, 5)))
  np.save(tmp_path / 'c.npy', matrix)
  _same(_load(tmp_path / 'c.npy'), strategies.Dense(matrix))
  np.save(tmp_path / 'fortran.npy', np.asfortranarray(matrix))
  _same(_load(tmp_path / 'fortran.npy'), strategies.Dense(matrix))


def test_documented_example_is_a_strategy_file(tmp_path):
  example = re.search(r'^  (\{.*?\}\})$', files.__doc__, re.DOTALL | re.M)
  path = tmp_path / 'strategy.json'
  path.write_text(example.group(1))
  _same(_load(path), strategies.BandedToeplitz(2052, np.array([1.0, 0.5])))


def _header(**changes):
  header = {
    'format': 'tff_bandmf.strategy',
    'version': 2,
    'family': 'banded-toeplitz',
    'rounds': 9,
    'arrays': {'coefficients': [1.0, 0.5]},
    'participation': None,
    'optimized': {},
  }
  return {**header, **changes}


@pytest.mark.parametrize('version', [0, 1, 3, '2', None])
@pytest.mark.parametrize('suffix', ['.json', '.npz'])
def test_file_of_another_version_is_refused(tmp_path, suffix, version):
  path = tmp_path / f'strategy{suffix}'
  header = _header(version=version)
  if suffix == '.json':
    path.write_text(json.dumps(header))
  else:
    np.savez(path, header=np.array(json.dumps(header)))
  with pytest.raises(ValueError, match=f'version={version}: .*version 2'):
    strategies.load(path)


@pytest.mark.parametrize(
  'header',
  [
    _header(format='other'),
    _header(family='blt'),
    _header(family=None),
    _header(rounds=None),
    _header(rounds=0),
    _header(rounds=1),
    _header(rounds=9.0),
    _header(rounds=True),
    _header(arrays=None),
    _header(arrays=[]),
    _header(arrays={}),
    _header(arrays={'coefficients': 'x'}),
    _header(arrays={'coefficients': ['1.0']}),
    _header(arrays={'coefficients': [1.0, None]}),
    _header(arrays={'coefficients': [1.0, [2.0]]}),
    _header(arrays={'coefficients': [1.0, float('nan')]}),
    _header(arrays={'coefficients': [1.0, 10**400]}),
    _header(arrays={'coefficients': []}),
    _header(family='dense', arrays={'values': [[1.0]]}),
    _header(family='dense', arrays={'values': [1.0]}),
    [],
    'text',
    None,
    3,
  ],
)
def test_file_with_other_content_is_refused(tmp_path, header):
  path = tmp_path / 'strategy.json'
  path.write_text(json.dumps(header))
  with pytest.raises(ValueError):
    strategies.load(path)


_MIN_SEP = {
  'participation': 'min-sep',
  'min_sep': 3,
  'max_participations': None,
}


@pytest.mark.parametrize(
  'schema',
  [
    'missing',
    {},
    [],
    'min-sep',
    3,
    {'participation': None},
    {'participation': ['single']},
    {'participation': 'twice'},
    {'participation': 'single', 'min_sep': None},
    {'participation': 'single', 'max_participations': 1},
    {'participation': 'min-sep'},
    {'participation': 'min-sep', 'min_sep': 3},
    {**_MIN_SEP, 'participation': 'single'},
    {**_MIN_SEP, 'min_sep': 0},
    {**_MIN_SEP, 'min_sep': -3},
    {**_MIN_SEP, 'min_sep': 3.0},
    {**_MIN_SEP, 'min_sep': True},
    {**_MIN_SEP, 'min_sep': '3'},
    {**_MIN_SEP, 'min_sep': None},
    {**_MIN_SEP, 'max_participations': 0},
    {**_MIN_SEP, 'max_participations': '2'},
    {**_MIN_SEP, 'name': 'single'},
    {**_MIN_SEP, 'b': 3},
  ],
)
@pytest.mark.parametrize('suffix', ['.json', '.npz'])
def test_file_with_another_schema_is_refused(tmp_path, suffix, schema):
  path = tmp_path / f'strategy{suffix}'

  def write(schema):
    header = _header(participation=schema)
    if schema == 'missing':
      del header['participation']
    if suffix == '.json':
      path.write_text(json.dumps(header))
    else:
      arrays = header.pop('arrays')
      np.savez(path, header=np.array(json.dumps(header)), **arrays)

  write(_MIN_SEP)
  assert strategies.load(path)[1] == participation.MinSep(3)
  write(schema)
  with pytest.raises(ValueError, match='file=.*whole'):
    strategies.load(path)


@pytest.mark.parametrize('suffix', ['.json', '.npz', '.npy'])
def test_file_that_is_cut_short_is_refused(tmp_path, suffix):
  path = tmp_path / f'strategy{suffix}'
  if suffix == '.npy':
    np.save(path, np.eye(4))
  else:
    strategies.save(strategies.BandedToeplitz(9, [1.0, 0.5]), path)
  whole = path.read_bytes().rstrip()
  for end in (*range(0, len(whole), 5), len(whole) - 1):
    path.write_bytes(whole[:end])
    with pytest.raises(ValueError, match='file=.*whole'):
      strategies.load(path)


@pytest.mark.parametrize('suffix', ['.json', '.npz', '.npy'])
@pytest.mark.parametrize(
  'content', [b'', b'\0' * 100, b'\xff\xfe text', b'{', b'[' * 100_000, b'PK']
)
def test_file_of_something_else_is_refused(tmp_path, suffix, content):
  path = tmp_path / f'strategy{suffix}'
  path.write_bytes(content)
  with pytest.raises(ValueError, match='file=.*whole'):
    strategies.load(path)


def test_pickles_are_never_loaded(tmp_path):
  class Trap:
    def __reduce__(self):
      return (pathlib.Path.touch, (tmp_path / 'sprung',))

  trap = np.array([Trap()], object)
  np.save(tmp_path / 'c.npy', trap, allow_pickle=True)
  (tmp_path / 'raw.npy').write_bytes(pickle.dumps(Trap()))
  np.savez(
    tmp_path / 'c.npz',
    header=np.array(json.dumps(_header())),
    coefficients=trap,
  )
  for name in ('c.npy', 'raw.npy', 'c.npz'):
    with pytest.raises(ValueError, match='file=.*whole'):
      strategies.load(tmp_path / name)
  assert not (tmp_path / 'sprung').exists()


def test_npy_file_of_complex_numbers_is_refused(tmp_path):
  np.save(tmp_path / 'c.npy', np.eye(3) * (1 + 1j))
  with pytest.raises(ValueError, match='C.dtype=.*real'):
    strategies.load(tmp_path / 'c.npy')


def test_class_of_no_family_is_refused(tmp_path):
  """The file of a subclass was read as the C of its base."""

  class Other(strategies.BandedToeplitz):
    pass

  other = Other(9, [1.0, 0.5])
  for each in (
    other,
    strategies.ColumnNormalized(other),
    strategies.Stamped(20, other),
    strategies.Stamped(20, strategies.ColumnNormalized(other)),
  ):
    with pytest.raises(ValueError, match='strategy=Other: is not the class'):
      strategies.to_document(each)
    with pytest.raises(ValueError, match='strategy=Other: is not the class'):
      strategies.save(each, tmp_path / 'c.json')


@pytest.mark.parametrize('name', ['strategy', 'strategy.txt', 'c.npy'])
def test_save_refuses_another_suffix(tmp_path, name):
  with pytest.raises(ValueError, match='out=.*: .*json'):
    strategies.save(strategies.Identity(3), tmp_path / name)
  assert not list(tmp_path.iterdir())


def test_load_refuses_another_suffix(tmp_path):
  path = tmp_path / 'strategy.txt'
  path.write_text(json.dumps(_header()))
  with pytest.raises(ValueError, match='file=.*: .*npy'):
    strategies.load(path)


@pytest.mark.parametrize('suffix', ['.json', '.npz'])
@pytest.mark.parametrize('error', [OSError, KeyboardInterrupt])
def test_save_that_fails_leaves_the_old_file(
  tmp_path, monkeypatch, suffix, error
):
  path = tmp_path / f'strategy{suffix}'
  strategies.save(strategies.Identity(3), path)

  def fail(_):
    raise error

  monkeypatch.setattr(files.os, 'fsync', fail)
  with pytest.raises(error):
    strategies.save(strategies.Identity(4), path)
  assert [each.name for each in tmp_path.iterdir()] == [path.name]
  _same(_load(path), strategies.Identity(3))


@pytest.mark.parametrize('suffix', ['.json', '.npz'])
def test_save_writes_no_infinity(tmp_path, suffix):
  path = tmp_path / f'strategy{suffix}'
  with pytest.raises(ValueError):
    strategies.save(
      strategies.Identity(3), path, optimized={'loss': float('inf')}
    )
  assert not list(tmp_path.iterdir())


def test_lower_factor_has_this_gram():
  """Not C C^T = X, which a plain Cholesky factor would give."""
  gram = strategies.Tree(9).gram()
  factor = strategies.lower_factor(gram)
  np.testing.assert_array_equal(factor, np.tril(factor))
  np.testing.assert_allclose(factor.T @ factor, gram, atol=1e-12)
  assert np.abs(factor @ factor.T - gram).max() > 0.1


def test_column_norm_that_overflows_is_refused():
  """A norm of infinity would make a column of C, and its weight, vanish."""
  toeplitz = strategies.BandedInverse(300, [1.0, -5.0])
  assert np.all(np.isfinite(toeplitz.column(300)))
  with pytest.raises(ValueError, match='C=.*overflow'):
    _ = strategies.ColumnNormalized(toeplitz).column_norms


@pytest.mark.parametrize(
  'strategy',
  [
    strategies.Lti(10**12, 0.1),
    strategies.Blt(10**12, [0.3], [0.9]),
    strategies.OnlineTree(10**12),
    strategies.ColumnNormalized(strategies.DpCgd(10**12, 0.5)),
    strategies.Stamped(10**12, strategies.DpCgd(2, 0.5)),
  ],
)
def test_rounds_that_fit_in_no_memory_are_refused(strategy):
  with pytest.raises(ValueError, match='rounds=1000000000000: '):
    strategy.errors()
