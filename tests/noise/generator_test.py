"""Tests of the normals of a key. Keys are fixed: what passed passes again."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.noise import key as key_lib

_KEY = key_lib.Key.from_seed(1)
_GENERATOR = generator_lib.Generator(_KEY)
# For each test of a distribution, with a key drawn at random.
_FALSE_ALARM = 1e-9


def test_words_are_those_of_the_published_block():
  """RFC 8439, section 2.3.2."""
  made = generator_lib.Generator(key_lib.Key(bytes(range(32))))
  nonce = bytes.fromhex('01000000000000090000004a00000000')
  number = int.from_bytes(nonce, 'little')
  group, row = number & (2**64 - 1), number >> 64
  assert row < 2**32
  expected = bytes.fromhex(
    '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
    'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e'
  )
  words = made.words(row, generator_lib.GROUP * group, 8)
  assert words.tobytes() == expected


def test_pieces_agree_with_the_whole():
  whole = _GENERATOR.rows(7, 5, 0, 20_003)
  assert whole.dtype == np.float64 and whole.shape == (5, 20_003)
  assert np.array_equal(_GENERATOR.rows(9, 2, 400, 603), whole[2:4, 400:1003])
  assert np.array_equal(_GENERATOR.rows(11, 1, 8000, 12_003), whole[4:, 8000:])


def test_rows_and_coordinates_never_share_words():
  rows = [0, 1, 2, 255, 256, 2**31, 2**32 - 1]
  draws = [
    _GENERATOR.words(row, start, 4000, stream)
    for row in rows
    for start in (0, 4000, 2**35, 2**40)
    for stream in (0, 1, 2, 3, 8, 2**31)
  ]
  other = generator_lib.Generator(key_lib.Key.from_seed(2))
  draws.append(other.words(0, 0, 4000))
  words = np.concatenate(draws)
  assert len(np.unique(words)) == len(words)


@pytest.mark.parametrize('start, row', [(4, 0), (-8, 0), (0, -1), (0, 2**32)])
def test_start_off_the_grid_is_refused(start, row):
  with pytest.raises(ValueError, match=f'start={start}.*multiple of 8'):
    _GENERATOR.rows(row, 1, start, 8)


class _Words(generator_lib.Generator):
  """A generator of given words."""

  def __init__(self, words, extensions):
    self._streams = [np.array(w, np.uint64) for w in (words, extensions)]

  def words(self, row, start, count, stream=generator_lib.WORDS):
    return self._streams[stream][start : start + count]


def _exact(word, extension):
  """Returns z of a word, by another inverse of the same CDF."""
  magnitude = word >> 1
  tail = (magnitude + 0.5) * 2.0**-64
  if magnitude < generator_lib.EXTENDED_BELOW:
    tail = (magnitude + (extension + 0.5) * 2.0**-64) * 2.0**-64
  z = -np.sqrt(2) * scipy.special.erfcinv(2 * tail)
  return -z if word & 1 else z


def test_tail_has_words_of_its_own():
  """Below 2^39 a second word decides, and it is the coordinate's own."""
  words = [0, 1, 2, 2**10, 2**39 + 1, 2**40 - 2, 2**40, 2**63, 2**64 - 1]
  extensions = [0, 0, 2**63, 5, 7, 2**64 - 1, 11, 13, 17]
  z = _Words(words, extensions).rows(0, 1, 0, 9)[0]
  expected = [_exact(*each) for each in zip(words, extensions)]
  assert np.isnan(z[:2]).all()
  np.testing.assert_allclose(z[2:], expected[2:], rtol=1e-9, atol=1e-15)
  assert -generator_lib.MOST_DEVIATIONS < z[2] < -9.0
  # Just below and just above the border the tail goes on without a step.
  border = _Words([2**40 - 2, 2**40], [2**64 - 1, 0]).rows(0, 1, 0, 2)[0]
  assert 0 < border[1] - border[0] < 1e-10


def test_normals_are_those_of_their_words():
  words = _GENERATOR.words(3, 8, 4000)
  expected = [_exact(int(w), 0) for w in words]
  np.testing.assert_allclose(
    _GENERATOR.rows(3, 1, 8, 4000)[0], expected, rtol=1e-9, atol=1e-12
  )


def _p_values(z):
  """Returns p-values of 'z [rows, count] are independent normals'."""
  n = z.size
  flat = z.ravel()
  beyond = np.sum(np.abs(flat) > 4)
  rate = n * 2 * scipy.stats.norm.sf(4)
  moments = np.sqrt(n) * np.array(
    [
      flat.mean(),
      (np.mean(flat**2) - 1) / np.sqrt(2),
      np.mean(flat**3) / np.sqrt(15),
      np.mean(flat[1:] * flat[:-1]),
      np.mean(flat**2 * np.roll(flat**2, 1) - 1) / np.sqrt(8),
      np.mean(z * np.roll(z, 1, axis=0)),
    ]
  )
  return np.array(
    [
      scipy.stats.kstest(flat, 'norm', method='asymp').pvalue,
      2
      * min(
        scipy.stats.poisson.cdf(beyond, rate),
        scipy.stats.poisson.sf(beyond - 1, rate),
      ),
      *2 * scipy.stats.norm.sf(np.abs(moments)),
    ]
  )


@pytest.mark.slow
def test_normals_are_normal_and_independent():
  """Kolmogorov-Smirnov, tails, moments and neighbours of 10^6 draws."""
  z = _GENERATOR.rows(0, 16, 0, 62_504)
  # Eight p-values share the rate.
  assert _p_values(z).min() > _FALSE_ALARM / 8


@pytest.mark.slow
def test_wrong_distributions_would_be_seen():
  z = _GENERATOR.rows(0, 16, 0, 62_504)
  uniform = np.random.default_rng(0).uniform(-np.sqrt(3), np.sqrt(3), z.shape)
  for wrong in (
    1.02 * z,
    z / 1.02,
    z + 0.01,
    np.clip(z, -3.9, 3.9),
    uniform,
    np.repeat(z[:, ::2], 2, axis=1),
    np.repeat(z[::2], 2, axis=0),
    z + 0.01 * np.roll(z, 1, axis=1),
  ):
    assert _p_values(wrong).min() < _FALSE_ALARM / 8
