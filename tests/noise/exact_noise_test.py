"""Tests that y is the exact rounding of the ideal noise, for all memories."""

import functools

import ideal_noise
import numpy as np
import pytest
import recursions

from tff_bandmf import noise, strategies
from tff_bandmf.noise import exact, generator
from tff_bandmf.noise.producer import blocks, stream
from tff_bandmf.strategies import recursion as recursion_lib

pytestmark = pytest.mark.slow

_ROUNDS, _DIMENSION = 40, 4096
_KEY = noise.Key.from_seed(29)
# Of each kind: pairs (round, coordinate) nearest to a boundary, and others.
_NEAREST = _OTHERS = 100
_FINE = 2.0**24

_TOEPLITZ = strategies.BandedToeplitz(_ROUNDS, 0.8 ** np.arange(12))
_BLT = strategies.Blt(_ROUNDS, [0.3, 0.2], [0.95, 0.6])
_INVERSE = strategies.BandedInverseSqrt(_ROUNDS, 5)
_KINDS = {
  'identity': strategies.Identity(_ROUNDS),
  'window of y': _TOEPLITZ,
  'window of y, signed': strategies.BandedToeplitz(_ROUNDS, [1.3, -0.7, 0.3]),
  'window of y, normalised': strategies.ColumnNormalized(_TOEPLITZ),
  'window of y, stamped': strategies.Stamped(
    _ROUNDS, strategies.BandedToeplitz(13, 0.8 ** np.arange(12))
  ),
  'dense': strategies.Tree(_ROUNDS),
  'window of z': _INVERSE,
  'window of z, normalised': strategies.ColumnNormalized(_INVERSE),
  'blt': _BLT,
  'blt, normalised': strategies.ColumnNormalized(_BLT),
  'blt, stamped': strategies.Stamped(
    _ROUNDS, strategies.Blt(13, [0.3, 0.2], [0.95, 0.6])
  ),
  'tree': strategies.OnlineTree(_ROUNDS),
}


def _streamed(strategy, z_steps, dimension=_DIMENSION, **kwargs):
  made = noise.Stream(strategy.recursion(), z_steps, dimension, _KEY, **kwargs)
  return np.stack([y.copy() for y in made.rows() if y is not None])


@functools.cache
def _expected(kind):
  return _streamed(_KINDS[kind], _FINE)


def _distances(strategy, z_steps, y):
  """Returns |v - (the nearest half-integer)|, from float64, [n, d]."""
  z = generator.Generator(_KEY).rows(0, len(y), 0, y.shape[1])
  replay = iter(y.astype(float))
  v = []

  def rounding(row):
    v.append(row)
    return next(replay)

  recursions.run(strategy.recursion(), z, z_steps, rounding)
  v = np.stack(v)
  return np.abs(np.abs(v - np.rint(v)) - 0.5)


def _pairs(strategy, z_steps, y):
  """Yields pairs (round, coordinate)."""
  distances = _distances(strategy, z_steps, y).ravel()
  nearest = np.argpartition(distances, _NEAREST)[:_NEAREST]
  others = np.random.default_rng(0).integers(0, y.size, _OTHERS)
  for place in (*nearest, *others):
    t, i = np.unravel_index(place, y.shape)
    yield int(t), int(i)


@pytest.mark.parametrize('kind', _KINDS)
def test_noise_is_the_rounding_of_the_ideal(kind):
  strategy, y = _KINDS[kind], _expected(kind)
  for t, i in _pairs(strategy, _FINE, y):
    right = ideal_noise.rounded(strategy, _FINE, _KEY, t, i, y[:t, i])
    assert y[t, i] == right, (t, i)


def _count_decisions(monkeypatch):
  """Returns a list that gets (t, i) of each rounding that was decided."""
  decided = []
  decide = exact.Rounding.decide

  def spy(self, t, i, past):
    decided.append((t, i))
    return decide(self, t, i, past)

  monkeypatch.setattr(exact.Rounding, 'decide', spy)
  return decided


def _coarse(monkeypatch, factor):
  """Makes all bounds of errors larger by a factor."""
  monkeypatch.setattr(generator, 'ERROR', factor * generator.ERROR)
  monkeypatch.setattr(recursion_lib, 'UNIT', factor * recursion_lib.UNIT)


@pytest.mark.parametrize('kind', _KINDS)
def test_roundings_in_doubt_are_decided_as_others(monkeypatch, kind):
  """With bounds so large that many are in doubt, no bit changes."""
  decided = _count_decisions(monkeypatch)
  # Some of 16 x 40 are in doubt, or all where e is 1/2 or more.
  _coarse(monkeypatch, 2.0**14)
  y = _streamed(_KINDS[kind], _FINE, dimension=16)
  assert len(decided) >= 3
  assert np.array_equal(y, _expected(kind)[:, :16])


@pytest.mark.parametrize('kind', _KINDS)
def test_a_fast_path_of_float32_gives_the_same_bits(monkeypatch, kind):
  """The bounds hold for the unit of float32, and what it misses is decided."""
  decided = _count_decisions(monkeypatch)
  monkeypatch.setattr(generator, 'ERROR', 2.0**-20)
  monkeypatch.setattr(recursion_lib, 'UNIT', 2.0**-23)
  fill = generator.Generator._fill

  def coarse_fill(self, z, row, start):
    fill(self, z, row, start)
    z[:] = z.astype(np.float32)

  round_exactly = blocks.Chunk.round

  def coarse_round(self, v, *args):
    v[:] = v.astype(np.float32)
    return round_exactly(self, v, *args)

  monkeypatch.setattr(generator.Generator, '_fill', coarse_fill)
  monkeypatch.setattr(blocks.Chunk, 'round', coarse_round)
  z_steps = 3000.0
  y = _streamed(_KINDS[kind], z_steps, dimension=24)
  assert decided
  monkeypatch.undo()
  assert np.array_equal(y, _streamed(_KINDS[kind], z_steps, dimension=24))


@pytest.mark.parametrize('kind', _KINDS)
def test_column_of_the_key_alone_is_that_of_the_stream(kind):
  recursion = _KINDS[kind].recursion()
  rounding = exact.Rounding(recursion, _FINE, generator.Generator(_KEY))
  for i in (0, 13, 4095):
    assert rounding.column(i, _ROUNDS) == _expected(kind)[:, i].tolist()


@pytest.mark.parametrize('kind', _KINDS)
def test_devices_make_the_same_bits(monkeypatch, kind):
  """More columns are in doubt than there is room for."""
  jax_devices = pytest.importorskip('tff_bandmf.noise.producer.jax_devices')
  jax = pytest.importorskip('jax')
  monkeypatch.setattr(jax_devices, '_FEW', 1)
  decided = _count_decisions(monkeypatch)
  _coarse(monkeypatch, 2.0**14)
  jax.clear_caches()
  y = _streamed(_KINDS[kind], _FINE, dimension=16, backend='jax')
  jax.clear_caches()
  assert decided
  assert np.array_equal(y, _expected(kind)[:, :16])


def test_device_that_rounds_otherwise_is_corrected(monkeypatch):
  """A wrong rounding in doubt changes the rest of its column, and no other."""
  jax_devices = pytest.importorskip('tff_bandmf.noise.producer.jax_devices')
  jax = pytest.importorskip('jax')
  rounded = jax_devices._rounded

  def wrong(v, error):
    y, largest, doubt = rounded(v, error)
    places = jax_devices.jnp.arange(len(v)) % 5 == 0
    return (
      jax_devices.jnp.where(places, y + 1, y), largest + 1, doubt | places
    )  # fmt: skip

  monkeypatch.setattr(jax_devices, '_rounded', wrong)
  for kind in ('window of y', 'window of z', 'blt'):
    jax.clear_caches()
    y = _streamed(_KINDS[kind], _FINE, dimension=24, backend='jax')
    assert np.array_equal(y, _expected(kind)[:, :24]), kind
  jax.clear_caches()


def test_bounds_of_zero_would_round_some_wrongly(capsys):
  """Among 2^24 normals some are rounded otherwise than in float64."""
  z_steps, count = 2.0**27, 2**24
  made = generator.Generator(_KEY)
  rounding = exact.Rounding(strategies.Identity(1).recursion(), z_steps, made)
  wrong = []
  for start in range(0, count, 2**20):
    v = z_steps * made.rows(0, 1, start, 2**20)[0]
    y = np.rint(v)
    margin = 0.5 - np.abs(v - y)
    for place in np.flatnonzero(margin < 2.0**-18):
      if rounding.decide(0, start + int(place), ()) != y[place]:
        wrong.append(margin[place])
  assert wrong
  # v is a multiple of 2^-26.
  bound, largest = z_steps * generator.ERROR, max(*wrong, 2.0**-26)
  with capsys.disabled():
    print(f'\nbounds may be divided by {bound / largest:.0f}', end=' ')
  assert largest < bound


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
    y = _streamed(_KINDS[kind], 1000.0, dimension=16)
    assert (3, 2) in decided
    assert y[3, 2] > 6000
    assert np.array_equal(y[:3], _streamed(_KINDS[kind], 1000.0, 16)[:3])


@pytest.mark.parametrize(
  'kind, copies',
  [('identity', 0), ('window of z', 0), ('window of z', 3)],
)
def test_noise_without_memory_has_the_same_bits(kind, copies):
  y = _streamed(_KINDS[kind], _FINE, memory=stream.Memory(copies=copies))
  assert np.array_equal(y, _expected(kind))
  found = noise.Stream(
    _KINDS[kind].recursion(),
    _FINE,
    _DIMENSION,
    _KEY,
    memory=stream.Memory(copies=copies),
  )
  with found._maker() as maker:
    assert maker._memory[0].size == 0


@pytest.mark.parametrize(
  'copies, kind, needed', [(0, 'blt', 2), (10, 'window of y', 11)]
)
def test_memory_that_cannot_be_left_out_is_refused(copies, kind, needed):
  with pytest.raises(
    ValueError, match=f'memory_copies={copies}: the noise keeps {needed} copies'
  ):
    _streamed(_KINDS[kind], _FINE, memory=stream.Memory(copies=copies))


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


def test_words_that_decide_nothing_end_the_run(monkeypatch):
  rounding = exact.Rounding(
    strategies.Identity(1).recursion(), 1.0, generator.Generator(_KEY)
  )
  # An interval around a boundary, whatever is read.
  mp = rounding._mp
  monkeypatch.setattr(
    rounding, '_normal', lambda *_: (mp.mpf(0.4), mp.mpf(0.6))
  )
  with pytest.raises(ArithmeticError, match='no rounding') as raised:
    rounding.decide(0, 0, ())
  assert '0.' not in str(raised.value)
