"""A run: one folder, one lock, one key, one ledger, one plan, one position.

A program that is killed is begun again as it is, and goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
import tqdm
import tree

from tff_bandmf import _files, errors, program, report
from tff_bandmf.noise import key as key_lib
from tff_bandmf.program import checkpoints, folder, metrics, run_record
from tff_bandmf.program import plan as plan_lib

Clients = Union[int, Sequence[Union[int, str]]]
_COLUMNS = ('round', 'clients')
# At which a plan without one is reported.
_DELTA = 1e-6


@dataclasses.dataclass(frozen=True)
class Done:
  """A round that is over, and on the disk.

  Attributes:
    round: t.
    cohort: [m] the clients that took part.
    state: of the process after it.
    metrics: of the process.
  """

  round: int
  cohort: np.ndarray
  state: Any
  metrics: Any


class Round:
  """A round that is open: recorded, and not yet finished.

  Attributes:
    index: t.
    cohort: [m] the clients that take part.
    refused: how many came and were not admitted.
  """

  def __init__(
    self, run: Run, index: int, cohort: np.ndarray, refused: int = 0
  ):
    """Takes the run that makes the round durable."""
    self.index = index
    self.cohort = cohort
    self.refused = refused
    self.finished = False
    self._run = run

  def finish(self, state: Any, metrics: Any = None) -> Any:
    """Returns the state, when it and the round are on the disk.

    Args:
      state: of the process, after the round.
      metrics: numbers in any structure, which have no noise: they stay in
        `private/`, and the report names them.

    Raises:
      ValueError: the round was finished before, or nothing was released in it.
    """
    self._run._finish(self, state, metrics)
    return state

  def release(self, updates: Iterable[Any], like: Any) -> Any:
    """Returns the mean of updates with the noise of the round, without TFF.

    Updates are clipped as the plan says, summed exactly, and divided by its
    clients_per_round. It takes the place of `run.aggregator`.

    Args:
      updates: one of each client of the cohort, at most, in any order: float
        arrays in the structure of `like`. One at a time is in memory.
      like: what an update looks like, such as the weights: its structure,
        shapes and float types are those of the mean.

    Raises:
      ValueError: the round is not open, an update is not like `like`, or there
        are more than clients.
      tf.errors.InvalidArgumentError: the round released another sum before.
    """
    return self._run._release(self, updates, like)


class Run:
  """The run of a plan in a folder; use it in a `with` statement.

  PRIVACY: a round that was started counts; it is replayed with its cohort, and
  with any other sum it is burnt. Guards:
  run_test.test_round_whose_replay_differs_is_burnt and
  run_test.test_killed_run_ends_as_an_undisturbed_one.
  """

  def __init__(
    self,
    directory: Union[str, os.PathLike],
    plan: plan_lib.Plan,
    *,
    moved: bool = False,
    keep_key: bool = False,
  ):
    """Makes the folder, or goes on with the run that is in it.

    Args:
      directory: of the run.
      plan: of the run; a folder keeps the strategy that it was made with.
      moved: whether the folder was moved or restored, and is the only one.
      keep_key: whether the key of the noise stays when the run has ended.

    Raises:
      ValueError: the folder is in use, is a copy, or holds another run.
    """
    self.directory = pathlib.Path(directory)
    self._keep_key = keep_key
    self._factory: Any = None
    self._query: Any = None
    self._query_state: Any = None
    self._open: Optional[Round] = None
    with contextlib.ExitStack() as stack:
      stack.enter_context(folder.locked(self.directory))
      self._plan = plan = self._stored(plan)
      record = _record(plan)
      if (self.directory / run_record.RUN_FILE).exists():
        there = run_record.RunRecord.read(self.directory)
        record = record.noted(there.notes())
      self._ended = (self.directory / run_record.RESULT_FILE).exists()
      if self._ended:
        folder.check_record(self.directory, record)
        self._key = key_lib.Key.from_entropy()
      else:
        self._key = folder.open_run(
          self.directory, record, plan.strategy, plan.cohorts.schema, moved
        )
        # PRIVACY: what was killed in a round left it open, and its noise would
        # meet who is not recorded. Guard:
        # run_test.test_round_that_a_kill_left_open_is_closed.
        self._position.close()
      self._ledger = stack.enter_context(
        program.Ledger(self.directory / run_record.LEDGER_FILE)
      )
      self._checkpoints = checkpoints.Checkpoints(
        self.directory / run_record.CHECKPOINTS
      )
      self._next = self._checkpoints.latest()
      self._rows = metrics.Metrics(
        self.directory, self._ledger, _COLUMNS, self._next
      )
      self._stack = stack.pop_all()

  def __enter__(self) -> Run:
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def close(self) -> None:
    """Fails the round that is open, and gives the folder back."""
    with self._stack:
      try:
        self._leave()
      finally:
        for made in self._factory, self._query:
          if made is not None:
            made.close()
        if self._ended and not self._keep_key:
          _files.wipe(self.directory / run_record.NOISE_KEY)

  def _stored(self, plan: plan_lib.Plan) -> plan_lib.Plan:
    """Returns the plan that the folder keeps, if it is the one given."""
    path = self.directory / run_record.PLAN_FILE
    # PRIVACY: nothing here draws cohorts whose sampling amplifies. Guard:
    # run_test.test_sampled_cohorts_are_refused.
    if plan.cohorts is not plan.cohorts.schema:
      raise ValueError(
        errors.invalid(
          'cohorts',
          type(plan.cohorts).__name__,
          'are sampled, and a run enforces a schema',
          'use MinSep, FixedEpoch or Single',
        )
      )
    if not path.exists():
      plan.save(path)
    stored = plan_lib.Plan.load(path)
    written, given = stored.request(), plan.request()
    for name, value in given.items():
      if written[name] != value:
        raise ValueError(
          errors.invalid(
            name,
            value,
            f'is not what the run was planned with, {written[name]}',
            'go back to that, or choose another folder',
          )
        )
    return stored

  @property
  def aggregator(self) -> Any:
    """The aggregation factory for the one learning process of the run."""
    if self._factory is None:
      from tff_bandmf import aggregator

      plan = self._plan
      # PRIVACY: the noise is that of the claim. Guard:
      # run_test.test_noise_is_that_of_the_plan.
      self._factory = aggregator.dp_aggregator(
        plan.guarantee.noise_multiplier,
        plan.clients_per_round,
        l2_norm_clip=plan.l2_norm_clip,
        strategy=plan.strategy,
        participation=plan.cohorts.schema,
        largest_cohort=plan.largest_cohort or plan.clients_per_round,
        dimension=plan.dimension,
        zeroing_norm=plan.zeroing_norm,
        noise=self._tape(),
      )
    return self._factory

  def _tape(self) -> Any:
    from tff_bandmf.noise import placements

    return placements.Tape(
      key=self._key, start_round=self._next, position=self._position
    )

  @property
  def _position(self) -> Any:
    from tff_bandmf.noise import position

    run, _ = run_record.RunRecord.read(self.directory).bound()
    return position.Position(self.directory / run_record.PRIVATE, run)

  def restore(self, initialize: Callable[[], Any]) -> Any:
    """Returns the state that the run goes on from.

    Args:
      initialize: gives the first state of the process, any structure of
        arrays. It is called every time, and tells the structure.

    Raises:
      ValueError: the checkpoint is damaged, of another process, or contradicts
        the ledger.
    """
    state = initialize()
    if self._checkpoints.latest():
      state, head = self._checkpoints.load(self._next, state)
      folder.check_checkpoint(self._ledger, self._next, head)
    return state

  def rounds(self, *, clients: Clients, seed: int = 0) -> Iterator[Round]:
    """Yields the rounds that are left, each with its cohort, in the ledger.

    Finish a round before the next one. A round that was burnt is left out.

    Args:
      clients: how many, or who: different indices or strings.
      seed: of the draws of the cohorts.

    Raises:
      ValueError: cohorts cannot be filled, a round was not finished, or who
        takes part is not what it was.
    """
    plan = self._plan
    ids = np.arange(clients) if isinstance(clients, int) else np.array(clients)
    # PRIVACY: whatever their order is now, clients are drawn as before. Guard:
    # run_test.test_clients_in_another_order_are_drawn_as_before.
    ids = np.unique(ids)
    sampler = program.CohortSampler(
      len(ids), plan.clients_per_round, plan.rounds, plan.cohorts.schema, seed
    )
    plan.check_population(len(ids))
    self.note(population=len(ids))
    history = self._ledger.past(ids.tolist(), self._next)
    while self._next < plan.rounds and not self._ended:
      t = self._next
      cohort = sampler.sample(t, history)
      history.record(t, cohort)
      if self._is_burnt(t):
        self._burn(t, len(cohort))
        continue
      yield self._start(t, ids[cohort])
      if self._open is not None:
        raise ValueError(
          errors.invalid(
            'round', t, 'was not finished', 'call round.finish(state) in it'
          )
        )

  @contextlib.contextmanager
  def round(self, *, cohort: Sequence[Union[int, str]]) -> Iterator[Round]:
    """Yields the next round, for clients that came by themselves.

    A round that is left without `finish`, also by a crash, is burnt: its
    clients will not come again.

    Args:
      cohort: who came. Who may not take part now is left out, and of the rest
        those after the first `largest_cohort`.

    Raises:
      ValueError: the run is over.
    """
    while self._ledger.attempts(self._next):
      # PRIVACY: nobody knows what was seen of it. Guard:
      # run_test.test_round_of_clients_that_came_is_burnt_after_a_crash.
      sizes = self._ledger.observed().cohort_sizes
      self._burn(self._next, sizes[self._next])
    t, plan = self._next, self._plan
    ids = np.asarray(cohort)
    found = program.admit(
      ids,
      t,
      plan.cohorts.schema,
      plan.rounds,
      self._ledger.past(ids.tolist(), t),
    )
    most = plan.largest_cohort or plan.clients_per_round
    admitted = ids[found.admitted][:most]
    opened = self._start(t, admitted, len(ids) - len(admitted))
    try:
      yield opened
    finally:
      if not opened.finished:
        self._leave()
        self._burn(t, len(admitted))

  def train(
    self,
    process: Any,
    dataset: Callable[[Any, int], Any],
    *,
    clients: Clients,
    seed: int = 0,
  ) -> Iterator[Done]:
    """Yields the rounds that are left, each when it is done.

    A round whose sum is another one than was released before is burnt. Standard
    error shows rounds, their rate and the time that is left.

    Args:
      process: `tff.learning.templates.LearningProcess` with `aggregator`.
      dataset: gives the data of (client, round), the same whenever asked.
      clients: as `rounds` takes them.
      seed: of the draws of the cohorts.

    Raises:
      ValueError: the process lets what clients compute past the aggregator.
    """
    from tff_bandmf import aggregator

    aggregator.check_process(process)
    state = self.restore(process.initialize)
    with tqdm.tqdm(initial=self._next, total=self._plan.rounds) as bar:
      for opened in self.rounds(clients=clients, seed=seed):
        data = [
          dataset(client, opened.index) for client in opened.cohort.tolist()
        ]
        try:
          output = process.next(state, data)
        except Exception:
          if not self._is_burnt(opened.index):
            raise
          self._leave()
          self._burn(opened.index, len(opened.cohort))
          bar.update(self._next - bar.n)
          continue
        state = opened.finish(output.state, output.metrics)
        bar.update(self._next - bar.n)
        yield Done(opened.index, opened.cohort, state, output.metrics)

  def note(self, **statements: Any) -> None:
    """Says what the report must say; see `program.RunRecord`."""
    record = run_record.RunRecord.read(self.directory)
    noted = record.noted(statements)
    if noted != record:
      noted.write(self.directory)

  def record(self, **results: float) -> None:
    """Writes what the last model was measured to do; the run is then over.

    Raises:
      ValueError: rounds are left.
    """
    if self._next < self._plan.rounds:
      raise ValueError(
        errors.invalid(
          'record',
          f'round {self._next}',
          f'comes before the last of {self._plan.rounds} rounds',
          'call it when all rounds are done',
        )
      )
    if not self._ended:
      _files.write_json(
        self.directory / run_record.RESULT_FILE,
        {**results, run_record.LEDGER_HEAD: self._ledger.head()},
      )
      self._ended = True

  def report(self) -> report.Report:
    """Returns the report of the run so far, which is also in the folder."""
    report.write(self.directory)
    return report.build(self.directory)

  def _start(self, t: int, cohort: np.ndarray, refused: int = 0) -> Round:
    attempt = len(self._ledger.attempts(t)) + 1
    # PRIVACY: durable before the round, so a crash cannot hide it. Guard:
    # run_test.test_round_is_in_the_ledger_before_it_runs.
    self._ledger.start_round(t, cohort)
    self._position.open(t, attempt)
    self._open = Round(self, t, cohort, refused)
    return self._open

  def _check_open(self, opened: Round) -> None:
    # PRIVACY: who is in the sum was recorded for this round. Guard:
    # run_test.test_round_that_is_over_releases_nothing.
    if opened is not self._open:
      raise ValueError(
        errors.invalid(
          'round', opened.index, 'is not open', 'finish a round once'
        )
      )

  def _release(self, opened: Round, updates: Iterable[Any], like: Any) -> Any:
    import tensorflow as tf

    from tff_bandmf import query

    self._check_open(opened)
    plan = self._plan
    if self._query is None:
      # PRIVACY: the noise is that of the claim, for the clip of the claim.
      # Guard: run_test.test_release_is_that_of_the_aggregator.
      made = query.CorrelatedNoiseQuery.of(
        plan.guarantee,
        tree.map_structure(
          lambda leaf: tf.TensorSpec(np.shape(leaf), np.asarray(leaf).dtype),
          like,
        ),
        (plan.l2_norm_clip, plan.zeroing_norm, math.inf),
        plan.clients_per_round,
        largest_cohort=plan.largest_cohort or plan.clients_per_round,
        noise_from=self._tape(),
      )
      self._query = made
      self._query_state = made.begin(made.initial_global_state())
    total = self._query.initial_sample_state()
    for i, update in enumerate(updates):
      # PRIVACY: a client has one update; more are of nobody who was recorded.
      # Guard: run_test.test_more_updates_than_clients_are_refused.
      if i >= len(opened.cohort):
        raise ValueError(
          errors.invalid(
            'updates',
            f'{i + 1} or more',
            f'are more than the {len(opened.cohort)} clients of the round',
            'give one of each client of round.cohort, at most',
          )
        )
      record = _checked(update, self._query.record_specs)
      total = self._query.accumulate_record((), total, record)
    state = self._query_state._replace(
      round=tf.constant(opened.index, tf.int64)
    )
    mean, _, _ = self._query.get_noised_result(total, state)
    return tree.map_structure(lambda leaf: leaf.numpy(), mean)

  def _finish(self, done: Round, state: Any, measured: Any) -> None:
    t = done.index
    self._check_open(done)
    released = self._position.released(t)
    with_noise = self._plan.guarantee.noise_multiplier > 0
    result = dict(released).get(len(self._ledger.attempts(t)))
    # PRIVACY: what went past the aggregator has no noise. Guard:
    # run_test.test_round_past_the_aggregator_is_not_finished.
    if with_noise and result is None:
      raise ValueError(
        errors.invalid(
          'round',
          t,
          'released nothing through run.aggregator or round.release',
          'make the process with model_aggregator=run.aggregator, and run it '
          'once in each round',
        )
      )
    # PRIVACY: a second sum was refused, and the first is not this state's.
    # Guard: run_test.test_round_that_met_two_sums_is_not_finished.
    if self._is_burnt(t):
      raise ValueError(
        errors.invalid(
          'round',
          t,
          'met two sums',
          'leave it: it is burnt, and the run goes on',
        )
      )
    self._ledger.finish_round(
      t,
      (self._query or self._factory).z_stddev if with_noise else 0.0,
      result,
      noise_checked=with_noise,
    )
    self._rows.write({'round': t, 'clients': len(done.cohort)})
    self._keep(t, measured)
    self._checkpoints.save(state, t + 1, self._ledger.head())
    self._position.close()
    self._position.forget(t)
    done.finished = True
    self._open = None
    self._next = t + 1

  def _keep(self, t: int, measured: Any) -> None:
    """Writes numbers without noise where nobody reads them but the owner."""
    found = {
      '/'.join(map(str, path)): float(value)
      for path, value in tree.flatten_with_path(measured)
      if np.ndim(value) == 0 and np.asarray(value).dtype.kind in 'biuf'
    }
    if not found:
      return
    kept = self.directory / run_record.PRIVATE / 'metrics'
    kept.mkdir(mode=0o700, exist_ok=True)
    values = {name: repr(value) for name, value in found.items()}
    _files.write_json(kept / f'{t:08d}.json', values, mode=0o600)
    # PRIVACY: what has no noise is named. Guard:
    # run_test.test_metrics_stay_private_and_are_named.
    told = f'metrics of rounds, without noise: {", ".join(sorted(found))}'
    record = run_record.RunRecord.read(self.directory)
    if told not in record.not_covered:
      self.note(not_covered=[*record.not_covered, told])

  def _leave(self) -> None:
    """Fails the round that is open, if one is."""
    if self._open is not None:
      self._position.close()
      self._ledger.fail_round(self._open.index)
      self._open = None

  def _is_burnt(self, t: int) -> bool:
    """Returns whether the round may not run again."""
    abandoned = any(
      attempt.outcome == 'abandoned' for attempt in self._ledger.attempts(t)
    )
    # PRIVACY: two sums were about to meet one noise. Guard:
    # run_test.test_round_whose_replay_differs_is_burnt.
    released = {sum_ for _, sum_ in self._position.released(t)}
    return abandoned or len(released) > 1

  def _burn(self, t: int, clients: int) -> None:
    self._ledger.abandon_round(t)
    self._rows.write({'round': t, 'clients': clients})
    self._next = t + 1


def _checked(update: Any, specs: Any) -> Any:
  """Returns an update in float64, which has the shapes of the specs."""

  def leaf_of(spec, leaf):
    leaf = np.asarray(leaf, np.float64)
    # PRIVACY: a sum would repeat a smaller array, which was clipped as it is.
    # Guard: run_test.test_update_of_another_shape_is_refused.
    if leaf.shape != tuple(spec.shape):
      raise ValueError(f'{leaf.shape} is not {spec.shape}')
    return leaf

  try:
    return tree.map_structure(leaf_of, specs, update)
  except (TypeError, ValueError) as error:
    raise ValueError(
      errors.invalid(
        'update',
        type(update).__name__,
        'has other shapes than `like`',
        'give float arrays in its structure',
      )
    ) from error


def _record(plan: plan_lib.Plan) -> run_record.RunRecord:
  """Returns what the run of a plan says of itself."""
  clips = plan.l2_norm_clip
  return run_record.RunRecord(
    claim={
      **plan.guarantee.to_dict(),
      'delta': plan.delta or _DELTA,
      'l2_norm_clip': math.hypot(*clips) if isinstance(clips, tuple) else clips,
      'clients_per_round': plan.clients_per_round,
    },
    config=plan.request(),
    unit_of_privacy='one client',
    data='not stated',
    released='the model after every round',
    not_covered=[],
    side_releases=[],
    enforced={
      'min_sep': plan.cohorts.schema.min_sep,
      'max_participations': plan.cohorts.schema.max_participations,
      'by': 'the run: it draws cohorts, or admits clients',
    },
    clipped_by='the run',
    noise_key='the operating system',
    versions=report.versions(),
    code_sha256=report.code_digest(),
  )
