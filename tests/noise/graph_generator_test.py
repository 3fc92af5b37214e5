"""Tests of the normals that a graph makes, against RFC 8439 and NumPy's."""

import inverse_cdf
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tff_bandmf import noise
from tff_bandmf.noise import generator, graph_generator

_KEY = noise.Key(bytes(range(32)))
_WORDS = tf.io.decode_raw(_KEY.secret, tf.int32)


def _uint32(*words):
  return tf.constant(np.array(words, np.uint32))


def test_block_is_that_of_the_rfc():
  # RFC 8439, 2.3.2; and two blocks at once.
  key = tf.bitcast(_WORDS, tf.uint32)
  counter = _uint32(1, 0x09000000, 0x4A000000, 0)
  expected = bytes.fromhex(
    '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
    'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e'
  )
  blocks = graph_generator.block(
    key, tf.stack([counter, counter + _uint32(1, 0, 0, 0)], 1)
  )
  assert blocks[:, 0].numpy().astype('<u4').tobytes() == expected
  assert not np.isin(blocks[:, 1], blocks[:, 0]).any()


def test_block_of_a_key_of_zeros_is_that_of_the_rfc():
  # RFC 8439, A.1, test vectors 1 and 3.
  key = tf.zeros([8], tf.uint32)
  first = graph_generator.block(key, tf.zeros([4, 1], tf.uint32))
  assert (
    first.numpy()
    .astype('<u4')
    .tobytes()
    .startswith(bytes.fromhex('76b8e0ada0f13d90405d6ae55386bd28'))
  )
  other = graph_generator.block(
    tf.concat([key[:7], _uint32(0x01000000)], 0),
    _uint32(1, 0, 0, 0)[:, tf.newaxis],
  )
  assert (
    other.numpy()
    .astype('<u4')
    .tobytes()
    .startswith(bytes.fromhex('3aeb5224ecf849929b9d828db1ced4dd'))
  )


@pytest.mark.parametrize('stream', [generator.WORDS, generator.EXTENSIONS])
@pytest.mark.parametrize('row', [0, 5, 2**31 + 3, 2**62 + 2**33 + 1])
def test_words_are_those_of_numpy_to_the_bit(row, stream):
  expected = generator.Generator(_KEY).words(row, 0, 800, stream)
  key = tf.bitcast(_WORDS, tf.uint32)
  found = graph_generator._words(
    key, tf.constant(row, tf.int64), tf.range(100, dtype=tf.int64), stream
  )
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('count', [1, 7, 8, 100_003])
def test_normals_are_those_of_numpy(count):
  found = tf.function(graph_generator.normals)(
    _WORDS, tf.constant(3, tf.int64), count
  )
  expected = generator.Generator(_KEY).rows(3, 1, 0, count)[0]
  assert found.dtype == tf.float64
  # Units in the last place of Phi^-1: both are a few from the truth.
  np.testing.assert_allclose(found, expected, rtol=2e-15, atol=1e-15)


def test_inverse_of_the_cdf_errs_less():
  u = inverse_cdf.points()
  z = tf.math.ndtri(tf.constant(u)).numpy()
  assert inverse_cdf.largest_error(u, z) < 1


def test_small_words_are_extended(monkeypatch):
  """A word in 2^24 is: here one in eight, in both generators."""
  monkeypatch.setattr(generator, 'EXTENDED_BELOW', 2**60)
  expected = generator.Generator(_KEY).rows(1, 1, 0, 4001)[0]
  found = graph_generator.normals(_WORDS, tf.constant(1, tf.int64), 4001)
  np.testing.assert_allclose(found, expected, rtol=2e-15, atol=1e-15)
  # Words of zero, and extensions of a few bits, reach the end of the tail.
  monkeypatch.setattr(
    graph_generator,
    '_words',
    lambda key, t, groups, stream: tf.fill(
      [8 * groups.shape[0]], tf.constant(stream, tf.uint64)
    ),
  )
  z = graph_generator.normals(_WORDS, tf.constant(1, tf.int64), 8)
  np.testing.assert_allclose(
    z, scipy.special.ndtri(1.5 * 2.0**-128), rtol=1e-14
  )


def test_fresh_keys_differ_and_come_from_the_system():
  # As TFF does it: one traced computation, run again and again.
  fresh = tf.function(graph_generator.fresh_key_words)
  keys = np.stack([fresh() for _ in range(200)])
  assert keys.shape == (200, 8) and keys.dtype == np.int32
  assert len(np.unique(keys)) == keys.size
  counts = np.bincount(keys.view(np.uint8).ravel(), minlength=256)
  # 6,400 uniform bytes but 10 and 13: mean 25, and 52 once in 10^5 runs.
  assert counts[10] == counts[13] == 0
  assert counts.max() < 62 and np.count_nonzero(counts) == 254
