"""Tests of the claims of runs: report, checks of a process, keys, metrics."""

import itertools

import jsonschema
import numpy as np
import pytest
import small_run
import tensorflow_federated as tff

from tff_bandmf import (
  accounting,
  participation,
  report,
  run,
  verify,
)
from tff_bandmf.run_files import run_json


def test_report_of_a_run_claims_its_plan(whole):
  directory, state = whole
  with run.Run(directory, small_run.small_plan()) as mine:
    mine.note(tuning='none', data='numbers')
    found = mine.report()
  assert found.content['completed'] and not found.content['violated']
  assert found.content['observed']['rounds_finished'] == small_run.ROUNDS
  assert found.content['data_accesses']['tuning'] == 'none'
  assert found.content['epsilon'] == small_run.small_plan().guarantee.epsilon(
    1e-5
  )
  assert 'epsilon = ' in found.statement
  assert found.content['population'] == 8


def _release(directory, plan, after=()):
  """A round of one client without TFF, and the report."""
  with run.Run(directory, plan, after=after) as mine:
    with mine.round(cohort=['a']) as opened:
      opened.finish(opened.release([], np.zeros(3)))
    return mine.report()


def test_whole_run_that_nobody_ended_says_what_that_means(tmp_path):
  """It said '4 of 4 rounds were started' of a run that 'has not ended'."""
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    for opened in mine.rounds(clients=8):
      opened.finish(opened.release([np.zeros(3)] * 2, np.zeros(3)))
    found = mine.report().content
    (warning,) = [text for text in found['warnings'] if 'planned' in text]
    assert 'nobody recorded the end' in warning
    assert 'has not ended' not in warning and not found['completed']
    assert 'key of its noise may still exist' in warning
    public = report.publish([report.of_run(mine.directory)]).content['warnings']
    assert [text for text in public if 'nobody recorded the end' in text]
    lines = []
    verify.verify(mine.directory, lines.append)
    assert [line for line in lines if 'nobody recorded the end' in line]
    mine.record(test_loss=1.0)
    assert 'nobody recorded' not in str(mine.report().content['warnings'])
    lines.clear()
    verify.verify(mine.directory, lines.append)
  assert lines and not [line for line in lines if 'nobody recorded' in line]


def test_run_claims_what_it_and_those_before_it_guarantee(tmp_path):
  first = _release(tmp_path / 'first', small_run.small_plan())
  assert first.content['together'] is None
  second = _release(
    tmp_path / 'second', small_run.small_plan(), [tmp_path / 'first']
  )
  together = second.content['together']
  assert together['runs'] == ['second', '../first']
  assert together['epsilon'] > 1.2 * second.content['epsilon']
  with run.Run(
    tmp_path / 'second', small_run.small_plan(), after=[tmp_path / 'first']
  ) as mine:
    found = accounting.compose([mine, small_run.small_plan()])
    # Of the first run too, which this one comes after.
    assert mine.guarantee.epsilon(1e-5) == together['epsilon']
  planned = small_run.small_plan().guarantee.epsilon(1e-5)
  assert found.guarantees[0].epsilon(1e-5) == planned
  # Whoever did one round may have chosen to stop there.
  assert planned == second.content['epsilon']
  assert len(found.guarantees) == 3
  # One round each: its chain says what the run held to.
  assert 'digest of this setting' in second.content['assumptions'][0]['checked']
  for after, message in (
    ([], 'after=None'),
    ([tmp_path / 'second'], 'is the run itself'),
    ([tmp_path / 'none'], 'has no run.json'),
  ):
    with pytest.raises(ValueError, match=message):
      run.Run(tmp_path / 'second', small_run.small_plan(), after=after)
  with pytest.raises(ValueError, match='clients_per_unit=2: is 1 in .*first'):
    run.Run(
      tmp_path / 'third',
      small_run.small_plan(clients_per_unit=2),
      after=[tmp_path / 'first'],
    )


def test_simulated_run_says_that_it_is_one(tmp_path):
  plan = small_run.small_plan(noise_multiplier=50.0, stands_for=20)
  found = _release(tmp_path / 'run', plan)
  for text in found.markdown().split('\n')[0], found.content['warnings'][0]:
    assert 'SIMULATED' in text
  for text in found.statement, found.content['summary']:
    assert text.startswith('SIMULATED')
  # What is claimed is what one round of two clients gets.
  mine = plan.guarantee
  assert found.content['z_stddev'] == pytest.approx(mine.z_stddev_per_clip)
  assert found.content['epsilon'] <= mine.epsilon(1e-5)
  assert plan.simulated.epsilon(1e-5) < found.content['epsilon'] / 4
  assert found.content['setting'].startswith('SIMULATED: 2 clients a round')


def _key_row(found):
  rows = found.content['assumptions']
  (row,) = [row for row in rows if 'its key is secret' in row['assumption']]
  return row['checked']


@pytest.mark.parametrize('keep_key', [False, True])
def test_key_ends_with_the_run_and_the_report_says_so(tmp_path, keep_key):
  plan = small_run.small_plan(
    rounds=1, cohorts=participation.Single(), mechanism='identity'
  )
  directory = tmp_path / 'run'
  with run.Run(directory, plan, keep_key=keep_key) as mine:
    with mine.round(cohort=['a']) as opened:
      opened.finish(opened.release([], np.zeros(3)))
    assert _key_row(mine.report()) == 'not checked here'
    mine.record()
    told = 'kept' if keep_key else 'destroyed'
    assert _key_row(mine.report()).startswith(told)
    assert (directory / run_json.NOISE_KEY).exists() == keep_key
    for wanted in 'ledger.key', 'lock':
      assert (directory / 'private' / wanted).exists()


def test_identifiers_can_be_erased(tmp_path):
  plan = small_run.small_plan(
    rounds=1, cohorts=participation.Single(), mechanism='identity'
  )
  directory = tmp_path / 'run'
  with run.Run(directory, plan) as mine:
    with mine.round(cohort=['a', 'b']) as opened:
      opened.finish(opened.release([], np.zeros(3)))
    with pytest.raises(ValueError, match='erase_identifiers=round 1: comes'):
      mine.erase_identifiers()
    mine.record(test_accuracy=0.5)
    mine.erase_identifiers()
  with run.Run(directory, plan) as mine:
    found = mine.report().content
    assert not list(mine.rounds(clients=['a', 'b']))
  assert not (directory / run_json.LEDGER_KEY).exists()
  assert found['observed']['clients'] == 2 and found['completed']
  assert (
    'hashes of the clients of each round, under a key that is destroyed'
    in [row['what'] for row in found['side_releases']]
  )


def test_process_that_passes_the_aggregator_is_refused(tmp_path):
  process = tff.aggregators.SumFactory().create(small_run.TYPE)
  with run.Run(tmp_path / 'run', small_run.small_plan()) as mine:
    with pytest.raises(ValueError, match='0 releases of a dp_aggregator'):
      next(mine.train(process, None, clients=8))


def test_process_that_nobody_checked_leads_the_report(whole):
  """An own loop may let the model take a mean of raw updates."""
  directory, _ = whole
  made = report.build(directory)
  assert made.content['process_checked'] is False
  assert made.content['warnings'][0].startswith('NOT CHECKED: the process of')
  assert made.statement.startswith('Not checked: values of clients that bypass')
  assert made.content['summary'].startswith('Not checked: ')
  public = report.publish([report.of_run(directory)])
  assert public.content['warnings'][0].startswith('NOT CHECKED: the process of')
  jsonschema.validate(made.content, report.json_schema())


def test_releases_without_a_process_need_no_check(tmp_path):
  small_run.train_without_tff(tmp_path / 'run')
  made = report.build(tmp_path / 'run')
  assert made.content['process_checked'] is None
  assert not any('CHECKED' in each for each in made.content['warnings'])
  assert made.statement.startswith('Let M')
  (row,) = [
    each
    for each in made.content['assumptions']
    if 'passes' in each['assumption']
  ]
  assert row['checked'].startswith('no process: the program gave each update')


def test_one_round_of_an_unchecked_process_is_enough(tmp_path, runtime):
  """Two rounds are checked, one is not: nobody knows what that one did."""
  for check in True, False:
    with run.Run(
      tmp_path / 'run', small_run.small_plan(), keep_key=True
    ) as mine:
      process = mine.aggregator.create(small_run.TYPE)
      if check:
        mine.check(process)
      state = mine.restore(process.initialize)
      for opened in itertools.islice(mine.rounds(clients=8), 2 if check else 9):
        data = [
          small_run.update_of(client, opened.index) for client in opened.cohort
        ]
        state = opened.finish(process.next(state, data).state)
      content = mine.report().content
    assert content['process_checked'] is check


def test_updates_that_add_nothing_are_named(tmp_path, runtime, capsys):
  """Updates are NaN: TFF makes them zero, and a model may be noise alone."""
  import tensorflow as tf

  first: dict[int, int] = {}

  def dataset(client, t):
    # All updates of rounds 0 and 1 are NaN, and one of round 2.
    one = t == 2 and first.setdefault(t, client) == client
    x = np.full([4, 1], np.nan if t < 2 or one else client + 1, np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x)).batch(2)

  model = tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1])]),
    tf.keras.losses.MeanSquaredError(),
    dataset(0, 0).element_spec,
  )
  with run.Run(
    tmp_path / 'run', small_run.small_plan(noise_multiplier=99.0)
  ) as mine:
    process = tff.learning.algorithms.build_unweighted_fed_avg(
      model,
      tff.learning.optimizers.build_sgdm(0.1),
      tff.learning.optimizers.build_sgdm(1e-9),
      model_aggregator=mine.aggregator,
    )
    for _ in mine.train(process, dataset, clients=8):
      pass
    mine.record(accuracy=0.25)
    made = mine.report()
  shown = capsys.readouterr().err
  assert shown.count('WARNING: 2 of 2 updates of round 0 were zero or not') == 1
  assert shown.count('WARNING: 1 of 2 updates of round 2 were zero or not') == 1
  # The size of the model is known as soon as the process is there.
  assert shown.count('WARNING: the noise drowns the updates') == 1
  assert run_json.ALL_ZERO in made.content['not_covered']
  assert any(
    'released noise alone' in each for each in made.content['warnings']
  )
  # A recorded result is shown, whatever its name.
  (row,) = made.content['runs']
  assert row['results'] == {'accuracy': 0.25}
  assert 'accuracy 0.25' in made.markdown() and 'accuracy 0.25' in made.html()


def test_metrics_stay_private_and_are_named(tmp_path, runtime):
  directory = tmp_path / 'run'
  with run.Run(directory, small_run.small_plan()) as mine:
    process = small_run.Process(mine.aggregator)
    state = mine.restore(process.initialize)
    for opened in mine.rounds(clients=8):
      state = process.next(
        state, [small_run.update_of(client, 0) for client in (1, 2)]
      )
      metrics = {
        'train': {'loss': np.float32(0.2578125)},
        'aggregator': {'free': {'clip': 0.5}},
      }
      opened.finish(state, metrics=metrics)
      break
    found = mine.report().content
  # What is the same whatever the updates are is no access to data.
  assert not any('free' in item for item in found['not_covered'])
  assert (
    'metrics of rounds, without noise: train/loss (private/metrics.csv)'
    in found['not_covered']
  )
  metrics = (directory / 'private/metrics/00000000.json').read_text()
  assert '0.2578125' in metrics
  public = [path for path in directory.iterdir() if path.is_file()]
  assert not any(b'0.2578125' in path.read_bytes() for path in public)
