"""The part of a round that takes y_t from a tape, in any process."""

from __future__ import annotations

import tensorflow as tf

from tff_bandmf.noise import tape


def read(
    directory: str,
    tape_id: tf.Tensor,
    round_index: tf.Tensor,
    dimension: int,
    timeout_seconds: float,
) -> tf.Tensor:
  """Returns y of a round from a tape, in a graph of any process.

  Waits for the producer if it is behind. Every check fails the round: noise is
  never silently zero, stale or used up.

  Args:
    directory: of the tape, absolute.
    tape_id: scalar int64, of the tape that the state belongs to.
    round_index: scalar int64.
    dimension: d.
    timeout_seconds: how long to wait for the producer.

  Returns:
    [dimension] float32, unit z.
  """
  name = tf.strings.as_string(round_index, width=8, fill='0')

  def in_folder(file_name, now):
    # File operations count as pure: with the same arguments they would be run
    # once, when the graph is optimised or before the loop.
    nothing = tf.strings.substr(tf.strings.as_string(now), 0, 0)
    return tf.strings.join([directory, '/', nothing, file_name])

  def exists(file_name, now):
    return tf.size(tf.io.matching_files(in_folder(file_name, now))) > 0

  noise_name = tf.strings.join([name, '.noise'])
  path = in_folder(noise_name, round_index)

  def check(condition, message):
    return tf.debugging.Assert(
        condition,
        [f'noise tape: {message}; round, path:', round_index, path])

  marks = tf.io.matching_files(in_folder('*.reached', round_index))
  known = check(
      tf.size(marks) > 0,
      'the tape is not there; was its factory closed, or is its folder not '
      'seen by the process that runs the round?')
  with tf.control_dependencies([known]):
    numbers = tf.strings.regex_replace(marks, r'.*/(\d+)\.reached', r'\1')
    reached = tf.reduce_max(tf.strings.to_number(numbers, tf.int64))
  unused = check(
      reached <= round_index,
      'the noise of this round was already used and removed; resume with a '
      'tape that starts at the round of the state')
  with tf.control_dependencies([unused]):
    deadline = tf.timestamp() + timeout_seconds

  def behind(polls):
    return ~(exists(noise_name, polls) | exists('failed', polls)
             | (tf.timestamp() > deadline))

  polls = tf.while_loop(
      behind, lambda polls: [_sleep(polls) + 1], [tf.constant(0, tf.int64)])
  with tf.control_dependencies(polls):
    there = check(
        exists(noise_name, polls[0]),
        'the producer ended or fell behind; is its process alive?')
  with tf.control_dependencies([there]):
    contents = tf.io.read_file(path)
  # tf.equal: TFF traces into a graph where == compares object identity.
  words = tape.HEADER_WORDS + tape.payload_words(dimension)
  whole = check(
      tf.equal(tf.strings.length(contents), 8 * words),
      'the file has the wrong size')
  with tf.control_dependencies([whole]):
    content = tf.ensure_shape(tf.io.decode_raw(contents, tf.int64), [words])
  header, payload = tf.split(
      content, [tape.HEADER_WORDS, words - tape.HEADER_WORDS])
  expected = tf.stack([
      tape.MAGIC, tape.VERSION, tape_id, round_index, dimension,
      tf.reduce_sum(payload), 0, 0])
  genuine = check(
      tf.reduce_all(tf.equal(header, expected)),
      'the file is damaged, or of another tape or round')
  with tf.control_dependencies([genuine]):
    # PRIVACY: marked before y leaves; without the mark there is no y.
    # Guard: tape_test.test_round_is_gone_after_the_next_one_was_read.
    marked = tf.io.write_file(
        in_folder(tf.strings.join([name, '.reached']), round_index), '')
  with tf.control_dependencies([marked]):
    return tf.reshape(tf.bitcast(payload, tf.float32), [-1])[:dimension]


def _sleep(value: tf.Tensor) -> tf.Tensor:
  """Returns `value`, scalar int64, a little later."""
  dataset = tf.data.Dataset.from_tensors(value)
  variant = tf.raw_ops.SleepDataset(
      input_dataset=tf.data.experimental.to_variant(dataset),
      sleep_microseconds=int(tape.POLL_SECONDS * 1e6),
      output_types=[tf.int64], output_shapes=[[]])
  return tf.data.experimental.from_variant(
      variant, tf.TensorSpec([], tf.int64)).reduce(value, lambda _, x: x)
