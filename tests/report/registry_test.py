"""Tests of the record for the registry of deployments, and of the card."""

import json
import math
import pathlib

import jsonschema
import pytest
import written_run
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tff_bandmf import report
from tff_bandmf.report import registry_and_card, sentences
from tff_bandmf.run_files import run_json

pytestmark = pytest.mark.slow

_SCHEMA = (
  pathlib.Path(__file__).resolve().parents[3] / 'shared/registry-schema.yaml'
)
_NOTES = {
  'title': 'Next words: a demo',
  'owner': 'A team',
  'date': '2026-11-23',
  'model': 'LSTM of 4.05M parameters',
  'intended_use': 'suggests the next word on a keyboard, on the device',
  'region': 'worldwide',
  'sector': 'Technology',
}
_ACCESSES = {
  'tuning': 'on public text alone',
  'model_selection': 'the last model',
  'pre_training': 'none',
}


def _record(folder, data='docstrings', **notes):
  written_run.make_run(
    folder,
    written_run.KEPT,
    unit_of_privacy='one person',
    data=data,
    **notes,
  )
  content = report.publish([report.of_run(folder)]).content
  return registry_and_card.registry_record(content, data), content


def test_all_notes_reach_the_highest_tier(tmp_path):
  record, content = _record(tmp_path / 'run', **_NOTES, **_ACCESSES)
  assert record['tier'] == 3
  assert record['url_slug'] == 'next_words_a_demo'
  loss = record['deployment']['privacy_loss']
  assert loss['privacy_parameters'] == {
    name: content[name] for name in ('epsilon', 'delta', 'rho')
  }
  assert content['attack']['sentence'] in loss['privacy_parameters_details']


@pytest.mark.parametrize('flag', ['--registry', '--card'])
def test_release_without_guarantee_has_no_record_and_no_card(
  tmp_path, run, flag
):
  written_run.make_run(tmp_path, written_run.KEPT, noise_multiplier=0.0)
  status, out, error = run('report', tmp_path, '--public', flag)
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert 'epsilon=None: ' in error and 'states a guarantee' in error


@pytest.mark.parametrize('name', _ACCESSES)
def test_missing_note_lowers_the_tier_and_is_named(tmp_path, name):
  accesses = {key: _ACCESSES[key] for key in _ACCESSES if key != name}
  record, _ = _record(tmp_path / 'run', **_NOTES, **accesses)
  assert record['tier'] == 2
  administrative = record['deployment']['administrative']
  assert 'lacks preprocessing_and_hyperparameter' in administrative['notes']


@pytest.mark.parametrize('name', sorted({*_NOTES} - {'title'}))
def test_record_without_what_every_record_has_is_refused(tmp_path, name):
  notes = {key: _NOTES[key] for key in _NOTES if key != name}
  with pytest.raises(ValueError, match=f'{name}=None.*is not stated'):
    _record(tmp_path / 'run', **notes)


@pytest.mark.parametrize('name, value', [('date', 'May'), ('sector', 'Toys')])
def test_value_that_the_registry_does_not_know_is_refused(
  tmp_path, name, value
):
  with pytest.raises(ValueError, match=f'{name}={value}'):
    _record(tmp_path / 'run', **{**_NOTES, name: value})


@pytest.mark.parametrize('blank', ['', ' ', '\u00a0', '\u200b', '-'])
@pytest.mark.parametrize('name', ['title', 'owner', 'region', 'tuning', 'data'])
def test_blank_note_is_refused(tmp_path, name, blank):
  with pytest.raises(ValueError, match=f'{name}=.*has no letter'):
    run_json.check_visible({'model': None, name: blank})
  if blank.isspace():
    notes = {**_NOTES, **_ACCESSES, 'data': 'docstrings', name: blank}
    data = notes.pop('data')
    with pytest.raises(ValueError, match=f'{name}=.*has no letter'):
      _record(tmp_path / 'run', data, **notes)


@pytest.mark.parametrize('name', ['model', 'data'])
def test_blank_note_of_an_edited_report_is_refused(tmp_path, name):
  _, content = _record(tmp_path / 'run', **_NOTES)
  edited = {**content, 'data': 'docstrings', name: ' '}
  with pytest.raises(ValueError, match=f'{name}=.*has no letter'):
    registry_and_card.registry_record(edited, edited.pop('data'))


def test_every_owner_is_a_curator(tmp_path):
  owners = {'owner': 'A Lab; B, Inc.'}
  record, _ = _record(tmp_path / 'run', **{**_NOTES, **owners})
  basic = record['deployment']['basic']
  assert basic['data_curators'] == ['A Lab', 'B, Inc.']
  administrative = record['deployment']['administrative']
  assert administrative['registry_authors'] == ['A Lab', 'B, Inc.']
  for place, owner in enumerate(['A Lab; a  lab', 'A Lab;', '; A Lab']):
    with pytest.raises(ValueError, match='owner=.* each owner once'):
      _record(tmp_path / f'{place}', **{**_NOTES, 'owner': owner})


def test_note_that_is_repeated_or_blank_is_refused_by_the_command(
  tmp_path, run
):
  written_run.make_run(tmp_path / 'run', written_run.KEPT)
  for notes, message in (
    (['owner=A', 'owner=B'], 'note=owner=B: is the second note owner; '),
    (['owner='], "owner='': has no letter"),
    (['title= '], "title=' ': has no letter"),
  ):
    flags = [flag for note in notes for flag in ('--note', note)]
    status, out, error = run('report', tmp_path / 'run', '--public', *flags)
    assert (status, out, error.count('\n')) == (2, '', 1)
    assert message in error


def test_file_says_what_the_record_says(tmp_path):
  record, _ = _record(tmp_path / 'run', **_NOTES, **_ACCESSES)
  text = registry_and_card.to_yaml(record)
  assert yaml.safe_load(text) == record
  # The registry's own check refuses quoted texts of several lines.
  for line in text.splitlines():
    value = line.partition(': ')[2] or line.strip()
    assert value[:1] not in '\'"' or value[-1:] == value[:1], line


def _leaves(tree, name=''):
  if not isinstance(tree, dict):
    return {name: tree}
  return {
    key: leaf
    for child, value in tree.items()
    for key, leaf in _leaves(
      value, f'{name}.{child}' if name else child
    ).items()
  }


def test_record_is_of_the_registrys_schema(tmp_path):
  """Our own table of fields is checked where the schema is not there."""
  record, content = _record(tmp_path / 'run', **_NOTES, **_ACCESSES)
  tiers = {
    f'deployment.{title}.{name}': tier
    for title, section in registry_and_card.fields(
      content, 'docstrings'
    ).items()
    for name, (tier, _, _) in section.items()
  }
  fields = {*tiers, 'deployment.administrative.registry_authors'}
  top = {'url_slug', 'status', 'tier'}
  names = {
    name.replace('.epsilon', '').replace('.delta', '').replace('.rho', '')
    for name in _leaves(record)
  }
  assert names == fields | top
  if not _SCHEMA.exists():
    return
  schema = yaml.safe_load(_SCHEMA.read_text())
  jsonschema.Draft7Validator(
    schema, format_checker=jsonschema.FormatChecker()
  ).validate(record)
  for name, tier in tiers.items():
    node = schema
    for part in name.split('.'):
      node = node['properties'][part]
    assert node['tier'] == tier, name


def test_command_writes_record_and_card(tmp_path, run_json):
  written_run.make_run(
    tmp_path / 'run', written_run.KEPT, data='docstrings', **_NOTES, **_ACCESSES
  )
  run_json('report', str(tmp_path / 'run'), '--public', '--registry', '--card')
  record = yaml.safe_load((tmp_path / 'run/registry.yaml').read_text())
  assert record['tier'] == 3
  public = json.loads((tmp_path / 'run/public.json').read_text())
  card = (tmp_path / 'run/card.md').read_text()
  front = yaml.safe_load(card.split('---')[1])
  assert 'differential-privacy' in front['tags']
  assert f'| epsilon | {public["epsilon"]} |' in card
  assert public['attack']['sentence'] in card


def _exact(alpha, mu):
  """Returns the power of the best attack on a Gaussian of this mu."""
  low, high = -40.0, 40.0
  for _ in range(200):
    middle = (low + high) / 2
    if math.erfc(-middle / math.sqrt(2)) / 2 < alpha:
      low = middle
    else:
      high = middle
  return math.erfc(-(low + mu) / math.sqrt(2)) / 2


@given(st.floats(0.01, 12), st.floats(1e-10, 1e-3))
def test_attack_is_never_stated_weaker_than_it_may_be(mu, delta):
  def profile(epsilon):
    upper = math.erfc((epsilon / mu - mu / 2) / math.sqrt(2)) / 2
    return upper - math.exp(epsilon) * (
      math.erfc((epsilon / mu + mu / 2) / math.sqrt(2)) / 2
    )

  low, high = 0.0, 700.0
  for _ in range(200):
    middle = (low + high) / 2
    low, high = (middle, high) if profile(middle) > delta else (low, middle)
  for rho in mu**2 / 2, None:
    stated = sentences.attack({'epsilon': high, 'delta': delta, 'rho': rho})
    assert stated['true_positive_rate'] >= min(1, _exact(0.01, mu) - 1e-12)
    guess = math.erfc(-mu / 2 / math.sqrt(2)) / 2
    assert stated['right_guess'] >= guess - 1e-12
