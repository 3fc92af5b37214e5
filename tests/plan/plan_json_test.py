"""Tests of stored plans: a file that contradicts itself is refused."""

import json

import families
import pytest
import small_plan

import tff_bandmf
from tff_bandmf import strategies
from tff_bandmf.plan import plan_json

_BLOCK = {'block_rounds': 6, 'block_family': 'banded-sqrt', 'bands': 3}


@pytest.mark.parametrize(
  'changes',
  [
    {},
    dict(l2_norm_clip=(0.3, 0.4), stands_for=30, largest_cohort=12),
    dict(epsilon=None, delta=None, noise_multiplier=0.7),
    dict(mechanism=strategies.BandedSqrt(60, 3)),
    dict(mechanism=tff_bandmf.Mechanism('dp-cgd', **{'lambda': 0.5})),
    dict(workload=tff_bandmf.Workload(0.9, 0.1, 0.2), mechanism='identity'),
    dict(cohorts=tff_bandmf.FixedEpoch(12, 4)),
  ],
)
def test_stored_plan_is_the_plan(tmp_path, changes):
  plan = small_plan.make(**changes)
  plan.save(tmp_path / 'plan.json')
  loaded = tff_bandmf.Plan.load(tmp_path / 'plan.json')
  assert plan_json.to_document(loaded) == json.loads(
    json.dumps(plan_json.to_document(plan))
  )
  assert str(loaded) == str(plan)
  assert loaded.strategy.digest() == plan.strategy.digest()
  assert loaded.guarantee.noise_multiplier == plan.guarantee.noise_multiplier


def test_plan_never_changes_under_a_run(tmp_path):
  small_plan.make().save(tmp_path / 'plan.json')
  before = (tmp_path / 'plan.json').read_bytes()
  with pytest.raises(ValueError, match='is there already'):
    small_plan.make(rounds=70).save(tmp_path / 'plan.json')
  assert (tmp_path / 'plan.json').read_bytes() == before


def _edited(tmp_path, edit):
  small_plan.make().save(tmp_path / 'plan.json')
  content = json.loads((tmp_path / 'plan.json').read_text())
  edit(content)
  (tmp_path / 'edited.json').write_text(json.dumps(content))
  return tff_bandmf.Plan.load(tmp_path / 'edited.json')


def test_plan_with_less_noise_than_its_claim_needs_is_refused(tmp_path):
  def edit(content):
    content['noise_multiplier'] *= 0.99

  with pytest.raises(ValueError, match='does not prove its claim'):
    _edited(tmp_path, edit)


@pytest.mark.parametrize('factor', [1.001, 10])
def test_plan_with_noise_beyond_its_request_is_refused(tmp_path, factor):
  def edit(content):
    content['noise_multiplier'] *= factor

  with pytest.raises(
    ValueError, match='noise_multiplier=.* asks for epsilon=4'
  ):
    _edited(tmp_path, edit)


def _given_noise(content):
  content['request'].update(epsilon=None, delta=None, noise_multiplier=1.0)
  content['noise_multiplier'] = 1.0


@pytest.mark.parametrize(
  'edit',
  [
    lambda content: content['request'].update(epsilon=4.1),
    lambda content: content['request'].update(delta=2e-6),
    lambda content: content['request'].update(mechanism='identity'),
    lambda content: content['request'].update(
      mechanism={'family': 'banded-sqrt', 'bands': 13}
    ),
    lambda content: content['request'].update(
      mechanism={'family': 'banded-sqrt', 'column_normalize': True}
    ),
    lambda content: content['request'].update(
      mechanism='best', memory_copies=4
    ),
    lambda content: content.update(runners_up=[['identity', 9.0]]),
    lambda content: content.update(left_out={'identity': 'a reason'}),
    lambda content: content['bound'].update(epsilon=1.0),
    lambda content: content.update(bound=None),
    _given_noise,
  ],
)
def test_plan_that_contradicts_its_request_is_refused(tmp_path, edit):
  with pytest.raises(ValueError) as caught:
    _edited(tmp_path, edit)
  assert '\n' not in str(caught.value)


def test_mechanism_describes_what_it_asks_for_alone():
  every = families.made(24)
  for name, strategy in every.items():
    plain = name not in ('normalised', 'stamped')
    assert tff_bandmf.Mechanism(strategy.family).describes(strategy) == plain
    for other in {*strategies.FAMILIES} - {strategy.family}:
      assert not tff_bandmf.Mechanism(other).describes(strategy)
  for name, own, wrong in (
    ('banded-sqrt', {'bands': 4}, {'bands': 5}),
    ('banded', {'bands': 3}, {'bands': 2}),
    ('banded-inverse', {'bands': 3}, {'bands': 2}),
    ('banded-inverse-sqrt', {'bands': 3}, {'bands': 4}),
    ('blt', {'buffers': 2}, {'buffers': 1}),
    ('dp-cgd', {'lambda': 0.8}, {'lambda': 0.81}),
    ('normalised', {'column_normalize': True}, {'column_normalize': False}),
    ('tree', {'arity': 2}, {'arity': 3}),
    ('stamped', _BLOCK, {**_BLOCK, 'bands': 2}),
    ('stamped', _BLOCK, {**_BLOCK, 'block_rounds': 5}),
  ):
    strategy = every[name]
    for parameters in (own, wrong):
      asked = tff_bandmf.Mechanism(strategy.family, **parameters)
      assert asked.describes(strategy) == (parameters is own), (name, asked)


@pytest.mark.parametrize(
  'edit',
  [
    lambda content: content['request'].update(rounds=61),
    lambda content: content['request'].update(noise_multiplier=1.0),
    lambda content: content['request'].pop('cohorts'),
    lambda content: content['request'].update(workload={'workload': 'prefix'}),
    lambda content: content.update(version=1),
    lambda content: content.update(format='tff_bandmf.strategy'),
    lambda content: content.update(strategy=3),
    lambda content: content['strategy'].update(family='no-such'),
    lambda content: content.pop('noise_multiplier'),
    lambda content: content.update(left_out=None),
    lambda content: content.update(left_out='dense'),
    lambda content: content.update(runners_up=[3]),
  ],
)
def test_other_files_are_refused_in_one_line(tmp_path, edit):
  with pytest.raises(ValueError, match=r'^[a-z_]+=.*; ') as caught:
    _edited(tmp_path, edit)
  assert '\n' not in str(caught.value)
