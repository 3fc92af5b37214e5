"""The face of a run: its folder, its aggregator, and the ways to drive it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
import tqdm

from tff_bandmf import _files, accounting, errors, report
from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf.ledger import identifiers
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.plan import plan_text
from tff_bandmf.run import clients as clients_lib
from tff_bandmf.run import opening, sampling
from tff_bandmf.run import rounds as rounds_lib
from tff_bandmf.run_files import run_json

_TOLD = {
  'train_metrics_manager': 'metrics of training rounds, without noise',
  'evaluation_manager': 'evaluations of the model on clients, without noise',
}
# A model that is measured again gives the same numbers but for rounding.
_SAME_RESULT = 1e-6
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
    ledger_head: Optional[str] = None,
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
      ledger_head: of the ledger, as `ledger_head` or a report gave it and as it
        was noted elsewhere. A folder that was restored to an earlier moment is
        then refused; None lets it pass.
      program: what a program of its own adds.

    Raises:
      ValueError: the folder is in use, is a copy, holds another run, or has a
        ledger that does not know its head.
    """
    self.directory = pathlib.Path(directory)
    self._keep_key = keep_key
    self._warned: set[str] = set()
    self._as_drawn: Optional[Callable[[], bool]] = None
    self._stack = contextlib.ExitStack()
    opened = self._stack.enter_context(
      opening.open_folder(
        self.directory,
        plan,
        ledger=ledger,
        after=after,
        moved=moved,
        ledger_head=ledger_head,
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
    if self._journal.closed:
      return
    with self._stack:
      try:
        try:
          self._journal.leave()
        finally:
          self._end_noise()
      finally:
        self._journal.close()

  def _end_noise(self) -> None:
    """Ends the noise, and destroys its key if the run has ended."""
    self._noised.close()
    if self._ended and not self._keep_key:
      # PRIVACY: who finds it takes the noise off. Guard:
      # run_test.test_key_ends_with_the_run_and_the_report_says_so.
      _files.wipe(self.directory / run_json.NOISE_KEY)
      _files.wipe(self.directory / run_json.SAMPLING_KEY)
      self.note(
        key_after='destroyed when the run ended, with tapes and buffers'
      )

  def check(self, process: Any) -> Any:
    """Returns the process of an own loop, if nothing passes its aggregator.

    Call it before `rounds` or `round`, whenever the program begins: the report
    of a run whose process was not checked leads with that. `train` and
    `train_model` call it themselves; `round.release` has no process.

    Args:
      process: `tff.learning.templates.LearningProcess` with `aggregator`, or
        another one with a `next` of (state, values of clients).

    Raises:
      ValueError: the process lets what clients compute past the aggregator.
    """
    self.note(process=self._noised.check(process))
    return process

  @property
  def aggregator(self) -> Any:
    """The aggregation factory for the one learning process of the run."""
    self._journal.check_folder()
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
        has them as `client_ids`, such as TFF's `ClientData`. Clients have the
        same names whenever the program is begun again; `run.note` says how
        many left, `clients_left`.
      seed: of the draws of the cohorts, where no guarantee rests on them.
      prepare: gives `round.data` of (round, cohort), in another thread and one
        round ahead.

    Raises:
      ValueError: cohorts cannot be filled, a round was not finished, or who
        takes part is not what it was.
    """
    plan, kept = self._plan, self._journal
    if self._ended or kept.next == plan.rounds:
      tqdm.tqdm.write(
        f'All {plan.rounds} rounds are done; {opening.GO_ON}.', sys.stderr
      )
    if self._ended:
      return
    ids = clients_lib.population(clients)
    drawing = clients_lib.drawing(plan, self._sampling_key, ids, seed)
    if isinstance(drawing, sampling.Drawing):
      drawing.check_last(kept.ledger, kept.next)
      self._as_drawn = functools.partial(
        drawing.as_drawn, kept.ledger, plan.rounds
      )
    with clients_lib.Cohorts(
      kept, drawing, ids, plan.rounds, prepare
    ) as cohorts:
      while kept.next < plan.rounds:
        t = kept.next
        if kept.is_burnt(t):
          kept.burn(t)
          continue
        cohort, data = cohorts.draw(t)
        opened = kept.start(
          rounds_lib.Round(kept, self._noised, t, cohort, data=data)
        )
        cohorts.started()
        # PRIVACY: the lattice has no room for them. Guard:
        # run_sampling_test.test_cohort_that_is_too_large_burns_its_round.
        if len(cohort) > plan.most_clients:
          kept.burn(t)
          continue
        yield opened
        self._warn()
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
        those after the first `largest_cohort`. A client that comes under
        another name than before is taken for a new one: nobody has a list of
        all clients here that would show it.

    Raises:
      ValueError: the run is over.
    """
    plan, kept = self._plan, self._journal
    # PRIVACY: clients that came were on no list, so the population that a loop
    # noted before is not that of the run. Guard:
    # run_rounds_test.test_clients_that_no_list_had_can_be_reported.
    self.note(population=None, highest_client=None)
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
      kept.burn(kept.next)
    t = kept.next
    if t >= plan.rounds or self._ended:
      raise errors.value_error(
        'round',
        t,
        f'is past the last of the plan, {plan.rounds - 1}',
        opening.GO_ON,
      )
    ids = np.asarray(identifiers.names(cohort))
    found = cohorts_lib.admit(
      ids, t, plan.cohorts.schema, plan.rounds, kept.ledger.past(ids, t)
    )
    admitted = ids[found.admitted][: plan.most_clients]
    refused = len(ids) - len(admitted)
    opened = kept.start(
      rounds_lib.Round(kept, self._noised, t, admitted, refused=refused)
    )
    try:
      yield opened
      self._warn()
    finally:
      if not opened.finished:
        kept.burn(t)

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
    self.check(process)
    self._warn()
    kept, last = self._journal, self._plan.rounds
    state = self.restore(process.initialize)
    with tqdm.tqdm(initial=kept.next, total=last) as bar:
      for opened in self.rounds(clients=clients, seed=seed):
        data = [
          dataset(client, opened.index) for client in opened.cohort.tolist()
        ]
        spent = self._plan.spent(opened.index + 1)
        # PRIVACY: a bound that is rounded to the nearest may be below the true
        # epsilon, so it is rounded up. Guard:
        # run_test.test_learning_process_is_trained_by_the_run.
        bar.set_postfix_str(
          '' if spent is None else f'epsilon {plan_text.rounded_up(spent)}'
        )
        output = opened.attempt(functools.partial(process.next, state, data))
        if output is None:
          bar.update(kept.next - bar.n)
          continue
        state = opened.finish(output.state, output.metrics)
        self._warn(opened)
        bar.update(kept.next - bar.n)
        yield rounds_lib.Done(
          opened.index, opened.cohort, state, output.metrics
        )

  def _warn(self, done: Optional[rounds_lib.Round] = None) -> None:
    """Says on standard error, once, what makes a model of noise."""
    lines = {'noise': self._noised.warning}
    if done is not None and done.without_effect:
      which = 'all' if done.without_effect == done.updates else 'some'
      lines[which] = (
        f'WARNING: {which} updates of round {done.index} were zero or not '
        'finite, and add nothing'
      )
    for kind, line in lines.items():
      if line is not None and kind not in self._warned:
        self._warned.add(kind)
        errors.notice(line)

  @property
  def ledger_head(self) -> str:
    """What stands for all that the ledger has now, 64 hexadecimal digits.

    Note it where the folder's backups do not reach; see `Run`.
    """
    return self._journal.ledger.head()

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
    from tff_bandmf.run import train_model
    from tff_bandmf.tff import runtime

    runtime.check_program()
    self.check(process)
    self._warn()
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
    """Says what the report must say; see `run_files.RunRecord`."""
    self._journal.note(**statements)

  def record(self, **results: float) -> None:
    """Writes what the last model was measured to do; the run is then over.

    Raises:
      ValueError: rounds are left, a result is not a finite number, or the run
        has ended with other results.
    """
    for name, value in results.items():
      if name == run_json.LEDGER_HEAD or not _is_finite(value):
        raise errors.value_error(
          'record',
          f'{name}={value}',
          'is not a result: a finite number under a name of your own',
          'record numbers such as test_accuracy=0.24',
        )
    if self._journal.next < self._plan.rounds:
      raise errors.value_error(
        'record',
        f'round {self._journal.next}',
        f'comes before the last of {self._plan.rounds} rounds',
        'call it when all rounds are done',
      )
    if self._ended:
      recorded, _ = run_json.read_result(self.directory)
      for name, value in results.items():
        if not math.isclose(
          value, recorded.get(name, math.nan), rel_tol=_SAME_RESULT
        ):
          raise errors.value_error(
            'record',
            f'{name}={value}',
            f'comes after the run ended with {recorded}',
            'keep the first results: a run is measured once',
          )
    else:
      if self._as_drawn is not None:
        self._journal.ledger.record_drawn(self._as_drawn())
      run_json.write_result(self.directory, results, self._journal.ledger)
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
    _files.wipe(self.directory / run_json.LEDGER_KEY)

  def report(self) -> report.Report:
    """Returns the report of the run so far, which is also in the folder."""
    found = report.build(self.directory)
    found.write(self.directory)
    return found

  @property
  def guarantee(self) -> accounting.Composition:
    """What the run so far may claim, together with the runs before it.

    `accounting.compose` takes runs.
    """
    return report.of_run(self.directory).guarantee


def _is_finite(value: Any) -> bool:
  try:
    return math.isfinite(value)
  except TypeError:
    return False
