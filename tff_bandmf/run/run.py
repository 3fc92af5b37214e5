"""The class `Run`, which carries out a plan in a folder."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

import numpy as np
import tqdm

from tff_bandmf import _checks, _files, errors, participation, report
from tff_bandmf import cohorts as cohorts_lib
from tff_bandmf.cohorts import names as names_lib
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.run import clients as clients_lib
from tff_bandmf.run import opening, tensorboard
from tff_bandmf.run import rounds as rounds_lib
from tff_bandmf.run_files import metrics, run_json

if TYPE_CHECKING:
  from matplotlib.figure import Figure

  from tff_bandmf import accounting
  from tff_bandmf.aggregator import factory
  from tff_bandmf.tff import names as tff

_Process = TypeVar('_Process')
# Notes on the managers that get numbers without noise.
_UNNOISED_MANAGERS = {
  'train_metrics_manager': 'metrics of training rounds, without noise',
  'evaluation_manager': 'evaluations of the model on clients, without noise',
}
# Relative difference up to which two results of one model count as equal.
_RESULT_TOLERANCE = 1e-6
# Names that no result may have: in a report, they would look like a claim.
_CLAIMED = (run_json.LEDGER_HEAD, 'epsilon', 'delta', 'rho')


class Run:
  """The run of a plan in a folder, for use in a `with` block."""

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
    options: Optional[opening.RunOptions] = None,
  ):
    """Makes the folder, or continues the run in the folder.

    Args:
      directory: folder of the run.
      plan: plan of the run. If the folder holds a run, this plan must be the
        plan in the folder. Only a plan with a `Budget` may have another number
        of rounds: more than the plan in the folder, up to its `horizon`. The
        run then continues up to this number of rounds, with the noise and the
        claim in the folder.
      ledger: location of the ledger outside of the folder: the path of a SQLite
        file, or a URL postgresql+psycopg2://... The folder `private/` stores
        the URL, which may have a password, and the key by which the ledger
        hashes clients.
      after: folders of earlier runs on the same clients. The report claims the
        guarantee of these runs and this run together.
      moved: whether the folder was moved or restored, and the original folder
        is gone.
      keep_key: whether the keys of the noise and of sampling are kept after the
        end of the run.
      ledger_head: value that the attribute `ledger_head` had at an earlier
        time, 64 hexadecimal digits. Note the value outside of the folder. If
        the folder was restored to a state before this time, the folder is
        refused. If None, the head is not checked.
      options: details and metrics that a program adds to the run, and a memory
        limit. If None, nothing is added, and the default limit holds.

    Raises:
      ValueError: the folder is in use, is a copy, or holds another run; the run
        in the folder has ended, and `plan` has more rounds than its plan; or
        the ledger never had `ledger_head`.
    """
    _checks.instance('plan', plan, plan_lib.Plan, 'give a tff_bandmf.Plan')
    options = options or opening.RunOptions()
    _checks.instance('options', options, opening.RunOptions, 'give RunOptions')
    self.directory = pathlib.Path(directory)
    self._keep_key = keep_key
    self._warned: set[str] = set()
    self._spellings = names_lib.Spellings()
    # Default number of rounds of `rounds` and of similar methods. It exceeds
    # the number in the folder if the run was opened with a plan of more rounds.
    self._rounds = plan.rounds
    self._budget_left: Optional[float] = None
    self._stopped = False
    self._sampled: Optional[clients_lib.SampledCohorts] = None
    self._stack = contextlib.ExitStack()
    opened = opening.open_folder(
      self.directory, plan, ledger, after, moved, ledger_head, options
    )
    self._journal, self._sampling_key = self._stack.enter_context(opened)
    self._plan = self._journal.plan
    self._noise_adder = self._journal.noise_adder

  def __enter__(self) -> Run:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def close(self) -> None:
    """Records the open round, if any, as failed, and unlocks the folder."""
    if self._journal.closed:
      return
    with self._stack, contextlib.closing(self._journal):
      try:
        self._journal.fail_open_round()
      finally:
        self._end_noise()

  def _end_noise(self) -> None:
    """Ends the noise producers, and destroys the keys if the run has ended."""
    self._noise_adder.close()
    if self._journal.ended and not self._keep_key:
      # PRIVACY: a person with the noise key can subtract the noise from the
      # model. With the sampling key a person can compute the cohorts, which
      # amplification assumes to be secret. Both keys of an ended run are
      # destroyed, unless the user wants to keep them.
      # Guard:
      # run_report_test.test_key_ends_with_the_run_and_the_report_says_so.
      _files.wipe(self.directory / run_json.NOISE_KEY)
      _files.wipe(self.directory / run_json.SAMPLING_KEY)
      self.note(
        key_after='destroyed when the run ended, with tapes and buffers'
      )

  def check(self, process: _Process) -> _Process:
    """Checks a process for values that bypass `aggregator`, and returns it.

    Call this method before `rounds` or `round`, whenever the program starts.
    Without the call, the report begins with a warning that the process was not
    checked. The methods `train`, `train_model` and, given a process, `restore`
    call this method themselves. A program that calls `Round.release` has no
    process to check.

    Args:
      process: `tff.learning.templates.LearningProcess` with `aggregator`, or
        another process with `aggregator` whose `next` takes (state, values of
        clients).

    Raises:
      ValueError: the next state depends on values that bypass the aggregator.
    """
    bypasses = self._noise_adder.check(process)
    if not self._journal.ended:
      self.note(process=bypasses)
    return process

  @property
  def aggregator(self) -> factory.CorrelatedNoiseFactory:
    """The aggregation factory for the learning process of the run."""
    self._journal.check_folder()
    return self._noise_adder.aggregator

  def federated_mean(
    self, value: tff.Value, weight: Optional[tff.Value] = None
  ) -> tff.Value:
    """Returns the mean of clients' updates with the noise of the round.

    If you write a process yourself, call this method instead of TFF's
    `federated_mean` to average the updates. The process needs no other change,
    and its state needs no further element.

    Args:
      value: updates at clients, with float leaves, or a structure of them.
      weight: must be None. TFF's `federated_mean` has this argument.

    Raises:
      TypeError: updates have weights, or a leaf of an update is not a float.
      ValueError: the run has an aggregator process already, or its clip adapts.
    """
    return self.aggregator.federated_mean(value, weight)

  def restore(
    self,
    process: Union[tff.templates.IterativeProcess, Callable[[], Any]],
  ) -> Any:
    """Returns the state from which the run continues.

    Args:
      process: TFF process with `aggregator` or `federated_mean`, which `check`
        checks; or a function that returns the first state, any structure of
        arrays. This method always computes the first state, since a checkpoint
        does not store the structure.

    Raises:
      ValueError: the checkpoint is damaged, belongs to another process, or
        contradicts the ledger; or the next state of the process depends on
        values that bypass the aggregator.
    """
    initialize: Any = process
    # PRIVACY: a process that the user wrote could let values of clients into
    # its next state without noise, and no other call gets the process. A
    # process that is given instead of a function is checked first.
    # Guard:
    # federated_mean_test.test_process_past_the_noise_is_not_restored.
    if not callable(process):
      initialize = self.check(process).initialize
    try:
      return self._journal.restore(initialize)
    except RuntimeError:
      self._noise_adder.check_context()
      raise

  def rounds(
    self,
    *,
    clients: clients_lib.Clients,
    seed: int = 0,
    prepare: Optional[Callable[[int, np.ndarray], Any]] = None,
    rounds: Optional[int] = None,
    until: Optional[rounds_lib.Epsilon] = None,
  ) -> Iterator[rounds_lib.Round]:
    """Yields the remaining rounds, each after the ledger has its cohort.

    Finish a round before you take the next one. A round that is given up
    (burnt) is not yielded.

    **Formal guarantee.** Each round states in the ledger, before it runs, the
    number of rounds of the whole run, which `rounds` or `until` gives. If all
    rounds stated the same number, the claim of the report is for this number of
    rounds: it was fixed before the first release. Otherwise, the claim is for
    all planned rounds. So a loop may stop at any time, by any rule: its
    releases are a part of the releases of the stated rounds.

    Args:
      clients: number of clients; or a list of different integers or strings; or
        an object whose `client_ids` is such a list, such as TFF's `ClientData`.
        A client must keep its ID whenever the program is started. If clients
        have left the population, state their number with
        `run.note(clients_left=...)`.
      seed: seed by which the cohorts of an enforced schema are drawn; the
        guarantee does not depend on the seed.
      prepare: function of (index of a round, IDs of its cohort) that returns
        the attribute `data` of the round. A second thread calls the function
        one round ahead. If None, no data is prepared.
      rounds: number of rounds of the whole run, at most the number of rounds of
        the plan or, for a `Budget`, its `horizon`. If None, it is the number
        of rounds of the plan.
      until: epsilon at the delta of the plan, instead of `rounds`: the run has
        `plan.rounds_within(epsilon)` rounds. Give `until` at every start of the
        program.

    Raises:
      ValueError: too few clients may take part to fill a cohort, a round was
        not finished, a client of an earlier round is not in the population, or
        `until` is below the epsilon of the first round.
    """
    plan, journal = self._plan, self._journal
    last = self._last(rounds, until)
    journal.settle()
    if journal.ended or journal.next >= last:
      remedy = opening.MORE_ROUNDS
      if last < plan.strategy.rounds and not journal.ended:
        remedy = f'for more, give rounds=, at most {plan.strategy.rounds}'
      errors.notice(f'All {last} rounds are done; {remedy}.', logging.INFO)
    if journal.ended:
      return
    ids = clients_lib.population(clients)
    if ids.dtype.kind == 'U':
      # PRIVACY: Two spellings of one name would make two clients with fewer
      # rounds each. The program gets a warning.
      # Guard: run_rounds_test.test_names_alike_are_named_at_the_start_of_a_run.
      self._warn_of_names(names_lib.alike(ids.tolist()))
    source: clients_lib.CohortSource
    if self._sampling_key is not None:
      source = self._sampled = clients_lib.SampledCohorts(
        journal, self._sampling_key, ids
      )
    else:
      plan.check_population(len(ids))
      source = cohorts_lib.CohortSampler(
        len(ids), plan.clients_per_round, last, plan.schema, seed
      )
    with futures.ThreadPoolExecutor(1) as thread:
      ahead = None
      if prepare is not None:
        ahead = functools.partial(thread.submit, prepare)
      cohorts = clients_lib.Cohorts(journal, source, ids, last, ahead)
      while journal.next < last and not self._stopped:
        open_round = cohorts.start()
        self._budget_left = cohorts.budget_left
        # PRIVACY: the sum of the updates of more than `most_clients` clients
        # could overflow int32, and the guarantee does not cover such a sum. A
        # round with more clients is burnt and releases nothing.
        # Guard:
        # run_sampling_test.test_cohort_that_is_too_large_burns_its_round.
        if len(open_round.cohort) > plan.most_clients:
          journal.burn(open_round.index)
          continue
        yield open_round
        self._warn(open_round)
        if journal.open_round is not None:
          raise errors.value_error(
            f'round={journal.next}: was not finished; call round.finish(state) '
            'before you take the next round'
          )

  @contextlib.contextmanager
  def round(
    self,
    *,
    cohort: Sequence[Union[int, str]],
    until: Optional[rounds_lib.Epsilon] = None,
  ) -> Iterator[rounds_lib.Round]:
    """Yields the next round, for clients that checked in.

    The run does not draw these clients from a list: a client checks in when it
    is ready to take part. A round that ends without `finish`, for instance by a
    crash, is given up (burnt). A replay is not possible, since the same clients
    will not check in again.

    Args:
      cohort: IDs of the clients that checked in. The round leaves out the
        clients that the schema does not admit to this round, and has at most
        the first `plan.most_clients` admitted clients. A client that checks in
        under a new ID counts as a new client, since the run has no list of all
        clients for a comparison.
      until: epsilon at which the run stops, the same in every round, see
        `rounds`.

    Raises:
      ValueError: the run has no rounds left, or its cohorts are sampled.
    """
    plan, journal = self._plan, self._journal
    # PRIVACY: clients that checked in were not sampled at random, so an
    # amplified epsilon would be too small. A plan with sampled cohorts is
    # refused.
    # Guard: run_sampling_test.test_clients_that_come_by_themselves_are_refused.
    if plan.sampled is not None:
      raise errors.value_error(
        f'cohorts={plan.sampled.name}: are sampled by the run; use run.rounds '
        'or run.train, or a plan with MinSep'
      )
    # PRIVACY: the claim of an ended run covers its rounds up to the end, so the
    # clients of a later round would not be counted. A round of an ended run is
    # refused before anything is written.
    # Guard: run_interrupted_test.test_ended_run_is_as_it_was_after_every_call.
    if journal.ended or self._stopped:
      raise errors.value_error(
        f'round={journal.next}: comes after the end of the run; '
        f'{opening.MORE_ROUNDS}'
      )
    # PRIVACY: an interrupted round may have released a sum, and the clients
    # that check in now send other updates, so a replay would add the same noise
    # to a second sum. The interrupted round is burnt, even if its cohort was
    # drawn.
    # Guard:
    # run_interrupted_test.test_drawn_round_is_burnt_by_clients_that_come.
    journal.settle(replays=False)
    t = journal.next
    last = plan.strategy.rounds if until is None else self._last(None, until)
    if t >= last:
      raise errors.value_error(
        f'round={t}: is past the last round of the run, {last - 1}; end the '
        f'run with run.record(...); {opening.MORE_ROUNDS}'
      )
    # PRIVACY: NumPy would convert a mixture of integers and strings to strings,
    # so nobody would notice that the program names clients in two ways. `names`
    # refuses a mixture.
    # Guard: run_rounds_test.test_names_keep_their_kind_in_any_container.
    ids = np.asarray(names_lib.names(cohort))
    if ids.dtype.kind == 'U':
      self._warn_of_names(
        self._spellings.alike(
          ids.tolist(), lambda texts: journal.ledger.past(texts, t).count > 0
        )
      )
    by_budget = isinstance(plan.schema, participation.Budget)
    past = journal.ledger.past(ids, t, whole=by_budget)
    admission = cohorts_lib.admit(
      ids, t, plan.schema, plan.strategy.rounds, past
    )
    admitted = ids[admission.admitted][: plan.most_clients]
    refused = len(ids) - len(admitted)
    # PRIVACY: clients that checked in need not be in the population that an
    # earlier call of `rounds` stated, and the report would then state too small
    # a population. This line removes the note. If the note is missing,
    # `Journal.settle` burns an interrupted round.
    # Guards: run_rounds_test.test_clients_that_no_list_had_can_be_reported and
    # run_interrupted_test.test_undrawn_round_is_not_taken_for_a_drawn_one.
    self.note(population=None, highest_client=None)
    open_round = rounds_lib.Round(t, admitted, journal, refused=refused)
    journal.start(open_round, last)
    try:
      yield open_round
      self._warn(open_round)
    finally:
      if not open_round.finished:
        journal.burn(t)

  def train(
    self,
    process: tff.learning.templates.LearningProcess,
    dataset: Callable[[Any, int], object],
    *,
    clients: clients_lib.Clients,
    seed: int = 0,
    rounds: Optional[int] = None,
    until: Optional[rounds_lib.Epsilon] = None,
  ) -> Iterator[rounds_lib.FinishedRound]:
    """Trains the process, and yields each remaining round when it is over.

    A round is given up (burnt), and not yielded, if an earlier attempt at the
    round released another sum. Standard error shows the number of rounds, their
    rate, the remaining time, the epsilon of the rounds so far and, for a
    `Budget`, the remaining share of the population's budget. This share is
    computed without noise, so only the operator may see it.

    Args:
      process: learning process with `run.aggregator`.
      dataset: function of (ID of a client, index of a round) that returns the
        client's data, the same data in every call.
      clients: population, see `Run.rounds`.
      seed: seed by which cohorts are drawn, see `Run.rounds`.
      rounds: number of rounds of the whole run, see `Run.rounds`.
      until: epsilon at which the run stops, see `Run.rounds`.

    Raises:
      ValueError: the next state depends on values of clients that bypass the
        aggregator; or `rounds` or `until` is out of range.
    """
    self.check(process)
    self._noise_adder.check_context()
    self._warn()
    journal = self._journal
    state = self.restore(process.initialize)
    last = self._last(rounds, until)
    with tqdm.tqdm(initial=journal.next, total=last) as bar:
      for open_round in self.rounds(clients=clients, seed=seed, rounds=last):
        t = open_round.index
        data = [dataset(client, t) for client in open_round.cohort.tolist()]
        spent = self._plan.spent(t + 1)
        # PRIVACY: an epsilon that is rounded to the nearest number may be below
        # the true epsilon, so the operator would read too strong a claim. The
        # progress bar shows an epsilon that is rounded up.
        # Guard: run_test.test_learning_process_is_trained_by_the_run.
        parts = []
        if spent is not None:
          parts.append(f'epsilon {plan_lib.rounded_up(spent)}')
        if self._budget_left is not None:
          parts.append(f'{self._budget_left:.1%} of the budget left')
        bar.set_postfix_str(', '.join(parts))
        step = functools.partial(process.next, state, data)
        output = open_round.attempt(step)
        if output is not None:
          state = open_round.finish(output.state, output.metrics)
          self._warn(open_round)
        bar.update(journal.next - bar.n)
        if output is not None:
          yield rounds_lib.FinishedRound(
            t, open_round.cohort, state, output.metrics
          )

  def _warn(self, done: Optional[rounds_lib.Round] = None) -> None:
    """Warns on standard error of too much noise, or of zero updates, once each.

    Args:
      done: a round that was just finished. If None, only the noise is checked.
    """
    self._notice('noise', self._noise_adder.warning)
    if done is not None and done.without_effect:
      self._notice(
        'all' if done.without_effect == done.updates else 'some',
        f'WARNING: {done.without_effect} of {done.updates} updates of round '
        f'{done.index} were zero or not finite, and add nothing',
      )

  def _notice(self, kind: str, line: Optional[str]) -> None:
    """Writes a line to standard error if it is the first line of its kind."""
    if line is not None and kind not in self._warned:
      self._warned.add(kind)
      errors.notice(line)

  def _warn_of_names(self, line: Optional[str]) -> None:
    """Warns, also in the report, that two names may mean the same client."""
    if line is None:
      return
    # PRIVACY: two names of one client count as two clients with fewer rounds
    # each, and the epsilon of this client is larger than the claim. Nobody can
    # know whether '7' and '07' are one client, so the report says that the
    # guarantee does not cover such a client.
    # Guard: run_rounds_test.test_names_alike_are_named_at_the_start_of_a_run.
    self._journal.append_to_note('not_covered', names_lib.NOT_COVERED)
    self._notice('names', f'WARNING: {errors.invalid(line)}')

  @property
  def ledger_head(self) -> str:
    """The head of the ledger's chain: a hash of all events in the ledger.

    The head has 64 hexadecimal digits. Note it outside of the folder and its
    backups; see the argument `ledger_head` of `Run`.
    """
    return self._journal.ledger.head()

  def tensorboard(self) -> None:
    """Writes the numbers of each later round for TensorBoard.

    Call this method once, before the first round, for any kind of loop. The
    folder is `private/tensorboard`, since metrics of a process have no noise.

    Raises:
      ImportError: TensorBoard is not installed.
    """
    writer = tensorboard.Writer(self.directory / run_json.TENSORBOARD)
    self._stack.callback(writer.close)
    self._journal.observe = writer.write

  @property
  def metrics(self) -> list[dict[str, float]]:
    """A table with all numbers of each round that is over, by name.

    The table has the columns of `metrics.csv`, which the module
    `run.measurements` lists, and the metrics of the learning process, such as
    the loss of the clients. The metrics have no noise. When the run is closed,
    it writes the table to `private/metrics.csv`, and nobody may publish this
    file.
    """
    return metrics.table(
      self.directory, self._journal.ledger.contents().attempts
    )

  @property
  def rounds_done(self) -> int:
    """Number of rounds that are over, burnt ones included."""
    return self._journal.next

  @property
  def rounds_left(self) -> int:
    """Number of remaining rounds; 0 if the run has ended or was stopped.

    An interrupted round that can be replayed counts as remaining.
    """
    if self._journal.ended or self._stopped:
      return 0
    return max(self._rounds - self._journal.next, 0)

  def stop(self) -> None:
    """Ends the rounds of the run here: no further round starts.

    Afterwards, `record` ends the run. The claim does not become smaller, since
    the time of the stop may depend on the model: see `rounds`.
    """
    self._stopped = True

  def _last(
    self, rounds: Optional[int], until: Optional[rounds_lib.Epsilon]
  ) -> int:
    """Returns the number of rounds of the whole run, see `Run.rounds`.

    If `until` is given, `rounds_left` and `record` use this number from now on.
    """
    last = rounds_lib.number_of_rounds(self._plan, rounds, until, self._rounds)
    if until is not None:
      self._rounds = last
    return last

  def train_model(
    self,
    process: tff.learning.templates.LearningProcess,
    dataset: Callable[[Any, int], object],
    *,
    clients: clients_lib.Clients,
    seed: int = 0,
    rounds: Optional[int] = None,
    until: Optional[rounds_lib.Epsilon] = None,
    **program: Any,
  ) -> None:
    """Runs the remaining rounds in TFF's own program loop.

    The loop is `tff.learning.programs.train_model`; the module
    `run.train_model` lists how a run changes this loop. Call this method inside
    of `runtime.local_runtime(program=True)`. In a notebook or a coroutine, the
    event loop of the caller waits until the call returns. The functions and
    managers in the arguments run in another thread.

    Args:
      process: learning process with `run.aggregator`.
      dataset: function of (ID of a client, index of a round) that returns the
        client's data, the same data in every call.
      clients: population, see `Run.rounds`.
      seed: seed by which cohorts are drawn, see `Run.rounds`.
      rounds: number of rounds of the whole run, see `Run.rounds`.
      until: epsilon at which the run stops, see `Run.rounds`.
      **program: any of four arguments of TFF's `train_model`:
        `model_output_manager`, which gets the weights, `train_metrics_manager`,
        `evaluation_manager` and `evaluation_periodicity`. The run sets the
        other arguments.

    Raises:
      TypeError: `program` has another argument, such as `should_discard_round`.
      ValueError: the next state depends on values of clients that bypass the
        aggregator; or TFF's context is not a context for federated programs.
    """
    from tff_bandmf.run import train_model
    from tff_bandmf.tff import runtime

    runtime.check_program()
    self.check(process)
    self._warn()
    # PRIVACY: the guarantee does not cover metrics without noise, and a release
    # manager may publish them. The report names each manager that gets metrics.
    # Guard: train_model_test.test_what_managers_get_is_named.
    for name, sentence in _UNNOISED_MANAGERS.items():
      if program.get(name) is not None and not self._journal.ended:
        self.note_side_release(sentence)
    last = self._last(rounds, until)
    remaining = self.rounds(clients=clients, seed=seed, rounds=last)
    source = train_model.RoundSource(process, remaining, dataset, self._journal)
    runtime.run_coroutine(
      train_model.train_model(process, source, self._journal, last, **program)
    )

  def note(self, **notes: Any) -> None:
    """Changes notes on the run, which the report shows.

    Args:
      **notes: values of notes, which `run_files.RunDetails` lists.

    Raises:
      ValueError: a name is not the name of a note, or a value has a wrong type.
    """
    self._journal.set_notes(**notes)

  def note_side_release(self, sentence: str) -> None:
    """Adds a sentence to `side_releases`, which the report shows.

    Args:
      sentence: a few words that name a value that is released without noise.
    """
    self._journal.append_to_note('side_releases', sentence)

  def note_not_covered(self, sentence: str) -> None:
    """Adds a sentence to `not_covered`, which the report shows.

    Args:
      sentence: a few words that name an access to data that the guarantee does
        not cover.
    """
    self._journal.append_to_note('not_covered', sentence)

  def record(self, **results: float) -> None:
    """Writes the measured results of the last model, and ends the run.

    Args:
      **results: finite numbers under names that you choose.

    Raises:
      ValueError: rounds are left and `stop` was not called, a result is not a
        finite number, or the run has ended with other results.
    """
    values: dict[str, Any] = results
    for name, value in values.items():
      # A model may give a number as an array of one entry.
      if isinstance(value, np.ndarray) and value.size == 1:
        results[name] = value = value.item()
      is_finite = _checks.is_number(value) and math.isfinite(value)
      if name in _CLAIMED or not is_finite:
        raise errors.value_error(
          f'record={name}={value}: must be a finite number under a name of '
          'your own; record numbers such as test_accuracy=0.24'
        )
    # A run with a `Budget` may end after any round, since its claim covers any
    # number of rounds up to the horizon.
    by_budget = isinstance(self._plan.schema, participation.Budget)
    least = min(self._rounds, self._plan.rounds)
    # PRIVACY: A run could choose its last round by its releases. It may end
    # early only after a call of `stop`, which does not reduce the claim.
    # Guard: run_rounds_test.test_run_is_not_recorded_before_its_last_round.
    least = 1 if by_budget or self._stopped else least
    journal = self._journal
    if journal.next < least and not journal.ended:
      raise errors.value_error(
        f'record=round {journal.next}: is before the last of {least} rounds; '
        'run the others first, or call run.stop() to stop here'
      )
    if journal.ended:
      recorded = self.results or {}
      for name, value in results.items():
        old = recorded.get(name, math.nan)
        if not math.isclose(value, old, rel_tol=_RESULT_TOLERANCE):
          raise errors.value_error(
            f'record={name}={value}: differs: the run ended with {recorded}; '
            'keep these results: a run is measured once'
          )
    else:
      if journal.open_round is None:
        journal.settle(replays=False)
      if self._sampled is not None:
        as_drawn = self._sampled.as_drawn(range(journal.next))
        journal.ledger.record_drawn(as_drawn)
      journal.end(results)
      self._end_noise()

  @property
  def results(self) -> Optional[Mapping[str, float]]:
    """The results given to `record`; None if the run has not ended."""
    ended = self._journal.ledger.ended()
    return None if ended is None else ended.results

  def plot(self, *names: str) -> Figure:
    """Returns a Matplotlib figure of `metrics`, with a panel for each name.

    Metrics of the learning process have no noise, so only the operator may see
    a figure with them.

    Args:
      *names: names in `metrics`. Without names, the figure has all numbers that
        differ between rounds.

    Raises:
      ImportError: Matplotlib is not installed.
      ValueError: no round is over, or no round has a number of this name.
    """
    with errors.importing('a plot'):
      from tff_bandmf import _figures

    curves: dict[str, list[tuple[int, float]]] = {}
    for row in self.metrics:
      for name, value in row.items():
        curves.setdefault(name, []).append((int(row['round']), value))
    rounds = curves.pop('round', [])
    shown = names or tuple(
      name
      for name, points in curves.items()
      if len({value for _, value in points}) > 1 or len(rounds) == 1
    )
    for name in shown or ('round',):
      if name not in curves:
        raise errors.value_error(
          f'names={name}: is not in the metrics of {len(rounds)} rounds, '
          f'{", ".join(curves) or "none"}; finish a round, or name one of them'
        )
    return _figures.by_round({name: curves[name] for name in shown})

  def erase_identifiers(self) -> None:
    """Destroys the key of the identifiers in the ledger.

    Afterwards, nobody can find a client in the ledger. Reports can still be
    made, because the counts and the chain of hashes stay.

    Raises:
      ValueError: the run has not ended, and needs the key to admit clients.
    """
    if not self._journal.ended:
      raise errors.value_error(
        f'erase_identifiers=round {self._journal.next}: comes before the end '
        'of the run, which needs the key; call run.record(...) first'
      )
    # PRIVACY: a person with the key and the ledger can learn in which rounds a
    # client took part. This line destroys the key.
    # Guard: run_report_test.test_identifiers_can_be_erased.
    _files.wipe(self.directory / run_json.LEDGER_KEY)

  def report(self) -> report.Report:
    """Returns the report of the run so far, and writes it to the folder."""
    built = report.build(self.directory)
    built.write(self.directory)
    return built

  @property
  def guarantee(self) -> accounting.Composition:
    """Guarantee of the whole run, together with the earlier runs of `after`.

    Each run counts with all its planned rounds, started or not; the report has
    the epsilon of the rounds so far. `accounting.compose` reads this attribute
    of its arguments, so a run can be an argument of `compose`.
    """
    return report.of_run(self.directory).guarantee
