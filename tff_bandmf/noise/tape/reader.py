"""The part of a round that adds y_t from a tape, in any process."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Optional

import tensorflow as tf

from tff_bandmf.noise import self_test
from tff_bandmf.noise.tape import file as tape_file
from tff_bandmf.noise.tape import folder as tape_folder


def release(
  tape: tape_folder.ReadableTape,
  total: tf.Tensor,
  *,
  tape_id: tf.Tensor,
  round_index: tf.Tensor,
  run: tf.Tensor,
  timeout_seconds: float,
) -> tf.Tensor:
  """Returns S_t + y_t, in a graph of any process; y itself never leaves.

  Waits for the producers if they are behind. Every check fails the round: noise
  is never silently zero, stale, damaged or used for another sum.

  Args:
    tape: where y is.
    total: [coordinates of all shards] int32, S_t, in steps of the lattice.
    tape_id: scalar int64, of the tape that the state belongs to.
    round_index: scalar int64, t.
    run: scalar int64, 0 or more, whose round it becomes: another run is refused
      it from then on.
    timeout_seconds: how long to wait for the producers, asleep.

  Raises:
    tf.errors.InvalidArgumentError: when run; a check failed.
  """
  folders = [_Folder(shard, tape_id, round_index, run) for shard in tape.shards]
  y = tf.concat([folder.y(timeout_seconds) for folder in folders], 0)
  y = self_test.check(
    y,
    z_steps=tape.z_steps,
    row_norms=tape.recursion.row_norms,
    round_index=round_index,
  )
  released = total + y
  # PRIVACY: the difference of two sums with one y has no noise; so a sum is
  # marked before it leaves, and no other one leaves. Where two are marked at
  # once, at least one sees the other, on two hosts too: who makes a name in a
  # folder sees what is there. Guards:
  # tape_release_test.test_round_releases_one_sum,
  # late_folder_test.test_sum_of_a_round_that_is_over_elsewhere_is_refused.
  high, low = tf.unstack(fingerprint(released))
  owner = tf.strings.join(
    [tf.strings.as_string(run), digits(high, 10), digits(low, 10)], '-'
  )
  checks = [each for folder in folders for each in folder.unused(high, owner)]
  with tf.control_dependencies(checks):
    marked = [folder.mark(owner) for folder in folders]
  with tf.control_dependencies(marked):
    checks = [each for folder in folders for each in folder.unused(low, owner)]
  with tf.control_dependencies(checks):
    return tf.identity(released)


def fingerprint(released: tf.Tensor) -> tf.Tensor:
  """Returns 64 bits of what is released, as [2] int64 of 32 bits each."""
  hashed = tf.fingerprint(released[tf.newaxis])
  return tf.cast(tf.bitcast(tf.reshape(hashed, [2, 4]), tf.uint32), tf.int64)


def rounds_ahead(
  shards: Sequence[tape_folder.Shard], round_index: tf.Tensor
) -> tf.Tensor:
  """Returns how many rounds from this one on are ready, scalar int32."""
  ready = []
  for shard in shards:
    files = tf.io.matching_files(path(shard.directory, '*.noise', round_index))
    numbers = tf.strings.regex_replace(files, r'.*/(\d+)\.noise', r'\1')
    later = tf.strings.to_number(numbers, tf.int64) >= round_index
    ready.append(tf.math.count_nonzero(later, dtype=tf.int32))
  return tf.reduce_min(ready)


class _Folder:
  """One folder as a round of a graph sees it."""

  def __init__(
    self,
    shard: tape_folder.Shard,
    tape_id: tf.Tensor,
    round_index: tf.Tensor,
    run: tf.Tensor,
  ):
    self._shard = shard
    self._tape_id = tape_id
    self._round_index = round_index
    self._run = tf.strings.as_string(run)
    self._name = digits(round_index, 8)

  def y(self, timeout_seconds: float) -> tf.Tensor:
    """Returns y of the round, [count] int32, when it is there."""
    name = tf.strings.join([self._name, '.noise'])
    most = math.ceil(timeout_seconds / tape_folder.POLL_SECONDS)

    # The time asleep counts, not that of a clock that somebody may set.
    def behind(polls):
      return (polls < most) & ~(
        self._exists(name, polls) | self._exists('failed', polls)
      )

    with tf.control_dependencies(self.unused(self._round_index)):
      start = tf.constant(0, tf.int64) * self._round_index
    polls = tf.while_loop(behind, lambda polls: [_sleep(polls) + 1], [start])
    with tf.control_dependencies(polls):
      there = self._check(
        self._exists(name, polls[0]),
        'the producer ended or fell behind; is its process alive, and is '
        'there room on its disk?',
      )
    with tf.control_dependencies([there]):
      contents = tf.io.read_file(self._path(name, self._round_index))
    return self._unpacked(contents)

  def _unpacked(self, contents: tf.Tensor) -> tf.Tensor:
    """Returns y, if the file is whole and that of the round."""
    count = self._shard.count
    size = tape_file.size(count)
    # tf.equal: TFF traces into a graph where == compares object identity.
    sized = self._check(
      tf.equal(tf.strings.length(contents), size),
      'the file has the wrong size, or is of another release',
    )
    with tf.control_dependencies([sized]):
      found = tf.ensure_shape(tf.io.decode_raw(contents, tf.uint8), [size])
    places, values = tape_file.frame(count)
    # PRIVACY: the CRC is compared where the frame is sound, and only there.
    # Guard: tape_release_test.test_damaged_file_is_refused.
    framed = self._check(
      tf.reduce_all(tf.equal(tf.gather(found, places), values)),
      'the file is damaged, or of another release',
    )
    with tf.control_dependencies([framed]):
      # An error of zlib shows the name, and nothing else that tells the cause.
      packed = tf.io.decode_compressed(
        contents, 'GZIP', name='noise_tape_the_file_is_damaged'
      )
    words = 2 * tape_file.HEADER_WORDS
    header, y = tf.split(
      tf.ensure_shape(tf.io.decode_raw(packed, tf.int32), [words + count]),
      [words, count],
    )
    expected = tape_file.header(
      self._tape_id, self._round_index, self._shard.first, count
    )
    genuine = self._check(
      tf.reduce_all(
        tf.equal(
          tf.bitcast(tf.reshape(header, [-1, 2]), tf.int64),
          tf.stack([tf.cast(word, tf.int64) for word in expected]),
        )
      ),
      'the file is of another tape, shard or round',
    )
    with tf.control_dependencies([genuine]):
      return tf.identity(y)

  def unused(
    self, now: tf.Tensor, owner: Optional[tf.Tensor] = None
  ) -> list[tf.Operation]:
    """Returns checks that the round is there for this run.

    Args:
      now: what is known when the folder is to be looked at, a number.
      owner: of a sum, which no other one then precedes.
    """
    numbers, runs, owners = self._marks(now)
    known = self._check(
      tf.size(numbers) > 0,
      'the tape is not there; was its factory closed, or is its folder not '
      'seen by the process that runs the round?',
    )
    with tf.control_dependencies([known]):
      reached = tf.reduce_max(numbers)
    unused = self._check(
      reached <= self._round_index,
      'the noise of this round was already used and removed; resume with a '
      'tape that starts at the round of the state',
    )
    here = tf.equal(numbers, self._round_index)
    # PRIVACY: a round meets the cohort of one run, also when another run comes
    # before a later round is read. Guard:
    # tape_release_test.test_round_of_one_run_is_refused_to_another.
    others = here & tf.not_equal(runs, '') & tf.not_equal(runs, self._run)
    own = self._check(
      ~tf.reduce_any(others),
      'the noise of this round was used by another run; resume that one from '
      'its own state, or start with a new key',
    )
    if owner is None:
      return [unused, own]
    others = here & tf.equal(runs, self._run) & tf.not_equal(owners, owner)
    one = self._check(
      ~tf.reduce_any(others),
      'this round has released another sum, and its noise serves no second '
      'one; run it again with the same cohort and model, or go on with the '
      'round after it',
    )
    return [unused, own, one]

  def mark(self, owner: tf.Tensor) -> tf.Operation:
    """Marks that a sum took the round, so that earlier rounds are over."""
    name = tf.strings.join([self._name, '-', owner, '.reached'])
    return tf.io.write_file(self._path(name, self._round_index), '')

  def _marks(self, now: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns rounds, runs and owners of marks; '' for those of no run."""
    paths = tf.io.matching_files(self._path('*.reached', now))
    numbers, runs, owners = (
      tf.strings.regex_replace(
        paths, r'.*/(\d+)(?:-((\d+)-\d+-\d+))?\.reached', part
      )
      for part in (r'\1', r'\3', r'\2')
    )
    return tf.strings.to_number(numbers, tf.int64), runs, owners

  def _path(self, file_name, now: tf.Tensor) -> tf.Tensor:
    return path(self._shard.directory, file_name, now)

  def _exists(self, file_name, now: tf.Tensor) -> tf.Tensor:
    return tf.size(tf.io.matching_files(self._path(file_name, now))) > 0

  def _check(self, condition: tf.Tensor, message: str) -> tf.Operation:
    name = tf.strings.join([self._name, '.noise'])
    return tf.debugging.Assert(
      condition,
      [
        f'noise tape: {message}; round, path:',
        self._round_index,
        self._path(name, self._round_index),
      ],
    )


def path(directory: pathlib.Path, file_name, now: tf.Tensor) -> tf.Tensor:
  """Returns a path for an operation that is to be run when `now` is known.

  File operations count as pure: with the same arguments they would be run once,
  when the graph is optimised or before the loop.
  """
  nothing = tf.strings.substr(tf.strings.as_string(now), 0, 0)
  return tf.strings.join([str(directory), '/', nothing, file_name])


def digits(number: tf.Tensor, width: int) -> tf.Tensor:
  """Returns a number as it stands in the name of a file."""
  return tf.strings.as_string(number, width=width, fill='0')


def _sleep(value: tf.Tensor) -> tf.Tensor:
  """Returns `value`, scalar int64, a little later."""
  dataset = tf.data.Dataset.from_tensors(value)
  variant = tf.raw_ops.SleepDataset(
    input_dataset=tf.data.experimental.to_variant(dataset),
    sleep_microseconds=int(tape_folder.POLL_SECONDS * 1e6),
    output_types=[tf.int64],
    output_shapes=[[]],
  )
  return tf.data.experimental.from_variant(
    variant, tf.TensorSpec([], tf.int64)
  ).reduce(value, lambda _, x: x)
