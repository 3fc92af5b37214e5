"""What a run keeps on the disk, in the order in which it gets there.

A round is in the ledger, with its cohort, before it runs. When it is over, the
ledger says so, the row of metrics follows, then the checkpoint: what is after
it is handed out. What a crash leaves behind is replayed with the very cohort,
or burnt.
"""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional

import numpy as np
import tree

from tff_bandmf import _files, cohorts, errors
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.ledger import chain
from tff_bandmf.run import rounds
from tff_bandmf.run_files import checkpoints, metrics, run_json

# Measurements of the aggregator that are the same whatever the updates are.
_FREE = 'aggregator/free/'


class Journal:
  """The ledger, position, checkpoints and metrics of a run.

  PRIVACY: a round that was started counts; it is replayed with its cohort, and
  with any other sum it is burnt. Guards:
  run_test.test_round_whose_replay_differs_is_burnt and
  run_test.test_killed_run_ends_as_an_undisturbed_one.

  Attributes:
    next: the round that comes next.
    opened: the round that is open, or None.
    closed: whether the folder was given back.
    ledger: of the run.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    ledger: ledger_lib.Ledger,
    position: Any,
    columns: Sequence[str],
  ):
    """Goes on where the folder of the run is; `columns` are of its metrics."""
    self._ledger = ledger
    self.closed = False
    self.opened: Optional[rounds.Round] = None
    self._directory = directory
    record = run_json.RunRecord.read(directory)
    self._enforced = record.enforced_digest(directory)
    self._position = position
    self._checkpoints = checkpoints.Checkpoints(
      directory / run_json.CHECKPOINTS
    )
    self.next = self._checkpoints.latest()
    self._has_state = not self.next
    self._states = _States()
    self._rows = metrics.Metrics(directory, ledger, columns, self.next)
    self._released = [name for name in metrics.RELEASED if name in columns]

  @property
  def ledger(self) -> ledger_lib.Ledger:
    self.check_folder()
    return self._ledger

  def close(self) -> None:
    """Refuses all that follows: the folder is given back."""
    self.closed = True

  def check_folder(self) -> None:
    """Raises ValueError if the folder was given back."""
    # PRIVACY: a loop or a round that outlives its run would go on without the
    # lock, beside another process that has the same keys. So nothing begins,
    # ends or is noted any more. Guard:
    # run_rounds_test.test_run_that_was_closed_does_nothing.
    if self.closed:
      raise errors.value_error(
        'run',
        self._directory,
        'is closed, and another process may have its folder',
        'open it again with Run, and take rounds of that one',
      )

  def restore(self, initialize: Callable[[], Any]) -> Any:
    """Returns the state before `next`; see `Run.restore`."""
    self.check_folder()
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
    self._has_state = True
    self._states.add(state)
    return state

  def past(self, ids: np.ndarray, before: int) -> cohorts.History:
    """Returns the rounds of a whole population below a round.

    Args:
      ids: [N] of the population.
      before: a round.

    Raises:
      ValueError: more clients took part than these and those that left.
    """
    past = self.ledger.past(ids, before)
    clients = self.ledger.clients(before)
    gone = clients - int(np.count_nonzero(past.count))
    # PRIVACY: a program whose ids change with every start, such as salted
    # hashes, would draw the same people as new clients, and no rule would
    # hold. So all who took part must be among the ids, or the run says how
    # many left. Guard: run_rounds_test.test_other_names_are_refused.
    record = run_json.RunRecord.read(self._directory)
    left = record.clients_left or 0
    if gone > left:
      raise errors.value_error(
        'clients',
        f'{len(ids)} ids',
        f'lack {gone} of the {clients} clients that took part before round '
        f'{before}',
        'name all clients as they were named then; if these really left, say '
        f'so: run.note(clients_left={gone})',
      )
    if gone:
      self.say(
        'not_covered',
        f'{gone} clients that took part left the population: a client that '
        'came back under another name counts as a new one',
      )
    highest = -1 if record.highest_client is None else record.highest_client
    if ids.dtype.kind == 'i':
      highest = max(highest, int(ids.max()))
    self.note(population=len(ids) + gone, highest_client=highest)
    return past

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
        self._directory / run_json.METRICS_FILE,
        f'lacks the clip that round {self.next} goes on from',
        'restore the file',
      )
    return clip

  def start(self, opened: rounds.Round) -> rounds.Round:
    """Returns the round, which is now open."""
    if not self._has_state:
      raise errors.value_error(
        'round',
        opened.index,
        f'goes on from the state after {self.next} rounds, which nobody asked '
        'for: training would begin anew',
        'call state = run.restore(process.initialize) first',
      )
    attempts = self.ledger.attempts(opened.index)
    # PRIVACY: durable before the round, so a crash cannot hide it. Guard:
    # run_test.test_round_is_in_the_ledger_before_it_runs.
    self.ledger.start_round(opened.index, opened.cohort, self._enforced)
    self._position.open(
      opened.index,
      len(attempts) + 1,
      len(opened.cohort),
      [
        (i, attempt.result)
        for i, attempt in enumerate(attempts, 1)
        if attempt.result is not None
      ],
    )
    self.opened = opened
    return opened

  def check_open(self, opened: rounds.Round) -> None:
    """Raises ValueError unless this round is the open one."""
    self.check_folder()
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
    except Exception as error:
      if not self.is_burnt(opened.index):
        refused = errors.refusal(error)
        if refused is None:
          raise
        raise refused from error
    if self.is_burnt(opened.index):
      self.burn(opened.index)

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
    flag: Optional[str],
  ) -> None:
    """Makes a round durable.

    Args:
      done: the round, which is open.
      state: of the process after it.
      z_stddev: of the noise that was added, clip included; 0 without noise.
      released: what goes to `metrics.csv`; what an adaptive clip released may
        also be in what was measured.
      measured: what stays in `private/`.
      flag: of `chain.FLAGS`, what is known of the way from clients to the sum.

    Raises:
      ValueError: nothing was released in it, or two sums were about to be; the
        state is an old one.
    """
    t = done.index
    self.check_open(done)
    attempt = len(self.ledger.attempts(t))
    result = dict(self._position.released(t)).get(attempt)
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
    if z_stddev and self._states.has(state):
      raise errors.value_error(
        'state',
        f'given to finish round {t}',
        'is that of an earlier round, or follows from it: what was learnt '
        'since would be lost',
        'give each round the state that restore or the last finish returned, '
        'and finish it with the state after the round',
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
    clients = len(done.cohort)
    done.updates, done.without_effect = self._position.updates(t).get(
      attempt, (None, None)
    )
    row = {'round': t, 'clients': clients, **told, **released}
    # PRIVACY: before the row, so that the ledger lacks nothing that the file
    # shows. Guard: folder_test.test_metrics_of_a_run_that_goes_on_are_checked.
    self.ledger.finish_round(
      t,
      z_stddev,
      result,
      noise_checked=bool(z_stddev),
      row=self._rows.digest(row),
      flags=[
        *self._incomplete(t, clients, [attempt] * bool(z_stddev)),
        *([] if flag is None else [flag]),
      ],
    )
    self._rows.write(row)
    self._keep(t, numbers)
    if done.without_effect:
      every = done.without_effect == done.updates
      self.say(
        'not_covered', run_json.ALL_ZERO if every else run_json.SOME_ZERO
      )
    self._checkpoints.save(state, t + 1, self.ledger.head())
    self._states.add(state)
    done.finished = True
    self.opened = None
    self.next = t + 1
    self._position.close()
    self._position.forget(t)

  def _keep(self, t: int, found: dict[str, float]) -> None:
    """Writes numbers without noise where nobody reads them but the owner."""
    if not found:
      return
    kept = self._directory / run_json.PRIVATE / 'metrics'
    kept.mkdir(mode=0o700, exist_ok=True)
    values = {name: repr(value) for name, value in found.items()}
    # Not synced: nothing is claimed about them, and nothing goes on from them.
    _files.write_json(kept / f'{t:08d}.json', values, mode=0o600, durable=False)
    # PRIVACY: what has no noise is named. Guard:
    # run_test.test_metrics_stay_private_and_are_named.
    names = sorted(name for name in found if not name.startswith(_FREE))
    if names:
      self.say(
        'not_covered', f'metrics of rounds, without noise: {", ".join(names)}'
      )

  def note(self, **statements: Any) -> None:
    """Changes what the run says of itself; see `run_files.RunRecord`."""
    self.check_folder()
    record = run_json.RunRecord.read(self._directory)
    noted = record.noted(statements)
    if noted != record:
      noted.write(self._directory)

  def say(self, name: str, sentence: str) -> None:
    """Adds a sentence to a list of what the run says of itself."""
    there = getattr(run_json.RunRecord.read(self._directory), name)
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

  def _incomplete(
    self, t: int, clients: int, attempts: Iterable[int]
  ) -> list[str]:
    """Returns a flag if a sum lacked some of the clients, or none if not.

    PRIVACY: a cohort of which a program leaves some out is not the cohort that
    chance drew, so the ledger says that a sum had fewer updates; how many it
    had stays in `private/`. Guards:
    report_sampling_test.test_cut_cohort_has_no_amplified_claim and
    test_cut_cohort_of_a_burnt_round_counts.
    """
    counted = self._position.updates(t)
    whole = all(
      counted.get(attempt, (-1, 0))[0] == clients for attempt in attempts
    )
    return [] if whole else [chain.INCOMPLETE]

  def burn(self, t: int) -> None:
    """Records that a round, which was started, gives nothing."""
    self.leave()
    # Where the state after it is on the disk it is finished, and stays so.
    if self._checkpoints.latest() <= t:
      clients = self.ledger.cohort_size(t)
      row = {'round': t, 'clients': clients}
      released = [attempt for attempt, _ in self._position.released(t)]
      self.ledger.abandon_round(
        t, self._rows.digest(row), self._incomplete(t, clients, released)
      )
      self._rows.write(row)
    self.next = t + 1


class _States:
  """The states that a program had from its run, to tell an old one.

  A state of TFF counts the rounds of its aggregator. One without a count is
  known by its bits: with noise no two rounds lead to the same ones.
  """

  def __init__(self):
    self._rounds = -1
    self._digests: set[bytes] = set()

  def add(self, state: Any) -> None:
    """Adds a state that the program goes on from."""
    self._rounds = max(self._rounds, _rounds_of(state))
    if self._rounds < 0:
      self._digests.add(_digest(state))

  def has(self, state: Any) -> bool:
    """Returns whether the state is from before a round that follows these."""
    rounds_ = _rounds_of(state)
    if rounds_ >= 0:
      return rounds_ <= self._rounds
    return _digest(state) in self._digests


def _rounds_of(state: Any) -> int:
  """Returns the rounds that the aggregator in a state counts; -1 without."""
  return max(
    (
      int(leaf)
      for path, leaf in tree.flatten_with_path(state)
      if path[-2:] == ('query_state', 'round')
    ),
    default=-1,
  )


def _digest(state: Any) -> bytes:
  """Returns the SHA-256 of all leaves of a state."""
  sha = hashlib.sha256()
  for leaf in map(np.ascontiguousarray, tree.flatten(state)):
    sha.update(f'{leaf.dtype}{leaf.shape}'.encode() + leaf.tobytes())
  return sha.digest()
