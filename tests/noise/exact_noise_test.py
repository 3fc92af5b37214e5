"""Tests that y is the exact rounding of the ideal noise, for all memories.

BANDMF_NOISE_PAIRS is the number of pairs (round, coordinate) of each kind that
are compared with the reference. With 10,000, as `make noise` has, half of them
are the nearest to a boundary among 2^24 pairs; it also sets all bounds to 0,
and prints by how much they may be divided.
"""

import functools
import itertools
import os
from typing import NamedTuple, Optional

import ideal_noise
import numpy as np
import pytest
import recursions

from tff_bandmf import (
  clipping_norm,
  noise,
  optimize,
  participation,
  sensitivity,
  strategies,
  workloads,
)
from tff_bandmf.noise import exact, generator
from tff_bandmf.noise.producer import blocks, stream
from tff_bandmf.strategies import recursion as recursion_lib

pytestmark = pytest.mark.slow

_PAIRS = int(os.environ.get('BANDMF_NOISE_PAIRS', '1000'))
_MANY = _PAIRS >= 10_000
_ROUNDS, _DIMENSION = 40, 2**19 if _MANY else 2**14
# Number of coordinates whose distances are computed at a time.
_CHUNK = 2**14
# Coordinates whose rounds are `_PAIRS` pairs, padded to whole groups of words.
_FEW = -(-_PAIRS // (8 * _ROUNDS)) * 8
_KEY = noise.Key.from_seed(29)
_FINE = 2.0**24


class _Kind(NamedTuple):
  """A memory of the noise, and the lattice.

  Attributes:
    strategy: C.
    z_steps: standard deviation of z in lattice steps.
    copies: limit on the rows of past noise that the stream keeps.
  """

  strategy: strategies.Strategy
  z_steps: float = _FINE
  copies: Optional[int] = None


_TOEPLITZ = strategies.BandedToeplitz(_ROUNDS, 0.8 ** np.arange(12))
_BLT = strategies.Blt(_ROUNDS, [0.3, 0.2], [0.95, 0.6])
_INVERSE = strategies.BandedInverseSqrt(_ROUNDS, 5)
_NORMALISED = strategies.ColumnNormalized(_INVERSE)
_MOMENTUM = optimize.optimize(
  'banded',
  _ROUNDS,
  participation.MinSep(8),
  workloads.Workload(0.9),
  bands=8,
).strategy
# The run was planned with 12 rounds.
_LONGER, _ = sensitivity.budget.for_horizon(
  participation.Budget(4, 2, horizon=_ROUNDS), _TOEPLITZ.of_rounds(12)
)
_ADAPTIVE = noise.Lattice.from_noise(
  _TOEPLITZ.recursion(),
  0.7 * clipping_norm.record_factor(clipping_norm.AdaptiveClip(0.1)),
  largest_cohort=100,
  dimension=_DIMENSION,
).z_steps
_KINDS = {
  'identity': _Kind(strategies.Identity(_ROUNDS)),
  'window of y': _Kind(_TOEPLITZ),
  'window of y, signed': _Kind(
    strategies.BandedToeplitz(_ROUNDS, [1.3, -0.7, 0.3])
  ),
  'window of y, momentum': _Kind(_MOMENTUM),
  'window of y, normalised': _Kind(strategies.ColumnNormalized(_TOEPLITZ)),
  'window of y, stamped': _Kind(
    strategies.Stamped(
      _ROUNDS, strategies.BandedToeplitz(13, 0.8 ** np.arange(12))
    )
  ),
  'window of y, budget past the plan': _Kind(_LONGER),
  'window of y, adaptive clip': _Kind(_TOEPLITZ, _ADAPTIVE),
  'dense': _Kind(strategies.Tree(_ROUNDS)),
  'window of z': _Kind(_INVERSE),
  'window of z, none kept': _Kind(_INVERSE, copies=0),
  'window of z, normalised': _Kind(_NORMALISED),
  'window of z, normalised, none kept': _Kind(_NORMALISED, copies=0),
  'blt': _Kind(_BLT),
  'blt, normalised': _Kind(strategies.ColumnNormalized(_BLT)),
  'blt, stamped': _Kind(
    strategies.Stamped(_ROUNDS, strategies.Blt(13, [0.3, 0.2], [0.95, 0.6]))
  ),
  'tree': _Kind(strategies.OnlineTree(_ROUNDS)),
}


def _stream(name, dimension=_DIMENSION, z_steps=None, **kwargs):
  kind = _KINDS[name]
  return noise.Stream(
    kind.strategy.recursion(),
    z_steps or kind.z_steps,
    dimension,
    _KEY,
    stream.Memory(copies=kind.copies),
    **kwargs,
  )


def _streamed(*args, **kwargs):
  output = _stream(*args, **kwargs)
  return np.stack([y.copy() for y in output.rows() if y is not None])


@functools.lru_cache(maxsize=1 if _MANY else None)
def _expected(name):
  return _streamed(name)


def _assert_rounded(name, z_steps, y, pairs):
  """Compares y, [n, d], with the reference in pairs (round, coordinate)."""
  strategy = _KINDS[name].strategy
  for t, i in pairs:
    right = ideal_noise.rounded(strategy, z_steps, _KEY, t, i, y[:t, i])
    assert y[t, i] == right, (t, i)


@functools.cache
def _ideal(name, z_steps):
  """Returns the ideal noise of a few coordinates, [n, _FEW]."""
  y = np.zeros((_ROUNDS, _FEW), np.int64)
  for t, i in itertools.product(range(_ROUNDS), range(_FEW)):
    y[t, i] = ideal_noise.rounded(
      _KINDS[name].strategy, z_steps, _KEY, t, i, y[:t, i]
    )
  return y


def _distances(kind, y):
  """Returns |v - (the nearest half-integer)|, from float64, [n, d] float32."""
  recursion, distances = kind.strategy.recursion(), []
  for start in range(0, y.shape[1], _CHUNK):
    part = y[:, start : start + _CHUNK]
    z = generator.Generator(_KEY).rows(0, len(y), start, part.shape[1])
    replay, v = iter(part.astype(float)), []

    def rounding(row, v=v, replay=replay):
      v.append(row)
      return next(replay)

    recursions.run(recursion, z, kind.z_steps, rounding)
    distances.append(np.abs(np.abs(v - np.rint(v)) - 0.5).astype(np.float32))
  return np.hstack(distances)


def _pairs(kind, y):
  """Yields pairs (round, coordinate): the nearest to a boundary, and others."""
  distances = _distances(kind, y).ravel()
  nearest = np.argpartition(distances, _PAIRS // 2)[: _PAIRS // 2]
  others = np.random.default_rng(0).integers(0, y.size, _PAIRS // 2)
  for place in (*nearest, *others):
    t, i = np.unravel_index(place, y.shape)
    yield int(t), int(i)


def _jax_devices(patched=''):
  """Returns the module; traces programs anew if something else is patched."""
  jax = pytest.importorskip('jax')
  from tff_bandmf.noise.producer import jax_devices

  if _traced != [patched]:
    jax.clear_caches()
  _traced[:] = [patched]
  return jax_devices


_traced = ['']


@pytest.fixture(scope='module', autouse=True)
def _programs_of_this_file():
  yield
  if _traced != ['']:
    _jax_devices()


@pytest.mark.parametrize('name', _KINDS)
@pytest.mark.parametrize('backend', stream.BACKENDS)
def test_noise_is_the_rounding_of_the_ideal(name, backend):
  kind, y = _KINDS[name], _expected(name)
  if backend == stream.NUMPY:
    _assert_rounded(name, kind.z_steps, y, _pairs(kind, y))
  else:
    pytest.importorskip('jax')
    assert np.array_equal(_streamed(name, backend=backend), y)


def _count_decisions(monkeypatch):
  """Returns a list that gets (t, i) of each rounding in doubt."""
  decided = []

  def spy_on(name):
    decide = getattr(exact.Rounding, name)

    def spy(self, t, i, *args):
      decided.append((t, i))
      return decide(self, t, i, *args)

    monkeypatch.setattr(exact.Rounding, name, spy)

  spy_on('decide')
  spy_on('decide_of')
  return decided


def _single(x):
  return x.astype('float32').astype('float64')


def _compute_in_single(monkeypatch, backend):
  """Makes the fast paths of the host and of JAX those of float32."""
  fill, round_exactly = generator.Generator._fill, blocks.Chunk.round

  def coarse_fill(self, z, row, start):
    fill(self, z, row, start)
    z[:] = _single(z)

  def coarse_round(self, v, *args):
    v[:] = _single(v)
    return round_exactly(self, v, *args)

  monkeypatch.setattr(generator.Generator, '_fill', coarse_fill)
  monkeypatch.setattr(blocks.Chunk, 'round', coarse_round)
  if backend == stream.JAX:
    jax_devices = _jax_devices('float32')
    # A device with float32 would be refused.
    monkeypatch.setattr(jax_devices, 'check', lambda device: None)
    normals, rounded = jax_devices.jax_generator.normals, jax_devices._rounded
    monkeypatch.setattr(
      jax_devices.jax_generator,
      'normals',
      lambda *args: _single(normals(*args)),
    )
    monkeypatch.setattr(
      jax_devices, '_rounded', lambda v, error: rounded(_single(v), error)
    )


def _bound(monkeypatch, error, unit):
  monkeypatch.setattr(generator, 'ERROR', error)
  monkeypatch.setattr(recursion_lib, 'UNIT', unit)


# The lattice is another one here, on which these are 'window of y' once more.
_SAME = ('window of y, adaptive clip', 'window of y, budget past the plan')
# More columns are in doubt there than JAX has room for: a kind of each block.
_WITHOUT_ROOM = ('window of y', 'window of z', 'blt', 'tree')


# The last decorator varies slowest: programs with its bounds are traced once.
@pytest.mark.parametrize('name', [each for each in _KINDS if each not in _SAME])
@pytest.mark.parametrize('backend', stream.BACKENDS)
@pytest.mark.parametrize('coarse', ['bounds times 2^20', 'float32'])
def test_coarse_fast_path_gives_the_same_bits(
  monkeypatch, name, backend, coarse
):
  decided = _count_decisions(monkeypatch)
  if coarse == 'float32':
    _compute_in_single(monkeypatch, backend)
    _bound(monkeypatch, 2.0**-20, 2.0**-23)
    z_steps = 3000.0
  else:
    _bound(monkeypatch, 2.0**-22, 2.0**-33)
    z_steps = 2.0**17
  if backend == stream.JAX:
    # Mostly there is room for all columns, so that a program is compiled once.
    few = 1 if name in _WITHOUT_ROOM else _FEW
    monkeypatch.setattr(_jax_devices(coarse), '_FEW', few)
  y = _streamed(name, _FEW, z_steps, backend=backend)
  assert len(set(decided)) > _PAIRS / 100
  assert np.array_equal(y, _ideal(name.split(', none kept')[0], z_steps))


def _finest(recursion):
  """Returns the z_steps of the finest lattice for y of 32 bits."""
  if recursion.keeps == recursion_lib.PAST_Z:
    rows = recursion.rows(0, _ROUNDS)
    return 2.0**31 / (10.5 * np.abs(rows).sum(1).max())
  return 2.0**31 / (9.5 * recursion.row_norms.max())


# Pieces of `_PIECE` coordinates in which bounds of 0 were wrong. On another
# processor others may be, so that the search goes on from the first piece.
_PIECE, _LAST_PIECE, _TOGETHER = 2**13, 2**12, 64
_WRONG = {
  stream.NUMPY: {
    'identity': 211,
    'window of y': 408,
    'window of y, signed': 5,
    'window of y, momentum': 319,
    'window of y, normalised': 214,
    'window of y, stamped': 612,
    'window of y, budget past the plan': 408,
    'window of y, adaptive clip': 408,
    'dense': 277,
    'window of z': 26,
    'window of z, none kept': 253,
    'window of z, normalised': 275,
    'window of z, normalised, none kept': 275,
    'blt': 97,
    'blt, normalised': 225,
    'blt, stamped': 263,
  },
  stream.JAX: {
    'identity': 201,
    'window of y': 59,
    'window of y, signed': 5,
    'window of y, momentum': 4,
    'window of y, normalised': 55,
    'window of y, stamped': 54,
    'window of y, budget past the plan': 59,
    'window of y, adaptive clip': 59,
    'dense': 33,
    'window of z': 26,
    'window of z, none kept': 26,
    'window of z, normalised': 323,
    'window of z, normalised, none kept': 323,
    'blt': 139,
    'blt, normalised': 90,
    'blt, stamped': 358,
  },
}


# (fast path, backend, kind). The float32 of JAX is that of NumPy. Few roundings
# of identity and tree are in doubt with the bounds of float32; all other cases
# take minutes.
_ZEROS = (
  [
    (fast, backend, name)
    for fast, backend in (
      ('float32', stream.NUMPY),
      ('float64', stream.NUMPY),
      ('float64', stream.JAX),
    )
    for name in _KINDS
  ]
  if _MANY
  else [('float32', stream.NUMPY, name) for name in ('identity', 'tree')]
)


@pytest.mark.parametrize('fast, backend, name', _ZEROS)
def test_bounds_of_zero_are_wrong(monkeypatch, capsys, fast, backend, name):
  """The fast path alone rounds some y wrongly, on a lattice that is fine."""
  # A piece in float32 has so many roundings in doubt that it takes a minute.
  size = _PIECE // 8 if fast == 'float32' else _PIECE
  monkeypatch.setattr(stream, '_GRID', size)
  z_steps = _finest(_KINDS[name].strategy.recursion())
  error, unit = generator.ERROR, recursion_lib.UNIT
  first = _WRONG[backend].get(name, 0)
  if fast == 'float32':
    _compute_in_single(monkeypatch, backend)
    z_steps, error, unit = 3000.0, 2.0**-20, 2.0**-23
    first = 0

  def made(piece, divisor):
    _bound(monkeypatch, error / divisor, unit / divisor)
    if backend == stream.JAX:
      _jax_devices(f'{fast} divided by {divisor}')
    return _streamed(
      name,
      (_LAST_PIECE + 1) * size,
      z_steps,
      coordinates=range(piece * size, (piece + 1) * size),
      backend=backend,
    )

  # Pieces in groups, for which JAX's programs are traced twice.
  together = 1 if backend == stream.NUMPY else _TOGETHER
  starts = range(0, _LAST_PIECE, together)
  for group in ([first], *(range(i, i + together) for i in starts)):
    right = {piece: made(piece, 1) for piece in group}
    wrong = [i for i in group if not np.array_equal(made(i, np.inf), right[i])]
    if wrong:
      break
  else:
    pytest.fail('no bit is wrong')
  # Bisection: divided by 2^low, the bounds suffice in these pieces.
  low, high = 0, 16
  while _MANY and high - low > 1:
    middle = (low + high) // 2
    if all(np.array_equal(made(i, 2.0**middle), right[i]) for i in wrong):
      low = middle
    else:
      high = middle
  if _MANY:
    with capsys.disabled():
      print(f'\n{name}, {backend}, {fast}: bounds of 1 / 2^{low} suffice')
      print(f'in piece {wrong[0]}, where bounds of 0 are wrong')


@pytest.mark.parametrize('kind', _KINDS)
def test_column_of_the_key_alone_is_that_of_the_stream(kind):
  recursion, z_steps, _ = _KINDS[kind]
  rounding = exact.Rounding(
    recursion.recursion(), z_steps, generator.Generator(_KEY)
  )
  for i in (0, 13, 4095):
    assert rounding.column(i, _ROUNDS) == _expected(kind)[:, i].tolist()


@pytest.mark.parametrize('kind', ['blt', 'blt, normalised', 'blt, stamped'])
def test_buffers_with_errors_decide_nothing_wrong(monkeypatch, kind):
  """What they cannot decide follows from the words of all rounds."""
  recursion = _KINDS[kind].strategy.recursion()
  rounding = exact.Rounding(recursion, 9.0, generator.Generator(_KEY))
  replayed, column = [], exact.Rounding.column
  monkeypatch.setattr(
    exact.Rounding,
    'column',
    lambda *args: replayed.append(args) or column(*args),
  )
  random, count = np.random.default_rng(0), 0
  for i in range(12):
    right, buffers = column(rounding, i, _ROUNDS), np.zeros(recursion.memory)
    for t in range(_ROUNDS):
      errors = 0.02 * np.abs(buffers)
      moved = buffers + random.uniform(-1, 1, len(buffers)) * errors
      count += 1
      assert rounding.decide_of(t, i, moved, errors) == right[t], (t, i)
      step = recursion.step(int(recursion.phase(t)))
      buffers = step.update @ buffers + step.gain * right[t]
  assert count / 20 < len(replayed) < count / 1.2


def test_device_that_rounds_otherwise_is_corrected(monkeypatch):
  """A wrong rounding in doubt changes the rest of its column, and no other."""
  jax_devices = _jax_devices('rounds otherwise')
  rounded = jax_devices._rounded

  def wrong(v, error):
    y, largest, doubt = rounded(v, error)
    places = jax_devices.jnp.arange(len(v)) % 5 == 0
    return (
      jax_devices.jnp.where(places, y + 1, y), largest + 1, doubt | places
    )  # fmt: skip

  monkeypatch.setattr(jax_devices, '_rounded', wrong)
  for kind in ('window of y', 'window of z', 'blt'):
    y = _streamed(kind, 24, backend='jax')
    assert np.array_equal(y, _expected(kind)[:, :24]), kind


_ON_DEVICES = ('window of y', 'window of z')


@pytest.mark.parametrize('kind', _ON_DEVICES)
def test_bounds_on_devices_count_each_column(monkeypatch, kind):
  """One normal in eight, each of them large, is no number on the device."""
  jax_devices = _jax_devices('small words')
  monkeypatch.setattr(generator, 'EXTENDED_BELOW', 2**60)
  monkeypatch.setattr(jax_devices, '_FEW', 1)
  output = _stream(kind, 24, backend='jax')
  with output._maker() as maker:
    for block in output._blocks():
      list(maker.advance(block))
      y = np.stack([maker._row(0, r) for r in range(block.rounds)])
      rounds = slice(block.first, block.first + block.rounds)
      assert np.array_equal(y, _expected(kind)[rounds, :24])
      assert np.isfinite(np.asarray(maker._memories[0], float)).all()
      if kind == 'window of y':
        bounds = maker._bounds[0][block.row : block.row + block.rounds]
        assert np.all(bounds >= np.abs(y).max(1))


def test_normal_of_the_smallest_words_is_decided(monkeypatch):
  """k = 0 gives NaN in float64; further words decide, in every row after it."""
  words = generator.Generator.words

  def zeros(self, row, start, count, stream=generator.WORDS):
    found = words(self, row, start, count, stream)
    if stream == generator.WORDS and row == 3 and start == 0:
      found = found.copy()
      found[2] = 1
    return found

  monkeypatch.setattr(generator.Generator, 'words', zeros)
  decided = _count_decisions(monkeypatch)
  for kind in ('identity', 'window of y', 'window of z', 'blt', 'tree'):
    decided.clear()
    y = _streamed(kind, 16, 1000.0)
    assert (3, 2) in decided
    assert y[3, 2] > 6000
    assert np.array_equal(y[:3], _streamed(kind, 16, 1000.0)[:3])


@pytest.mark.parametrize(
  'strategy, copies',
  [(strategies.Identity(9), 0), (_INVERSE, 0), (_INVERSE, 3)],
)
def test_noise_without_memory_keeps_nothing(strategy, copies):
  found = noise.Stream(
    strategy.recursion(), _FINE, 99, _KEY, stream.Memory(copies=copies)
  )
  with found._maker() as maker:
    assert maker._memory[0].size == 0


@pytest.mark.parametrize(
  'strategy, copies, needed', [(_BLT, 0, 2), (_TOEPLITZ, 10, 11)]
)
def test_memory_that_cannot_be_left_out_is_refused(strategy, copies, needed):
  with pytest.raises(
    ValueError, match=f'memory_copies={copies}: the noise keeps {needed} copies'
  ):
    noise.Stream(
      strategy.recursion(), _FINE, 99, _KEY, stream.Memory(copies=copies)
    )


@pytest.mark.parametrize('first', [0, 2**40 + 1, 2**63])
def test_more_words_are_further_digits(monkeypatch, first):
  """Intervals are nested, shrink by 2^64, and hold the quantile."""
  words = [first, 3, 2**64 - 1, 0, 5]
  made = generator.Generator(_KEY)
  monkeypatch.setattr(made, 'word', lambda t, i, stream: words[stream])
  rounding = exact.Rounding(strategies.Identity(1).recursion(), 1.0, made)
  mp = rounding._mp
  widths, last = [], (mp.ninf, mp.inf)
  for count in (1, 2, 3, 4):
    mp.dps = 160
    low, high = rounding._normal(0, 0, count)
    assert last[0] <= low < high <= last[1]
    last = low, high
    widths.append(high - low)
    digits = first >> 1
    for word in words[1 : count + 1]:
      digits = digits << 64 | word
    tail = (digits + mp.mpf(1) / 2) * mp.mpf(2) ** (-64 * (count + 1))
    signed = 1 - tail if first & 1 else tail
    assert mp.ncdf(low) < signed < mp.ncdf(high)
  # A tail of 0 in the first word takes a word to become a number.
  for wide, narrow in zip(widths[bool(not first) :], widths[1 + (not first) :]):
    assert 2.0**-66 < narrow / wide < 2.0**-62


def test_float64_decides_within_its_error(monkeypatch):
  words = generator.Generator(_KEY)
  rounding = exact.Rounding(strategies.Identity(1).recursion(), 2.0**40, words)
  rounded = [rounding.decide(0, i, ()) for i in range(64)]
  normal = words.normal
  monkeypatch.setattr(
    words, 'normal', lambda t, i: normal(t, i) + 0.9 * generator.ERROR
  )
  assert [rounding.decide(0, i, ()) for i in range(64)] == rounded


def test_words_that_decide_nothing_end_the_run(monkeypatch):
  rounding = exact.Rounding(
    strategies.Identity(1).recursion(), 1.0, generator.Generator(_KEY)
  )
  # An interval around a boundary, whatever is read.
  mp = rounding._mp
  monkeypatch.setattr(rounding, '_in_float64', lambda *_: None)
  monkeypatch.setattr(
    rounding, '_normal', lambda *_: (mp.mpf(0.4), mp.mpf(0.6))
  )
  with pytest.raises(ArithmeticError, match='no rounding') as raised:
    rounding.decide(0, 0, ())
  assert '0.' not in str(raised.value)
