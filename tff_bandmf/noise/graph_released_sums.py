"""`released_sums.Position` as TensorFlow operations, for the graph of a round.

Any process that sees the run's folder may run the graph. A mark is a file that
names the only sum that a round may release, see `released_sums`. S_t is the sum
of round t, and y_t is its noise, in steps of `noise.lattice`.
"""

from __future__ import annotations

import tensorflow as tf

from tff_bandmf.noise import released_sums
from tff_bandmf.noise.tape import graph_reader


def open_round(
  position: released_sums.Position, stated: tf.Tensor
) -> tf.Tensor:
  """Returns the open round, scalar int64.

  Args:
    position: files with the open round of the run.
    stated: scalar int64, the round that TFF's state counts. If the run has not
      begun, the value is negative and is returned unchanged.

  Raises:
    tf.errors.InvalidArgumentError: when the graph runs, if the run has begun
      and none of its rounds is open.
  """
  return tf.cond(
    stated >= 0, lambda: _numbers(position, stated)[1], lambda: stated
  )


def check_updates(
  position: released_sums.Position, updates: tf.Tensor, round_index: tf.Tensor
) -> tf.Operation:
  """Returns a check that the cohort has a client for each update of a sum.

  **Formal guarantee.**
  Assumption: `updates` is the number of updates in the sum. Statement: if the
  sum has more updates than the recorded cohort has clients, the graph fails
  before the release. Source: the check reads the file that `Position.open`
  wrote.

  Args:
    position: files with the open round of the run.
    updates: scalar integer, number of updates in the sum.
    round_index: round t, scalar int64.
  """
  clients = _numbers(position, round_index)[3]
  texts = [tf.strings.as_string(each) for each in (updates, clients)]
  # PRIVACY: If a sum has more updates than the recorded cohort has clients, the
  # ledger lacks a participation, and epsilon would not count it. The graph
  # fails before it releases such a sum.
  # Guard: run_test.test_more_updates_than_clients_are_refused_with_tff.
  return tf.debugging.Assert(
    tf.cast(updates, tf.int64) <= clients,
    ['updates=', texts[0], released_sums.MORE_UPDATES, texts[1]],
  )


def mark(
  position: released_sums.Position,
  released: tf.Tensor,
  released_sum: tf.Tensor,
  counts: tf.Tensor,
  round_index: tf.Tensor,
) -> tf.Tensor:
  """Returns a release after it is marked as the only one of its round.

  **Formal guarantee.** Under the assumptions of `released_sums.Position.mark`
  at most one of two different sums with the noise of one round is returned,
  unless their 64-bit fingerprints agree.

  Args:
    position: files with the open round of the run.
    released: [dimension] int32, S_t + y_t, in lattice steps.
    released_sum: scalar string, fingerprint of the release.
    counts: [2] integers: the number of updates in S_t, and the number of
      all-zero updates among them.
    round_index: round t, scalar int64.
  """
  attempt = tf.strings.as_string(_numbers(position, round_index)[2])
  round_name = graph_reader.digits(round_index, 8)
  name = tf.strings.join([round_name, attempt, released_sum], '-')
  path = graph_reader.path(position.marks, name, round_index)
  # PRIVACY: The difference of two releases with the same y_t has no noise. The
  # graph writes the mark of its sum before it returns the sum, and fails if
  # this or another process has marked another sum of the round.
  # Guard: run_replay_test.test_second_sum_of_a_round_is_refused_in_a_graph.
  content = tf.strings.reduce_join(tf.strings.as_string(counts), separator=' ')
  with tf.control_dependencies([tf.io.write_file(path, content)]):
    others = tf.strings.join([tf.identity(round_name), '-*'])
    marks = tf.io.matching_files(
      graph_reader.path(position.marks, others, round_index)
    )
  sums = tf.strings.regex_replace(marks, r'.*/\d+-\d+-(\d+-\d+)', r'\1')
  same = tf.debugging.Assert(
    # PRIVACY: If two sums got the same noise, the difference of the releases
    # would have none. All marks of the round must be of this sum.
    # Guard: run_replay_test.test_second_sum_of_a_round_is_refused_in_a_graph.
    tf.reduce_all(tf.equal(sums, released_sum)),
    ['round=', tf.strings.as_string(round_index), released_sums.OTHER_SUM],
  )
  with tf.control_dependencies([same]):
    return tf.identity(released)


def _numbers(position: released_sums.Position, after: tf.Tensor) -> tf.Tensor:
  """Returns (run, round, attempt, clients) from a file, [4] int64.

  Args:
    position: files with the open round of the run.
    after: a tensor. The file is read after the tensor is computed.
  """
  content = tf.io.read_file(
    graph_reader.path(position.directory, 'position', after)
  )
  numbers = tf.strings.to_number(tf.strings.split(content), tf.int64)
  numbers = tf.ensure_shape(numbers, [4])
  # PRIVACY: Epsilon covers only the clients in the ledger. If no round is open,
  # the ledger may lack the clients of an aggregation, and epsilon would not
  # count a release of their updates. The graph fails unless a round of this run
  # is open.
  # Guard: run_test.test_aggregator_outside_of_a_round_releases_nothing.
  is_open = tf.debugging.Assert(
    tf.equal(numbers[0], position.run) & (numbers[1] >= 0),
    [released_sums.NOT_OPEN],
  )
  with tf.control_dependencies([is_open]):
    return tf.identity(numbers)
