"""Standard normals from a key as TensorFlow operations.

Only `placements.InState` uses these operations, with the key in TFF's state.
`generator` has the formulas, and defines words, k, u and z. The words here have
the same bits as the words of `generator.Generator`. The normals z can differ
from the generator's normals in their last bits, since SciPy computes Phi^-1
there. A group is eight coordinates that share a block of ChaCha20.
"""

from __future__ import annotations

import tensorflow as tf

from tff_bandmf.noise import generator

# Number of 32-bit words of a key, in TFF's state.
KEY_WORDS = 8


def fresh_key_words() -> tf.Tensor:
  """Returns a new key in every run of the graph, [8] int32.

  The key is 32 bytes of /dev/urandom on the machine that runs the graph.
  TensorFlow reads the file as lines, so no byte of the key is 10 or 13. The
  other 254 values are uniform, so the key has 255.6 bits of entropy.
  """
  # PRIVACY: TensorFlow's own random numbers start from a seed of 32 bits, so an
  # attacker could find the key. The operating system draws the key instead.
  # Guard: graph_generator_test.test_fresh_keys_differ_and_come_from_the_system.
  lines = tf.data.TextLineDataset('/dev/urandom', buffer_size=256)
  text = tf.strings.reduce_join(lines.batch(64).take(1).get_single_element())
  key = tf.io.decode_raw(tf.strings.substr(text, 0, 4 * KEY_WORDS), tf.int32)
  complete = tf.debugging.Assert(
    tf.equal(tf.size(key), KEY_WORDS), ['the system gave too few bytes']
  )
  with tf.control_dependencies([complete]):
    return tf.ensure_shape(key, [KEY_WORDS])


def block(key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
  """Returns blocks of ChaCha20 [RFC 8439, 2.3].

  Args:
    key: [8] uint32.
    counter: [4, blocks] uint32, counter and nonce of each block.

  Returns:
    [16, blocks] uint32.
  """
  blocks = tf.shape(counter)[1]
  same = tf.concat([tf.constant(generator.CONSTANTS, tf.uint32), key], 0)
  start = tf.concat([tf.repeat(same[:, tf.newaxis], blocks, 1), counter], 0)

  def double_round(i, *rows):
    columns = generator.quarter_round(_rotated, *rows)
    diagonals = generator.quarter_round(
      _rotated, *(tf.roll(row, -s, 0) for s, row in enumerate(columns))
    )
    return i + 1, *(tf.roll(row, s, 0) for s, row in enumerate(diagonals))

  _, *rows = tf.while_loop(
    lambda i, *_: i < generator.DOUBLE_ROUNDS,
    double_round,
    [tf.constant(0), *(start[4 * r : 4 * r + 4] for r in range(4))],
    parallel_iterations=1,
  )
  return tf.concat(rows, 0) + start


def normals(key: tf.Tensor, round_index: tf.Tensor, count: int) -> tf.Tensor:
  """Returns the first `count` coordinates of z_t, standard normals.

  Args:
    key: [8] int32; secret.
    round_index: t, scalar int64.
    count: number of coordinates, > 0.

  Returns:
    [count] float64.
  """
  key = tf.bitcast(key, tf.uint32)
  groups = tf.range(-(-count // generator.GROUP), dtype=tf.int64)
  words = _words(key, round_index, groups, generator.WORDS)[:count]
  k = tf.cast(tf.bitwise.right_shift(words, tf.ones_like(words)), tf.int64)
  u = (tf.cast(k, tf.float64) + 0.5) * 2.0**-64
  # PRIVACY: With one word for each u, no |z| would exceed 9.2, and the possible
  # values of large |z| would be far apart. Some rare releases would be possible
  # with a client and impossible without it. If the first word is small, a
  # second word makes u finer, so that |z| can reach 13.
  # Guard: graph_generator_test.test_small_words_are_extended.
  small = tf.where(k < generator.EXTENDED_BELOW)
  coordinate = small[:, 0]
  extensions = _words(
    key, round_index, coordinate // generator.GROUP, generator.EXTENSIONS
  )
  # Only one of the eight words of a block is used: the word of the coordinate.
  rows = tf.range(tf.size(coordinate), dtype=tf.int64)
  at = rows * generator.GROUP + coordinate % generator.GROUP
  e = tf.cast(tf.gather(extensions, at), tf.float64)
  extended = (
    tf.cast(tf.gather(k, coordinate), tf.float64) + (e + 0.5) * 2.0**-64
  ) * 2.0**-64
  u = tf.tensor_scatter_nd_update(u, small, extended)
  z = tf.math.ndtri(u)
  return tf.where(tf.cast(words & 1, tf.bool), -z, z)


def _words(
  key: tf.Tensor, round_index: tf.Tensor, groups: tf.Tensor, stream: int
) -> tf.Tensor:
  """Returns the words of m groups of coordinates, [8 m] uint64.

  Args:
    key: [8] uint32; secret.
    round_index: t, scalar int64.
    groups: [m] int64, indices of groups; coordinate i is in group i // 8.
    stream: `generator.WORDS` for first words, `EXTENSIONS` for second words.
  """
  # The last bit of the nonce is the stream. `tf.bitcast` puts the lower 32 bits
  # of an int64 first, so the bytes have the order of `Generator.words`.
  last_bit = tf.constant(-stream << 63, tf.int64)
  nonce = tf.fill(tf.shape(groups), round_index | last_bit)
  counter = tf.bitcast(tf.stack([groups, nonce], 1), tf.uint32)
  words = block(key, tf.transpose(tf.reshape(counter, [-1, 4])))
  return tf.bitcast(tf.reshape(tf.transpose(words), [-1, 2]), tf.uint64)


def _rotated(words: tf.Tensor, bits: int) -> tf.Tensor:
  left = tf.bitwise.left_shift(words, tf.constant(bits, tf.uint32))
  return left | tf.bitwise.right_shift(words, tf.constant(32 - bits, tf.uint32))
