"""What a run keeps on the disk, in the order in which it gets there.

A round is in the ledger, with its cohort, before it runs. When it is over, the
ledger says so, the row of metrics follows, then the checkpoint: what is after
it is handed out. What a crash leaves behind is replayed with the very cohort,
or burnt.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import numpy as np
import tree

from tff_bandmf import _files, errors, program
from tff_bandmf.program import checkpoints, metrics, run_record
from tff_bandmf.run import rounds


class Journal:
  """The ledger, position, checkpoints and metrics of a run.

  PRIVACY: a round that was started counts; it is replayed with its cohort, and
  with any other sum it is burnt. Guards:
  run_test.test_round_whose_replay_differs_is_burnt and
  run_test.test_killed_run_ends_as_an_undisturbed_one.

  Attributes:
    next: the round that comes next.
    opened: the round that is open, or None.
    ledger: of the run.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    ledger: program.Ledger,
    position: Any,
    columns: Sequence[str],
  ):
    """Goes on where the folder of the run is; `columns` are of its metrics."""
    self.ledger = ledger
    self.opened: Optional[rounds.Round] = None
    self._by_index: Optional[bool] = None
    self._directory = directory
    self._enforced = run_record.RunRecord.read(directory).enforced_digest()
    self._position = position
    self._checkpoints = checkpoints.Checkpoints(
      directory / run_record.CHECKPOINTS
    )
    self.next = self._checkpoints.latest()
    self._rows = metrics.Metrics(directory, ledger, columns, self.next)
    self._released = [name for name in metrics.RELEASED if name in columns]

  def restore(self, initialize: Callable[[], Any]) -> Any:
    """Returns the state before `next`; see `Run.restore`."""
    state = initialize()
    if self._checkpoints.latest():
      state, head = self._checkpoints.load(self.next, state)
      attempts = self.ledger.attempts(self.next - 1)
      # PRIVACY: without the ledger of the rounds before, nobody knows who took
      # part; with another state, their noise would meet other sums. Guard:
      # training_test.test_checkpoint_that_contradicts_the_ledger_is_refused.
      if not attempts or attempts[-1].head != head:
        raise errors.value_error(
          'checkpoint',
          self.next,
          'is not what the rounds in the ledger led to',
          'restore the files of this run, all of one time',
        )
    return state

  @property
  def l2_norm_clip(self) -> Optional[float]:
    """The clip that the last round released; None before there is one.

    The ledger has the digest of its row, and the row all its digits.

    PRIVACY: a replay clips as the round did, so that its sum is the same.
    Guard: run_test.test_adaptive_clip_goes_on_after_a_kill.
    """
    if not self._released:
      return None
    found = metrics.clips(self._rows.rows())
    done, clip = found[-1] if found else (0, None)
    # PRIVACY: the first clip again would not be what the report says of it.
    # Guard: run_test.test_adaptive_clip_without_its_metrics_is_refused.
    if not all(map(self.is_burnt, range(done, self.next))):
      raise errors.value_error(
        'metrics',
        self._directory / run_record.METRICS_FILE,
        f'lacks the clip that round {self.next} goes on from',
        'restore the file',
      )
    return clip

  def start(self, opened: rounds.Round) -> rounds.Round:
    """Returns the round, which is now open."""
    self._check_kind(opened.cohort)
    attempts = self.ledger.attempts(opened.index)
    # PRIVACY: durable before the round, so a crash cannot hide it. Guard:
    # run_test.test_round_is_in_the_ledger_before_it_runs.
    self.ledger.start_round(opened.index, opened.cohort)
    self._position.open(
      opened.index,
      len(attempts) + 1,
      [
        (i, attempt.result)
        for i, attempt in enumerate(attempts, 1)
        if attempt.result is not None
      ],
    )
    self.opened = opened
    return opened

  def _check_kind(self, cohort: np.ndarray) -> None:
    if self._by_index is None:
      self._by_index = self.ledger.by_index()
    # PRIVACY: a client that was 1 and is '1' now would look new. Guard:
    # run_test.test_clients_keep_the_kind_of_their_names.
    if len(cohort) and self._by_index not in (None, cohort.dtype.kind in 'iu'):
      raise errors.value_error(
        'clients',
        'strings' if self._by_index else 'indices',
        'are not what they were in the rounds before',
        'name clients as the run began to: all by index, or all by string',
      )

  def check_open(self, opened: rounds.Round) -> None:
    """Raises ValueError unless this round is the open one."""
    # PRIVACY: who is in the sum was recorded for this round. Guard:
    # run_test.test_round_that_is_over_releases_nothing.
    if opened is not self.opened:
      raise errors.value_error(
        'round', opened.index, 'is not open', 'finish a round once'
      )

  @contextlib.contextmanager
  def attempting(self, opened: rounds.Round) -> Iterator[None]:
    """Burns the round if it is to release another sum in the `with` block."""
    self.check_open(opened)
    try:
      yield
    except Exception:
      if not self.is_burnt(opened.index):
        raise
    if self.is_burnt(opened.index):
      self.burn(opened.index, len(opened.cohort))

  def sync(self) -> None:
    """Returns when what was released is marked on the disk."""
    self._position.sync()

  def finish(
    self,
    done: rounds.Round,
    state: Any,
    z_stddev: float,
    released: dict[str, float],
    measured: Any,
  ) -> None:
    """Makes a round durable.

    Args:
      done: the round, which is open.
      state: of the process after it.
      z_stddev: of the noise that was added, clip included; 0 without noise.
      released: what goes to `metrics.csv`; what an adaptive clip released may
        also be in what was measured.
      measured: what stays in `private/`.

    Raises:
      ValueError: nothing was released in it, or two sums were about to be.
    """
    t = done.index
    self.check_open(done)
    result = dict(self._position.released(t)).get(len(self.ledger.attempts(t)))
    # PRIVACY: what went past the aggregator has no noise. Guard:
    # run_test.test_round_past_the_aggregator_is_not_finished.
    if z_stddev and result is None:
      raise errors.value_error(
        'round',
        t,
        'released nothing through run.aggregator or round.release',
        'make the process with model_aggregator=run.aggregator, and run it '
        'once in each round',
      )
    # PRIVACY: a second sum was refused, and the first is not this state's.
    # Guard: run_test.test_round_that_met_two_sums_is_not_finished.
    if self.is_burnt(t):
      raise errors.value_error(
        'round', t, 'met two sums', 'leave it: it is burnt, and the run goes on'
      )
    numbers: dict[str, Any] = {
      '/'.join(map(str, path)): float(value)
      for path, value in tree.flatten_with_path(measured)
      if np.ndim(value) == 0 and np.asarray(value).dtype.kind in 'biuf'
    }
    # These have noise, and may be told.
    told = {
      name: numbers.pop(f'aggregator/released/{name}', '')
      for name in self._released
    }
    row = {'round': t, 'clients': len(done.cohort), **told, **released}
    # PRIVACY: before the row, so that the ledger lacks nothing that the file
    # shows. Guard: folder_test.test_metrics_of_a_run_that_goes_on_are_checked.
    self.ledger.finish_round(
      t,
      z_stddev,
      result,
      noise_checked=bool(z_stddev),
      enforced=self._enforced,
      row=self._rows.digest(row),
    )
    self._rows.write(row)
    self._keep(t, numbers)
    self._checkpoints.save(state, t + 1, self.ledger.head())
    done.finished = True
    self.opened = None
    self.next = t + 1
    self._position.close()
    self._position.forget(t)

  def _keep(self, t: int, found: dict[str, float]) -> None:
    """Writes numbers without noise where nobody reads them but the owner."""
    if not found:
      return
    kept = self._directory / run_record.PRIVATE / 'metrics'
    kept.mkdir(mode=0o700, exist_ok=True)
    values = {name: repr(value) for name, value in found.items()}
    # Not synced: nothing is claimed about them, and nothing goes on from them.
    _files.write_json(kept / f'{t:08d}.json', values, mode=0o600, durable=False)
    # PRIVACY: what has no noise is named. Guard:
    # run_test.test_metrics_stay_private_and_are_named.
    self.say(
      'not_covered',
      f'metrics of rounds, without noise: {", ".join(sorted(found))}',
    )

  def note(self, **statements: Any) -> None:
    """Changes what the run says of itself; see `program.RunRecord`."""
    record = run_record.RunRecord.read(self._directory)
    noted = record.noted(statements)
    if noted != record:
      noted.write(self._directory)

  def say(self, name: str, sentence: str) -> None:
    """Adds a sentence to a list of what the run says of itself."""
    there = getattr(run_record.RunRecord.read(self._directory), name)
    if sentence not in there:
      self.note(**{name: [*there, sentence]})

  def leave(self) -> None:
    """Fails the round that is open, if one is."""
    if self.opened is not None:
      t, self.opened = self.opened.index, None
      self._position.close()
      # Where a full disk stopped `finish` half way it has ended.
      if self.ledger.attempts(t)[-1].outcome == 'started':
        self.ledger.fail_round(t)

  def is_burnt(self, t: int) -> bool:
    """Returns whether the round may not run again."""
    attempts = self.ledger.attempts(t)
    abandoned = any(attempt.outcome == 'abandoned' for attempt in attempts)
    # PRIVACY: two sums were about to meet one noise. Guards:
    # run_test.test_round_whose_replay_differs_is_burnt and
    # run_test.test_mark_of_another_sum_than_the_ledgers_burns_a_round.
    released = {sum_ for _, sum_ in self._position.released(t)}
    released |= {each.result for each in attempts} - {None}
    return abandoned or len(released) > 1

  def burn(self, t: int, clients: int) -> None:
    """Records that a round of so many clients gives nothing."""
    self.leave()
    # Where the state after it is on the disk it is finished, and stays so.
    if self._checkpoints.latest() <= t:
      row = {'round': t, 'clients': clients}
      self.ledger.abandon_round(t, self._rows.digest(row))
      self._rows.write(row)
    self.next = t + 1
