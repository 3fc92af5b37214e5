"""Tests of the strategy for Flower; `make test-flower` runs them.

Most call the clients in this process. Flower's simulation engine runs those
that kill a program, look at its partitions, or end it.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip('flwr')

from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from flwr import app, clientapp  # noqa: E402
from flwr.serverapp import strategy as strategies  # noqa: E402

import tff_bandmf  # noqa: E402
from benchmarks import flower_grid  # noqa: E402
from tff_bandmf import _files, flower  # noqa: E402
from tff_bandmf.cli import main  # noqa: E402
from tff_bandmf.ledger import ledger as ledger_lib  # noqa: E402
from tff_bandmf.run_files import folder as folder_lib  # noqa: E402
from tff_bandmf.run_files import run_json  # noqa: E402

_TESTS = pathlib.Path(__file__).resolve().parent
_EXAMPLES = _TESTS.parent / 'examples'
_FIRST = [np.zeros(2), np.zeros((2, 3), np.float32)]


def _plan(**changes):
  values = {
    'rounds': 4,
    'clients_per_round': 4,
    'cohorts': tff_bandmf.MinSep(2),
    'epsilon': 20.0,
    'delta': 1e-5,
    'l2_norm_clip': 100.0,
    'mechanism': 'banded-sqrt',
    **changes,
  }
  return tff_bandmf.Plan(**values)


def _without_noise(**changes):
  return _plan(epsilon=None, delta=None, noise_multiplier=0.0, **changes)


def _client_app(answer=None, seen=None, measured=None):
  """Returns clients whose update is 1 + their partition in each coordinate.

  Args:
    answer: function of (partition, weights) that returns the arrays of a reply,
      a list in NumPy or a dict of Flower's.
    seen: list that gets (server round, partition) of each training.
    measured: function of (server round, partition) that returns metrics.
  """
  client_app = clientapp.ClientApp()

  @client_app.train()
  def train(message, context):
    client = context.node_config['partition-id']
    server_round = message.content['config']['server-round']
    if seen is not None:
      seen.append((server_round, client))
    weights = message.content['arrays'].to_numpy_ndarrays()
    arrays = (answer or _shifted)(client, weights)
    metrics = {'num-examples': client + 1, 'loss': 1.0}
    if measured is not None:
      metrics = measured(server_round, client)
    metrics = app.MetricRecord(metrics)
    content = {'arrays': app.ArrayRecord(arrays), 'metrics': metrics}
    return app.Message(app.RecordDict(content), reply_to=message)

  @client_app.evaluate()
  def evaluate(message, context):
    client = context.node_config['partition-id']
    metrics = {'num-examples': client + 1, 'right': float(client)}
    content = {'metrics': app.MetricRecord(metrics)}
    return app.Message(app.RecordDict(content), reply_to=message)

  return client_app


def _shifted(client, weights):
  return [each + np.asarray(1 + client, each.dtype) for each in weights]


def _averaging(**changes):
  return strategies.FedAvg(
    **{'fraction_evaluate': 0.0, 'weighted_by_key': flower.EQUAL, **changes}
  )


def _trained(folder, plan, client_app=None, grid=None, **changes):
  """Returns the result of a run with 8 clients."""
  averaging = changes.pop('averaging', None) or _averaging()
  start = {
    name: changes.pop(name)
    for name in ('num_rounds', 'evaluate_fn', 'timeout')
    if name in changes
  }
  strategy = flower.CorrelatedNoise(
    averaging, folder, plan, **{'clients': 8, **changes}
  )
  return strategy.start(
    grid or flower_grid.LocalGrid(client_app or _client_app(), 8),
    app.ArrayRecord(_FIRST),
    **{'num_rounds': plan.rounds, **start},
  )


def _report(folder):
  return json.loads((folder / 'report.json').read_text())


def test_cohorts_keep_the_separation(tmp_path):
  seen = []
  _trained(tmp_path / 'run', _plan(), _client_app(seen=seen))
  by_round = [
    {client for t, client in seen if t == server_round}
    for server_round in range(1, 5)
  ]
  # Flower would draw 8 of 8 clients in every round.
  assert [len(each) for each in by_round] == [4] * 4
  assert not any(a & b for a, b in zip(by_round, by_round[1:]))
  with ledger_lib.Ledger(tmp_path / 'run/ledger.sqlite') as ledger:
    assert ledger.observed().min_sep >= 2
  report = _report(tmp_path / 'run')
  assert report['epsilon'] <= 20.0
  assert report['observed']['rounds_finished'] == 4


def test_divisor_is_that_of_the_plan_and_weights_are_equal(tmp_path):
  seen = []
  result = _trained(
    tmp_path / 'run',
    _without_noise(rounds=1, cohorts=tff_bandmf.MinSep(1)),
    _client_app(seen=seen),
  )
  mean = sum(1 + client for _, client in seen) / 4
  for got, first in zip(result.arrays.to_numpy_ndarrays(), _FIRST):
    assert got.dtype == first.dtype
    np.testing.assert_allclose(got, np.full_like(first, mean), atol=1e-3)
  assert not result.train_metrics_clientapp


def _unreadable(data, kind):
  return {name: app.Array('float64', (2,), kind, data) for name in ('0', '1')}


@pytest.mark.parametrize(
  'fault',
  [
    lambda weights: 1 / 0,
    lambda weights: weights[:1],
    lambda weights: [weights[0], weights[1][:1]],
    lambda weights: [each.astype(np.int64) for each in weights],
    lambda weights: [np.full_like(each, np.nan) for each in weights],
    lambda weights: [*weights, np.ones(1)],
    lambda weights: weights[::-1],
    lambda weights: _unreadable(b'', 'numpy.ndarray'),
    lambda weights: _unreadable(b'', 'pickle'),
  ],
  ids=[
    'raises',
    'fewer',
    'shape',
    'integers',
    'nan',
    'more',
    'order',
    'damage',
    'kind',
  ],
)
def test_clients_that_fail_are_zero(tmp_path, fault):
  trained = []

  def answer(client, weights):
    if client % 2:
      return fault(_shifted(client, weights))
    trained.append(client)
    return _shifted(client, weights)

  result = _trained(
    tmp_path / 'run',
    _without_noise(rounds=1, clients_per_round=8, cohorts=tff_bandmf.MinSep(1)),
    _client_app(answer),
  )
  assert len(trained) == 4
  mean = sum(1 + client for client in trained) / 8
  for got in result.arrays.to_numpy_ndarrays():
    np.testing.assert_allclose(got, np.full_like(got, mean), atol=1e-3)


def _one_round(**changes):
  return _without_noise(
    rounds=1, clients_per_round=8, cohorts=tff_bandmf.MinSep(1), **changes
  )


@pytest.mark.parametrize(
  'fault, words',
  [
    (lambda weights: 1 / 0, 'the client failed: division by zero'),
    (lambda weights: weights[:1], 'array 1 is not in the reply, .*expected 2'),
    (lambda weights: [*weights, 0 * weights[0]], 'array 2 of the reply is not'),
    (
      lambda weights: [weights[0], weights[1][:1]],
      r'array 1 of the reply is float32 of shape \(1, 3\), expected float32 of '
      r'shape \(2, 3\)',
    ),
    (
      lambda weights: [each.astype(np.int64) for each in weights],
      r'array 0 of the reply is int64 of shape \(2,\), expected float64',
    ),
    (lambda weights: _unreadable(b'', 'pickle'), 'arrays that can be read'),
    (
      lambda weights: [np.full_like(each, np.nan) for each in weights],
      'an array has NaN or infinity; lower',
    ),
  ],
  ids=['raises', 'fewer', 'more', 'shape', 'integers', 'kind', 'nan'],
)
def test_updates_that_count_as_zero_are_said_in_the_round(
  tmp_path, caplog, fault, words
):
  def answer(client, weights):
    if client % 2:
      return fault(_shifted(client, weights))
    return _shifted(client, weights)

  _trained(tmp_path / 'run', _one_round(), _client_app(answer))
  (line,) = [
    each.getMessage()
    for each in caplog.records
    if each.levelname == 'WARNING' and 'count as zero' in each.getMessage()
  ]
  assert re.match(f'Round 1: 4 of 8 updates count as zero: .*{words}', line)


# A model of PyTorch with batch normalization.
_STATE = {
  'bn.weight': np.zeros(2, np.float32),
  'bn.running_mean': np.full(2, 0.25, np.float32),
  'bn.running_var': np.full(2, 4.0, np.float32),
  'bn.num_batches_tracked': np.array(7, np.int64),
}


def _state_trained(folder, answer, **options):
  """Returns the model after a round of clients that answer with `answer`."""
  result = flower.CorrelatedNoise(
    _averaging(), folder, _one_round(), clients=8, **options
  ).start(
    flower_grid.LocalGrid(_client_app(answer), 8),
    app.ArrayRecord({name: app.Array(each) for name, each in _STATE.items()}),
    1,
  )
  return {name: each.numpy() for name, each in result.arrays.items()}


def _to_arrays(state):
  return {name: app.Array(np.asarray(each)) for name, each in state.items()}


@pytest.mark.parametrize('full', [True, False])
def test_untrained_arrays_keep_the_value_of_the_server(tmp_path, full):
  def answer(client, weights):
    state = dict(zip(_STATE, weights))
    sent = {'bn.weight': state['bn.weight'] + np.float32(1)}
    if full:
      # What a client says of them has no effect, whatever its shape.
      sent = {name: 2 * each + 1 for name, each in state.items()}
      sent['bn.running_var'] = np.full(3, np.nan)
    return _to_arrays(sent)

  model = _state_trained(
    tmp_path / 'run', answer, untrained=flower.BATCH_STATISTICS
  )
  assert list(model) == list(_STATE)
  np.testing.assert_allclose(model['bn.weight'], 1.0, atol=1e-3)
  for name in list(_STATE)[1:]:
    assert model[name].dtype == _STATE[name].dtype
    np.testing.assert_array_equal(model[name], _STATE[name])
  stated = [
    each
    for each in _report(tmp_path / 'run')['not_covered']
    if 'arrays that no client changes' in each
  ]
  assert [each.split(': ')[1] for each in stated] == [
    'bn.running_mean, bn.running_var, bn.num_batches_tracked'
  ]


def test_noise_on_statistics_of_batches_is_said(tmp_path, caplog):
  model = _state_trained(
    tmp_path / 'run',
    lambda client, weights: _to_arrays(
      {name: each + each.dtype.type(1) for name, each in zip(_STATE, weights)}
    ),
    untrained=['*tracked'],
  )
  np.testing.assert_allclose(model['bn.running_var'], 5.0, atol=1e-3)
  assert 'bn.running_mean, bn.running_var: statistics of batches' in caplog.text


@pytest.mark.parametrize(
  'untrained, line',
  [
    ([], r'bn.num_batches_tracked \(int64\): .*flower.BATCH_STATISTICS'),
    (['*running_mean'], r'initial_arrays=bn.num_batches_tracked \(int64\)'),
    (['bn.runing_var'], 'untrained=bn.runing_var: is the name of no array'),
    (['*'], 'untrained=.*leaves no array to train'),
  ],
)
def test_model_that_noise_cannot_protect_is_refused(tmp_path, untrained, line):
  with pytest.raises(ValueError, match=line) as error:
    _state_trained(tmp_path / 'run', None, untrained=untrained)
  assert '\n' not in str(error.value)
  assert not (tmp_path / 'run').exists()


def test_text_in_place_of_names_is_refused(tmp_path):
  with pytest.raises(TypeError, match="untrained='bias': must be a list"):
    flower.CorrelatedNoise(
      _averaging(), tmp_path, _plan(), clients=8, untrained='bias'
    )


class _Twice(flower_grid.LocalGrid):
  """Returns each reply twice, and one of a node that nobody asked."""

  def send_and_receive(self, messages, *, timeout=None):
    messages = list(messages)
    asked = {each.metadata.dst_node_id for each in messages}
    stranger = app.Message(
      content=messages[0].content,
      message_type='train',
      dst_node_id=next(iter(set(self.get_node_ids()) - asked)),
    )
    replies = super().send_and_receive([*messages, stranger])
    return replies + replies


def test_a_client_has_one_update(tmp_path):
  seen = []
  result = _trained(
    tmp_path / 'run',
    _without_noise(rounds=1, cohorts=tff_bandmf.MinSep(1)),
    grid=_Twice(_client_app(seen=seen), 8),
  )
  mean = sum(1 + client for _, client in seen[:4]) / 4
  (got, _) = result.arrays.to_numpy_ndarrays()
  np.testing.assert_allclose(got, np.full(2, mean), atol=1e-3)


class _Nobody(flower_grid.LocalGrid):
  """Returns one reply, of node 0, although 6 of 8 clients are connected."""

  def send_and_receive(self, messages, *, timeout=None):
    reply = super().send_and_receive(messages)[0]
    reply.metadata.__dict__['_src_node_id'] = 0
    return [reply]


def test_reply_of_no_node_is_no_update(tmp_path):
  lines, keys = _public_keys(8)
  result = _trained(
    tmp_path / 'run',
    _without_noise(rounds=1, clients_per_round=8, cohorts=tff_bandmf.MinSep(1)),
    grid=_Deployment(_client_app(), keys[:6], _Nobody),
    clients=lines,
  )
  for got in result.arrays.to_numpy_ndarrays():
    np.testing.assert_array_equal(got, np.zeros_like(got))


def test_weights_by_examples_are_refused(tmp_path):
  with pytest.raises(ValueError, match='weighted_by_key=num-examples: .*EQUAL'):
    _trained(tmp_path, _plan(), averaging=strategies.FedAvg())
  assert not list(tmp_path.iterdir())


class _OwnMean(strategies.FedAvg):
  def aggregate_train(self, server_round, replies):
    return super().aggregate_train(server_round, replies)


class _OwnLoop(strategies.FedAvg):
  def start(self, *args, **kwargs):
    return super().start(*args, **kwargs)


@pytest.mark.parametrize(
  'strategy', [strategies.FedAdam, strategies.FedMedian, _OwnMean, _OwnLoop]
)
def test_strategy_that_does_not_average_is_refused(tmp_path, strategy):
  with pytest.raises(ValueError, match='strategy=.* of its own'):
    _trained(
      tmp_path, _plan(), averaging=strategy(weighted_by_key=flower.EQUAL)
    )


def test_strategy_of_another_kind_is_refused(tmp_path):
  run = flower.CorrelatedNoise(_averaging(), tmp_path, _plan(), clients=8)
  with pytest.raises(TypeError, match='strategy=CorrelatedNoise'):
    _trained(tmp_path, _plan(), averaging=run)
  # Nor does another strategy wrap this one.
  with pytest.raises(ValueError, match='round=None'):
    run.configure_train(1, app.ArrayRecord(_FIRST), app.ConfigRecord(), None)


def test_switch_that_is_no_bool_is_refused(tmp_path):
  with pytest.raises(TypeError, match="private='false'"):
    _trained(tmp_path, _plan(), private='false')


def test_relative_folder_is_refused():
  with pytest.raises(ValueError, match='folder=runs/mine: is relative'):
    _trained('runs/mine', _plan())


def test_run_that_is_not_private_says_so(tmp_path):
  result = _trained(tmp_path / 'run', _plan(rounds=2), private=False)
  other = _trained(tmp_path / 'private', _plan(rounds=2))
  report = (tmp_path / 'run/report.md').read_text()
  assert 'No noise was added: this run guarantees nothing.' in report
  assert _report(tmp_path / 'run')['epsilon'] is None
  assert _report(tmp_path / 'private')['epsilon'] <= 20.0
  # The same cohorts, without the noise.
  np.testing.assert_allclose(
    result.arrays.to_numpy_ndarrays()[0], np.full(2, 9.0), atol=1e-3
  )
  assert np.ptp(other.arrays.to_numpy_ndarrays()[0]) > 1e-3


@pytest.mark.parametrize('first', [True, False])
def test_folder_of_the_other_kind_of_run_names_the_switch(tmp_path, first):
  _trained(tmp_path, _plan(rounds=2), private=first)
  line = f'private={not first}: .* give private={first}, or choose another'
  with pytest.raises(ValueError, match=line) as raised:
    _trained(tmp_path, _plan(rounds=2), private=not first)
  assert '\n' not in str(raised.value)
  # The run of the folder goes on, and another plan is still named.
  _trained(tmp_path, _plan(rounds=2), private=first)
  with pytest.raises(ValueError, match='l2_norm_clip=9.0'):
    _trained(tmp_path, _plan(rounds=2, l2_norm_clip=9.0), private=first)


def test_evaluations_that_do_not_fit_together_end_no_run(tmp_path):

  class _Grid(flower_grid.LocalGrid):
    """Adds a metric to the reply of one client."""

    def send_and_receive(self, messages, **keywords):
      replies = list(super().send_and_receive(messages, **keywords))
      for metrics in replies[0].content.metric_records.values():
        metrics['more'] = 1.0
      return replies

  averaging = _averaging(fraction_evaluate=1.0)
  grid = _Grid(_client_app(), 8)
  _trained(tmp_path, _plan(), averaging=averaging, grid=grid)
  assert _report(tmp_path)['observed']['rounds_finished'] == 4


def test_evaluations_of_clients_are_in_the_report(tmp_path):
  results = [
    _trained(
      tmp_path / f'run{fraction}',
      _plan(rounds=2),
      averaging=_averaging(fraction_evaluate=fraction),
      evaluate_fn=lambda t, arrays: app.MetricRecord({'server': t + 0.5}),
    )
    for fraction in (0.0, 1.0)
  ]
  without, with_ = (
    json.dumps(_report(tmp_path / f'run{fraction}')['side_releases'])
    for fraction in (0.0, 1.0)
  )
  assert 'evaluations of the model on clients' in with_
  assert 'evaluations of the model on clients' not in without
  assert not results[0].evaluate_metrics_clientapp
  assert sorted(results[1].evaluate_metrics_clientapp) == [1, 2]
  # Equal weights: by examples it would be 4.67.
  assert results[1].evaluate_metrics_clientapp[2]['right'] == pytest.approx(3.5)
  assert sorted(results[1].evaluate_metrics_serverapp) == [0, 1, 2]
  (row,) = _report(tmp_path / 'run1.0')['runs']
  assert row['results'] == {'server': 2.5}


def test_evaluations_replace_no_other_note(tmp_path):
  folder, plan = tmp_path / 'run', _plan(rounds=2)
  with tff_bandmf.Run(folder, plan) as run:
    run.note(side_releases=['counts of labels'])
  _trained(folder, plan, averaging=_averaging(fraction_evaluate=1.0))
  stated = [row['what'] for row in _report(folder)['side_releases']]
  assert {'counts of labels', flower._EVALUATIONS} <= set(stated)


def test_metrics_of_training_are_the_named_ones(tmp_path):
  """In every round, whatever the clients send."""

  def measured(server_round, client):
    if server_round == 2:
      return {'num-examples': 9}
    if client % 2:
      return {f'patient-{client}': 1.0, 'accuracy': [0.5], 'loss': np.nan}
    return {'loss': float(client), 'accuracy': 1}

  strategy = flower.CorrelatedNoise(
    _averaging(),
    tmp_path,
    _plan(rounds=2, clients_per_round=8, cohorts=tff_bandmf.MinSep(1)),
    clients=8,
    train_metrics=('loss', 'accuracy'),
  )
  result = strategy.start(
    flower_grid.LocalGrid(_client_app(measured=measured), 8),
    app.ArrayRecord(_FIRST),
  )
  first, second = (
    {f'train/{name}': row[f'train/{name}'] for name in ('loss', 'accuracy')}
    for row in strategy.metrics
  )
  assert first == {'train/loss': 3.0, 'train/accuracy': 1.0}
  assert np.isnan(list(second.values())).all()
  assert result.train_metrics_clientapp[1] == {'loss': 3.0, 'accuracy': 1.0}
  # The report has the names alone, once.
  text = (tmp_path / 'report.json').read_text()
  assert 'patient' not in text and 'num-examples' not in text
  assert sum('train/' in each for each in _report(tmp_path)['not_covered']) == 1
  assert 'train/loss' not in (tmp_path / 'metrics.csv').read_text()
  with pytest.raises(TypeError, match="train_metrics='loss': must be a list"):
    _trained(tmp_path, _plan(), train_metrics='loss')


@pytest.mark.parametrize('private', [True, False])
@pytest.mark.parametrize(
  'cohorts', [tff_bandmf.MinSep(2), tff_bandmf.Budget(2)], ids=str
)
def test_run_ends_at_an_epsilon(tmp_path, cohorts, private):
  plan = _plan(cohorts=cohorts)
  until = tff_bandmf.Epsilon(plan.spent(2))
  rounds, seen = plan.rounds_within(until.value), []
  assert (rounds == 2) == (cohorts == tff_bandmf.MinSep(2))

  def start(client_app, **changes):
    options = {'until': until, 'private': private, **changes}
    return _trained(
      tmp_path,
      plan,
      client_app,
      evaluate_fn=lambda t, arrays: app.MetricRecord({'round': t}),
      **{'num_rounds': None, **options},
    )

  start(_client_app(seen=seen))
  assert {t for t, _ in seen} == set(range(1, rounds + 1))
  written = _report(tmp_path)
  assert written['epsilon'] == (until.value if private else None)
  assert written['runs'][0]['results'] == {'round': rounds}
  # The run has ended, at its last round.
  again = start(_client_app(seen=[]))
  assert sorted(again.evaluate_metrics_serverapp) == [rounds]
  with pytest.raises(ValueError, match='num_rounds=2: cannot be given'):
    start(None, num_rounds=2)
  with pytest.raises(TypeError, match='until=4.0: .*or num_rounds='):
    start(None, until=4.0)


def test_tensorboard_gets_the_numbers_of_each_round(tmp_path):
  from tensorboard.backend.event_processing import event_file_loader

  strategy = flower.CorrelatedNoise(
    _averaging(), tmp_path, _plan(), clients=8, train_metrics=['loss']
  )
  strategy.tensorboard()
  strategy.start(
    flower_grid.LocalGrid(_client_app(), 8), app.ArrayRecord(_FIRST)
  )
  (path,) = (tmp_path / run_json.TENSORBOARD).iterdir()
  losses = [
    (event.step, value.tag)
    for event in event_file_loader.EventFileLoader(str(path)).Load()
    for value in event.summary.value
    if value.tag in ('epsilon', 'train/loss')
  ]
  assert losses == [
    (t, tag) for t in range(4) for tag in ('epsilon', 'train/loss')
  ]


class _Stopped(flower_grid.LocalGrid):
  """Fails when it sends the messages of a server round."""

  stop = 3

  def send_and_receive(self, messages, *, timeout=None):
    messages = list(messages)
    if messages[0].content['config']['server-round'] == self.stop:
      raise ConnectionError('gone')
    return super().send_and_receive(messages)


def test_stopped_run_goes_on_with_its_round_and_model(tmp_path):
  seen, models = [], []

  def note(t, arrays):
    models.append((t, arrays.to_numpy_ndarrays()[0].tolist()))

  with pytest.raises(ConnectionError):
    _trained(
      tmp_path,
      _plan(),
      grid=_Stopped(_client_app(seen=seen), 8),
      evaluate_fn=note,
    )
  _trained(tmp_path, _plan(), _client_app(seen=seen), evaluate_fn=note)
  assert [t for t, _ in models] == [0, 1, 2, 2, 3, 4]
  assert models[2] == models[3]
  assert {t for t, _ in seen} == {1, 2, 3, 4}
  assert len(seen) == 16
  # The run has ended, and gives its model again.
  result = _trained(tmp_path, _plan(), _client_app(seen=seen))
  assert result.arrays.to_numpy_ndarrays()[0].tolist() == models[-1][1]
  assert len(seen) == 16


def test_arrivals_are_admitted_by_a_budget(tmp_path):
  seen = []
  _trained(
    tmp_path / 'run',
    _plan(cohorts=tff_bandmf.Budget(2)),
    _client_app(seen=seen),
  )
  assert [t for t, _ in seen] == [t for t in range(1, 5) for _ in range(4)]
  with pytest.raises(ConnectionError):
    _trained(
      tmp_path / 'other',
      _plan(cohorts=tff_bandmf.Budget(2)),
      grid=_Stopped(_client_app(), 8),
    )
  # The clients of a round that ended early do not come again.
  del seen[:]
  _trained(
    tmp_path / 'other',
    _plan(cohorts=tff_bandmf.Budget(2)),
    _client_app(seen=seen),
  )
  assert {t for t, _ in seen} == {4}


@pytest.mark.parametrize('stop', [1, 3, 4])
def test_arrivals_that_are_interrupted_in_any_round_end(tmp_path, stop):
  """In the first, a middle and the last round, which nobody runs again."""
  plan, seen = _plan(cohorts=tff_bandmf.Budget(2)), []
  grid = _Stopped(_client_app(), 8)
  grid.stop = stop
  with pytest.raises(ConnectionError):
    _trained(tmp_path, plan, grid=grid)
  _trained(tmp_path, plan, _client_app(seen=seen))
  assert sorted({t for t, _ in seen}) == list(range(stop + 1, 5))
  content = _report(tmp_path)
  observed = content['observed']
  assert content['completed'] and observed['rounds_burnt'] == 1
  # No round past the plan was started instead.
  assert observed['rounds'] == 4
  assert not (tmp_path / run_json.NOISE_KEY).exists()


@pytest.mark.parametrize(
  'plan, changes, line',
  [
    ({'clients_per_round': 3}, {'clients': 7}, 'fewer than the 8 nodes'),
    ({'clients_per_round': 5}, {}, 'cannot fill'),
    ({}, {'num_rounds': 5}, 'num_rounds=5: must be in'),
    ({}, {'clients': 9, 'timeout': 0.3}, 'clients=8: are connected after'),
    ({}, {'averaging': _averaging(fraction_train=0.0)}, 'no messages'),
  ],
)
def test_run_that_cannot_keep_its_guarantee_ends(tmp_path, plan, changes, line):
  with pytest.raises(ValueError, match=line) as raised:
    _trained(tmp_path, _plan(**plan), **changes)
  assert '\n' not in str(raised.value)


class _Deployment:
  """A grid of SuperNodes that have keys, in the form of a deployment."""

  def __init__(self, client_app, keys, kind=flower_grid.LocalGrid):
    local = kind(client_app, len(keys))
    self.get_node_ids = local.get_node_ids
    self.send_and_receive = local.send_and_receive
    self._nodes = local.state.get_node_info()
    for node, key in zip(self._nodes, keys):
      node.public_key = key

  def get_nodes(self):
    return self._nodes


def _public_keys(count):
  """Returns lines of OpenSSH, and the keys as Flower stores them."""
  keys = [
    ec.derive_private_key(i + 1, ec.SECP256R1()).public_key()
    for i in range(count)
  ]
  form = serialization.PublicFormat
  return (
    [
      each.public_bytes(serialization.Encoding.OpenSSH, form.OpenSSH).decode()
      for each in keys
    ],
    [
      each.public_bytes(serialization.Encoding.PEM, form.SubjectPublicKeyInfo)
      for each in keys
    ],
  )


@pytest.mark.parametrize(
  'cohorts', [tff_bandmf.MinSep(2), tff_bandmf.Budget(2)], ids=str
)
def test_nodes_without_a_known_key_take_no_part(tmp_path, cohorts):
  lines, keys = _public_keys(8)
  seen = []
  # Two SuperNodes registered themselves, and the operator lists the others.
  _trained(
    tmp_path,
    _plan(clients_per_round=3, cohorts=cohorts),
    grid=_Deployment(_client_app(seen=seen), keys),
    clients=lines[2:],
  )
  assert {client for _, client in seen} <= set(range(2, 8))
  assert seen


def test_line_that_is_no_key_is_refused(tmp_path):
  with pytest.raises(ValueError, match="clients='no key': is not a public key"):
    _trained(tmp_path, _plan(), clients=['no key'])


def test_node_that_connects_again_is_the_same_client(tmp_path):
  lines, keys = _public_keys(8)
  seen = []
  plan = _plan(cohorts=tff_bandmf.Single(), rounds=2)

  def nodes(order):
    return _Deployment(_client_app(seen=seen), [keys[i] for i in order])

  _trained(tmp_path, plan, grid=nodes(range(8)), clients=lines, num_rounds=1)
  # All SuperNodes connect again, and have other IDs.
  _trained(tmp_path, plan, grid=nodes(range(7, -1, -1)), clients=lines)
  first = {client for t, client in seen if t == 1}
  second = {7 - client for t, client in seen if t == 2}
  assert first | second == set(range(8))


def test_number_of_clients_outside_a_simulation_is_refused(tmp_path):
  _, keys = _public_keys(8)
  with pytest.raises(ValueError, match='clients=8: counts the nodes'):
    _trained(tmp_path, _plan(), grid=_Deployment(_client_app(), keys))


def test_another_number_of_simulated_clients_is_refused(tmp_path):
  plan = _plan()
  _trained(tmp_path, plan, num_rounds=1)
  grid = flower_grid.LocalGrid(_client_app(), 16)
  with pytest.raises(ValueError, match='clients=16: must be 8 as in the run'):
    _trained(tmp_path, plan, grid=grid, clients=16)
  _trained(tmp_path, plan, num_rounds=2)


_SIMULATION = """
import sys
from flwr.simulation import run_simulation
sys.path[:0] = sys.argv[2:]
import flower_test
flower_test.simulate(sys.argv[1], run_simulation)
"""


class _SendsNothing(strategies.FedAvg):
  """Configures no training in server round 3."""

  def configure_train(self, server_round, arrays, config, grid):
    messages = super().configure_train(server_round, arrays, config, grid)
    return [] if server_round == 3 else messages


def simulate(folder, run_simulation):
  """Trains in the simulation engine, until a round cannot be kept."""
  from flwr import serverapp

  client_app, server_app = _client_app(), serverapp.ServerApp()

  @server_app.main()
  def main(grid, context):
    strategy = flower.CorrelatedNoise(
      _SendsNothing(fraction_evaluate=0.0, weighted_by_key=flower.EQUAL),
      folder,
      _without_noise(rounds=4),
      clients=8,
    )
    update = strategy._update

    def checked(reply):
      # Update 1 + i has come from partition i, and from client i of the run.
      (client,) = (c for c, n in strategy._nodes.items()
                   if n == reply.metadata.src_node_id)  # fmt: skip
      got = update(reply)
      assert np.allclose(got['0'], 1 + client), (client, got)
      return got

    strategy._update = checked
    strategy.start(grid, app.ArrayRecord(_FIRST), num_rounds=4)

  run_simulation(
    server_app,
    client_app,
    num_supernodes=8,
    backend_config={
      'client_resources': {'num_cpus': 1},
      'init_args': {'num_cpus': 1},
    },
  )


def test_partitions_are_the_names_of_simulated_clients(tmp_path):
  done = subprocess.run(
    [sys.executable, '-c', _SIMULATION, tmp_path / 'run',
     _TESTS, _EXAMPLES.parent],
    capture_output=True, text=True, timeout=600,
  )  # fmt: skip
  # Round 3 could not be kept, and ended the program.
  assert done.returncode == 1, done.stderr[-3000:]
  line = done.stderr.rstrip().splitlines()[-1]
  assert line.startswith(
    'ValueError: strategy=_SendsNothing: configures no messages'
  ), done.stderr[-3000:]
  with ledger_lib.Ledger(tmp_path / 'run/ledger.sqlite') as ledger:
    outcomes = [ledger.attempts(t)[-1].outcome for t in range(3)]
  assert outcomes == ['finished', 'finished', 'failed']


def _with_key(directory):
  """Gives a run the same key in every test, for comparison alone."""
  directory.mkdir()
  path = directory / f'{run_json.NOISE_KEY}{run_json.NEW_KEY}'
  _files.load_or_create_secret(path, 32, 'key', lambda size: b'k' * size)
  folder_lib.bind(directory, begun=False)


def _started(home):
  return subprocess.Popen(
    [sys.executable, '-u', _EXAMPLES / 'flower_private.py'],
    env={**os.environ, 'HOME': str(home)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )


def test_killed_simulation_ends_as_an_undisturbed_one(tmp_path, capsys):
  for name in 'killed', 'undisturbed':
    (tmp_path / name).mkdir()
    _with_key(tmp_path / name / 'flower_run')
  killed = _started(tmp_path / 'killed')
  for line in killed.stderr:
    if re.search(r'\[ROUND 3/4\]', line):
      # With the workers of Ray.
      os.killpg(killed.pid, signal.SIGKILL)
      break
  killed.communicate()
  assert killed.returncode == -signal.SIGKILL
  out = []
  for name in 'killed', 'undisturbed':
    again = _started(tmp_path / name)
    done, err = again.communicate(timeout=900)
    assert again.returncode == 0, err[-3000:]
    out.append(done)
    assert ('[ROUND 1/4]' in err) == (name == 'undisturbed')
    assert '[ROUND 4/4]' in err
  slope = re.search(r'slope (\S+), intercept (\S+)', out[0])
  assert slope[0] == re.search(r'slope (\S+), intercept (\S+)', out[1])[0]
  assert [round(float(each)) for each in slope.groups()] == [3, -1]
  folder = tmp_path / 'killed/flower_run'
  with ledger_lib.Ledger(folder / 'ledger.sqlite') as ledger:
    assert ledger.observed().min_sep >= 2
    assert len(ledger.attempts(2)) == 2
  assert main.main(['verify', str(folder)]) == 0, capsys.readouterr().out


def test_quickstart_takes_six_lines():
  before, after = (
    (_EXAMPLES / f'flower_{name}.py').read_text().splitlines()
    for name in ('quickstart', 'private')
  )
  assert 0 < len([x for x in after if x.strip() and x not in before]) <= 6
