"""Adds the noise y_t of a tape to the sum S_t of round t, in a graph.

Any process that sees the tape's folders may run TensorFlow's graph.
`tape.reader` does the same in NumPy. `tape.folder` defines marks and
fingerprints. S_t and y_t are in steps of `noise.lattice`.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Optional

import tensorflow as tf

from tff_bandmf.noise import fingerprint as fingerprints
from tff_bandmf.noise import self_test
from tff_bandmf.noise.tape import file as tape_file
from tff_bandmf.noise.tape import folder as tape_folder


def release(
  tape: tape_folder.ReadableTape,
  total: tf.Tensor,
  state: Mapping[str, tf.Tensor],
  round_index: tf.Tensor,
  timeout_seconds: float = tape_folder.TIMEOUT_SECONDS,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns S_t + y_t and the fingerprint of S_t + y_t, and never y_t alone.

  The graph waits for the producers if the noise is not on the tape yet. If a
  check fails, the round fails, so noise is never silently zero, stale, damaged
  or used twice.

  **Formal guarantee.**
  Assumptions: all readers use the same folders. A reader that has created a
  file in a folder sees every file that was created there before, also by other
  hosts. Only the user of the tape writes to the folders. Statement: if two
  different sums, of the same run or of two runs, would get the same y_t, at
  most one of them is returned, unless their releases have the same 64-bit
  fingerprint. A call that begins after the sum of round t was returned cannot
  return the sum of a round before t. Source: a mark is an empty file whose name
  holds the round, the run and the fingerprint of the release. Each call lists
  the marks, writes its own mark, and lists the marks again. If two calls with
  different marks are concurrent, at least one sees the mark of the other call
  and fails.

  Args:
    tape: the tape that holds y_t.
    total: [coordinates of all shards] int32, S_t, in lattice steps.
    state: two scalars int64: `tape_id`, the ID of the noise of this run, and
      `run` >= 0, the ID of the run. A file with another `tape_id` is refused.
      After the sum is returned, no other run can read the round.
    round_index: scalar int64, t.
    timeout_seconds: seconds to wait for the producers, > 0. Only the pauses
      between two polls of the folder count.

  Returns:
    S_t + y_t, [coordinates of all shards] int32; and the upper and the lower
    32 bits of its fingerprint as text, scalar string.

  Raises:
    tf.errors.InvalidArgumentError: when the graph runs, if a check fails.
  """
  tape_id, run = state['tape_id'], tf.strings.as_string(state['run'])
  folders = [_Folder(shard, round_index, run) for shard in tape.shards]
  y = tf.concat([folder.y(tape_id, timeout_seconds) for folder in folders], 0)
  y = self_test.graph_check(y, tape, round_index)
  released = total + y
  # PRIVACY: The difference of two releases with the same y_t has no noise. The
  # graph writes the mark of its sum before it returns the sum, and fails if
  # another sum of the round has a mark. If two readers write marks at the same
  # time, at least one of them sees both marks, even on two hosts: a host that
  # has created a file in a folder sees all files that were created there
  # earlier.
  # Guards: tape_release_test.test_round_releases_one_sum,
  # late_folder_test.test_sum_of_a_round_that_is_over_elsewhere_is_refused.
  high, low = tf.unstack(fingerprint(released))
  released_sum = tf.strings.join([digits(high, 10), digits(low, 10)], '-')
  owner = tf.strings.join([run, released_sum], '-')
  checks = [each for folder in folders for each in folder.unused(high, owner)]
  with tf.control_dependencies(checks):
    marked = [folder.mark(owner) for folder in folders]
  with tf.control_dependencies(marked):
    # PRIVACY: A host with an old list of the folder could release a round that
    # another host has finished. All folders are checked again after the marks
    # are written.
    # Guard:
    # late_folder_test.test_sum_of_a_round_that_is_over_elsewhere_is_refused.
    checks = [each for folder in folders for each in folder.unused(low, owner)]
  with tf.control_dependencies(checks):
    return tf.identity(released), released_sum


def fingerprint(released: tf.Tensor) -> tf.Tensor:
  """Returns the 64-bit fingerprint of a release, [2] int64 of 32 bits each.

  The function `noise.fingerprint.fingerprint` returns the same bits.

  Args:
    released: [dimension] int32, of static shape.
  """
  words = released
  # All levels of the tree share these operations.
  shape = tf.constant([-1, fingerprints.ROW])
  method = tf.constant('farmhash64')
  while True:
    rows = -(-words.shape[0] // fingerprints.ROW)
    lacking = rows * fingerprints.ROW - words.shape[0]
    if lacking:
      words = tf.pad(words, [[0, lacking]])
    hashed = tf.fingerprint(tf.reshape(words, shape), method)
    if rows == 1:
      low, high = tf.unstack(tf.bitcast(tf.reshape(hashed, [2, 4]), tf.uint32))
      return tf.cast(tf.stack([high, low ^ released.shape[0]]), tf.int64)
    words = tf.bitcast(tf.reshape(hashed, [2 * rows, 4]), tf.int32)


def rounds_ahead(tape: tape_folder.ReadableTape, t: tf.Tensor) -> tf.Tensor:
  """Returns the number of rounds on the tape from round t on.

  Args:
    tape: the tape.
    t: scalar int64.

  Returns:
    Scalar int32, the number of noise files in the folder that has the fewest.
  """
  ready = []
  for shard in tape.shards:
    files = tf.io.matching_files(path(shard.directory, '*.noise', t))
    numbers = tf.strings.regex_replace(files, r'.*/(\d+)\.noise', r'\1')
    later = tf.strings.to_number(numbers, tf.int64) >= t
    ready.append(tf.math.count_nonzero(later, dtype=tf.int32))
  return tf.reduce_min(ready)


class _Folder:
  """One folder of a tape, as the graph of one round uses it."""

  def __init__(
    self, shard: tape_folder.Shard, round_index: tf.Tensor, run: tf.Tensor
  ):
    self._shard = shard
    self._round_index = round_index
    self._run = run
    self._name = digits(round_index, 8)
    self._file_name = tf.strings.join([self._name, '.noise'])
    # Only strings are printed: with other tensors, `Assert` would build a
    # `tf.cond`, which takes long to build and to compile.
    # aggregator_test.test_checks_of_the_graph_are_single_operations tests this.
    self._printed = [
      tf.strings.as_string(round_index),
      self._path(self._file_name, round_index),
    ]

  def y(self, tape_id: tf.Tensor, timeout_seconds: float) -> tf.Tensor:
    """Waits until y_t of this folder is on disk; returns it, [count] int32.

    Args:
      tape_id: ID of the noise, scalar int64.
      timeout_seconds: seconds to wait for the file, > 0.
    """
    most = math.ceil(timeout_seconds / tape_folder.POLL_SECONDS)

    # Count polls instead of seconds, because the host's clock can be set.
    def behind(polls):
      return (polls < most) & ~self._exists([self._file_name, 'failed'], polls)

    with tf.control_dependencies(self.unused(self._round_index)):
      start = tf.constant(0, tf.int64) * self._round_index
    (polls,) = tf.while_loop(behind, lambda polls: [_sleep(polls) + 1], [start])
    exists = self._exists([self._file_name], polls)
    polls = self._checked(polls, exists, tape_folder.BEHIND)
    contents = tf.io.read_file(self._path(self._file_name, polls))
    return self._unpacked(contents, tape_id)

  def _unpacked(self, contents: tf.Tensor, tape_id: tf.Tensor) -> tf.Tensor:
    """Returns y_t from the bytes of a file of this tape, shard and round."""
    count = self._shard.size
    size = tape_file.size(count)
    # `tf.equal` instead of `==`: in the graphs that TFF traces, `==` compares
    # the identity of objects.
    sized = tf.equal(tf.strings.length(contents), size)
    contents = self._checked(contents, sized, tape_file.SIZE)
    unpacked = tf.ensure_shape(tf.io.decode_raw(contents, tf.uint8), [size])
    positions, values = tape_file.frame(count)
    # PRIVACY: Epsilon holds only for undamaged noise, and zlib is sure to check
    # the CRC only if the gzip frame is intact. A damaged frame could lead to
    # wrong noise. So the frame is compared byte by byte before zlib reads it.
    # Guard: tape_release_test.test_damaged_file_is_refused.
    framed = tf.reduce_all(tf.equal(tf.gather(unpacked, positions), values))
    contents = self._checked(contents, framed, tape_file.DAMAGED)
    # If zlib fails, TensorFlow's error message names this operation but no
    # cause. So the name states the cause.
    packed = tf.io.decode_compressed(
      contents, 'GZIP', name='noise_tape_the_file_is_damaged'
    )
    sizes = [2 * tape_file.HEADER_WORDS, count]
    packed = tf.ensure_shape(tf.io.decode_raw(packed, tf.int32), [sum(sizes)])
    header, y = tf.split(packed, sizes)
    own = (tape_id, self._round_index, self._shard.first, count)
    words = (tape_file.MAGIC, tape_file.VERSION, *own)
    expected = tf.stack([tf.cast(word, tf.int64) for word in words])
    # PRIVACY: If a round used the noise of another round or tape, the noise
    # would cancel in a difference of releases. The header must name this tape
    # and this round.
    # Guard: tape_release_test.test_file_of_another_round_is_refused.
    same = tf.equal(tf.bitcast(tf.reshape(header, [-1, 2]), tf.int64), expected)
    return self._checked(y, tf.reduce_all(same), tape_file.OTHER)

  def unused(
    self, after: tf.Tensor, owner: Optional[tf.Tensor] = None
  ) -> list[tf.Operation]:
    """Returns checks that this run may still release the round.

    Args:
      after: a tensor. The folder is listed after the tensor is computed.
      owner: run ID and fingerprint of the sum to release, scalar string. If
        given, a check also fails if another sum of the round has a mark.
    """
    paths = tf.io.matching_files(self._path('*.reached', after))
    numbers, owners, runs = (
      tf.strings.regex_replace(paths, '.*/' + tape_folder.MARK, part)
      for part in (r'\1', r'\2', r'\3')
    )
    numbers = tf.strings.to_number(numbers, tf.int64)
    known = tf.size(numbers) > 0
    numbers = self._checked(numbers, known, tape_folder.NOT_THERE)
    reached = tf.reduce_max(numbers)
    # PRIVACY: A round before the highest mark may have released a sum, and no
    # second sum may get its noise. The round is refused.
    # Guard: tape_release_test.test_highest_mark_counts_whatever_the_order.
    unused = self._check(reached <= self._round_index, tape_folder.REMOVED)
    here = tf.equal(numbers, self._round_index)
    # PRIVACY: If two runs read the same y_t, the difference of their releases
    # has no noise. A round that another run has marked is refused to this run.
    # Guard: tape_release_test.test_round_of_one_run_is_refused_to_another.
    others = here & tf.not_equal(runs, '') & tf.not_equal(runs, self._run)
    own = self._check(~tf.reduce_any(others), tape_folder.OTHER_RUN)
    if owner is None:
      return [unused, own]
    # PRIVACY: If two sums got the same noise, the difference of the releases
    # would have none. A mark of another sum is refused.
    # Guard: tape_release_test.test_round_releases_one_sum.
    others = here & tf.equal(runs, self._run) & tf.not_equal(owners, owner)
    one = self._check(~tf.reduce_any(others), tape_folder.OTHER_SUM)
    return [unused, own, one]

  def mark(self, owner: tf.Tensor) -> tf.Operation:
    """Writes the mark of a sum; from then on, earlier rounds are refused."""
    name = tf.strings.join([self._name, '-', owner, '.reached'])
    return tf.io.write_file(self._path(name, self._round_index), '')

  def _path(self, file_name, after: tf.Tensor) -> tf.Tensor:
    return path(self._shard.directory, file_name, after)

  def _exists(self, file_names, after: tf.Tensor) -> tf.Tensor:
    """Computes `after`, then returns whether one of the files exists."""
    return tf.size(tf.io.matching_files(self._path(file_names, after))) > 0

  def _checked(
    self, value: tf.Tensor, condition: tf.Tensor, message: str
  ) -> tf.Tensor:
    """Returns `value`; the graph fails unless the condition holds."""
    with tf.control_dependencies([self._check(condition, message)]):
      return tf.identity(value)

  def _check(self, condition: tf.Tensor, message: str) -> tf.Operation:
    return tf.debugging.Assert(
      condition, [f'noise tape: {message}; round, path:', *self._printed]
    )


def path(directory: pathlib.Path, file_name, after: tf.Tensor) -> tf.Tensor:
  """Returns the path of a file, as a tensor that depends on `after`.

  TensorFlow treats file operations as pure functions. If all arguments of such
  an operation were constant, TensorFlow would run it only once, when it
  optimises the graph or before a loop.

  Args:
    directory: folder of the file.
    file_name: name or pattern; or a string tensor of names or patterns.
    after: a tensor whose value is not known before the graph runs. Operations
      on the path run after the tensor is computed.
  """
  folder = f'{directory}/'.replace('\\', r'\\')
  prefix = tf.strings.regex_replace(tf.strings.as_string(after), '.+', folder)
  return tf.strings.join([prefix, file_name])


def digits(number: tf.Tensor, width: int) -> tf.Tensor:
  """Returns a number as text, padded with zeros to at least `width` digits."""
  return tf.strings.as_string(number, width=width, fill='0')


def _sleep(value: tf.Tensor) -> tf.Tensor:
  """Returns `value`, scalar int64, after a pause of `POLL_SECONDS`."""
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
