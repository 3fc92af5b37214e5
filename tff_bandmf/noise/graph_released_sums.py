"""`released_sums.Position` as TensorFlow operations, for the graph of a round.

Any process that sees the run's folder may run the graph. S_t is the sum of
round t, and y_t is its noise, in steps of `noise.lattice`.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tff_bandmf.noise import released_sums
from tff_bandmf.noise.tape import graph_reader


@dataclasses.dataclass(frozen=True)
class GraphPosition:
  """A `Position` whose methods are operations of a graph.

  Attributes:
    position: the open round of the run, in files.
  """

  position: released_sums.Position

  def round_index(self, stated: tf.Tensor) -> tf.Tensor:
    """Returns the open round, scalar int64.

    Args:
      stated: scalar int64, the round that TFF's state counts. If the run has
        not begun, the value is negative and is returned unchanged.
    """
    return tf.cond(
      stated >= 0, lambda: self._numbers(stated)[1], lambda: stated
    )

  def check_updates(self, updates: tf.Tensor, now: tf.Tensor) -> tf.Operation:
    """Returns a check that a sum has at most one update per recorded client.

    **Formal guarantee.** The check has the guarantee of
    `released_sums.Position.check`.

    Args:
      updates: scalar integer, number of updates in the sum.
      now: round t, scalar int64.
    """
    clients = self._numbers(now)[3]
    # PRIVACY: If a sum has more updates than the recorded cohort has clients,
    # some client's participation is not in the ledger, and epsilon would not
    # count it. Such a round fails before its release.
    # Guard: run_test.test_more_updates_than_clients_are_refused_with_tff.
    return tf.debugging.Assert(
      tf.cast(updates, tf.int64) <= clients,
      ['updates=', updates, released_sums.MORE_UPDATES, clients],
    )

  def mark(
    self, released: tf.Tensor, counts: tf.Tensor, now: tf.Tensor
  ) -> tf.Tensor:
    """Returns the release after it is marked as the only one of its round.

    **Formal guarantee.** The method has the guarantee of
    `released_sums.Position.mark`.

    Args:
      released: [dimension] int32, S_t + y_t, in lattice steps.
      counts: [2] integers: the number of updates in S_t, and the number of
        all-zero updates among them.
      now: round t, scalar int64.
    """
    high, low = tf.unstack(graph_reader.fingerprint(released))
    owner = tf.strings.join(
      [graph_reader.digits(high, 10), graph_reader.digits(low, 10)], '-'
    )
    attempt = tf.strings.as_string(self._numbers(now)[2])
    round_name = graph_reader.digits(now, 8)
    name = tf.strings.join([round_name, attempt, owner], '-')
    path = graph_reader.path(self.position.marks, name, now)
    # PRIVACY: The difference of two sums with the same y_t has no noise. The
    # mark of a sum is written before the graph returns the sum, and the round
    # fails if another sum has a mark, from this process or another.
    # Guard: run_replay_test.test_second_sum_of_a_round_is_refused.
    content = tf.strings.reduce_join(
      tf.strings.as_string(counts), separator=' '
    )
    with tf.control_dependencies([tf.io.write_file(path, content)]):
      others = tf.strings.join([tf.identity(round_name), '-*'])
      marks = tf.io.matching_files(
        graph_reader.path(self.position.marks, others, now)
      )
    owners = tf.strings.regex_replace(marks, r'.*/\d+-\d+-(\d+-\d+)', r'\1')
    same = tf.debugging.Assert(
      tf.reduce_all(tf.equal(owners, owner)),
      ['round=', now, released_sums.OTHER_SUM],
    )
    with tf.control_dependencies([same]):
      return tf.identity(released)

  def _numbers(self, now: tf.Tensor) -> tf.Tensor:
    content = tf.io.read_file(
      graph_reader.path(self.position.directory, 'position', now)
    )
    numbers = tf.strings.to_number(tf.strings.split(content), tf.int64)
    numbers = tf.ensure_shape(numbers, [4])
    # PRIVACY: An aggregation outside of a round would release updates of
    # unrecorded clients. The graph fails unless a round of this run is open.
    # Guard: run_test.test_aggregator_outside_of_a_round_releases_nothing.
    is_open = tf.debugging.Assert(
      tf.equal(numbers[0], self.position.run) & (numbers[1] >= 0),
      [released_sums.NOT_OPEN],
    )
    with tf.control_dependencies([is_open]):
      return tf.identity(numbers)
