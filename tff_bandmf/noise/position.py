"""Which round is open, in files that a program writes and a round reads.

  position                      'run round attempt'; 'run -1 0' between rounds
  released/00000003-2-HIGH-LOW  attempt 2 of round 3 released what has this
                                fingerprint, 64 bits in two numbers

A state of TFF may say what it likes: the round whose noise is added is the one
that is open. The folder is private and seen by the process that runs the
rounds.
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
  """The position of one run.

  Attributes:
    directory: that the files are in.
    run: 63 bits that name the run.
  """

  directory: pathlib.Path
  run: int

  def open(
    self,
    round_index: int,
    attempt: int,
    before: Iterable[tuple[int, bytes]] = (),
  ) -> None:
    """Says that an attempt at a round begins.

    Args:
      round_index: the round.
      attempt: at it, from 1.
      before: what others released in it, as `released` gives it.
    """
    if not self._marks.is_dir():
      self._marks.mkdir(mode=0o700)
      _files.sync(self.directory)
    # PRIVACY: a power cut may have lost their marks. Guard:
    # run_test.test_sum_that_only_the_ledger_knows_keeps_others_out.
    for other, fingerprint in before:
      name = f'{round_index:08d}-{other}-{fingerprint.decode()}'
      (self._marks / name).touch()
    self._write(round_index, attempt)

  def sync(self) -> None:
    """Returns when the marks are on the disk."""
    _files.sync(self._marks)

  def close(self) -> None:
    """Says that no round is open: an aggregator that is asked for one fails."""
    self._write(_CLOSED, 0)

  def released(self, round_index: int) -> set[tuple[int, bytes]]:
    """Returns what was released in a round: (attempt, fingerprint) of each."""
    names = [
      path.name.split('-') for path in self._marks.glob(f'{round_index:08d}-*')
    ]
    return {
      (int(attempt), f'{high}-{low}'.encode())
      for _, attempt, high, low in names
    }

  def forget(self, below: int) -> None:
    """Removes the marks of the rounds below one."""
    for path in self._marks.glob('*-*'):
      if int(path.name.split('-')[0]) < below:
        path.unlink()

  def round_index(self, stated: tf.Tensor) -> tf.Tensor:
    """Returns the round that is open, scalar int64, in a graph.

    Args:
      stated: what the state says, scalar int64; below 0 it has not begun.
    """
    return tf.cond(
      stated >= 0, lambda: self._numbers(stated)[1], lambda: stated
    )

  def mark(self, released: tf.Tensor, now: tf.Tensor) -> tf.Tensor:
    """Returns what is released, marked, if no other sum was released before.

    Args:
      released: [dimension] int32, S_t + y_t.
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
    # PRIVACY: of two sums with one y the difference has no noise; so a sum is
    # marked before it leaves, and no other one does, in this process or the
    # next. Guard: run_test.test_second_sum_of_a_round_is_refused.
    with tf.control_dependencies([tf.io.write_file(path, '')]):
      others = tf.strings.join([tf.identity(round_name), '-*'])
      found = tf.io.matching_files(reader.path(self._marks, others, now))
    owners = tf.strings.regex_replace(found, r'.*/\d+-\d+-(\d+-\d+)', r'\1')
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

  def _write(self, round_index: int, attempt: int) -> None:
    content = f'{self.run} {round_index} {attempt}'.encode()
    # Not synced: after a power cut no round is open, and who begins again says
    # so before anything reads this.
    _files.write(
      self.directory / 'position', content, mode=0o600, durable=False
    )

  def _numbers(self, now: tf.Tensor) -> tf.Tensor:
    content = tf.io.read_file(reader.path(self.directory, 'position', now))
    numbers = tf.strings.to_number(tf.strings.split(content), tf.int64)
    numbers = tf.ensure_shape(numbers, [3])
    # PRIVACY: outside of a round nobody has been recorded. Guard:
    # run_test.test_aggregator_outside_of_a_round_releases_nothing.
    is_open = tf.debugging.Assert(
      tf.equal(numbers[0], self.run) & (numbers[1] > _CLOSED),
      ['no round of this run is open: ask the run for one first; position:',
       numbers[1]],
    )  # fmt: skip
    with tf.control_dependencies([is_open]):
      return tf.identity(numbers)
