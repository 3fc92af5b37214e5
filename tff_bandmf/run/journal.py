"""The class that writes the events of a run to the disk in a safe order.

Before a round runs, the ledger gets the round and its cohort. When the round is
over, the journal makes three writes, each durable before the next: the row of
metrics to `private/metrics`, the end of the round to the ledger, and the state
after the round to a checkpoint. `Round.finish` returns after these writes. The
checkpoint also has the head of the ledger's chain, a hash of all events. A
round that a crash interrupts is replayed with the same cohort, or is burnt: a
burnt round is given up and releases nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, TypeVar

import attrs
import numpy as np
import tree

from tff_bandmf import _files, cohorts, errors, participation
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.ledger import chain, counts
from tff_bandmf.noise import released_sums
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.run import measurements
from tff_bandmf.run import noise_adder as noise_adder_lib
from tff_bandmf.run_files import checkpoints, exports, metrics, run_json

_State = TypeVar('_State')

# Prefix of the names of measurements that do not depend on clients' updates.
_DATA_FREE = 'aggregator/free/'


@attrs.define(slots=False, eq=False)
class StartedRound:
  """A round that the journal has started.

  Attributes:
    index: index of the round, integer >= 0.
    cohort: [number of clients] IDs of the clients that take part.
    finished: whether the end of the round and the state after the round are on
      the disk.
    burnt: whether `Journal.attempting` has burnt the round.
    attempts: the ledger's attempts at the round; the last one is open.
    updates: number of updates in the sum; None before the round is finished, or
      for a plan without noise.
    without_effect: number of updates that were zero, or were not finite and
      counted as zero; None if `updates` is None.
  """

  index: int
  cohort: np.ndarray
  finished: bool = attrs.field(default=False, init=False)
  burnt: bool = attrs.field(default=False, init=False)
  attempts: Sequence[ledger_lib.Attempt] = attrs.field(default=(), init=False)
  updates: Optional[int] = attrs.field(default=None, init=False)
  without_effect: Optional[int] = attrs.field(default=None, init=False)


class Journal:
  """Writes the ledger, checkpoints, metrics and notes of a run.

  Notes are facts for the report that may change during the run, such as the
  population and the accesses to data that the guarantee does not cover.

  PRIVACY: if the same noise is added to two different sums, the difference of
  the two releases has no noise. The journal lets an interrupted round run again
  only with the cohort that the ledger has for the round. If the sum of the
  replay differs from the sum that the interrupted attempt released, the round
  is burnt.
  Guards: run_replay_test.test_round_whose_replay_differs_is_burnt and
  run_replay_test.test_killed_run_ends_as_an_undisturbed_one.

  Attributes:
    directory: folder of the run.
    plan: plan that the folder holds.
    noise_adder: adds the noise of the run. After the end of the run, the noise
      adder has a new random key, which no round uses.
    position: files with the open round of the run, and with the fingerprint of
      each released sum.
    ended: whether the run has ended.
    next: index of the open round or, between rounds, of the next round, integer
      >= 0. Only `burn` and `finish` change it.
    open_round: the open round; None between rounds.
    l2_norm_clip: the clip that the last finished round released; None before
      the first release, or if the clip is constant.
    closed: whether this process has released the lock of the folder.
    ledger: ledger of the run.
    observe: function of (index of a round, {name: number}) that is called when
      the round is over, with all numbers of the round; some of them have no
      noise.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    plan: plan_lib.Plan,
    details: run_json.RunDetails,
    ledger: ledger_lib.Ledger,
    attempts: ledger_lib.Attempts,
    position: released_sums.Position,
    columns: Sequence[str],
    noise_adder: noise_adder_lib.NoiseAdder,
  ):
    """Initializes the journal at the latest checkpoint in the folder.

    The journal of an ended run begins after the last round in the ledger, and
    writes nothing.

    Args:
      directory: folder of the run; this process has its lock.
      plan: plan of the run.
      details: details of the run.
      ledger: open ledger of the run.
      attempts: attempts at each round in the ledger.
      position: files with the open round of the run, and with the fingerprint
        of each released sum.
      columns: names of the columns of metrics that the program adds.
      noise_adder: adds the noise of the run.
    """
    self.plan, self.noise_adder, self.position = plan, noise_adder, position
    self._ledger = ledger
    self._measurements = measurements.Measurements(plan)
    self.observe: Callable[[int, Mapping[str, float]], None] = lambda *_: None
    self.closed = False
    self.open_round: Optional[StartedRound] = None
    self.directory = directory
    self._details = details
    self._enforced = details.enforced_digest(directory)
    self._checkpoints = checkpoints.Checkpoints(
      directory / run_json.CHECKPOINTS
    )
    latest = self._checkpoints.latest()
    self.ended = counts.ended(attempts) is not None
    self.next = ledger.next_round() if self.ended else latest
    self._first = self.next
    self._has_state = not latest
    self._states = _States()
    columns = (*self._measurements.columns, *columns)
    if self.ended:
      metrics.check(directory, attempts)
    else:
      self._rows = metrics.Metrics(directory, attempts, columns, latest)
    # PRIVACY: a replay with another clip than the first attempt would add the
    # same noise to a different sum, and the difference of the two releases
    # would have no noise. All attempts take the clip that the ledger has for
    # the round before.
    # Guard: run_clip_test.test_adaptive_clip_goes_on_after_a_kill.
    clips = [clip for t, clip in metrics.clips(attempts) if t <= self.next]
    self.l2_norm_clip = clips[-1] if clips else None

  @property
  def ledger(self) -> ledger_lib.Ledger:
    self.check_folder()
    return self._ledger

  def close(self) -> None:
    """Makes later calls fail, since another process may lock the folder."""
    if self.next > self._first:
      metrics.export_table(self.directory, self._ledger.contents().attempts)
    self.closed = True

  def check_folder(self) -> None:
    """Raises ValueError if this process has released the lock of the folder."""
    # PRIVACY: after `close`, another process may lock the folder and use its
    # noise key. If this process also continued the run, the two processes could
    # add the same noise to different sums. After `close` this method raises, so
    # that no round begins or ends and nothing is written.
    # Guard: run_rounds_test.test_run_that_was_closed_does_nothing.
    if self.closed:
      raise errors.value_error(
        f'run={self.directory}: is closed, and another process may use its '
        'folder; open the folder again with Run, and use the new object'
      )

  def restore(self, initialize: Callable[[], _State]) -> _State:
    """Returns the state before round `next`; see `Run.restore`."""
    self.check_folder()
    state, latest = initialize(), self._checkpoints.latest()
    checkpoints.arrays(state)
    if latest:
      state, head = self._checkpoints.load(latest, state)
      attempts = self.ledger.attempts(latest - 1)
      # PRIVACY: if the state did not follow from the rounds in the ledger, the
      # next round could compute a second sum for noise that was used before.
      # A checkpoint stores the head that the chain had when the last round
      # before the checkpoint finished. In the ledger, the last attempt at this
      # round must have the same head.
      # Guard:
      # resume_test.test_checkpoint_that_contradicts_the_ledger_is_refused.
      if not attempts or attempts[-1].head != head:
        raise errors.value_error(
          f'checkpoint={latest}: does not follow from the rounds in the '
          'ledger; restore the files of this run, all of the same moment'
        )
    self._has_state = True
    self._states.add(state)
    return state

  def history(self, ids: np.ndarray, before: int) -> cohorts.AnyHistory:
    """Returns the rounds below `before` in which each client took part.

    Args:
      ids: [N] indices or IDs of the population, ascending.
      before: index of a round; the result has only rounds below this index.

    Raises:
      ValueError: the number of clients that took part and are missing from
        `ids` exceeds the note `clients_left` of the run.
    """
    history, missing = self.ledger.population(ids, before, self.plan.schema)
    # PRIVACY: if the IDs of clients change with every start of the program, as
    # salted hashes do, the same people look like new clients and are drawn more
    # often than the schema allows. If the number of clients that took part and
    # are missing from `ids` exceeds `clients_left`, the run stops.
    # Guard: run_rounds_test.test_other_names_are_refused.
    if missing > (self._details.clients_left or 0):
      clients = missing + int(np.count_nonzero(history.count))
      raise errors.value_error(
        f'clients={len(ids)} ids: lack {missing} of the {clients} clients that '
        f'took part before round {before}; name all clients as they were named '
        f'then; if these really left, say so: run.note(clients_left={missing})'
      )
    if missing:
      self.append_to_note(
        'not_covered',
        f'{missing} clients that took part left the population: a client that '
        'came back under another name counts as a new client',
      )
    highest = self._details.highest_client
    highest = -1 if highest is None else highest
    if ids.dtype.kind == 'i':
      highest = max(highest, int(ids.max()))
    self.set_notes(population=len(ids) + missing, highest_client=highest)
    return history

  def start(self, entry: StartedRound, rounds: int) -> None:
    """Opens a round after the ledger has its cohort.

    The ledger gets `rounds` if the plan has more rounds and its schema is not a
    `Budget`. The claim of a `Budget` does not depend on the number of rounds.

    Args:
      entry: the round.
      rounds: number of rounds of the whole run.
    """
    t = entry.index
    if not self._has_state:
      raise errors.value_error(
        f'round={t}: continues from the state after {self.next} rounds, and '
        'this state was not restored; call state = run.restore(process) first'
      )
    by_budget = isinstance(self.plan.schema, participation.Budget)
    # PRIVACY: A run may stop because of its model. If the claim counted only
    # the rounds until then, epsilon could be too small. A round states fewer
    # rounds than planned only if the loop must stop after them.
    # Guards:
    # run_until_test.test_run_that_stops_after_one_round_claims_all_rounds and
    # run_until_test.test_stop_that_was_moved_claims_all_planned_rounds.
    stated = None if by_budget or rounds >= self.plan.rounds else rounds
    # PRIVACY: if the round opened before the ledger had its cohort, a crash
    # after a release could leave a ledger without the cohort, and the claim
    # would not count these clients. The ledger gets the cohort first.
    # Guard: run_replay_test.test_round_is_in_the_ledger_before_it_runs.
    attempts = self.ledger.start_round(t, entry.cohort, self._enforced, stated)
    released = [
      (i, attempt.sum_digest)
      for i, attempt in enumerate(attempts, 1)
      if attempt.sum_digest is not None
    ]
    self.position.open(t, len(attempts), len(entry.cohort), released)
    entry.attempts, self.open_round = attempts, entry
    self._measurements.start()
    errors.LOGGER.debug('%s: round %d starts', self.directory, t)

  def check_open(self, entry: StartedRound) -> None:
    """Raises ValueError unless `entry` is the open round."""
    self.check_folder()
    # PRIVACY: if an ended round could aggregate, its updates would get the
    # noise of the open round. The release of the open round could then have
    # clients that the ledger's cohort of this round lacks. Only the open round
    # is accepted.
    # Guard: run_test.test_round_that_is_over_releases_nothing.
    if entry is not self.open_round:
      raise errors.value_error(
        f'round={entry.index}: is not open; finish each round once'
      )

  @contextlib.contextmanager
  def attempting(self, entry: StartedRound) -> Iterator[None]:
    """Runs an attempt, and burns the round if it had two different sums.

    If the `with` block raises, and the sum of this attempt differs from the sum
    that an earlier attempt released, the round is burnt, and the error is
    dropped. In all other cases, the error is raised.
    """
    self.check_open(entry)
    try:
      yield
    except Exception as error:
      marks = self.position.released(entry.index)
      if _is_burnt(entry.attempts, marks):
        self.burn(entry.index)
        entry.burnt = True
        return
      refused = errors.from_assertion(error)
      if refused is None:
        raise
      raise refused from error

  def finish(
    self,
    entry: StartedRound,
    state: object,
    shown: Mapping[str, Any],
    measured: object,
  ) -> None:
    """Makes the end of a round durable.

    Args:
      entry: the open round.
      state: state of the learning process after the round.
      shown: {column of the program: public number} for the round's row in
        `metrics.csv`.
      measured: measurements of the process, in any structure. Measurements
        without noise are written only to `private/`.

    Raises:
      ValueError: the round is not open, released nothing, or had different sums
        in two attempts; the state does not follow from the round; or a number
        has a forbidden name.
    """
    t, z_stddev = entry.index, self.noise_adder.z_stddev
    self.check_open(entry)
    checkpoints.arrays(state)
    attempt = len(entry.attempts)
    marks = self.position.released(t)
    fingerprint = dict(marks).get(attempt)
    # PRIVACY: if the round released no sum with noise, the state after the
    # round may contain updates without noise. The end of a round without a
    # released sum is refused.
    # Guard: run_test.test_round_past_the_aggregator_is_not_finished.
    if z_stddev and fingerprint is None:
      raise errors.value_error(
        f'round={t}: released nothing through run.aggregator or round.release; '
        'make the process with run.aggregator, and run it once in each round'
      )
    # PRIVACY: two different sums of a round have the same noise, so their
    # difference has no noise. The first sum may have been released, and the
    # state may follow from the second sum. The end of such a round is refused.
    # Guard: run_replay_test.test_round_that_met_two_sums_is_not_finished.
    if _is_burnt(entry.attempts, marks):
      raise errors.value_error(
        f'round={t}: had two different sums; do not finish it: the round is '
        'burnt, and the run continues with the next round'
      )
    if z_stddev and self._states.has(state):
      raise errors.value_error(
        f'state=given to finish round {t}: is the state of an earlier round, '
        'or follows from one; start each round from the state that restore or '
        'the last finish returned, and finish it with the state after it'
      )
    numbers: dict[str, Any] = {
      '/'.join(map(str, path)): float(value)
      for path, value in tree.flatten_with_path(measured)
      if np.ndim(value) == 0 and np.asarray(value).dtype.kind in 'biuf'
    }
    rows, clients = self._rows, len(entry.cohort)
    own = self._measurements.cells(t)
    # The released values of an adaptive clip have noise, so they may be public.
    released = {
      name: numbers.pop(f'aggregator/released/{name}')
      for name in self._measurements.released
      if f'aggregator/released/{name}' in numbers
    }
    released.update(self.noise_adder.released(t))
    metrics.check_names('metrics', numbers)
    rows.check_shown(shown)
    cells = {**own, **released, **shown}
    updates = self.position.updates(t)
    entry.updates, entry.without_effect = updates.get(attempt, (None, None))
    row = rows.row({'round': t, 'clients': clients, **cells})
    hidden = {name: value for name, value in own.items() if name not in row}
    private = {**hidden, **numbers}
    rows.write(row, {name: repr(value) for name, value in private.items()})
    flags = _incomplete(updates, clients, [attempt] * bool(z_stddev))
    flags += self.noise_adder.flags(t)
    # PRIVACY: the ledger's digest of a row shows whether the row was edited. If
    # the public row were written first, a crash could leave it without a
    # digest, and nobody would notice an edit. The ledger is written first.
    # Guard: folder_test.test_metrics_of_a_run_that_goes_on_are_checked.
    head = self.ledger.finish_round(
      t,
      z_stddev,
      fingerprint,
      noise_checked=bool(z_stddev),
      row=metrics.digest(row),
      released=released,
      flags=flags,
    )
    rows.export(row)
    # PRIVACY: the guarantee does not cover numbers without noise, and the
    # program may show such numbers. The report lists their names.
    # Guard: run_report_test.test_metrics_stay_private_and_are_named.
    names = sorted(name for name in numbers if not name.startswith(_DATA_FREE))
    if names:
      sentence = f'metrics of rounds, without noise: {", ".join(names)}'
      self.append_to_note('not_covered', f'{sentence} ({run_json.TABLE})')
    if entry.without_effect:
      all_zero = entry.without_effect == entry.updates
      sentence = run_json.ALL_ZERO if all_zero else run_json.SOME_ZERO
      self.append_to_note('not_covered', sentence)
    self._checkpoints.save(state, t + 1, head)
    self._states.add(state)
    self.l2_norm_clip = released.get(metrics.RELEASED[0], self.l2_norm_clip)
    entry.finished = True
    self.open_round = None
    self.next = t + 1
    self.position.close()
    self.position.forget(t)
    errors.LOGGER.info('%s: round %d is over', self.directory, t)
    self.observe(t, {**metrics.numbers(row), **private})

  def set_notes(self, **notes: Any) -> None:
    """Changes notes on the run; see `run_json.NOTES`."""
    details = self._details.with_notes(notes)
    changed = {
      name: value
      for name, value in notes.items()
      if value != getattr(self._details, name)
    }
    if changed:
      self.ledger.note(changed)
      self._details = details

  def append_to_note(self, name: str, sentence: str) -> None:
    """Adds a sentence to a note that is a list, if the list lacks it."""
    sentences = getattr(self._details, name)
    if sentence not in sentences:
      self.set_notes(**{name: [*sentences, sentence]})

  def end(self, results: Mapping[str, float]) -> None:
    """Records the results of a run whose rounds are over, and exports them."""
    self.ledger.record_end({name: float(results[name]) for name in results})
    self.export()
    self.set_notes(key_after='kept when the run ended')
    self.ended = True

  def export(self) -> None:
    """Checks the exports of the plan and ledger, and writes missing ones."""
    ended = self.ledger.ended()
    for path, content in exports.check(self.directory, self.plan, ended):
      _files.write_json(path, content)

  def fail_open_round(self) -> None:
    """Closes an open round, and records its failure in the ledger."""
    if self.open_round is not None:
      t, self.open_round = self.open_round.index, None
      self.position.close()
      # If `finish` failed on a full disk, the ledger may already have the end
      # of the round.
      if self.ledger.attempts(t)[-1].outcome == 'started':
        self.ledger.fail_round(t)

  def settle(self, replays: bool = True) -> None:
    """Burns the rounds from `next` on that were started and cannot be replayed.

    Args:
      replays: whether the next round may replay an interrupted round, with the
        cohort that the interrupted round drew.
    """
    # PRIVACY: the clients of a round of `Run.round` do not check in again, so a
    # replay would add the same noise to the sum of other clients. Before
    # `Run.round` starts a round, it removes the population from the notes.
    # Before a round whose cohort is drawn, `history` writes the population to
    # the notes. So if the notes lack the population, the interrupted round came
    # from `Run.round`, and is burnt.
    # Guard:
    # run_interrupted_test.test_undrawn_round_is_burnt_by_every_way.
    replays = replays and self._details.population is not None
    while not self.ended and (attempts := self.ledger.attempts(self.next)):
      marks = self.position.released(self.next)
      if replays and not _is_burnt(attempts, marks):
        break
      self.burn(self.next)

  def burn(self, t: int) -> None:
    """Records in the ledger that a started round is given up."""
    self.fail_open_round()
    # If a checkpoint of a later round exists, round t is finished and is not
    # burnt.
    if self._checkpoints.latest() <= t:
      clients = self.ledger.cohort_size(t)
      row = self._rows.row({'round': t, 'clients': clients})
      released = [attempt for attempt, _ in self.position.released(t)]
      self._rows.write(row, {})
      flags = _incomplete(self.position.updates(t), clients, released)
      self.ledger.abandon_round(t, metrics.digest(row), flags)
      self._rows.export(row)
      errors.LOGGER.warning('%s: round %d is burnt', self.directory, t)
    self.next = t + 1


def _is_burnt(
  attempts: Sequence[ledger_lib.Attempt], marks: Iterable[tuple[int, bytes]]
) -> bool:
  """Returns whether a round is burnt; a burnt round may not run again.

  Args:
    attempts: attempts at the round in the ledger.
    marks: (attempt, fingerprint) of each sum that the round released.
  """
  abandoned = any(attempt.outcome == 'abandoned' for attempt in attempts)
  # PRIVACY: if two different sums get the same noise, the difference of the two
  # releases has no noise. The noise source writes a file with the fingerprint
  # of each sum that it releases, and the ledger has the fingerprint of the sum
  # of each finished attempt. A round with two different fingerprints is burnt.
  # Guards: run_replay_test.test_round_whose_replay_differs_is_burnt and
  # run_replay_test.test_mark_of_another_sum_than_the_ledgers_burns_a_round.
  released = {fingerprint for _, fingerprint in marks}
  released |= {
    each.sum_digest for each in attempts if each.sum_digest is not None
  }
  # PRIVACY: A round that was abandoned, or that released two sums, could
  # release its noise again. It is burnt in both cases.
  # Guard: run_replay_test.test_round_whose_replay_differs_is_burnt.
  return abandoned or len(released) > 1


def _incomplete(
  updates: Mapping[int, tuple[int, int]], clients: int, attempts: Iterable[int]
) -> list[str]:
  """Returns [] if each sum has as many updates as its cohort has clients.

  Otherwise the result is [INCOMPLETE].

  PRIVACY: amplification holds only for cohorts that are sampled at random. If a
  program leaves clients out of a sampled cohort, the amplified epsilon is too
  small. If a sum has more or fewer updates than its cohort has clients, the
  ledger flags the round, and the report claims no amplification. The number of
  updates stays in `private/`, since it has no noise.
  Guards: report_sampling_test.test_cut_cohort_has_no_amplified_claim and
  test_cut_cohort_of_a_burnt_round_counts.

  Args:
    updates: result of `released_sums.Position.updates`.
    clients: number of clients in the cohort.
    attempts: numbers of the attempts that released a sum.
  """
  complete = all(
    updates.get(attempt, (-1, 0))[0] == clients for attempt in attempts
  )
  return [] if complete else [chain.INCOMPLETE]


class _States:
  """Recognises a state that is older than the state after the last round.

  The state of a TFF process has the aggregator's count of rounds, which must
  exceed all earlier counts. A state without this count is older if it has the
  bits of an earlier state, and contains an array of that state. An array
  belongs to the last state that contained it. Equal bits in new arrays say
  nothing, since a learning rate of 0, or an update that float16 rounds away,
  gives the bits of an earlier state.
  """

  def __init__(self):
    self._rounds = -1
    # {id of an array: (reference to the array, digest of the last state that
    # contained the array)}.
    self._arrays: dict[int, tuple[weakref.ref, bytes]] = {}
    self._latest = b''

  def add(self, state: object) -> None:
    """Adds a state from which the program continues."""
    self._rounds = max(self._rounds, _aggregator_rounds(state))
    if self._rounds < 0:
      self._latest = _digest(state)
      for leaf in tree.flatten(state):
        if isinstance(leaf, np.ndarray):
          self._arrays[id(leaf)] = weakref.ref(leaf), self._latest

  # PRIVACY: If a round finished with an older state, the model would lack the
  # releases since that state. A state without a count of rounds counts as older
  # if it has the bits of an earlier state and contains an array of that state.
  # Guards:
  # run_rounds_test.test_round_is_not_finished_with_the_arrays_of_an_earlier_one
  # and
  # run_rounds_test.test_state_with_the_bits_of_an_earlier_one_is_of_its_round.
  def has(self, state: object) -> bool:
    """Returns whether a state is older than the last added state.

    With the aggregator's count of rounds, the result is also True for the last
    added state.
    """
    rounds = _aggregator_rounds(state)
    if rounds >= 0:
      return rounds <= self._rounds
    digest = _digest(state)
    if digest == self._latest:
      return False
    for leaf in tree.flatten(state):
      reference, earlier = self._arrays.get(id(leaf), (None, b''))
      if reference is not None and reference() is leaf and earlier == digest:
        return True
    return False


def _aggregator_rounds(state: object) -> int:
  """Returns the aggregator's count of rounds in a state; -1 if it has none."""
  return max(
    (
      int(leaf)
      for path, leaf in tree.flatten_with_path(state)
      if path[-2:] == ('query_state', 'round')
    ),
    default=-1,
  )


def _digest(state: object) -> bytes:
  """Returns the SHA-256 of all leaves of a state."""
  sha = hashlib.sha256()
  for leaf in map(np.ascontiguousarray, tree.flatten(state)):
    sha.update(f'{leaf.dtype}{leaf.shape}'.encode() + leaf.tobytes())
  return sha.digest()
