"""The face of a run: its folder, its aggregator, and the ways to drive it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
import tqdm

from tff_bandmf import _files, accounting, errors, program, report
from tff_bandmf.program import plan as plan_lib
from tff_bandmf.program import run_record
from tff_bandmf.run import clients as clients_lib
from tff_bandmf.run import opening, sampling
from tff_bandmf.run import rounds as rounds_lib

_TOLD = {
  'train_metrics_manager': 'metrics of training rounds, without noise',
  'evaluation_manager': 'evaluations of the model on clients, without noise',
}
# No program of its own.
_ALONE = opening.Program()


class Run:
  """The run of a plan in a folder; use it in a `with` statement."""

  def __init__(
    self,
    directory: Union[str, os.PathLike],
    plan: plan_lib.Plan,
    *,
    ledger: Optional[Union[str, os.PathLike]] = None,
    after: Sequence[Union[str, os.PathLike]] = (),
    moved: bool = False,
    keep_key: bool = False,
    program: opening.Program = _ALONE,
  ):
    """Makes the folder, or goes on with the run that is in it.

    Args:
      directory: of the run.
      plan: of the run; a folder keeps the strategy that it was made with.
      ledger: where it is if not in the folder: the path of a SQLite file, or
        postgresql+psycopg2://... The key of its identifiers, and a new URL,
        such as one with another password, are kept in `private/`.
      after: folders of earlier runs on the same clients; the report claims what
        all of them guarantee together.
      moved: whether the folder was moved or restored, and is the only one.
      keep_key: whether the key of the noise stays when the run has ended.
      program: what a program of its own adds.

    Raises:
      ValueError: the folder is in use, is a copy, or holds another run.
    """
    self.directory = pathlib.Path(directory)
    self._keep_key = keep_key
    self._as_drawn: Optional[Callable[[], bool]] = None
    self._stack = contextlib.ExitStack()
    opened = self._stack.enter_context(
      opening.open_folder(
        self.directory,
        plan,
        ledger=ledger,
        after=after,
        moved=moved,
        program=program,
      )
    )
    self._plan = opened.plan
    self._ended = opened.ended
    self._sampling_key = opened.sampling_key
    self._journal = opened.journal
    self._noised = opened.noise

  def __enter__(self) -> Run:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def close(self) -> None:
    """Fails the round that is open, and gives the folder back."""
    with self._stack:
      try:
        self._journal.leave()
      finally:
        self._end_noise()

  def _end_noise(self) -> None:
    """Ends the noise, and destroys its key if the run has ended."""
    self._noised.close()
    if self._ended and not self._keep_key:
      # PRIVACY: who finds it takes the noise off. Guard:
      # run_test.test_key_ends_with_the_run_and_the_report_says_so.
      _files.wipe(self.directory / run_record.NOISE_KEY)
      _files.wipe(self.directory / run_record.SAMPLING_KEY)
      self.note(
        key_after='destroyed when the run ended, with tapes and buffers'
      )

  @property
  def aggregator(self) -> Any:
    """The aggregation factory for the one learning process of the run."""
    return self._noised.aggregator

  def restore(self, initialize: Callable[[], Any]) -> Any:
    """Returns the state that the run goes on from.

    Args:
      initialize: gives the first state of the process, any structure of
        arrays. It is called every time, and tells the structure.

    Raises:
      ValueError: the checkpoint is damaged, of another process, or contradicts
        the ledger.
    """
    return self._journal.restore(initialize)

  def rounds(
    self,
    *,
    clients: clients_lib.Clients,
    seed: int = 0,
    prepare: Optional[Callable[[int, np.ndarray], Any]] = None,
  ) -> Iterator[rounds_lib.Round]:
    """Yields the rounds that are left, each with its cohort, in the ledger.

    Finish a round before the next one. A round that was burnt is left out.

    Args:
      clients: how many, or who: different indices or strings, or an object that
        has them as `client_ids`, such as TFF's `ClientData`.
      seed: of the draws of the cohorts, where no guarantee rests on them.
      prepare: gives `round.data` of (round, cohort), in another thread and one
        round ahead.

    Raises:
      ValueError: cohorts cannot be filled, a round was not finished, or who
        takes part is not what it was.
    """
    if self._ended:
      return
    plan, kept = self._plan, self._journal
    ids = clients_lib.population(clients)
    drawing = clients_lib.drawing(plan, self._sampling_key, ids, seed)
    self.note(population=len(ids))
    if isinstance(drawing, sampling.Drawing):
      drawing.check_last(kept.ledger, kept.next)
      self._as_drawn = functools.partial(
        drawing.as_drawn, kept.ledger, plan.rounds
      )
    left = range(kept.next, plan.rounds)
    past = kept.ledger.past(ids, kept.next)
    drawn = clients_lib.drawn(drawing, ids, left, past)
    for t, cohort, data in clients_lib.ahead(drawn, prepare):
      if kept.is_burnt(t):
        kept.burn(t, len(cohort))
        continue
      opened = kept.start(
        rounds_lib.Round(kept, self._noised, t, cohort, data=data)
      )
      # PRIVACY: the lattice has no room for them. Guard:
      # run_sampling_test.test_cohort_that_is_too_large_burns_its_round.
      if len(cohort) > plan.most_clients:
        kept.burn(t, len(cohort))
        continue
      yield opened
      if kept.opened is not None:
        raise errors.value_error(
          'round', t, 'was not finished', 'call round.finish(state) in it'
        )

  @contextlib.contextmanager
  def round(
    self, *, cohort: Sequence[Union[int, str]]
  ) -> Iterator[rounds_lib.Round]:
    """Yields the next round, for clients that came by themselves.

    A round that is left without `finish`, also by a crash, is burnt: its
    clients will not come again.

    Args:
      cohort: who came. Who may not take part now is left out, and of the rest
        those after the first `largest_cohort`.

    Raises:
      ValueError: the run is over.
    """
    plan, kept = self._plan, self._journal
    # PRIVACY: who comes by himself was not drawn. Guard:
    # run_sampling_test.test_clients_that_come_by_themselves_are_refused.
    if plan.sampled is not None:
      raise errors.value_error(
        'cohorts',
        plan.sampled.name,
        'are drawn by the run, and no clients come by themselves',
        'use run.rounds or run.train, or a plan with MinSep',
      )
    while kept.ledger.attempts(kept.next):
      # PRIVACY: nobody knows what was seen of it. Guard:
      # run_test.test_round_of_clients_that_came_is_burnt_after_a_crash.
      kept.burn(kept.next, kept.ledger.observed().cohort_sizes[kept.next])
    t = kept.next
    if t >= plan.rounds or self._ended:
      raise errors.value_error(
        'round',
        t,
        f'is past the last of the plan, {plan.rounds - 1}',
        opening.GO_ON,
      )
    ids = np.asarray(cohort)
    found = program.admit(
      ids, t, plan.cohorts.schema, plan.rounds, kept.ledger.past(ids, t)
    )
    admitted = ids[found.admitted][: plan.most_clients]
    refused = len(ids) - len(admitted)
    opened = kept.start(
      rounds_lib.Round(kept, self._noised, t, admitted, refused=refused)
    )
    try:
      yield opened
    finally:
      if not opened.finished:
        kept.burn(t, len(admitted))

  def train(
    self,
    process: Any,
    dataset: Callable[[Any, int], Any],
    *,
    clients: clients_lib.Clients,
    seed: int = 0,
  ) -> Iterator[rounds_lib.Done]:
    """Yields the rounds that are left, each when it is done.

    A round whose sum is another one than was released before is burnt. Standard
    error shows rounds, their rate, the time that is left and epsilon spent.

    Args:
      process: `tff.learning.templates.LearningProcess` with `aggregator`.
      dataset: gives the data of (client, round), the same whenever asked.
      clients: as `rounds` takes them.
      seed: of the draws of the cohorts.

    Raises:
      ValueError: the process lets what clients compute past the aggregator.
    """
    self.note(process=self._noised.check(process))
    kept, last = self._journal, self._plan.rounds
    state = self.restore(process.initialize)
    with tqdm.tqdm(initial=kept.next, total=last) as bar:
      if kept.next == last:
        bar.write(f'All {last} rounds are done; {opening.GO_ON}.', sys.stderr)
      for opened in self.rounds(clients=clients, seed=seed):
        data = [
          dataset(client, opened.index) for client in opened.cohort.tolist()
        ]
        spent = self._plan.spent(opened.index + 1)
        bar.set_postfix_str('' if spent is None else f'epsilon {spent:.4g}')
        output = opened.attempt(functools.partial(process.next, state, data))
        if output is None:
          bar.update(kept.next - bar.n)
          continue
        state = opened.finish(output.state, output.metrics)
        bar.update(kept.next - bar.n)
        yield rounds_lib.Done(
          opened.index, opened.cohort, state, output.metrics
        )

  @property
  def rounds_left(self) -> int:
    """How many rounds of the plan are left, one that a crash left open too."""
    return self._plan.rounds - self._journal.next

  def train_model(
    self,
    process: Any,
    dataset: Callable[[Any, int], Any],
    *,
    clients: clients_lib.Clients,
    seed: int = 0,
    **program: Any,
  ) -> None:
    """Runs the rounds that are left in TFF's own program loop.

    `tff.learning.programs.train_model`, with its hazards closed: see
    `run.train_model`. Call it inside of `runtime.local_runtime(program=True)`.

    Args:
      process: as for `train`.
      dataset: as for `train`.
      clients: as `rounds` takes them.
      seed: of the draws of the cohorts.
      **program: what TFF's `train_model` takes: `model_output_manager`, which
        gets the weights, `train_metrics_manager`, `evaluation_manager` and
        `evaluation_periodicity`. The run has the rest.

    Raises:
      TypeError: another argument, such as `should_discard_round`.
      ValueError: as for `train`; or the context is not that of a program.
    """
    from tff_bandmf.program import runtime
    from tff_bandmf.run import train_model

    runtime.check_program()
    self.note(process=self._noised.check(process))
    # PRIVACY: what has no noise is named. Guard:
    # train_model_test.test_what_managers_get_is_named.
    for name, told in _TOLD.items():
      if program.get(name) is not None:
        self._journal.say('side_releases', told)
    left = self.rounds(clients=clients, seed=seed)
    source = train_model.Source(process, left, dataset, self._journal)
    asyncio.run(
      train_model.train_model(
        process, source, self._journal, self._plan.rounds, **program
      )
    )

  def note(self, **statements: Any) -> None:
    """Says what the report must say; see `program.RunRecord`."""
    self._journal.note(**statements)

  def record(self, **results: float) -> None:
    """Writes what the last model was measured to do; the run is then over.

    Raises:
      ValueError: rounds are left.
    """
    if self._journal.next < self._plan.rounds:
      raise errors.value_error(
        'record',
        f'round {self._journal.next}',
        f'comes before the last of {self._plan.rounds} rounds',
        'call it when all rounds are done',
      )
    if not self._ended:
      if self._as_drawn is not None:
        self._journal.ledger.record_drawn(self._as_drawn())
      _files.write_json(
        self.directory / run_record.RESULT_FILE,
        {
          **{name: float(value) for name, value in results.items()},
          run_record.LEDGER_HEAD: self._journal.ledger.head(),
        },
      )
      self.note(key_after='kept when the run ended')
      self._ended = True
      self._end_noise()

  def erase_identifiers(self) -> None:
    """Destroys the key of the ledger: nobody finds a client in it any more.

    Counts and the chain stay, and reports can still be made.

    Raises:
      ValueError: the run goes on, and needs to know who took part.
    """
    if not self._ended:
      raise errors.value_error(
        'erase_identifiers',
        f'round {self._journal.next}',
        'comes before the end of the run: every client would look new',
        'call run.record(...) after the last round',
      )
    # PRIVACY: without it no hash leads to a client. Guard:
    # run_test.test_identifiers_can_be_erased.
    _files.wipe(self.directory / run_record.LEDGER_KEY)

  def report(self) -> report.Report:
    """Returns the report of the run so far, which is also in the folder."""
    found = report.build(self.directory)
    found.write(self.directory)
    return found

  @property
  def guarantee(self) -> accounting.Guarantee:
    """What the run so far may claim; `accounting.compose` takes runs."""
    return report.of_run(self.directory).claim.claimed
