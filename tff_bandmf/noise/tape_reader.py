"""The part of a round that takes y_t from a tape, in any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import tensorflow as tf

from tff_bandmf.noise import tape_folder

# A run that keeps nothing of what it reads.
NOBODY = 0


def read(
    shards: Sequence[tape_folder.Shard],
    tape_id: tf.Tensor,
    round_index: tf.Tensor,
    timeout_seconds: float,
    run: Union[int, tf.Tensor] = NOBODY,
) -> tf.Tensor:
  """Returns y of a round from a tape, in a graph of any process.

  Waits for the producers if they are behind. Every check fails the round: noise
  is never silently zero, stale or used up.

  Args:
    shards: of the tape, in the order of their coordinates.
    tape_id: scalar int64, of the tape that the state belongs to.
    round_index: scalar int64.
    timeout_seconds: how long to wait for the producers.
    run: scalar int64, whose round it becomes: another run is refused it from
      then on. Of `NOBODY` it becomes nobody's.

  Returns:
    [coordinates of all shards] float32, unit z.
  """
  run = tf.convert_to_tensor(run, tf.int64)
  folders = [_Folder(shard, round_index, run) for shard in shards]
  payloads = [folder.payload(tape_id, timeout_seconds) for folder in folders]
  # None is marked before all are known to be good.
  with tf.control_dependencies(payloads):
    marked = [folder.mark() for folder in folders]
  # PRIVACY: marked before y leaves; without the marks there is no y.
  # Guard: tape_test.test_round_is_gone_after_the_next_one_was_read.
  with tf.control_dependencies(marked):
    parts = [
        tf.reshape(tf.bitcast(payload, tf.float32), [-1])[:shard.count]
        for shard, payload in zip(shards, payloads)]
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


def rounds_ahead(
    shards: Sequence[tape_folder.Shard], round_index: tf.Tensor
) -> tf.Tensor:
  """Returns how many rounds from this one on are ready, scalar int32."""
  return tf.reduce_min([
      _Folder(shard, round_index, tf.constant(NOBODY, tf.int64)).ready_count()
      for shard in shards])


class _Folder:
  """One folder as a round of a graph sees it."""

  def __init__(
      self, shard: tape_folder.Shard, round_index: tf.Tensor, run: tf.Tensor
  ):
    self._shard = shard
    self._round_index = round_index
    self._run = run
    self._name = tf.strings.as_string(round_index, width=8, fill='0')

  def payload(self, tape_id: tf.Tensor, timeout_seconds: float) -> tf.Tensor:
    """Returns y of the round as [payload words] int64, when it is there."""
    noise_name = tf.strings.join([self._name, '.noise'])
    marks = tf.io.matching_files(self._path('*.reached', self._round_index))
    known = self._check(
        tf.size(marks) > 0,
        'the tape is not there; was its factory closed, or is its folder not '
        'seen by the process that runs the round?')
    with tf.control_dependencies([known]):
      numbers, runs = (
          tf.strings.to_number(
              tf.strings.regex_replace(
                  marks, r'.*/(\d+)(?:-(\d+))?\.reached', part), tf.int64)
          # Of a mark without run, that is 0.
          for part in (r'\1', r'0\2'))
      reached = tf.reduce_max(numbers)
    unused = self._check(
        reached <= self._round_index,
        'the noise of this round was already used and removed; resume with a '
        'tape that starts at the round of the state')
    # PRIVACY: a round meets the cohort of one run, also when another run comes
    # before a later round is read. Guard:
    # tape_test.test_round_of_one_run_is_refused_to_another.
    others = (
        tf.equal(numbers, self._round_index) & ~tf.equal(runs, NOBODY)
        & ~tf.equal(runs, self._run) & ~tf.equal(self._run, NOBODY))
    own = self._check(
        ~tf.reduce_any(others),
        'the noise of this round was used by another run; resume that one from '
        'its own state, or start with a new key')
    with tf.control_dependencies([unused, own]):
      deadline = tf.timestamp() + timeout_seconds

    def behind(polls):
      return ~(self._exists(noise_name, polls) | self._exists('failed', polls)
               | (tf.timestamp() > deadline))

    polls = tf.while_loop(
        behind, lambda polls: [_sleep(polls) + 1],
        [tf.constant(0, tf.int64)])
    with tf.control_dependencies(polls):
      there = self._check(
          self._exists(noise_name, polls[0]),
          'the producer ended or fell behind; is its process alive, and is '
          'there room on its disk?')
    with tf.control_dependencies([there]):
      contents = tf.io.read_file(self._path(noise_name, self._round_index))
    words = tape_folder.HEADER_WORDS + self._shard.payload_words
    # tf.equal: TFF traces into a graph where == compares object identity.
    whole = self._check(
        tf.equal(tf.strings.length(contents), 8 * words),
        'the file has the wrong size')
    with tf.control_dependencies([whole]):
      content = tf.ensure_shape(tf.io.decode_raw(contents, tf.int64), [words])
    header, payload = tf.split(
        content, [tape_folder.HEADER_WORDS, self._shard.payload_words])
    expected = tf.stack([
        tape_folder.MAGIC, tape_folder.VERSION, tape_id, self._round_index,
        self._shard.count, tf.reduce_sum(payload), self._shard.first, 0])
    genuine = self._check(
        tf.reduce_all(tf.equal(header, expected)),
        'the file is damaged, or of another tape, shard or round')
    with tf.control_dependencies([genuine]):
      return tf.identity(payload)

  def ready_count(self) -> tf.Tensor:
    """Returns how many files of this round and later ones are there."""
    files = tf.io.matching_files(self._path('*.noise', self._round_index))
    numbers = tf.strings.regex_replace(files, r'.*/(\d+)\.noise', r'\1')
    return tf.math.count_nonzero(
        tf.strings.to_number(numbers, tf.int64) >= self._round_index,
        dtype=tf.int32)

  def mark(self) -> tf.Operation:
    """Returns what says that the rounds before this one were used."""
    name = tf.where(
        tf.equal(self._run, NOBODY), self._name,
        tf.strings.join([self._name, '-', tf.strings.as_string(self._run)]))
    return tf.io.write_file(
        self._path(tf.strings.join([name, '.reached']), self._round_index), '')

  def _path(self, file_name, now: tf.Tensor) -> tf.Tensor:
    # File operations count as pure: with the same arguments they would be run
    # once, when the graph is optimised or before the loop.
    nothing = tf.strings.substr(tf.strings.as_string(now), 0, 0)
    return tf.strings.join(
        [str(self._shard.directory), '/', nothing, file_name])

  def _exists(self, file_name, now: tf.Tensor) -> tf.Tensor:
    return tf.size(tf.io.matching_files(self._path(file_name, now))) > 0

  def _check(self, condition: tf.Tensor, message: str) -> tf.Operation:
    path = self._path(
        tf.strings.join([self._name, '.noise']), self._round_index)
    return tf.debugging.Assert(
        condition,
        [f'noise tape: {message}; round, path:', self._round_index, path])


def _sleep(value: tf.Tensor) -> tf.Tensor:
  """Returns `value`, scalar int64, a little later."""
  dataset = tf.data.Dataset.from_tensors(value)
  variant = tf.raw_ops.SleepDataset(
      input_dataset=tf.data.experimental.to_variant(dataset),
      sleep_microseconds=int(tape_folder.POLL_SECONDS * 1e6),
      output_types=[tf.int64], output_shapes=[[]])
  return tf.data.experimental.from_variant(
      variant, tf.TensorSpec([], tf.int64)).reduce(value, lambda _, x: x)
