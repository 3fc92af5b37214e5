"""Tests of the attacks on people, on a small file of the form of the corpus."""

import math

import numpy as np
import pytest
import small_chat
from click import testing

from simulations import attacks, models, pretraining
from simulations import config as config_lib
from simulations.corpora import chitchat, client_data
from simulations.corpora import vocabulary as vocabulary_lib

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def splits(tmp_path_factory):
  """The train and the test split."""
  folder = tmp_path_factory.mktemp('attacks')
  path = chitchat.cached_corpus(
    str(small_chat.write(folder, people=20)), str(folder)
  )
  vocabulary = vocabulary_lib.Vocabulary(small_chat.WORDS)
  return [
    client_data.load_clients(path, split, vocabulary)
    for split in ('train', 'test')
  ]


@pytest.fixture(scope='module')
def learnt(splits):
  """A model, weights that learnt its clients by heart, and what was planted."""
  train, _ = splits
  planted = attacks.plant(train, 5, seed=3)
  model = models.build(
    config_lib.Model(embedding_size=16, embedding_scale=1.0, lstm_size=64),
    train.vocabulary.num_ids,
    seed=0,
  )
  weights = pretraining.train(model, planted.clients, 400, seed=0)
  return model, weights, planted


def test_bound_is_that_of_the_gaussian_mechanism():
  # Epsilon 8 at delta 1e-6 is mu 1.53: 21 % at one.
  assert attacks.bound(0.01, 1 / 1.53) == pytest.approx(0.2129, abs=1e-3)
  assert attacks.bound(0.05, 1e9) == pytest.approx(0.05)
  assert attacks.bound(0.01, 0) == 1


def test_interval_holds_what_it_says():
  generator = np.random.default_rng(0)
  for p in (0.02, 0.3):
    inside = [
      low <= p <= high
      for low, high in map(
        lambda s: attacks.interval(int(s), 60), generator.binomial(60, p, 800)
      )
    ]
    assert np.mean(inside) >= 0.95
  assert attacks.interval(0, 60)[0] == 0 and attacks.interval(60, 60)[1] == 1


def test_threshold_lets_no_more_of_the_others_pass():
  others = np.arange(300.0)
  found = attacks.membership(np.array([290.0, 297.5, 299.5]), others, 0.0)
  assert [each['false_positive_rate'] for each in found] == [3 / 300, 15 / 300]
  assert [each['true_positive_rate'] for each in found] == [2 / 3, 1.0]
  # No more than the others: ties are not above.
  same = attacks.membership(np.zeros(50), np.zeros(50), 0.0)
  assert all(each['true_positive_rate'] == 0 for each in same)


def test_attack_that_refutes_a_guarantee_says_so():
  generator = np.random.default_rng(0)
  members, others = generator.normal(3, 1, 800), generator.normal(0, 1, 300)
  wrong, right = (
    attacks.membership(members, others, noise)[1] for noise in (2.0, 1 / 3)
  )
  assert wrong['refuted'] and not right['refuted']
  assert wrong['above_chance'] and right['above_chance']


@pytest.mark.parametrize('attack', ['membership', 'exposure', None])
def test_exit_status_is_1_if_any_attack_refutes(monkeypatch, tmp_path, attack):
  generator = np.random.default_rng(0)
  high, low = generator.normal(3, 1, 800), generator.normal(0, 1, 300)
  rates = {
    each: attacks.membership(high, low, 2.0 if each == attack else 1 / 3)
    for each in ('membership', 'exposure')
  }
  result = {
    'membership': rates['membership'],
    'exposure': {'rates': rates['exposure']},
  }
  monkeypatch.setattr(attacks, '_attack_run', lambda *_: result)
  done = testing.CliRunner().invoke(attacks.main, [str(tmp_path)])
  assert done.exit_code == (attack is not None)


def test_gain_of_a_person_is_that_of_her_words(splits, learnt):
  train, _ = splits
  model, weights, planted = learnt
  found = attacks.gains(model, model.weights, weights, planted.clients)
  assert found.shape == (train.num_clients,)
  for client in (0, train.num_clients - 1):
    x, y = planted.clients.client_arrays(client)
    before, after = (
      float(model.loss(tuple(each), x, y)) for each in (model.weights, weights)
    )
    assert found[client] == pytest.approx(before - after, abs=1e-4)


def test_members_of_a_model_without_noise_are_found(splits, learnt):
  model, weights, planted = learnt
  members, others = (
    attacks.gains(model, model.weights, weights, clients)
    for clients in (planted.clients, splits[1])
  )
  found = attacks.membership(members, others, 0.0)[1]
  assert found['true_positive_rate'] > 0.5
  assert found['bound'] == 1 and not found['refuted']


def test_planted_sentences_are_in_the_text_of_their_people(splits, learnt):
  train, _ = splits
  planted = learnt[2].clients
  changed = {
    client
    for client in range(train.num_clients)
    if np.any(
      planted.client_arrays(client)[0] != train.client_arrays(client)[0]
    )
  }
  assert changed == set(learnt[2].people.tolist())
  x, _ = planted.client_arrays(int(learnt[2].people[0]))
  assert np.all(x[:4] == learnt[2].rows[0][:-1])
  assert planted.digest() != train.digest()


def test_planted_sentences_are_exposed_without_noise(learnt):
  model, weights, planted = learnt
  most = math.log2(4096)

  def exposures(after):
    return attacks.exposures(
      *(
        attacks.falls(model, model.weights, after, rows)
        for rows in (planted.rows, planted.references)
      )
    )

  assert np.mean(exposures(weights)) > 0.6 * most
  # A model that never saw one: all ranks are alike.
  fresh = [w + 0.01 * np.sin(w) for w in model.weights]
  assert np.mean(exposures(fresh)) < most / 2


def test_exposure_and_area_of_known_ranks():
  references = np.arange(7.0)
  bits = attacks.exposures(np.array([9.0, 5.5, -1.0]), references)
  assert bits.tolist() == [3.0, 2.0, 0.0]
  assert attacks.area(np.array([9.0, 5.5, -1.0]), references) == pytest.approx(
    13 / 21
  )
  assert attacks.area(np.zeros(3), np.zeros(4)) == 0.5
