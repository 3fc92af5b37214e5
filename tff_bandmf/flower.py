"""Flower's federated averaging with the guarantee of a run.

  strategy = flower.CorrelatedNoise(
    FedAvg(weighted_by_key=flower.EQUAL), '~/flower_run', plan, clients=100)
  result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=50)

The strategy runs in Flower's `ServerApp`; a `ClientApp` needs no change. If a
killed program is started again, it continues from the last checkpoint. Server
round t of Flower is round t - 1 of the run.

Flower names a node by a random number, and a node that connects again gets
another number. To limit how often a client takes part, a plan needs a name that
the client keeps:

| runtime    | `clients`                    | name of a client              |
|------------|------------------------------|-------------------------------|
| simulation | number of virtual SuperNodes | its `partition-id`            |
| deployment | public keys of SuperNodes    | the SHA-256 digest of its key |
"""

from __future__ import annotations

import collections
import fnmatch
import functools
import hashlib
import logging
import math
import os
import pathlib
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, Union

import attrs
import numpy as np
from cryptography import exceptions
from cryptography.hazmat.primitives import serialization

from tff_bandmf import _checks, errors, participation
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.query import clip_bounds
from tff_bandmf.run import rounds as rounds_lib
from tff_bandmf.run import run as run_lib
from tff_bandmf.run_files import folder, run_json, run_ledger
from tff_bandmf.strategies import identity

try:
  from flwr import app
  from flwr.serverapp import strategy as strategies
  from flwr.superlink import grid as grids
except ImportError as error:
  raise errors.needs('flwr', 'tff_bandmf.flower') from error

# Value of `weighted_by_key` that gives all updates equal weights.
EQUAL = 'equal-weight'
# Value of `untrained` for a PyTorch model with batch normalization.
BATCH_STATISTICS = ('*running_mean', '*running_var', '*num_batches_tracked')

_LOGGER = logging.getLogger('flwr')
_EVALUATIONS = 'evaluations of the model on clients, without noise'
# Largest number of warnings of a round about updates that count as zero.
_MOST_FAULTS = 3
# Seconds between two queries for the connected nodes.
_PAUSE = 0.2

_Client = Union[int, str]
_Weights = dict[str, np.ndarray]
_Evaluate = Callable[[int, app.ArrayRecord], Optional[app.MetricRecord]]


class CorrelatedNoise(strategies.Strategy):
  """A strategy whose rounds are the rounds of a `tff_bandmf.Run`.

  **Formal guarantee.** The arrays that `start` sends to clients and returns
  have the guarantee in the report of the run. Assumptions: a client keeps the
  name that the table of this module gives it, and each public key belongs to
  one client. Metrics of clients have no noise. The report names the metrics
  that the run takes: the metrics of evaluations on clients, and
  `train_metrics`. The run drops all other metrics of training.

  All updates have equal weights, and their sum is divided by
  `clients_per_round` of the plan. The update of a client is zero if the client
  is not connected, fails or replies too late. The update is also zero if an
  array in the reply is not finite, or if the arrays differ from the model in
  name, shape or type. A warning in the log of the round counts failed clients
  and wrong replies, with the reasons.

  Arrays in `untrained` have no update: clients get the value of the first model
  in every round, and the run drops their values in replies. The report names
  these arrays.

  If the cohorts of the plan are a `Budget`, the connected clients are admitted
  in random order. For every other plan, cohorts are drawn from all clients.

  Attributes:
    metrics: the table `Run.metrics` at the end of the last call of `start`.
      Some of its numbers have no noise, so nobody may publish it.
  """

  def __init__(
    self,
    strategy: strategies.FedAvg,
    folder: Union[str, os.PathLike],
    plan: plan_lib.Plan,
    *,
    clients: Union[int, Sequence[str]],
    private: bool = True,
    untrained: Sequence[str] = (),
    train_metrics: Sequence[str] = (),
    until: Optional[rounds_lib.Epsilon] = None,
  ):
    """Initializes the strategy; `start` opens the folder.

    Args:
      strategy: Flower's `FedAvg`, or a subclass such as `FedProx` that does not
        override `aggregate_train` or `start`, with `weighted_by_key=EQUAL`. The
        strategy configures training and evaluation.
      folder: folder in which `tff_bandmf.Run` keeps the run; the path is
        absolute or begins with `~`.
      plan: mechanism, cohorts and guarantee of the run.
      clients: number of virtual SuperNodes of a simulation, > 0; or the public
        keys of all SuperNodes of a deployment, lines in the format of OpenSSH.
      private: whether the run adds the noise of the plan. If False, the run
        clips and averages in the same way, and its report says that the run
        guarantees nothing.
      untrained: names of arrays that keep the value of the first model, or
        patterns of such names with `*`, such as `BATCH_STATISTICS`. Every array
        of integers must be among these arrays.
      train_metrics: names of numbers that clients return from training, such as
        'loss'. The means over the clients of a round have no noise.
        `Run.metrics` has the mean of 'loss' as `train/loss`; Flower's result
        has all means.
      until: epsilon at which the run ends, instead of `num_rounds` of `start`,
        see `Run.rounds`. With `private=False`, the run has the same number of
        rounds.

    Raises:
      TypeError: `private` is not a bool, a list of names is a text, or
        `strategy` is not a `FedAvg`.
      ValueError: `folder` is relative; `strategy` weighs updates or overrides
        `aggregate_train` or `start`; or a public key cannot be read.
    """
    # PRIVACY: Python takes 0 or an empty text in a configuration for False, so
    # a run could lose its noise by accident. Only True and False are accepted.
    # Guard: flower_test.test_switch_that_is_no_bool_is_refused.
    if not isinstance(private, bool):
      raise errors.type_error(
        f'private={private!r}: must be True or False; write it without quotes'
      )
    self._folder = pathlib.Path(folder).expanduser()
    names = {'untrained': untrained, 'train_metrics': train_metrics}
    for argument, value in names.items():
      if isinstance(value, str):
        raise errors.type_error(
          f'{argument}={value!r}: must be a list of names; give [{value!r}]'
        )
    # PRIVACY: Flower starts each version of a server program in another working
    # directory. There a relative folder would be empty, a second run on the
    # same clients would begin, and its report would leave out the first run. A
    # relative folder is refused.
    # Guard: flower_test.test_relative_folder_is_refused.
    if not self._folder.is_absolute():
      raise errors.value_error(
        f'folder={folder}: is relative, and the working directory of a Flower '
        'server may change; give a path that begins with / or ~'
      )
    _check_strategy(strategy)
    self._strategy = strategy
    self._private_plan = plan
    self._plan = plan
    if not private:
      family = identity.Identity.family
      self._plan = attrs.evolve(
        plan, epsilon=None, noise_multiplier=0.0, mechanism=family
      )
    self._clients: Union[int, dict[bytes, str]] = (
      _checks.count('clients', clients, 'give the number of SuperNodes')
      if isinstance(clients, int)
      else dict(map(_key_and_name, clients))
    )
    self._patterns = tuple(untrained)
    self._train_metrics = tuple(train_metrics)
    self._until = until
    self._tensorboard = False
    self.metrics: list[dict[str, float]] = []
    self._untrained: list[str] = []
    self._faults: collections.Counter[str] = collections.Counter()
    self._timeout = 0.0
    self._round: Optional[rounds_lib.Round] = None
    self._nodes: dict[_Client, int] = {}
    self._weights: _Weights = {}

  def tensorboard(self) -> None:
    """Makes `start` write the numbers of rounds, see `Run.tensorboard`."""
    self._tensorboard = True

  def summary(self) -> None:
    """Logs the plan and the settings of the strategy."""
    for line in str(self._plan).splitlines():
      _LOGGER.info('\t├──> %s', line)
    self._strategy.summary()

  def start(
    self,
    grid: grids.Grid,
    initial_arrays: app.ArrayRecord,
    num_rounds: Optional[int] = None,
    timeout: float = 3600,
    train_config: Optional[app.ConfigRecord] = None,
    evaluate_config: Optional[app.ConfigRecord] = None,
    evaluate_fn: Optional[_Evaluate] = None,
  ) -> strategies.Result:
    """Runs the remaining rounds, and returns Flower's result.

    After the last round of the plan, the finite numbers that `evaluate_fn`
    returned for this round become the results of the run. Every call writes the
    report.

    Args:
      grid: Flower's grid.
      initial_arrays: first model, which must not depend on data of clients.
        Each array outside of `untrained` has a float type.
      num_rounds: number of rounds of the whole run, see `Run.rounds`; it
        includes the rounds of earlier calls. If None, `until` gives the number;
        without `until`, the plan gives it.
      timeout: seconds to wait for the replies of a round, and also for clients
        to connect, > 0.
      train_config: configuration that clients get for training.
      evaluate_config: configuration that clients get for evaluation.
      evaluate_fn: function that evaluates the model on the server. It is called
        before the first remaining round and after every round.

    Raises:
      ValueError: a round would break the guarantee, or the run in the folder
        cannot continue.
    """
    _LOGGER.info('Starting %s:', type(self).__name__)
    self.summary()
    self._timeout = timeout
    train_config = train_config or app.ConfigRecord()
    evaluate_config = evaluate_config or app.ConfigRecord()
    result = strategies.Result()
    plan, until = self._private_plan, self._until
    last = rounds_lib.number_of_rounds(
      plan, num_rounds, until, plan.rounds, 'num_rounds'
    )
    self._check_folder()
    first = _to_numpy(initial_arrays)
    self._untrained = _untrained(first, self._patterns)
    with run_lib.Run(self._folder, self._plan) as run:
      self._weights = run.restore(lambda: first)
      self._name_untrained(run)
      if self._tensorboard:
        run.tensorboard()
      measured = self._evaluate(evaluate_fn, run.rounds_done, result)
      for current in self._rounds(run, grid, last):
        self._round, server_round = current, current.index + 1
        _LOGGER.info('[ROUND %s/%s]', server_round, last)
        model = _to_flower(self._weights)
        asked = self.configure_train(server_round, model, train_config, grid)
        replies = grid.send_and_receive(asked, timeout=timeout)
        arrays, metrics = self.aggregate_train(server_round, replies)
        if arrays is None:
          continue
        if metrics is not None:
          result.train_metrics_clientapp[server_round] = metrics
        messages = list(
          self.configure_evaluate(server_round, arrays, evaluate_config, grid)
        )
        if messages:
          # PRIVACY: Metrics of evaluations on clients have no noise, and the
          # guarantee in the report would seem to cover them. Before clients
          # evaluate, the run adds these metrics to the side releases in its
          # report.
          # Guards:
          # flower_test.test_evaluations_of_clients_are_in_the_report and
          # test_evaluations_replace_no_other_note.
          run.note_side_release(_EVALUATIONS)
          replies = grid.send_and_receive(messages, timeout=timeout)
          metrics = self.aggregate_evaluate(server_round, replies)
          if metrics is not None:
            _LOGGER.info('\t└──> Aggregated MetricRecord: %s', metrics)
            result.evaluate_metrics_clientapp[server_round] = metrics
        measured = self._evaluate(evaluate_fn, server_round, result)
      if self._until is not None:
        run.stop()
      if not run.rounds_left:
        run.record(**measured)
      run.report()
      self.metrics = run.metrics
    self._round = None
    result.arrays = _to_flower(self._weights)
    return result

  def configure_train(
    self,
    server_round: int,
    arrays: app.ArrayRecord,
    config: app.ConfigRecord,
    grid: grids.Grid,
  ) -> Iterable[app.Message]:
    """Returns a message to each connected client of the cohort of the run."""
    cohort = self._open().cohort.tolist()
    messages = list(
      self._strategy.configure_train(server_round, arrays, config, grid)
    )
    contents = [each.content for each in messages]
    if not contents or any(each != contents[0] for each in contents[1:]):
      raise errors.value_error(
        f'strategy={type(self._strategy).__name__}: configures '
        f'{"different" if messages else "no"} messages for training; use a '
        'strategy with one message for all clients, and fraction_train=1'
      )
    # PRIVACY: Flower's own sampling could choose a client more often than the
    # plan allows. Messages go only to the cohort in the ledger.
    # Guard: flower_test.test_cohorts_keep_the_separation.
    return [
      app.Message(
        content=contents[0],
        message_type=app.MessageType.TRAIN,
        dst_node_id=self._nodes[client],
      )
      for client in cohort
      if client in self._nodes
    ]

  def aggregate_train(
    self, server_round: int, replies: Iterable[app.Message]
  ) -> tuple[Optional[app.ArrayRecord], Optional[app.MetricRecord]]:
    """Returns (model after the round, mean metrics of training or None).

    (None, None) means that the round releases nothing: an earlier attempt at
    the round, before the program was killed, released another sum.
    """
    current, replies = self._open(), list(replies)
    # PRIVACY: If two replies of one node were added, or one reply counted for
    # two clients, a client could move the sum by twice the clip. At most one
    # reply of each node is added, for its client alone.
    # Guards: flower_test.test_a_client_has_one_update and
    # test_reply_of_no_node_is_no_update.
    by_node = {
      reply.metadata.src_node_id: reply
      for reply in replies
      if not reply.has_error()
    }
    nodes = map(self._nodes.get, current.cohort.tolist())
    answers = [None if node is None else by_node.get(node) for node in nodes]
    received = sum(answer is not None for answer in answers)
    size = len(answers)
    _LOGGER.info('aggregate_train: Received %s of %s results', received, size)
    self._faults = collections.Counter(
      f'the client failed: {reply.error.reason}'
      for reply in replies
      if reply.has_error()
    )
    # PRIVACY: A client with two replies would add two updates to one sum, and a
    # reply of a node that was not asked would add one more. The sum has one
    # update for each client of the cohort.
    # Guards: flower_test.test_a_client_has_one_update and
    # flower_test.test_reply_of_no_node_is_no_update.
    updates = map(self._update, answers)
    release = functools.partial(current.release, updates, self._trained())
    mean = current.attempt(release)
    # A client may send any text, so the log gets few lines of limited length.
    for fault, count in self._faults.most_common(_MOST_FAULTS):
      line = f'{count} of {size} updates count as zero: {errors.invalid(fault)}'
      _LOGGER.warning('Round %s: %s', server_round, line)
    if mean is None:
      return None, None
    self._weights = {
      name: (old + mean[name]).astype(old.dtype) if name in mean else old
      for name, old in self._weights.items()
    }
    means = self._means(answers)
    current.finish(self._weights, {'train': means})
    return _to_flower(self._weights), app.MetricRecord(means) if means else None

  def configure_evaluate(
    self,
    server_round: int,
    arrays: app.ArrayRecord,
    config: app.ConfigRecord,
    grid: grids.Grid,
  ) -> Iterable[app.Message]:
    """Returns the messages of the wrapped strategy."""
    return self._strategy.configure_evaluate(server_round, arrays, config, grid)

  def aggregate_evaluate(
    self, server_round: int, replies: Iterable[app.Message]
  ) -> Optional[app.MetricRecord]:
    """Returns the metrics of the wrapped strategy, with equal weights."""
    replies = list(replies)
    for reply in replies:
      if not reply.has_error():
        for metrics in reply.content.metric_records.values():
          metrics[EQUAL] = 1.0
    try:
      return self._strategy.aggregate_evaluate(server_round, replies)
    except Exception as error:
      # The run goes on without metrics that cannot be averaged.
      _LOGGER.info('\t> no metrics of clients: %s', type(error).__name__)
      return None

  def _check_folder(self) -> None:
    """Raises ValueError if a run in the folder has another kind or population.

    The kind is the value of `private`. The population is compared if it is the
    number of nodes of a simulation.
    """
    path = self._folder / run_json.PLAN_FILE
    private = self._plan.noise_multiplier != 0
    if path.exists() and private != (
      plan_lib.Plan.load(path).noise_multiplier != 0
    ):
      kind = 'without noise' if private else 'with noise'
      raise errors.value_error(
        f'private={private}: the folder {self._folder} has a run {kind}; give '
        f'private={not private}, or choose another folder'
      )
    number = None
    if isinstance(self._clients, int) and folder.has_begun(self._folder):
      number = run_ledger.notes(self._folder).population
    # PRIVACY: Flower deals out the data anew among another number of
    # partitions, and the partitions are the names of the clients. So a client
    # would get another name and could take part more often than the plan
    # allows. A number that differs from the population of the run is refused.
    # Guard: flower_test.test_another_number_of_simulated_clients_is_refused.
    if number not in (None, self._clients):
      raise errors.value_error(
        f'clients={self._clients}: must be {number} as in the run in '
        f'{self._folder}; give {number}, or choose another folder'
      )

  def _open(self) -> rounds_lib.Round:
    """Returns the open round; raises ValueError outside of `start`."""
    if self._round is None:
      raise errors.value_error(
        'round=None: is not open; call start of this strategy itself, not of a '
        'strategy that wraps it'
      )
    return self._round

  def _rounds(
    self, run: run_lib.Run, grid: grids.Grid, last: int
  ) -> Iterator[rounds_lib.Round]:
    """Yields the remaining rounds, and finds the connected nodes of each.

    For a `Budget`, which admits connected clients, this method finds the nodes
    before the round. For other cohorts, it finds them after the draw.
    """
    if not isinstance(self._plan.cohorts, participation.Budget):
      names: Any = self._clients
      if not isinstance(names, int):
        names = list(names.values())
      for drawn in run.rounds(clients=names, rounds=last):
        self._nodes = self._connected(grid)
        yield drawn
      return
    while run.rounds_done < last:
      self._nodes = self._connected(grid)
      present = random.sample(list(self._nodes), len(self._nodes))
      with run.round(cohort=present) as admitted:
        yield admitted

  def _connected(self, grid: grids.Grid) -> dict[_Client, int]:
    """Returns {name of a client: node ID} for the connected clients.

    Raises:
      ValueError: too few clients connect before the timeout; `clients` is a
        number outside of a simulation, or below the number of simulated nodes.
    """
    least = self._strategy.min_available_nodes
    if isinstance(self._clients, int):
      least = self._clients
    until = time.monotonic() + self._timeout
    nodes = self._look(grid)
    if len(nodes) < least:
      _LOGGER.info('Waiting for clients: %s of %s connected', len(nodes), least)
    while len(nodes) < least:
      if time.monotonic() > until:
        raise errors.value_error(
          f'clients={len(nodes)}: are connected after {self._timeout} seconds, '
          f'but at least {least} must be; start more SuperNodes'
        )
      time.sleep(_PAUSE)
      nodes = self._look(grid)
    return nodes

  def _look(self, grid: grids.Grid) -> dict[_Client, int]:
    """Returns {name of a client: node ID} for the clients connected now."""
    if not isinstance(self._clients, int):
      # PRIVACY: A SuperNode that registers itself gets a new key at every
      # start, so its client would have several names and could take part more
      # often than the plan allows. Only SuperNodes whose keys are in the list
      # take part.
      # Guard: flower_test.test_nodes_without_a_known_key_take_no_part.
      return {
        self._clients[node.public_key]: node.node_id
        for node in grid.get_nodes()
        if node.public_key in self._clients
      }
    # PRIVACY: In a deployment, Flower lists nodes in the order of their
    # connections, which changes. If clients were named by this order, a client
    # could take part more often than the plan allows. In a deployment, a number
    # of clients instead of their keys is refused.
    # Guard: flower_test.test_number_of_clients_outside_a_simulation_is_refused.
    if not isinstance(grid, grids.InMemoryGrid):
      raise errors.value_error(
        f'clients={self._clients}: counts the nodes of a simulation, but nodes '
        'of a deployment change their IDs; give the public keys of SuperNodes'
      )
    # PRIVACY: In a simulation, node IDs are random. If clients were named by
    # the order of the IDs, a restart would change their names, and a client
    # could take part more often than the plan allows. Clients are named by the
    # order in which Flower made the nodes, the order of their partitions.
    # Guard:
    # flower_test.test_partitions_are_the_names_of_simulated_clients.
    nodes = [node.node_id for node in grid.state.get_node_info()]
    if len(nodes) > self._clients:
      raise errors.value_error(
        f'clients={self._clients}: are fewer than the {len(nodes)} nodes of '
        'the simulation; give the number of nodes'
      )
    return dict(enumerate(nodes))

  def _trained(self) -> _Weights:
    """Returns the arrays of the model that get the mean of the updates."""
    # PRIVACY: An untrained array has no noise. If its values in replies reached
    # the model, they would be released. So an update has no such array.
    # Guard: flower_test.test_untrained_arrays_keep_the_value_of_the_server.
    return {
      name: each
      for name, each in self._weights.items()
      if name not in self._untrained
    }

  def _update(self, reply: Optional[app.Message]) -> _Weights:
    """Returns the update of a client; zero if the reply has no valid update."""
    model = self._trained()
    fault = ''
    try:
      if reply is not None:
        (record,) = reply.content.array_records.values()
        trained = {
          name: array.numpy()
          for name, array in record.items()
          if name not in self._untrained
        }
        fault = _difference(trained, model)
        if not fault:
          update = {name: trained[name] - old for name, old in model.items()}
          if all(np.isfinite(each).all() for each in update.values()):
            return update
          fault = 'an array has NaN or infinity; lower the learning rate'
    # PRIVACY: If a reply without readable arrays ended the run, everybody would
    # see that the client of the reply took part. The run continues, and the
    # update of this client is zero.
    # Guard: flower_test.test_clients_that_fail_are_zero.
    except Exception as error:
      fault = (
        f'the reply has no arrays that can be read ({type(error).__name__}); '
        'reply with one ArrayRecord, of the arrays that the client got'
      )
    if fault:
      self._faults[fault] += 1
    return {name: np.zeros_like(old) for name, old in model.items()}

  def _means(self, replies: list[Optional[app.Message]]) -> dict[str, float]:
    """Returns {name in `train_metrics`: mean over the replies that have it}.

    The mean is NaN if no reply has a finite number of this name.
    """
    records = [
      record
      for reply in replies
      if reply is not None
      for record in reply.content.metric_records.values()
    ]
    # PRIVACY: The report shows the names of metrics. If a client could choose
    # the names, or if a name were missing because no client sent it, the report
    # would show data of clients without noise. Every round has exactly the
    # names that the operator gave.
    # Guard: flower_test.test_metrics_of_training_are_the_named_ones.
    means = {}
    for name in self._train_metrics:
      values = [record.get(name) for record in records]
      finite = list(filter(_is_finite, values))
      means[name] = float(np.mean(finite)) if finite else math.nan
    return means

  def _name_untrained(self, run: run_lib.Run) -> None:
    """Names untrained arrays in the report; warns of noisy batch statistics."""
    statistics = _matching(self._trained(), BATCH_STATISTICS)
    if statistics:
      _LOGGER.warning(
        '%s: statistics of batches get noise and take a part of the clip, and '
        'noise can make a variance negative; give '
        'untrained=flower.BATCH_STATISTICS, or train with group normalization',
        ', '.join(statistics),
      )
    if self._untrained:
      run.note_not_covered(
        'arrays that no client changes, with the values of the first model: '
        + ', '.join(self._untrained)
      )

  def _evaluate(
    self,
    evaluate_fn: Optional[_Evaluate],
    server_round: int,
    result: strategies.Result,
  ) -> dict[str, float]:
    """Returns the finite numbers of an evaluation on the server."""
    metrics = evaluate_fn and evaluate_fn(
      server_round, _to_flower(self._weights)
    )
    if metrics is None:
      return {}
    _LOGGER.info('\t└──> MetricRecord: %s', metrics)
    result.evaluate_metrics_serverapp[server_round] = metrics
    return {
      name: float(value) for name, value in metrics.items() if _is_finite(value)
    }


def _is_finite(value: Any) -> bool:
  """Returns whether the value of a metric is a finite number."""
  return isinstance(value, (int, float)) and math.isfinite(value)


def _check_strategy(strategy: strategies.FedAvg) -> None:
  """Raises an error if a strategy does not take a mean with equal weights."""
  name = type(strategy).__name__
  if not isinstance(strategy, strategies.FedAvg):
    raise errors.type_error(
      f'strategy={name}: is not a FedAvg; use FedAvg or FedProx'
    )
  # PRIVACY: A run replaces `aggregate_train` and `start` of a strategy. For
  # instance, a strategy that takes a median would run with a mean, and its user
  # would believe that the median has the guarantee. A strategy that overrides
  # one of the two methods is refused.
  # Guard: flower_test.test_strategy_that_does_not_average_is_refused.
  own, base = type(strategy), strategies.FedAvg
  for method in 'aggregate_train', 'start':
    if getattr(own, method) is not getattr(base, method):
      raise errors.value_error(
        f'strategy={name}: has a {method} of its own, which a run '
        'replaces; use FedAvg or FedProx'
      )
  # PRIVACY: A weight above 1 would make the influence of a client larger than
  # the clip, and a weighted mean would depend on the sum of private weights,
  # which has no noise. A strategy with weights is refused.
  # Guard: flower_test.test_weights_by_examples_are_refused.
  if strategy.weighted_by_key != EQUAL:
    raise errors.value_error(
      f'weighted_by_key={strategy.weighted_by_key}: weighs clients, but the '
      f'clip needs equal weights; give {name}(weighted_by_key=flower.EQUAL)'
    )


def _key_and_name(line: str) -> tuple[bytes, str]:
  """Returns a public key as Flower stores it, and the name of its client.

  Args:
    line: public key in the format of OpenSSH.
  """
  try:
    key = serialization.load_ssh_public_key(line.encode()).public_bytes(
      serialization.Encoding.PEM,
      serialization.PublicFormat.SubjectPublicKeyInfo,
    )
  except (AttributeError, ValueError, exceptions.UnsupportedAlgorithm) as error:
    raise errors.value_error(
      f'clients={line!r}: is not a public key; give the lines of the files '
      'that `flwr supernode register` took'
    ) from error
  return key, hashlib.sha256(key).hexdigest()


def _difference(
  arrays: Mapping[str, np.ndarray], model: Mapping[str, np.ndarray]
) -> str:
  """Returns a difference between the arrays of a reply and a model, or ''."""
  for name in {**model, **arrays}:
    if name not in arrays:
      return (
        f'array {name} is not in the reply, which has {len(arrays)} arrays, '
        f'expected {len(model)}; reply with the arrays that the client got'
      )
    if name not in model:
      return (
        f'array {name} of the reply is not in the model; reply with the arrays '
        'that the client got'
      )
    reply, each = arrays[name], model[name]
    # PRIVACY: If a reply of another shape ended the run, everybody would see
    # that its client took part. The run continues, and the update of this
    # client is zero.
    # Guard: flower_test.test_clients_that_fail_are_zero.
    if (reply.dtype.kind, reply.shape) != (each.dtype.kind, each.shape):
      return (
        f'array {name} of the reply is {reply.dtype} of shape {reply.shape}, '
        f'expected {each.dtype} of shape {each.shape}; let clients and server '
        'make the same model'
      )
  return ''


def _matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
  """Returns the names that match a pattern, in the order of `names`."""
  return [
    name
    for name in names
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
  ]


def _untrained(weights: _Weights, patterns: Sequence[str]) -> list[str]:
  """Returns the names of the untrained arrays.

  Raises:
    ValueError: a pattern matches no array, all arrays are untrained, or a
      trained array has no float type.
  """
  for pattern in patterns:
    if not _matching(weights, [pattern]):
      raise errors.value_error(
        f'untrained={pattern}: is the name of no array of the model, which has '
        f'{", ".join(weights)}; leave it out'
      )
  untrained = _matching(weights, patterns)
  left = {name: each for name, each in weights.items() if name not in untrained}
  if not left:
    raise errors.value_error(
      f'untrained={", ".join(patterns)}: leaves no array to train; name fewer'
    )
  others = [
    f'{name} ({each.dtype})'
    for name, each in left.items()
    if each.dtype.name not in clip_bounds.FLOATS
  ]
  if others:
    raise errors.value_error(
      f'initial_arrays={", ".join(others)}: must have float types of at most '
      '64 bits, or noise cannot protect them; name them in untrained= if no '
      'client trains them, or give untrained=flower.BATCH_STATISTICS'
    )
  return untrained


def _to_numpy(arrays: app.ArrayRecord) -> _Weights:
  if not arrays:
    raise errors.value_error(
      'initial_arrays=empty: must be a model; give the arrays of the first one'
    )
  return {name: np.array(array.numpy()) for name, array in arrays.items()}


def _to_flower(weights: _Weights) -> app.ArrayRecord:
  return app.ArrayRecord(
    {name: app.Array(np.asarray(each)) for name, each in weights.items()}
  )
