"""The counts of a ledger or of a log: rounds, attempts, participation."""

from __future__ import annotations

import dataclasses
from typing import Optional

from tff_bandmf import sensitivity
from tff_bandmf.ledger import chain


@dataclasses.dataclass(frozen=True)
class Observed:
  """Counts of a ledger.

  Attributes:
    rounds: number of started rounds; each is finished, burnt (or both) or open.
    finished: number of finished rounds.
    burnt: number of abandoned rounds, including those with a finished attempt.
    open: rounds that were started, and neither finished nor abandoned.
    failed: number of failed attempts.
    log: participation of the clients in all started rounds.
    min_cohort: smallest number of clients of a round; 0 without rounds.
    max_cohort: largest number of clients of a round; 0 without rounds.
    last_round: highest round; -1 without rounds.
    last_client: highest client index; -1 without rounds or indices.
    z_stddev: smallest measured standard deviation of the noise, clip included;
      None if it was never measured.
    cohort_sizes: round to number of its clients, rounds ascending.
    unmeasured: finished rounds without a measurement of the noise.
    unchecked: finished rounds whose noise was not tested where it was added.
    finished_twice: rounds that finished more than once without proof that all
      attempts released the same result.
    enforced: digests of the files that the started rounds followed; None is
      among them if a round has no digest.
    drawn: whether all cohorts are those of the sampling key; None if they were
      not compared since the last round.
    head: head of the chain, in hexadecimal; None without a ledger.
    incomplete: rounds, also burnt ones, with a sum that lacks clients of the
      cohort.
    examined: whether the process of all finished rounds was checked; None if
      the program gave all updates itself, without a process.
    ended: digest of the results at the end of the run; None before the end.
  """

  rounds: int
  finished: int
  burnt: int
  open: tuple[int, ...]
  failed: int
  log: sensitivity.Observed
  min_cohort: int
  max_cohort: int
  last_round: int
  last_client: int
  z_stddev: Optional[float]
  cohort_sizes: dict[int, int]
  unmeasured: tuple[int, ...]
  unchecked: tuple[int, ...]
  finished_twice: tuple[int, ...]
  enforced: frozenset[Optional[bytes]] = frozenset()
  drawn: Optional[bool] = None
  head: Optional[str] = None
  incomplete: tuple[int, ...] = ()
  examined: Optional[bool] = False
  ended: Optional[bytes] = None

  @property
  def clients(self) -> int:
    """Number of different clients that took part."""
    return self.log.clients

  @property
  def min_sep(self) -> Optional[int]:
    """Smallest distance of two rounds of a client; None if nobody has two."""
    return self.log.min_sep

  @property
  def max_participations(self) -> int:
    """Largest number of rounds of a client; 0 without rounds."""
    return self.log.max_participations


def from_log(sizes: dict[int, int], log: sensitivity.Observed) -> Observed:
  """Returns the counts of a log, which has cohorts and no attempts.

  Args:
    sizes: round to number of its clients.
    log: participation of the clients.
  """
  return dataclasses.replace(
    from_attempts(sizes, {}, log, -1), finished=len(sizes)
  )


def from_attempts(
  sizes: dict[int, int],
  attempts: dict[int, list[chain.Attempt]],
  log: sensitivity.Observed,
  last_client: int,
) -> Observed:
  """Returns the counts of a ledger.

  Args:
    sizes: round to number of its clients.
    attempts: round to its attempts.
    log: participation of the clients.
    last_client: highest client index; -1 without one.
  """
  finishes = {
    t: [attempt for attempt in tried if attempt.outcome == chain.FINISHED]
    for t, tried in attempts.items()
  }
  burnt = {
    t
    for t, tried in attempts.items()
    if any(attempt.outcome == chain.ABANDONED for attempt in tried)
  }
  finished = [attempt for done in finishes.values() for attempt in done]
  verdicts = [attempt.drawn for tried in attempts.values() for attempt in tried]

  def rounds(condition) -> tuple[int, ...]:
    return tuple(t for t, done in finishes.items() if condition(t, done))

  return Observed(
    rounds=len(sizes),
    finished=len(rounds(lambda _, done: done)),
    burnt=len(burnt),
    open=rounds(lambda t, done: not done and t not in burnt),
    failed=sum(
      attempt.outcome == chain.FAILED
      for tried in attempts.values()
      for attempt in tried
    ),
    log=log,
    min_cohort=min(sizes.values(), default=0),
    max_cohort=max(sizes.values(), default=0),
    last_round=max(sizes, default=-1),
    last_client=last_client,
    z_stddev=min(
      (
        attempt.z_stddev for attempt in finished if attempt.z_stddev is not None
      ),
      default=None,
    ),
    cohort_sizes=sizes,
    # PRIVACY: a finished attempt without a test of its noise may have released
    # a sum with too little noise. One such attempt marks its round as
    # unchecked.
    # Guard: ledger_test.test_noise_that_was_checked_in_one_round_is_unchecked.
    unmeasured=rounds(
      lambda _, done: any(attempt.z_stddev is None for attempt in done)
    ),
    unchecked=rounds(
      lambda _, done: any(not attempt.noise_checked for attempt in done)
    ),
    finished_twice=rounds(
      lambda _, done: (
        len(done) > 1
        and (
          done[0].result is None
          or len({attempt.result for attempt in done}) > 1
        )
      )
    ),
    # PRIVACY: an edited plan could hide behind rounds that never finished,
    # although their clients took part. The digest of every started round
    # counts. Guard:
    # evidence_test.test_run_without_a_finished_round_is_bound_to_its_files.
    enforced=frozenset(
      attempt.enforced
      for tried in attempts.values()
      for attempt in tried
      if attempt.outcome != chain.ABANDONED
    ),
    # PRIVACY: one cohort that was not drawn by chance voids amplification, and
    # a verdict does not cover later rounds. A single False decides, and the
    # last attempt must have a verdict.
    # Guard: ledger_test.test_verdict_is_of_all_rounds_or_none.
    drawn=False if False in verdicts else (verdicts or [None])[-1],
    # PRIVACY: a failed or burnt attempt may have released a sum of a part of
    # the cohort, which voids amplification. The flag counts in every attempt.
    # Guard: report_sampling_test.test_cut_cohort_of_a_burnt_round_counts.
    incomplete=tuple(
      t
      for t, tried in attempts.items()
      if any(chain.INCOMPLETE in attempt.flags for attempt in tried)
    ),
    examined=_examined(finished),
    ended=(
      [each.ended for tried in attempts.values() for each in tried] or [None]
    )[-1],
  )


def _examined(finished: list[chain.Attempt]) -> Optional[bool]:
  """Returns `Observed.examined` for the finished attempts."""
  # PRIVACY: one round of an unchecked process may have released updates without
  # noise. All finished attempts need a check, or updates of the program itself.
  # Guard: run_report_test.test_one_round_of_an_unchecked_process_is_enough.
  if finished and all(chain.DIRECT in each.flags for each in finished):
    return None
  return bool(finished) and all(
    each.flags & {chain.EXAMINED, chain.DIRECT} for each in finished
  )
