"""The open round of a run and the sums that it released, in files.

  position                      'run round attempt clients', or 'run -1 0 0'
                                if no round is open
  released/00000003-2-HIGH-LOW  a mark of attempt 2: round 3 may release only
                                the sum with the 64-bit fingerprint (HIGH, LOW);
                                the content is the number of updates in the sum
                                and the number of all-zero updates, or nothing
                                if `open` restored the mark

TFF's state cannot choose the round: an aggregation adds the noise of the round
that is open here, even if the state counts another round. The folder is
private, and the processes that run the rounds share it. The ledger is the
durable list of a run's cohorts and releases. S_t is the sum of round t, and y_t
is its noise, in steps of `lattice`.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator

from tff_bandmf import _files, errors

_CLOSED = -1
# The reasons for which a release is refused.
NOT_OPEN = 'no round of this run is open; ask the run for one first'
MORE_UPDATES = (
  'more updates than the round has clients; give at most one update for each '
  'client of round.cohort; clients:'
)
OTHER_SUM = (
  'this round has released another sum, and its noise must not be added to a '
  'second sum; start the program again, and the run abandons this round'
)


@dataclasses.dataclass(frozen=True)
class Position:
  """The open round of one run, and the marks of the run's released sums.

  Attributes:
    directory: private folder that holds the files.
    run: ID of the run, a number of 63 bits.
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
    """Opens a round for one attempt; from then on, no other round is released.

    **Formal guarantee.**
    Assumption: the cohort of the round is durable in the ledger before this
    call, and one program at a time holds the lock of the run's folder.
    Statement: an aggregation that begins between this call and the next `open`
    or `close` adds the noise of round `round_index` and of no other round, to
    a sum of at most `clients` updates. Source: `check` and `mark` here, and all
    functions of `graph_released_sums`, read the file that this call writes.

    Args:
      round_index: round to open, >= 0.
      attempt: number of the attempt at this round, >= 1.
      clients: size of the recorded cohort, >= 0; the maximum number of updates
        in a sum.
      before: (attempt, fingerprint) of each sum that earlier attempts released
        in this round, as `released` returns them.
    """
    if not self.marks.is_dir():
      self.marks.mkdir(mode=0o700)
      _files.sync(self.directory)
    # PRIVACY: If a power cut lost the mark of a released sum, a second sum
    # could get the same noise. The ledger also has the sum's fingerprint, so
    # the mark is written again before the round is open.
    # Guard:
    # run_replay_test.test_sum_that_only_the_ledger_knows_keeps_others_out.
    for other, fingerprint in before:
      name = f'{round_index:08d}-{other}-{fingerprint.decode()}'
      (self.marks / name).touch()
    self._write(round_index, attempt, clients)

  def sync(self) -> None:
    """Waits until the names of the marks are on the disk."""
    _files.sync(self.marks)

  # PRIVACY: If a round could release a sum after its end, two sums would have
  # its noise. A closed round releases no sum.
  # Guard: released_sums_test.test_noise_of_a_round_meets_one_sum_in_any_order.
  def close(self) -> None:
    """Closes the round: until the next `open`, every aggregation fails."""
    self._write(_CLOSED, 0, 0)

  def released(self, round_index: int) -> set[tuple[int, bytes]]:
    """Returns (attempt, fingerprint) of each mark of a round."""
    return {(attempt, name) for attempt, name, _ in self._marks(round_index)}

  def updates(self, round_index: int) -> dict[int, tuple[int, int]]:
    """Returns {attempt: (updates, all-zero updates)} of a round's sums.

    If the mark of an attempt or its content was lost, the attempt is missing.
    """
    counts = {}
    for attempt, _, path in self._marks(round_index):
      content = path.read_text().split()
      if content:
        updates, zero = map(int, content)
        counts[attempt] = updates, zero
    return counts

  def _marks(self, t: int) -> Iterator[tuple[int, bytes, pathlib.Path]]:
    """Yields (attempt, fingerprint, path) of each mark of round t, in order."""
    for path in sorted(self.marks.glob(f'{t:08d}-*')):
      _, attempt, fingerprint = path.name.split('-', 2)
      yield int(attempt), fingerprint.encode(), path

  def forget(self, below: int) -> None:
    """Removes the marks of all rounds before the round `below`."""
    for path in self.marks.glob('*-*'):
      # PRIVACY: If marks of the open round were removed, a second sum could get
      # its noise. Only marks of earlier rounds are removed.
      # Guard:
      # released_sums_test.test_noise_of_a_round_meets_one_sum_in_any_order.
      if int(path.name.split('-')[0]) < below:
        path.unlink()

  def check(self, round_index: int, updates: int) -> None:
    """Raises ValueError unless the round is open and allows this many updates.

    **Formal guarantee.**
    Assumption: `updates` is the number of updates in the sum. Statement: the
    sum of a round that is not open, or with more updates than the recorded
    cohort has clients, is refused before the release. The check counts updates;
    it cannot tell which client sent an update.

    Args:
      round_index: round t of the sum, >= 0.
      updates: number of updates in the sum, >= 0.

    Raises:
      ValueError: this round is not open, or the sum has too many updates.
    """
    run, open_round, _, clients = self._numbers()
    # PRIVACY: Epsilon counts only clients whom the ledger has, and the ledger
    # can lack the clients of a round that is not open. A release of their
    # updates would not be counted. The call fails unless this round of this run
    # is open.
    # Guard: run_replay_test.test_position_of_another_run_is_refused.
    if run != self.run or open_round == _CLOSED or open_round != round_index:
      raise errors.value_error(f'round={round_index}: {NOT_OPEN}')
    # PRIVACY: If a sum has more updates than the recorded cohort has clients,
    # the ledger lacks a participation, and epsilon would not count it. Such a
    # sum is refused before its release.
    # Guard: run_replay_test.test_position_of_another_run_is_refused.
    if updates > clients:
      raise errors.value_error(f'updates={updates}: {MORE_UPDATES} {clients}')

  def mark(
    self, released_sum: str, counts: tuple[int, int], round_index: int
  ) -> None:
    """Marks a release as the only one of its round.

    **Formal guarantee.**
    Assumption: all attempts of the run share this folder, every listing of the
    folder shows each file that was created before, and `open` has marked the
    sums that the ledger knows. Statement: of two different sums with the noise
    of one round, at most one passes `mark` in all processes together, unless
    their 64-bit fingerprints agree. Source: each call writes its mark before it
    lists the marks, so of two concurrent calls with different sums at least one
    sees the mark of the other call and fails.

    Args:
      released_sum: fingerprint of S_t + y_t as text, see `tape.reader.release`.
      counts: the number of updates in S_t, and the number of all-zero updates
        among them.
      round_index: round t, >= 0.

    Raises:
      ValueError: another sum of this round has a mark.
    """
    attempt = self._numbers()[2]
    # PRIVACY: The difference of two releases with the same y_t has no noise.
    # This method writes the mark of its sum before it returns, and fails if
    # this or another process has marked another sum of the round.
    # Guard: run_replay_test.test_second_sum_of_a_round_is_refused.
    mark = self.marks / f'{round_index:08d}-{attempt}-{released_sum}'
    mark.write_text('{} {}'.format(*counts))
    sums = {each for _, each in self.released(round_index)}
    # PRIVACY: If two sums got the same noise, the difference of the releases
    # would have none. All marks of the round must be of this sum.
    # Guard:
    # released_sums_test.test_noise_of_a_round_meets_one_sum_in_any_order.
    if sums != {released_sum.encode()}:
      raise errors.value_error(f'round={round_index}: {OTHER_SUM}')

  def _numbers(self) -> tuple[int, ...]:
    """Returns (run, round, attempt, clients) from the file `position`."""
    path = self.directory / 'position'
    return tuple(map(int, path.read_text().split()))

  @property
  def marks(self) -> pathlib.Path:
    """Folder of the marks."""
    return self.directory / 'released'

  def _write(self, round_index: int, attempt: int, clients: int) -> None:
    content = f'{self.run} {round_index} {attempt} {clients}'.encode()
    # The file is not synced. A power cut can restore an older position, but a
    # program that starts again calls `close` before its first round.
    path = self.directory / 'position'
    _files.write(path, content, mode=0o600, durable=False)
