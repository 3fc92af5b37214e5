"""One round of a run: `Round` while it is open, `FinishedRound` afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, TypeVar

import attrs
import numpy as np

from tff_bandmf import _checks, errors
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.run import journal as journal_lib

_Output = TypeVar('_Output')
_State = TypeVar('_State')
_Update = TypeVar('_Update')


@attrs.frozen
class Epsilon:
  """The epsilon at which a run stops, see `Run.rounds`.

  Attributes:
    value: largest epsilon of the rounds of the run, at the delta of its plan, >
      0.

  >>> Epsilon(4.0)
  Epsilon(value=4.0)
  """

  value: float = attrs.field(
    converter=lambda value: _checks.positive(
      'epsilon', value, 'it is the epsilon at which a run stops'
    )
  )


def number_of_rounds(
  plan: plan_lib.Plan,
  rounds: Optional[int],
  until: Optional[Epsilon],
  default: int,
  name: str = 'rounds',
) -> int:
  """Returns the number of rounds of a whole run.

  Args:
    plan: plan of the run.
    rounds: number of rounds, at least 1 and at most the rounds of the strategy.
    until: epsilon from which the number follows if `rounds` is None, at least
      the epsilon of the first round.
    default: result if `rounds` and `until` are None.
    name: name of `rounds` for the message.

  Raises:
    TypeError: `until` is not an `Epsilon`.
    ValueError: `rounds` or `until` is out of range, or both are given.
  """
  if until is not None:
    if not isinstance(until, Epsilon):
      raise errors.type_error(
        f'until={until!r}: must be an epsilon; give tff_bandmf.Epsilon(4.0), '
        f'or {name}= for a number of rounds'
      )
    if rounds is not None:
      raise errors.value_error(
        f'{name}={rounds}: cannot be given together with until={until}; give '
        'one of them'
      )
    return plan.rounds_within(until.value)
  if rounds is None:
    return default
  rounds = _checks.count(name, rounds, 'rounds of the whole run')
  # PRIVACY: the claim covers only the rounds of the strategy, and in a later
  # round a client could take part more often than the claim counts. A number of
  # rounds beyond the strategy is refused.
  # Guard: run_budget_test.test_rounds_past_the_horizon_are_refused.
  if rounds > plan.strategy.rounds:
    raise errors.value_error(
      f'{name}={rounds}: must be in [1, {plan.strategy.rounds}], the rounds of '
      'the noise; plan with cohorts=Budget(..., horizon=) to go on for longer'
    )
  return rounds


@dataclasses.dataclass(frozen=True)
class FinishedRound:
  """A round that is over, and whose state is on the disk.

  Attributes:
    round: index of the round, integer >= 0.
    cohort: [number of clients] IDs of the clients that took part.
    state: state of the learning process after the round.
    metrics: metrics of the learning process, which have no noise.
  """

  round: int
  cohort: np.ndarray
  state: Any
  metrics: Any


@attrs.define(slots=False, eq=False)
class Round(journal_lib.StartedRound):
  """An open round: the ledger has its cohort, and does not yet have its end.

  A round has the attributes of `StartedRound` and the following two.

  Attributes:
    refused: number of clients that checked in (see `Run.round`) and were left
      out, integer >= 0.
    data: data of the cohort, the result of the argument `prepare` of
      `Run.rounds`; None without `prepare`.
  """

  _journal: journal_lib.Journal
  refused: int = attrs.field(default=0, kw_only=True)
  _data: Optional[Callable[[], Any]] = attrs.field(default=None, kw_only=True)

  @property
  def data(self) -> Any:
    return None if self._data is None else self._data()

  def attempt(self, function: Callable[[], _Output]) -> Optional[_Output]:
    """Returns the result of a function, or None if its call burnt the round.

    The round is burnt if an earlier attempt at the round released a sum and
    this attempt would release a different sum. A burnt round does not change
    the model, and the next round follows.

    Args:
      function: function that calls `next` of the learning process, or `release`
        of this round.
    """
    output = None
    with self._journal.attempting(self):
      output = function()
    return None if self.burnt else output

  def finish(
    self,
    state: _State,
    metrics: object = None,
    shown: Optional[Mapping[str, Any]] = None,
  ) -> _State:
    """Returns the state, after writing the round and the state to the disk.

    Args:
      state: state of the learning process after the round.
      metrics: numbers without noise, in any structure. The numbers stay in
        `private/`, and the report lists their names.
      shown: {column: public number} for the row of the round in `metrics.csv`;
        the columns are names in `RunOptions.columns`.

    Raises:
      ValueError: the round is not open, released nothing, or is burnt; or
        `state` is not a state after the round.
    """
    self._journal.finish(self, state, shown or {}, metrics)
    return state

  def release(self, updates: Iterable[_Update], like: _Update) -> _Update:
    """Returns the mean of updates with the noise of the round, without TFF.

    The updates are clipped as the plan says. Their exact sum gets the noise and
    is divided by `clients_per_round` of the plan. A program calls either this
    method or a learning process with `run.aggregator`.

    Args:
      updates: at most one update of each client of the cohort, in any order. An
        update has float arrays in the structure of `like`. One update at a time
        is in memory.
      like: example of an update, such as the weights. The mean has the
        structure, the shapes and the float dtypes of this example.

    Raises:
      ValueError: the round is not open; an earlier attempt released another
        sum; an update has another structure or shape than `like`; or there are
        more updates than clients.
    """
    # PRIVACY: After a run is closed, it has no lock, so another process may
    # release the same round. A round of a closed run is refused.
    # Guard: run_rounds_test.test_run_that_was_closed_does_nothing.
    journal = self._journal
    journal.check_open(self)
    mean = journal.noise_adder.release(
      self.index, len(self.cohort), updates, like, journal.l2_norm_clip
    )
    # PRIVACY: the caller may publish this mean. After a power cut before
    # `finish`, the replay of the round could add the same noise to a second
    # sum, and the difference of the two means would have no noise. A file with
    # a fingerprint of the first sum is on the disk before this method returns
    # the mean. A replay whose sum has another fingerprint is refused.
    # Guard: run_replay_test.test_mark_is_on_the_disk_before_the_mean.
    journal.position.sync()
    return mean
