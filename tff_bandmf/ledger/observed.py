"""What a ledger shows, counted from its cohorts alone."""

from __future__ import annotations

import dataclasses
from typing import Optional

from tff_bandmf import sensitivity
from tff_bandmf.ledger import chain


@dataclasses.dataclass(frozen=True)
class Observed:
  """What the ledger shows.

  Attributes:
    rounds: rounds started; each is finished, burnt (or both) or open.
    finished: rounds finished.
    burnt: rounds abandoned, also after an attempt that finished.
    open: rounds that were started and neither finished nor abandoned.
    failed: attempts that failed.
    log: what its cohorts show, open and burnt rounds included.
    min_cohort: fewest clients in a round; 0 without rounds.
    max_cohort: most clients in a round; 0 without rounds.
    last_round: highest round; -1 without rounds.
    last_client: highest client index; -1 without rounds or indices.
    z_stddev: least noise measured in a round; None if it was not recorded.
    cohort_sizes: clients of each round, rounds ascending.
    unmeasured: rounds that finished without a measurement of the noise.
    unchecked: rounds that finished and whose noise nobody tested where it was
      added.
    finished_twice: rounds that finished more than once and for which the ledger
      does not show that one result was released.
    enforced: digests of what the program held to, of rounds that started; None
      is among them where one did not say.
    drawn: whether all cohorts are those of the sampling key; None if nobody has
      looked since the last round.
    head: of the chain of the ledger, in hexadecimal; None without a ledger.
    incomplete: rounds whose sum lacked clients of the cohort, burnt ones too.
    examined: whether a check of the process covers all finished rounds; None if
      no round had a process, since the program gave all updates itself.
    ended: digest of the results that the run ended with; None while it goes on.
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
    """Different clients that took part."""
    return self.log.clients

  @property
  def min_sep(self) -> Optional[int]:
    """Least r2 - r1 of two rounds of one client; None if there are not two."""
    return self.log.min_sep

  @property
  def max_participations(self) -> int:
    """Most rounds of one client; 0 without rounds."""
    return self.log.max_participations


def of_log(sizes: dict[int, int], found: sensitivity.Observed) -> Observed:
  """Returns what a log shows: rounds and their clients, and nothing else.

  Args:
    sizes: clients of each round.
    found: what its cohorts show.
  """
  return dataclasses.replace(
    observed(sizes, {}, found, -1), finished=len(sizes)
  )


def observed(
  sizes: dict[int, int],
  attempts: dict[int, list[chain.Attempt]],
  found: sensitivity.Observed,
  last_client: int,
) -> Observed:
  """Returns what the parts of a ledger show.

  Args:
    sizes: clients of each round.
    attempts: at each round.
    found: what its cohorts show.
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
  every = [attempt for done in finishes.values() for attempt in done]
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
    log=found,
    min_cohort=min(sizes.values(), default=0),
    max_cohort=max(sizes.values(), default=0),
    last_round=max(sizes, default=-1),
    last_client=last_client,
    z_stddev=min(
      (attempt.z_stddev for attempt in every if attempt.z_stddev is not None),
      default=None,
    ),
    cohort_sizes=sizes,
    # PRIVACY: the noise of every release counts, not of one. Guard:
    # ledger_test.test_noise_that_was_checked_in_one_round_is_unchecked.
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
    # PRIVACY: what a round that never finished held to binds as well: its
    # clients took part. Guard:
    # evidence_test.test_run_without_a_finished_round_is_bound_to_its_files.
    enforced=frozenset(
      attempt.enforced
      for tried in attempts.values()
      for attempt in tried
      if attempt.outcome != chain.ABANDONED
    ),
    # PRIVACY: a cohort that differed once was not sampled; and nobody has
    # looked at rounds after the verdict.
    # Guard: ledger_test.test_verdict_is_of_all_rounds_or_none.
    drawn=False if False in verdicts else (verdicts or [None])[-1],
    # PRIVACY: a sum that lacks drawn clients counts in whatever attempt it was.
    # Guard: report_sampling_test.test_cut_cohort_of_a_burnt_round_counts.
    incomplete=tuple(
      t
      for t, tried in attempts.items()
      if any(chain.INCOMPLETE in attempt.flags for attempt in tried)
    ),
    examined=_examined(every),
    ended=(
      [each.ended for tried in attempts.values() for each in tried] or [None]
    )[-1],
  )


def _examined(finished: list[chain.Attempt]) -> Optional[bool]:
  """Returns `Observed.examined` of the attempts that finished."""
  # PRIVACY: one round of a process that nobody looked at may have let clients
  # past the aggregator, whatever the other rounds did. Guard:
  # run_test.test_one_round_of_an_unchecked_process_is_enough.
  if finished and all(chain.DIRECT in each.flags for each in finished):
    return None
  return bool(finished) and all(
    each.flags & {chain.EXAMINED, chain.DIRECT} for each in finished
  )
