"""Tests of who takes part, as commands learn it: from flags, or from a file."""

import json
import math
import pathlib

import numpy as np
import pytest

from tff_bandmf import participation, strategies

_NOISE = '--noise-multiplier 1 --delta 1e-6'
_CLAIM = '--epsilon 8 --delta 1e-6'
_COMMANDS = {
  'evaluate': '',
  'account': _NOISE,
  'calibrate': _CLAIM,
  'audit': _CLAIM,
}


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def _save(schema, rounds=2052, bands=342):
  strategies.save(
    strategies.BandedSqrt(rounds, bands), 'c.json', participation=schema
  )


def _save_matrix():
  np.save('c.npy', np.eye(9))


@pytest.mark.parametrize(
  'command',
  [
    *(
      f'{name} {file} {flags}'
      for file in ('c.json', 'c.npy')
      for name, flags in _COMMANDS.items()
    ),
    f'choose --rounds 9 {_CLAIM}',
    'optimize --family identity --rounds 9 --out new.json',
  ],
)
def test_participation_is_never_guessed(run, tmp_path, command):
  """Single was: 2.45 times too little noise where clients take part 6 times."""
  _save(None, 9, 3)
  _save_matrix()
  status, out, error = run(*command.split())
  assert (status, out) == (2, '')
  assert error.startswith('participation=None: ') and error.count('\n') == 1
  assert '--min-sep' in error and '--participation single' in error
  assert not (tmp_path / 'new.json').exists()


def test_optimize_writes_what_later_commands_take(run_json):
  run_json(
    *'optimize --family banded-sqrt --rounds 2052 --bands 342'.split(),
    *'--min-sep 342 --out c.json'.split(),
  )
  kept = run_json('calibrate', 'c.json', *_CLAIM.split())
  given = run_json('calibrate', 'c.json', '--min-sep', 342, *_CLAIM.split())
  assert kept['z_stddev'] == given['z_stddev']
  once = run_json(
    *('calibrate', 'c.json', '--participation', 'single', *_CLAIM.split())
  )
  assert kept['z_stddev'] == pytest.approx(
    math.sqrt(6) * once['z_stddev'], rel=1e-3
  )
  noise = ('--z-stddev', kept['z_stddev'], '--delta', 1e-6)
  assert run_json('account', 'c.json', *noise)['epsilon'] == pytest.approx(8)
  evaluated = run_json('evaluate', 'c.json')
  for record in (kept, evaluated):
    assert record['participation'] == 'min-sep'
    assert record['min_sep'] == 342
    assert record['max_participations'] is None
    assert record['participations'] == 6


_SCHEMAS = [
  participation.Single(),
  participation.MinSep(3),
  participation.MinSep(3, 2),
  participation.FixedEpoch(4, 2),
]


@pytest.mark.parametrize('command', ['evaluate', 'account', 'calibrate'])
@pytest.mark.parametrize('schema', _SCHEMAS)
def test_schema_of_the_file_is_used_and_shown(run_json, command, schema):
  _save(schema, 9, 3)
  found = run_json(command, 'c.json', *_COMMANDS[command].split())
  shown = {'min_sep': None, 'max_participations': None, **schema.to_dict()}
  assert {name: found[name] for name in shown} == shown


@pytest.mark.parametrize('command', ['evaluate', 'account', 'calibrate'])
@pytest.mark.parametrize(
  ('flags', 'schema'),
  [
    ('--min-sep 2', participation.MinSep(2)),
    ('--min-sep 5 --max-participations 2', participation.MinSep(5, 2)),
    ('--participation fixed-epoch --min-sep 3', participation.FixedEpoch(3)),
    ('--participation single', participation.Single()),
    ('--max-participations 1', participation.Single()),
  ],
)
def test_flags_win_over_the_file(run_json, command, flags, schema):
  _save(participation.MinSep(3), 9, 3)
  found = run_json(
    command, 'c.json', *flags.split(), *_COMMANDS[command].split()
  )
  shown = {'min_sep': None, 'max_participations': None, **schema.to_dict()}
  assert {name: found[name] for name in shown} == shown
  assert found['participations'] == schema.participations(9)


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ('--max-participations 2', 'max_participations=2: needs min_sep'),
    ('--participation fixed-epoch', 'min_sep=None: '),
  ],
)
def test_flags_and_file_are_not_mixed(run, flags, message):
  _save(participation.MinSep(3), 9, 3)
  status, _, error = run('evaluate', 'c.json', *flags.split())
  assert status == 2 and error.startswith(message)


def test_file_of_the_format_without_schema_is_refused(run, tmp_path):
  _save(None, 9, 3)
  header = json.loads((tmp_path / 'c.json').read_text())
  del header['participation']
  (tmp_path / 'c.json').write_text(json.dumps({**header, 'version': 1}))
  status, out, error = run('evaluate', 'c.json', '--min-sep', 3)
  assert (status, out) == (2, '')
  assert 'version=1: ' in error and 'bandmf optimize' in error


def test_optimize_overwrites_only_when_told(run, run_json, tmp_path):
  command = 'optimize --family identity --min-sep 3 --out c.json --rounds'
  run_json(*command.split(), 9)
  before = (tmp_path / 'c.json').read_bytes()
  status, out, error = run(*command.split(), 12)
  assert (status, out) == (2, '')
  assert error.startswith('out=c.json: is there already') and '--force' in error
  assert (tmp_path / 'c.json').read_bytes() == before
  run_json(*command.split(), 12, '--force')
  assert strategies.load('c.json') == (
    strategies.Identity(12),
    participation.MinSep(3),
  )


@pytest.mark.parametrize(
  ('command', 'names'),
  [
    ('calibrate c.json --epsilon 20 --delta 1e-3', []),
    ('calibrate c.json --epsilon 22 --delta 1e-6', ['epsilon=']),
    ('calibrate c.json --epsilon 1 --delta 0.5', ['delta=0.5']),
    ('account c.json --noise-multiplier 0.28 --delta 1e-6', ['epsilon=']),
    ('account c.json --noise-multiplier 1 --delta 0.01', ['delta=0.01']),
    (
      'choose --rounds 9 --min-sep 3 --families identity --epsilon 24 '
      '--delta 0.5',
      ['epsilon=24', 'delta=0.5'],
    ),
    (
      'plan --rounds 9 --min-sep 3 --clients-per-round 2 --l2-norm-clip 1 '
      '--mechanism identity --epsilon 24 --delta 0.01',
      ['epsilon=', 'delta=0.01'],
    ),
  ],
)
def test_weak_guarantee_is_warned_of_and_given(run, command, names):
  _save(participation.MinSep(3), 9, 3)
  status, out, error = run(*command.split(), '--json')
  assert status == 0 and json.loads(out)
  lines = error.splitlines()
  assert len(lines) == len(names)
  for line, name in zip(lines, names):
    assert line.startswith(f'warning: {name}')


def test_budget_is_a_participation_of_every_command(run, run_json):
  flags = '--participation budget --min-sep 4 --max-participations 2'
  found = run_json(
    *f'optimize --family banded-sqrt --bands 3 --rounds 12 {flags}'.split(),
    *'--apart 2 --out c.json'.split(),
  )
  assert (found['participation'], found['participations']) == ('budget', 2)
  assert found['sensitivity_method'] == 'upper_bound'
  typical = run_json('evaluate', 'c.json', '--min-sep', 4)
  assert found['sensitivity'] == pytest.approx(typical['sensitivity'], 0.2)
  stored = run_json('evaluate', 'c.json')
  assert stored['sensitivity'] == found['sensitivity']
  noise = run_json(*'calibrate c.json --epsilon 2 --delta 1e-6'.split())
  assert noise['epsilon'] <= 2
  for command, line in (
    ('--min-sep 4 --apart 2', 'apart=2: participation min-sep does not take'),
    (f'{flags} --apart 5', 'apart=5: must not exceed min_sep=4'),
    ('--participation budget', 'min_sep=None: participation budget needs it'),
  ):
    status, _, error = run('evaluate', 'c.json', *command.split())
    assert status == 2 and error.startswith(line)
  status, _, error = run(*f'evaluate c.json {flags} --horizon 20'.split())
  assert status == 2 and error.startswith('horizon=20: must be rounds=12')


def test_rules_are_compared_on_arrivals(run, run_json):
  rows = [(t, 'often') for t in range(8)] + [(t, f'new {t}') for t in range(8)]
  rows += [(0, 'again'), (3, 'again')]
  pathlib.Path('log.csv').write_text(
    'round,client\n' + ''.join(f'{t},{who}\n' for t, who in rows)
  )
  plan = (
    'plan --rounds 8 --clients-per-round 3 --min-sep 4 --l2-norm-clip 1 '
    '--epsilon 8 --delta 1e-6 --mechanism identity --arrivals log.csv'
  )
  found = run_json(*plan.split())['arrivals']
  assert found['min-sep']['participations'] == 2 + 8 + 1
  # The identity has no overlap: two rounds of a client cost the same anywhere.
  assert found['budget']['participations'] == 2 + 8 + 2
  assert {found[rule]['rounds'] for rule in found} == {8}
  _, out, _ = run(*plan.split())
  assert 'arrivals by budget: 10 clients took part 12 times' in out
  status, _, error = run(*plan.replace('rounds 8', 'rounds 7').split())
  assert status == 2 and 'has 8 rounds' in error
  sampled = plan + ' --amplification balls-in-bins'
  status, _, error = run(*sampled.split())
  assert status == 2 and error.startswith('arrivals=log.csv: needs a plan')
