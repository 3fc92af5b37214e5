"""Tests of the `bandmf` command."""

import json
import math
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tff_bandmf
from tff_bandmf import participation, strategies
from tff_bandmf.cli import commands, output

_KEYS = [
  'family',
  'rounds',
  'bands',
  'buffers',
  'parameters',
  'sensitivity',
  'sensitivity_method',
  'mean_error',
  'max_error',
  'rmse',
  'max_rmse',
  'noise_multiplier',
  'z_stddev',
  'rho',
  'epsilon',
  'delta',
  'adjacency',
  'seconds',
]

# [BandMF23, Table 4], delta = 1e-6.
_SIGMA = [(1, 4.22468), (2, 2.23048), (4, 1.19352), (8, 0.65294), (16, 0.36861)]


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def _toeplitz(rounds=2052, coefficients=(1.0, 0.5, 0.375)):
  strategies.save(
    strategies.BandedToeplitz(rounds, np.array(coefficients)), 'toeplitz.json'
  )
  return 'toeplitz.json'


def _identity(rounds=2052):
  strategies.save(
    strategies.Identity(rounds),
    'identity.json',
    participation=participation.Single(),
  )
  return 'identity.json'


def test_identity_in_the_published_setting(run_json):
  found = run_json(
    *'optimize --family identity --rounds 2052 --min-sep 342'.split(),
    *('--out', 'i.npz'),
  )
  evaluated = run_json('evaluate', 'i.npz', '--min-sep', 342)
  for record in (found, evaluated):
    assert set(_KEYS) <= set(record)
    assert record['rmse'] == pytest.approx(78.479, abs=5e-4)
    assert record['max_rmse'] == pytest.approx(math.sqrt(6 * 2052))
    assert record['sensitivity'] == math.sqrt(6)
    assert record['sensitivity_method'] == 'exact'
    assert record['adjacency'] == 'zero-out'
    assert record['seconds'] >= 0
    for key in ('noise_multiplier', 'z_stddev', 'rho', 'epsilon', 'delta'):
      assert record[key] is None
  assert 'coefficients' not in found


def test_optimize_writes_the_strategy_it_shows(run_json):
  found = run_json(
    *'optimize --family banded-toeplitz --rounds 2052 --min-sep 342'.split(),
    *'--coefficients --out bt.json'.split(),
  )
  assert found['bands'] == 342
  assert found['rmse'] <= 8.81
  assert (
    found['coefficients'] == strategies.load('bt.json')[0].coefficients.tolist()
  )
  evaluated = run_json('evaluate', 'bt.json', '--min-sep', 342)
  for key in set(_KEYS) - {'seconds'}:
    assert evaluated[key] == found[key]
  written = json.load(open('bt.json'))['optimized']
  assert written['objective'] == 'mean'
  assert written['converged'] is True
  assert written['loss'] == pytest.approx(
    found['mean_error'] * found['sensitivity'] ** 2
  )


def test_objective_max_has_the_lower_max_error(run_json):
  command = (
    'optimize --family banded-toeplitz --rounds 500 --bands 8 '
    '--participation single'
  ).split()
  mean = run_json(*command, '--objective', 'mean')
  largest = run_json(*command, '--objective', 'max')
  assert mean['participation'] == 'single'
  assert mean['rmse'] < largest['rmse']
  assert largest['max_rmse'] < mean['max_rmse']


@pytest.mark.slow
def test_bands_default_to_min_sep_but_never_past_rounds(run_json):
  command = 'optimize --family banded-toeplitz --rounds 20'.split()
  assert run_json(*command, '--min-sep', 7)['bands'] == 7
  assert run_json(*command, '--min-sep', 70)['bands'] == 20
  assert run_json(*command, '--min-sep', 7, '--bands', 3)['bands'] == 3


@pytest.mark.parametrize(('epsilon', 'sigma'), _SIGMA)
def test_calibrate_gives_the_published_noise(run_json, epsilon, sigma):
  found = run_json(
    *('calibrate', _identity(1), '--epsilon', epsilon, '--delta', 1e-6)
  )
  assert set(_KEYS) <= set(found)
  assert found['noise_multiplier'] == pytest.approx(sigma, abs=5.1e-6)
  assert found['epsilon'] <= epsilon
  assert found['epsilon'] == pytest.approx(epsilon, rel=1e-7)
  assert found['rho'] == pytest.approx(
    0.5 / found['noise_multiplier'] ** 2, rel=1e-9
  )


def test_calibrate_names_both_noise_multipliers(run_json):
  found = run_json(
    *('calibrate', _toeplitz(), '--min-sep', 342, '--epsilon', 8),
    *('--delta', 1e-6, '--clip', 0.25),
  )
  assert found['sensitivity'] == pytest.approx(
    math.sqrt(6 * (1 + 0.5**2 + 0.375**2))
  )
  assert found['z_stddev'] == pytest.approx(
    found['noise_multiplier'] * found['sensitivity'] * 0.25
  )


@pytest.mark.parametrize('clip', [1, 0.25, 30])
def test_account_takes_either_noise_multiplier(run_json, clip):
  flags = [
    *('--min-sep', 342, '--max-participations', 3),
    *('--clip', clip, '--delta', 1e-10),
  ]
  first = run_json('account', _toeplitz(), '--noise-multiplier', 2, *flags)
  assert first['rho'] == pytest.approx(0.125, rel=1e-9)
  assert first['max_participations'] == first['participations'] == 3
  second = run_json(
    *('account', 'toeplitz.json', '--z-stddev', first['z_stddev'], *flags)
  )
  for key in ('noise_multiplier', 'z_stddev', 'rho', 'epsilon'):
    assert second[key] == pytest.approx(first[key], rel=1e-9)


def test_account_of_a_launched_model(run_json):
  # A launched Gboard model: squared sensitivity 0.6.
  strategies.save(
    strategies.BandedToeplitz(2000, [math.sqrt(0.2)]), 'gboard.json'
  )
  found = run_json(
    *'account gboard.json --min-sep 485 --max-participations 3'.split(),
    *'--z-stddev 1.411 --delta 1e-10'.split(),
  )
  assert found['rho'] == pytest.approx(0.150684, rel=1e-5)
  assert found['epsilon'] == pytest.approx(3.424007, rel=1e-6)


def test_participations_are_never_silently_one(run_json):
  file = _toeplitz(9)
  separated = run_json('evaluate', file, '--min-sep', 4)
  assert separated['participation'] == 'min-sep'
  assert separated['max_participations'] is None
  assert separated['participations'] == 3
  fixed = run_json(
    'evaluate', file, '--min-sep', 4, '--participation', 'fixed-epoch'
  )
  assert fixed['participation'] == 'fixed-epoch'
  alone = run_json('evaluate', file, '--participation', 'single')
  assert (alone['participation'], alone['participations']) == ('single', 1)


def test_table_names_the_participation(run):
  _, out, _ = run('evaluate', _identity(9))
  assert ['participation', 'single'] in [
    line.split() for line in out.split('\n')
  ]


def test_evaluate_takes_a_matrix(run_json):
  matrix = np.tril(np.random.default_rng(0).normal(size=(9, 9)), -1) + np.eye(9)
  np.save('c.npy', matrix)
  found = run_json('evaluate', 'c.npy', '--min-sep', 2, '--coefficients')
  assert found['family'] == 'dense'
  assert found['coefficients'] is None
  assert found['sensitivity_method'] == 'upper_bound'
  decoder = np.tri(9) @ np.linalg.inv(matrix)
  assert found['mean_error'] == pytest.approx((decoder**2).sum(1).mean())


def test_json_has_every_digit(run_json):
  found = run_json(
    *('account', _toeplitz(9, [1 / 3]), '--noise-multiplier', 3 / 7),
    *('--delta', 1e-6, '--coefficients', '--min-sep', 9),
  )
  assert found['noise_multiplier'] == 3 / 7
  assert found['coefficients'] == [1 / 3]


def test_json_makes_no_table(run_json, monkeypatch):
  # The text of a million coefficients takes longer than their JSON.
  monkeypatch.setattr(output, 'text', None)
  arguments = ('evaluate', _toeplitz(9), '--min-sep', 3, '--coefficients')
  assert run_json(*arguments)['coefficients'][:2] == [1.0, 0.5]


def test_table_rounds_up(run):
  _, out, _ = run(
    *('account', _toeplitz(), '--min-sep', 342),
    *('--noise-multiplier', 1.23456781, '--delta', 1e-6),
  )
  shown = dict(line.split(None, 1) for line in out.splitlines())
  # What was asked for comes first.
  assert list(shown)[:3] == ['z_stddev', 'noise_multiplier', 'epsilon']
  _, out, _ = run(
    *('account', _toeplitz(), '--min-sep', 342),
    *('--noise-multiplier', 1.23456781, '--delta', 1e-6, '--json'),
  )
  for name, value in json.loads(out).items():
    if isinstance(value, float) and name != 'seconds':
      assert value * (1 - 1e-14) <= float(shown[name]) <= value * (1 + 2e-7)
  assert shown['noise_multiplier'] == '1.2345679'
  assert shown['delta'] == '1e-06'


def test_numbers_of_the_table_stay_short():
  assert output.text(0.1) == '0.1'
  assert output.text(8.0) == '8'
  assert output.text(8 * (1 + 1e-15)) == '8'
  assert output.text(8 * (1 + 1e-12)) == '8.0000001'


def _optimize(flags):
  """Returns a command that says who takes part."""
  return f'optimize --participation single --family {flags}'


_BAD_INPUT = [
  ('', 'Missing command'),
  ('frobnicate', 'frobnicate'),
  ('reproduce table_9', 'name=table_9: is not a table'),
  ('optimize --rounds 9', 'family=None: '),
  ('optimize --family identity', 'rounds=None: '),
  (_optimize('lti --rounds 9 --alpha 0.5'), 'alpha=0.5: lti has no'),
  (_optimize('lti --rounds 9 --nu 2'), 'nu=2.0: must be in [0, 1]'),
  (_optimize('lti --rounds 9 --nu -1'), 'nu=-1.0: must be in [0, 1]'),
  (_optimize('lti --rounds 1000000000000000'), 'rounds=1000000000000'),
  (_optimize('robust-toeplitz --rounds 9 --bands 3'), 'b0=None: '),
  (_optimize('stamped --rounds 9'), 'block_rounds=None: '),
  (_optimize('tree --rounds 9 --arity 1'), 'arity=1: '),
  (_optimize('tree --rounds 90000'), 'rounds=90000: '),
  ('optimize --family blur --rounds 9', 'family=blur: is not one of'),
  ('optimize --family identity --rounds 0', 'rounds=0: '),
  ('optimize --family identity --rounds 9.5', 'rounds=9.5: '),
  ('optimize --family identity --rounds nine', 'rounds=nine: '),
  ('optimize --family identity --rounds', '--rounds'),
  (_optimize('identity --rounds 9 --bands 2'), 'bands=2: '),
  (_optimize('banded-toeplitz --rounds 9'), 'bands=None: '),
  (
    _optimize('banded-toeplitz --rounds 9 --bands 10'),
    'bands=10: must not exceed rounds=9',
  ),
  (
    'optimize --family banded-toeplitz --rounds 9 --bands 4 --min-sep 3',
    'bands=4: must not exceed min_sep=3',
  ),
  (_optimize('identity --rounds 9 --out x.txt'), 'out=x.txt: '),
  (_optimize('identity --rounds 9 --out no/x.json'), 'out=no/x.json: '),
  (_optimize('identity --rounds 9 --out d.json'), 'out=d.json: '),
  (
    _optimize('identity --rounds 9 --workload momentum'),
    'momentum=None: workload momentum needs it',
  ),
  (
    'optimize --family identity --rounds 9 --objective median',
    'objective=median: ',
  ),
  (
    'choose --rounds 9 --epsilon 1 --delta 1e-6 --amplification b-min-sep',
    'amplification=b-min-sep: is not compared',
  ),
  (
    'choose --rounds 9 --epsilon 1 --delta 1e-6 --amplification cyclic-poisson '
    '--max-participations 2 --apart 3',
    'apart=3: does not go with cyclic Poisson sampling',
  ),
  (
    'evaluate ok.json --buffers 3',
    'option=--buffers: is not an option of',
  ),
  (
    'evaluate ok.json --momentum 0.9',
    'momentum=0.9: prefix does not take it; use --workload momentum.',
  ),
  (
    'account ok.json --sampling-prob 0.1 --z-stddev 1 --delta 1e-6',
    'sampling_prob=0.1: does not go with amplification none',
  ),
  (
    'account ok.json --amplification cyclic-poisson --z-stddev 1 --delta 1e-6',
    'sampling_prob=None: cyclic-poisson needs it; give --sampling-prob',
  ),
  (
    'calibrate ok.json --amplification cyclic-poisson --sampling-prob 0.1 '
    '--min-sep 4 --epsilon 1 --delta 1e-6',
    'min_sep=4: cyclic-poisson takes no min_sep',
  ),
  (
    'calibrate ok.json --amplification cyclic-poisson --sampling-prob 1e-8 '
    '--epsilon 1 --delta 1e-5',
    'is no less than the probability',
  ),
  (
    'account ok.json --amplification cyclic-poisson --sampling-prob 0.1 '
    '--noise-multiplier 1e-200 --delta 1e-5',
    'proves no epsilon',
  ),
  (
    'calibrate ok.json --amplification balls-in-bins --min-sep 4 --epsilon 1 '
    '--delta 1e-6 --max-participations 2',
    'max_participations=2: does not go with amplification balls-in-bins',
  ),
  (
    'choose --rounds 9 --epsilon 1 --delta 1e-6 --families blt,blur',
    'families=blur: is not one of',
  ),
  ('evaluate ok.json --column-normalize', 'option=--column-normalize: '),
  (
    'evaluate ok.json --rounds 3',
    'option=--rounds: is not an option of bandmf',
  ),
  ('evaluate ok.json --min-sepp 3', 'did you mean --min-sep? see bandmf ev'),
  ('evaluate ok.json --min-sep 0', 'min_sep=0: is not in the range x>=1'),
  ('evaluate ok.json --min-sep -3', 'min_sep=-3: is not in the range x>=1'),
  ('evaluate ok.json --max-participations 2', 'max_participations=2: needs mi'),
  (
    'evaluate ok.json --min-sep 2 --max-participations 0',
    'max_participations=0: is not in the range x>=1',
  ),
  ('evaluate ok.json --participation min-sep', 'min_sep=None: '),
  ('evaluate ok.json --participation fixed-epoch', 'min_sep=None: '),
  ('evaluate ok.json --participation single --min-sep 2', 'min_sep=2: part'),
  ('evaluate ok.json --participation twice', 'participation=twice: '),
  ('evaluate', 'file=None: '),
  ('evaluate ok.json another.json', 'another.json'),
  ('evaluate missing.json', 'file=missing.json: is not a file'),
  ('evaluate d.json', 'file=d.json: is not a file'),
  ('evaluate .', 'file=.: is not a file'),
  ('evaluate empty.json', 'file=empty.json: is not a whole strategy file'),
  ('evaluate empty.npz', 'file=empty.npz: is not a whole strategy file'),
  ('evaluate empty.npy', 'file=empty.npy: is not a whole strategy file'),
  ('evaluate newer.json', 'version=3: newer.json must have'),
  ('evaluate text.txt', 'file=text.txt: must end in'),
  ('evaluate upper.npy', 'must be lower-triangular'),
  ('evaluate complex.npy', 'must be real numbers'),
  ('evaluate singular.npy', 'C=0.0: the diagonal of C must be positive'),
  ('evaluate tiny.npy', 'multiply C by a constant'),
  ('calibrate ok.json --delta 1e-6', 'epsilon=None: '),
  ('calibrate ok.json --epsilon 1', 'delta=None: '),
  ('calibrate ok.json --epsilon 0 --delta 1e-6', 'epsilon=0.0: '),
  ('calibrate ok.json --epsilon -1 --delta 1e-6', 'epsilon=-1.0: '),
  ('calibrate ok.json --epsilon nan --delta 1e-6', 'epsilon=nan: '),
  ('calibrate ok.json --epsilon 1e7 --delta 1e-6', 'epsilon=10000000.0: '),
  ('calibrate ok.json --epsilon one --delta 1e-6', 'epsilon=one: '),
  ('calibrate ok.json --epsilon 1 --delta 0', 'delta=0.0: '),
  ('calibrate ok.json --epsilon 1 --delta 1', 'delta=1.0: '),
  ('calibrate ok.json --epsilon 1 --delta -1e-6', 'delta=-1e-06: '),
  ('calibrate ok.json --epsilon 1 --delta 1e-6 --clip 0', 'clip=0.0: '),
  (
    'calibrate ok.json --epsilon 1 --delta 1e-6 --adjacency replace-one',
    'adjacency=replace-one: ',
  ),
  (
    'account ok.json --noise-multiplier 1 --delta 1e-6 --adjacency replace-one',
    'adjacency=replace-one: ',
  ),
  ('account ok.json --delta 1e-6', 'noise_multiplier=None: '),
  (
    'account ok.json --noise-multiplier 1 --z-stddev 1 --delta 1e-6',
    'noise_multiplier=1.0: exactly one of noise_multiplier and z_stddev',
  ),
  ('account ok.json --noise-multiplier 0 --delta 1e-6', 'noise_multiplier=0.0'),
  ('account ok.json --noise-multiplier inf --delta 1e-6', 'noise_multiplier=i'),
  ('account ok.json --noise-multiplier 1e-9 --delta 1e-6', 'proves no epsilon'),
  ('account ok.json --z-stddev -1 --delta 1e-6', 'z_stddev=-1.0: '),
  ('noise-server ok.json --backend torch', 'backend=torch: is not one of'),
  ('noise-server ok.json --parameters 0', 'give another --parameters'),
  ('report', 'plan=None: a report needs a run'),
  ('report missing', 'run=missing: '),
  ('report ok.json', 'ok.json'),
]


@pytest.mark.parametrize(('command', 'message'), _BAD_INPUT)
def test_bad_input_gives_one_line_and_status_2(run, tmp_path, command, message):
  strategies.save(
    strategies.Identity(9), 'ok.json', participation=participation.Single()
  )
  (tmp_path / 'd.json').mkdir()
  for name in ('empty.json', 'empty.npz', 'empty.npy'):
    (tmp_path / name).touch()
  newer = json.loads((tmp_path / 'ok.json').read_text())
  (tmp_path / 'newer.json').write_text(json.dumps({**newer, 'version': 3}))
  (tmp_path / 'text.txt').write_text('text')
  np.save('upper.npy', np.ones((3, 3)))
  np.save('complex.npy', np.eye(3) * 1j)
  np.save('singular.npy', np.diag([1.0, 0.0]))
  np.save('tiny.npy', np.eye(3) * 1e-200)
  before = sorted(tmp_path.iterdir())
  status, out, error = run(*command.split())
  assert (status, out) == (2, '')
  assert error.count('\n') == 1 and error.endswith('.\n')
  assert message in error
  assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize('command', ['', 'optimize', 'account', 'report'])
def test_help_is_printed(run, command):
  status, out, error = run(*command.split(), '--help')
  assert (status, error) == (0, '')
  assert out.startswith(f'Usage: bandmf {command}'.rstrip())


def test_help_of_all_commands_has_the_first_sentence_of_each():
  for name, line in commands.COMMANDS.items():
    command = commands.bandmf.get_command(None, name)
    assert command.name == name
    first, _, _ = command.help.partition('\n\n')
    assert ' '.join(first.split()) == line


def _imported(*lines):
  """Returns the heavy modules that commands import in one process."""
  program = """
import sys
from tff_bandmf.cli import main
for command in sys.argv[1:]:
  assert main.main(command.split()) == 0, command
print('imported:', *sys.modules)
"""
  result = subprocess.run(
    [sys.executable, '-c', program, *lines],
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  return set(result.stdout.splitlines()[-1].split())


_HEAVY = {
  'dp_accounting',
  'jax',
  'matplotlib',
  'scipy.stats',
  'sqlalchemy',
  'tensorflow',
  'tensorflow_federated',
}


def test_help_imports_no_command():
  imported = _imported('--help')
  assert not (_HEAVY | {'numpy', 'attrs', 'scipy'}) & imported
  assert {each for each in imported if each.startswith('tff_bandmf.')} == {
    'tff_bandmf.cli',
    'tff_bandmf.cli.commands',
    'tff_bandmf.cli.main',
    'tff_bandmf.errors',
  }


@pytest.mark.slow
def test_commands_import_nothing_heavy_that_they_do_not_use():
  assert not _HEAVY & _imported(
    *(f'{name} --help' for name in commands.COMMANDS)
  )
  assert not _HEAVY & _imported(
    'optimize --family identity --rounds 9 --min-sep 4 --out i.json',
    'evaluate i.json --min-sep 3',
    'account i.json --noise-multiplier 1 --delta 1e-6',
    'calibrate i.json --epsilon 1 --delta 1e-6',
    'plan --mechanism identity --rounds 9 --min-sep 4 --clients-per-round 2 '
    '--epsilon 1 --delta 1e-6 --l2-norm-clip 1 --out p.json',
    'compose p.json p.json --delta 1e-6',
  )


@pytest.mark.slow
def test_installed_command_exits_with_the_status():
  result = subprocess.run(
    [sys.executable, '-m', 'tff_bandmf.cli.main', 'evaluate', 'missing.json'],
    capture_output=True,
    text=True,
    check=False,
  )
  assert (result.returncode, result.stdout) == (2, '')
  assert result.stderr.count('\n') == 1


@pytest.mark.parametrize(
  ('command', 'line'),
  [
    (
      'plan --rounds 9 --epsilon 1',
      'clients_per_round, l2_norm_clip=None: bandmf plan needs each of them; '
      'give --clients-per-round, --l2-norm-clip.',
    ),
    (
      'choose',
      'rounds, epsilon, delta=None: bandmf choose needs each of them; '
      'give --rounds, --epsilon, --delta.',
    ),
    (
      'account',
      'file, delta=None: bandmf account needs each of them; '
      'give FILE, --delta.',
    ),
    (
      'choose --rounds 9 --epsilon 1',
      'delta=None: bandmf choose needs it; give',
    ),
  ],
)
def test_missing_options_are_named_all_at_once(run, command, line):
  """click stops at the first, so that a user came back once an option."""
  status, out, error = run(*command.split())
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert error.startswith(line)


def test_version_is_printed(run):
  assert run('--version') == (
    0,
    f'bandmf, version {tff_bandmf.__version__}\n',
    '',
  )


@pytest.mark.slow
def test_module_runs_as_the_command():
  result = subprocess.run(
    [sys.executable, '-m', 'tff_bandmf', '--version'],
    capture_output=True,
    text=True,
  )
  assert (result.returncode, result.stderr) == (0, '')
  assert result.stdout == f'bandmf, version {tff_bandmf.__version__}\n'


def test_pipe_is_told_what_takes_so_long(capsys, monkeypatch):
  """A user of a pipe waited for 20 s in silence."""
  monkeypatch.setattr(output, 'FIRST_LINE', 0.0)
  lines = ''
  deadline = time.monotonic() + 60
  with output.progress('comparing families', 18) as step:
    while '\n' not in lines and time.monotonic() < deadline:
      captured = capsys.readouterr()
      lines += captured.err
      assert not captured.out
    step('dp-cgd')
  assert lines.startswith('comparing families: 0 of 18 steps, ')
  assert lines.count('\n') == 1


def test_phase_that_ends_at_once_is_silent(capsys, monkeypatch):
  monkeypatch.setattr(output, 'FIRST_LINE', threading.TIMEOUT_MAX)
  with output.progress('comparing families') as step:
    step('dp-cgd')
  assert capsys.readouterr() == ('', '')


def test_file_of_a_system_error_is_named(run, tmp_path):
  """`bandmf observe` of a file that is not there said file=None."""
  log = tmp_path / 'none.csv'
  status, out, error = run('observe', log, _toeplitz())
  assert (status, out, error.count('\n')) == (2, '', 1)
  assert str(log) in error and 'None' not in error


@pytest.mark.slow
@pytest.mark.parametrize(
  'arguments',
  [
    *(('--help',), ('--version',), ('nonsense',), ('choose', '--help')),
    ('evaluate', 'missing.json'),
    ('account', '--family', 'identity', '--rounds', '9', '--json'),
  ],
)
@pytest.mark.deep(but=('arguments0', 'arguments1', 'arguments2', 'arguments4'))
def test_output_that_nobody_reads_ends_the_command_quietly(arguments):
  """As `| head` does; also if the pipe has standard error."""
  program = 'import sys; from tff_bandmf.cli import main; sys.exit(main.main())'
  for both in (False, True):
    read, write = os.pipe()
    os.close(read)
    try:
      result = subprocess.run(
        [sys.executable, '-c', program, *arguments],
        stdout=write,
        stderr=write if both else subprocess.PIPE,
        text=True,
        check=False,
      )
    finally:
      os.close(write)
    assert result.returncode == 141 or (result.returncode == 2 and not both)
    assert 'Broken' not in (result.stderr or '')
