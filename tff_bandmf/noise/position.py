"""The open round of a run, in files that a program writes and a round reads.

  position                      'run round attempt clients'; 'run -1 0 0'
                                between rounds
  released/00000003-2-HIGH-LOW  attempt 2 of round 3 released the sum with this
                                fingerprint, 64 bits in two numbers; the content
                                is 'updates zero'

TFF's state cannot choose the round: a round adds the noise of the round that is
open here, even if the state counts another one. The folder is private, and the
processes that run the rounds share it.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable

import tensorflow as tf

from tff_bandmf import _files
from tff_bandmf.noise.tape import reader

_CLOSED = -1


@dataclasses.dataclass(frozen=True)
class Position:
  """The open round of one run, and the marks of the sums that it released.

  Attributes:
    directory: private folder that holds the files.
    run: run ID, 63 random bits.
  """

  directory: pathlib.Path
  run: int

  def open(
    self,
    round_index: int,
    attempt: int,
    clients: int,
    before: Iterable[tuple[int, bytes]] = (),
  ) -> None:
    """Opens a round for one attempt; sums of other rounds fail from here on.

    **Formal guarantee.**
    Assumption: the cohort of the round is durable in the ledger before this
    call, and one program at a time holds the lock of the run's folder.
    Statement: an aggregation that begins between this call and the next `open`
    or `close` adds the noise of round `round_index` and of no other round, to
    at most `clients` updates. Source: `round_index`, `check_updates` and `mark`
    read the file that this call writes.

    Args:
      round_index: round to open, >= 0.
      attempt: number of the attempt at this round, >= 1.
      clients: size of the recorded cohort, >= 0; a sum has at most as many
        updates.
      before: (attempt, fingerprint) of each sum that earlier attempts released
        in this round, in the form that `released` returns.
    """
    if not self._marks.is_dir():
      self._marks.mkdir(mode=0o700)
      _files.sync(self.directory)
    # PRIVACY: A power cut can lose the mark of a sum that was released, and a
    # second sum would then get the same noise. Sums that the ledger knows are
    # marked again before the round is open.
    # Guard:
    # run_replay_test.test_sum_that_only_the_ledger_knows_keeps_others_out.
    for other, fingerprint in before:
      name = f'{round_index:08d}-{other}-{fingerprint.decode()}'
      (self._marks / name).touch()
    self._write(round_index, attempt, clients)

  def sync(self) -> None:
    """Writes the marks through to the disk before it returns."""
    _files.sync(self._marks)

  def close(self) -> None:
    """Closes the round: until the next `open`, every aggregation fails."""
    self._write(_CLOSED, 0, 0)

  def released(self, round_index: int) -> set[tuple[int, bytes]]:
    """Returns (attempt, fingerprint) of each sum that a round released."""
    names = [
      path.name.split('-') for path in self._marks.glob(f'{round_index:08d}-*')
    ]
    return {
      (int(attempt), f'{high}-{low}'.encode())
      for _, attempt, high, low in names
    }

  def updates(self, round_index: int) -> dict[int, tuple[int, int]]:
    """Returns {attempt: (updates, all-zero updates)} of the sums of a round.

    An attempt whose mark was lost is missing.
    """
    counts = {}
    for path in sorted(self._marks.glob(f'{round_index:08d}-*')):
      content = path.read_text().split()
      if content:
        updates, zero = map(int, content)
        counts[int(path.name.split('-')[1])] = updates, zero
    return counts

  def forget(self, below: int) -> None:
    """Removes the marks of all rounds below `below`."""
    for path in self._marks.glob('*-*'):
      if int(path.name.split('-')[0]) < below:
        path.unlink()

  def round_index(self, stated: tf.Tensor) -> tf.Tensor:
    """Returns the open round, scalar int64, in a graph.

    Args:
      stated: scalar int64, the round that TFF's state counts. A value below 0,
        of a run that has not begun, is returned as it is.
    """
    return tf.cond(
      stated >= 0, lambda: self._numbers(stated)[1], lambda: stated
    )

  def check_updates(self, updates: tf.Tensor, now: tf.Tensor) -> tf.Operation:
    """Returns a check that a sum has at most one update a recorded client.

    **Formal guarantee.**
    Assumption: `updates` is the number of updates that the query added up.
    Statement: a sum with more updates than the recorded cohort has clients
    fails its round before the release. The check counts updates; it cannot tell
    which client sent one.

    Args:
      updates: scalar integer, number of updates in the sum.
      now: t, scalar int64.
    """
    clients = self._numbers(now)[3]
    # PRIVACY: An update beyond the recorded cohort comes from a client whose
    # participation the ledger lacks, so epsilon would not count it. The round
    # fails before its release.
    # Guard: run_test.test_more_updates_than_clients_are_refused_with_tff.
    return tf.debugging.Assert(
      tf.cast(updates, tf.int64) <= clients,
      [
        'the sum has more updates than the round has clients: give one of '
        'each client of round.cohort, at most; updates, clients:',
        updates,
        clients,
      ],
    )

  def mark(
    self, released: tf.Tensor, counts: tf.Tensor, now: tf.Tensor
  ) -> tf.Tensor:
    """Returns the release, after it is marked as the only sum of its round.

    **Formal guarantee.**
    Assumption: all attempts of the run share this folder, a new file is seen by
    every later listing, and `open` has marked the sums that the ledger knows.
    Statement: among two different sums with the noise of one round, at most one
      is
    returned, in this process or another, except where their 64-bit fingerprints
    agree. Source: each call writes its mark before it lists the marks, so of
    two concurrent calls at least one sees the mark of the other and fails.

    Args:
      released: [dimension] int32, S_t + y_t, in lattice steps.
      counts: [2] integers: the number of updates in S_t, and the number of
        all-zero updates among them.
      now: t, scalar int64.
    """
    high, low = tf.unstack(reader.fingerprint(released))
    owner = tf.strings.join(
      [reader.digits(high, 10), reader.digits(low, 10)], '-'
    )
    attempt = tf.strings.as_string(self._numbers(now)[2])
    round_name = reader.digits(now, 8)
    name = tf.strings.join([round_name, attempt, owner], '-')
    path = reader.path(self._marks, name, now)
    # PRIVACY: The difference of two sums with one y has no noise. A sum is
    # marked before it leaves, and the round fails if another sum has a mark, of
    # this process or of an earlier one.
    # Guard: run_replay_test.test_second_sum_of_a_round_is_refused.
    content = tf.strings.reduce_join(
      tf.strings.as_string(counts), separator=' '
    )
    with tf.control_dependencies([tf.io.write_file(path, content)]):
      others = tf.strings.join([tf.identity(round_name), '-*'])
      marks = tf.io.matching_files(reader.path(self._marks, others, now))
    owners = tf.strings.regex_replace(marks, r'.*/\d+-\d+-(\d+-\d+)', r'\1')
    same = tf.debugging.Assert(
      tf.reduce_all(tf.equal(owners, owner)),
      [
        'this round released another sum before, and its noise serves no '
        'second one: begin the program again, and the round is burnt; round:',
        now,
      ],
    )
    with tf.control_dependencies([same]):
      return tf.identity(released)

  @property
  def _marks(self) -> pathlib.Path:
    return self.directory / 'released'

  def _write(self, round_index: int, attempt: int, clients: int) -> None:
    content = f'{self.run} {round_index} {attempt} {clients}'.encode()
    # Without a sync a power cut can restore an older position. A program that
    # is started again calls `close` before anything reads the file.
    _files.write(
      self.directory / 'position', content, mode=0o600, durable=False
    )

  def _numbers(self, now: tf.Tensor) -> tf.Tensor:
    content = tf.io.read_file(reader.path(self.directory, 'position', now))
    numbers = tf.strings.to_number(tf.strings.split(content), tf.int64)
    numbers = tf.ensure_shape(numbers, [4])
    # PRIVACY: An aggregation outside of a round would release updates of
    # unrecorded clients. It fails unless a round of this run is open.
    # Guard: run_test.test_aggregator_outside_of_a_round_releases_nothing.
    is_open = tf.debugging.Assert(
      tf.equal(numbers[0], self.run) & (numbers[1] > _CLOSED),
      ['no round of this run is open: ask the run for one first; position:',
       numbers[1]],
    )  # fmt: skip
    with tf.control_dependencies([is_open]):
      return tf.identity(numbers)
