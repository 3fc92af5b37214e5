"""Counts of rounds, attempts and participation in a ledger.

Training outside of this library has a participation log in place of a ledger.
The log has no attempts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

from tff_bandmf import sensitivity
from tff_bandmf.ledger import chain


@dataclasses.dataclass(frozen=True)
class Contents:
  """The rounds, attempts and notes of a ledger.

  Attributes:
    sizes: dict from the index of a round to its number of clients, rounds
      ascending.
    attempts: dict from the index of a round to the attempts at it, rounds
      ascending.
    notes: {name: value}, the last value of each note on the run.
    last_client: highest client index; -1 without rounds, or if clients are
      strings.
    head: head of the ledger's chain; None for a log.
  """

  sizes: dict[int, int]
  attempts: chain.Attempts
  notes: Mapping[str, Any]
  last_client: int
  head: Optional[str]


@dataclasses.dataclass(frozen=True)
class Counts:
  """The counts of a ledger, or of a participation log.

  Attributes:
    rounds: number of started rounds. A started round is finished, burnt, both,
      or open.
    finished: number of rounds with a finished attempt.
    burnt: number of abandoned rounds, including rounds with a finished attempt.
    open: indices of the rounds that were started, and neither finished nor
      abandoned.
    log: participation of the clients in all started rounds.
    min_cohort: smallest number of clients of a round; 0 without rounds.
    max_cohort: largest number of clients of a round; 0 without rounds.
    last_round: highest index of a round; -1 without rounds.
    last_client: highest client index; -1 without rounds, or if clients are
      strings.
    z_stddev: smallest `Attempt.z_stddev` of the finished attempts; None without
      such attempts, or if one of them has no value.
    cohort_sizes: dict from the index of a round to its number of clients,
      rounds ascending.
    unchecked: indices of the rounds with a finished attempt whose noise was not
      tested by the program that added the noise.
    finished_twice: indices of the rounds with several finished attempts whose
      digests of the sum differ or are not known.
    enforced: the different values of `Attempt.enforced`, the digest of the plan
      and other files; None is a value if an attempt has no such digest. Entries
      'abandoned' of the ledger are not attempts, and do not count.
    stated_rounds: number of rounds of the run, if all attempts stated the same
      number, see `Attempt.rounds`. None: the attempts stated the number of the
      plan, or different numbers. Entries 'abandoned' do not count.
    drawn: whether all cohorts are equal to the cohorts that the sampling key
      gives; None if nobody compared the cohorts since the last attempt.
    head: head of the ledger's chain, in hexadecimal; None without a ledger.
    incomplete: indices of all rounds, including burnt rounds, with an attempt
      whose sum did not have one update of each client.
    examined: whether the learning process was checked in all finished attempts
      that had a process, see `chain.EXAMINED`; None if the finished attempts
      had no learning process. Without finished attempts, the value is False.
    ended: the end of the run; None before the end.
    notes: {name: value}, the last value of each note on the run.
    attempts: dict from the index of a round to the attempts at it, rounds
      ascending.
  """

  rounds: int
  finished: int
  burnt: int
  open: tuple[int, ...]
  log: sensitivity.Observed
  min_cohort: int
  max_cohort: int
  last_round: int
  last_client: int
  z_stddev: Optional[float]
  cohort_sizes: dict[int, int]
  unchecked: tuple[int, ...]
  finished_twice: tuple[int, ...]
  enforced: frozenset[Optional[bytes]] = frozenset()
  stated_rounds: Optional[float] = None
  drawn: Optional[bool] = None
  head: Optional[str] = None
  incomplete: tuple[int, ...] = ()
  examined: Optional[bool] = False
  ended: Optional[chain.End] = None
  notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  attempts: chain.Attempts = dataclasses.field(
    default_factory=dict, compare=False, repr=False
  )

  @property
  def clients(self) -> int:
    """Number of different clients that took part."""
    return self.log.clients

  @property
  def min_sep(self) -> Optional[int]:
    """Smallest difference of two rounds of one client.

    The value is None if no client has two rounds.
    """
    return self.log.min_sep

  @property
  def max_participations(self) -> int:
    """Largest number of rounds of one client; 0 without rounds."""
    return self.log.max_participations


def from_log(sizes: dict[int, int], log: sensitivity.Observed) -> Counts:
  """Returns the counts of a participation log.

  Args:
    sizes: dict from the index of a round to its number of clients.
    log: participation of the clients.
  """
  contents = Contents(sizes, {}, {}, -1, None)
  return dataclasses.replace(from_contents(contents, log), finished=len(sizes))


def from_contents(contents: Contents, log: sensitivity.Observed) -> Counts:
  """Returns the counts of a ledger.

  Args:
    contents: contents of the ledger.
    log: participation of the clients.
  """
  sizes, attempts = contents.sizes, contents.attempts
  entries = [attempt for tried in attempts.values() for attempt in tried]
  finished = [each for each in entries if each.outcome == chain.FINISHED]
  measured = [each.z_stddev for each in finished if each.z_stddev is not None]
  verdicts = [attempt.drawn for attempt in entries]
  # PRIVACY: If failed attempts did not count, somebody could edit the plan of a
  # run without a finished round. All attempts count; an entry 'abandoned' is
  # not an attempt.
  # Guard:
  # consistency_test.test_run_without_a_finished_round_is_bound_to_its_files.
  starts = [each for each in entries if each.outcome != chain.ABANDONED]
  stated = {attempt.rounds for attempt in starts}

  def rounds(condition: Callable[[chain.Attempt], bool]) -> tuple[int, ...]:
    """Returns the rounds with an attempt for which the condition holds."""
    return tuple(t for t in attempts if any(map(condition, attempts[t])))

  burnt = rounds(lambda each: each.outcome == chain.ABANDONED)
  done = rounds(lambda each: each.outcome == chain.FINISHED)
  return Counts(
    rounds=len(sizes),
    finished=len(done),
    burnt=len(burnt),
    open=tuple(sorted(attempts.keys() - {*burnt, *done})),
    log=log,
    min_cohort=min(sizes.values(), default=0),
    max_cohort=max(sizes.values(), default=0),
    last_round=max(sizes, default=-1),
    last_client=contents.last_client,
    z_stddev=min(measured) if len(measured) == len(finished) > 0 else None,
    cohort_sizes=sizes,
    # PRIVACY: a finished attempt whose noise was not tested may have released a
    # sum with too little noise. One such attempt is enough to put its round
    # into `unchecked`.
    # Guard: ledger_test.test_noise_that_was_checked_in_one_round_is_unchecked.
    unchecked=rounds(
      lambda each: each.outcome == chain.FINISHED and not each.noise_checked
    ),
    finished_twice=tuple(t for t in done if _sums_differ(attempts[t])),
    # PRIVACY: clients count as having taken part even if their round never
    # finishes, and such a round could follow an edited plan. If only finished
    # attempts counted here, nobody would see the edit. All attempts count. An
    # entry 'abandoned' follows the attempts at a round and has no digest, so it
    # is left out.
    # Guard:
    # consistency_test.test_run_without_a_finished_round_is_bound_to_its_files.
    enforced=frozenset(attempt.enforced for attempt in starts),
    # PRIVACY: a program may have looked at releases to choose another number of
    # rounds. Then the epsilon of the rounds so far would be too small. A number
    # counts only if all attempts stated it.
    # Guard: run_until_test.test_stop_that_was_moved_claims_all_planned_rounds.
    stated_rounds=stated.pop() if len(stated) == 1 else None,
    # PRIVACY: the amplified guarantee holds only if every cohort was sampled. A
    # comparison with the sampling key does not cover later rounds, and a later
    # comparison must not hide an earlier failure. The value is False if one
    # comparison failed, and True only if one succeeded after the last attempt.
    # Guard: ledger_test.test_verdict_is_of_all_rounds_or_none.
    drawn=False if False in verdicts else (verdicts or [None])[-1],
    # PRIVACY: an attempt that failed or was burnt may have released a sum that
    # lacks clients of its cohort, and the amplified guarantee does not cover
    # such a sum. This line lists the round of every attempt with the flag
    # INCOMPLETE, whatever the outcome of the attempt.
    # Guard: report_sampling_test.test_cut_cohort_of_a_burnt_round_counts.
    incomplete=rounds(lambda each: chain.INCOMPLETE in each.flags),
    examined=_examined(finished),
    ended=ended(attempts),
    head=contents.head,
    notes=contents.notes,
    attempts=attempts,
  )


def _sums_differ(tried: Sequence[chain.Attempt]) -> bool:
  """Returns whether finished attempts differ in their sums, or may differ."""
  sums = [each.sum_digest for each in tried if each.outcome == chain.FINISHED]
  return len(sums) > 1 and (None in sums or len(set(sums)) > 1)


def ended(attempts: chain.Attempts) -> Optional[chain.End]:
  """Returns the end of a run; None if it has not ended.

  Args:
    attempts: dict from the index of a round to the attempts at it.
  """
  last = attempts.get(max(attempts, default=-1))
  return last[-1].ended if last else None


def _examined(finished: list[chain.Attempt]) -> Optional[bool]:
  """Returns `Counts.examined` for the finished attempts."""
  # PRIVACY: if the learning process was not checked in one round, it may have
  # released updates without noise in this round. The result is False if a
  # finished attempt lacks both the flag EXAMINED (the process was checked) and
  # the flag DIRECT (the round had no process).
  # Guard: run_report_test.test_one_round_of_an_unchecked_process_is_enough.
  if finished and all(chain.DIRECT in each.flags for each in finished):
    return None
  # PRIVACY: An unchecked process may release updates without noise. The claim
  # says that the process was checked only if it was checked in each finished
  # round.
  # Guard: run_report_test.test_one_round_of_an_unchecked_process_is_enough.
  return bool(finished) and all(
    each.flags & {chain.EXAMINED, chain.DIRECT} for each in finished
  )
