"""The commands of `bandmf`; each returns its exit status."""

from __future__ import annotations

import os
import pathlib
import sys
import time
from typing import Any, Optional

import click
import tqdm

from tff_bandmf import accounting, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.cli import options, output

_DONE = 0
_DID_NOT_HOLD = 1


@click.group(no_args_is_help=False)
def bandmf():
  """Correlated-noise differential privacy: strategies and their privacy."""


@bandmf.command()
@options.family
@click.option('--rounds', required=True, type=options.INTEGER)
@click.option(
  '--bands',
  type=options.INTEGER,
  help='Non-zero diagonals of C. Default: min-sep; up to there more bands '
  'cost no error.',
)
@options.participation
@options.workload
@options.objective
@click.option('--out', help='Strategy file to write, .json or .npz.')
@options.coefficients
@options.as_json
def optimize(
  family,
  rounds,
  bands,
  participation,
  min_sep,
  max_participations,
  workload,
  objective,
  out,
  with_coefficients,
  as_json,
):
  """Optimises (or builds) a strategy.

  Exit status 1: the optimiser did not converge; what it found is printed and
  written all the same.
  """
  started = time.perf_counter()
  schema = options.schema(participation, min_sep, max_participations)
  bands = _bands(family, rounds, bands, schema)
  if out is not None:
    _check_out(pathlib.Path(out))
  if family == strategies.Identity.family:
    strategy, optimized = strategies.Identity(rounds), {}
  else:
    strategy, optimized = _optimized_toeplitz(rounds, bands, objective)
    optimized = {'workload': workload, 'objective': objective, **optimized}
  record = output.describe(
    strategy,
    schema,
    sensitivity_lib.sensitivity(strategy, schema),
    with_coefficients,
  )
  if out is not None:
    strategies.save(strategy, out, optimized)
  record.update(optimized, seconds=time.perf_counter() - started)
  output.show(record, as_json)
  if not optimized.get('converged', True):
    click.echo(
      errors.invalid(
        'converged',
        False,
        f'stopped after {optimized["evaluations"]} evaluations'
        + (f'; {out} is written' if out else ''),
        'the errors hold for what was found, but better may exist',
      ),
      err=True,
    )
    return _DID_NOT_HOLD
  return _DONE


@bandmf.command()
@options.strategy_file
@options.participation
@options.workload
@options.coefficients
@options.as_json
def evaluate(
  file,
  participation,
  min_sep,
  max_participations,
  workload,
  with_coefficients,
  as_json,
):
  """Shows the errors and the sensitivity of a strategy.

  FILE is a strategy file or a .npy file of the matrix C.
  """
  del workload  # There is one.
  started = time.perf_counter()
  schema = options.schema(participation, min_sep, max_participations)
  strategy = _load(file)
  record = output.describe(
    strategy,
    schema,
    sensitivity_lib.sensitivity(strategy, schema),
    with_coefficients,
  )
  output.show({**record, 'seconds': time.perf_counter() - started}, as_json)
  return _DONE


@bandmf.command()
@options.strategy_file
@options.participation
@click.option(
  '--noise-multiplier',
  type=options.NUMBER,
  help='Standard deviation of z over clip * sensitivity.',
)
@click.option(
  '--z-stddev',
  type=options.NUMBER,
  help='Standard deviation of z itself, instead of --noise-multiplier.',
)
@options.clip
@options.delta
@options.adjacency
@options.coefficients
@options.as_json
def account(
  file,
  participation,
  min_sep,
  max_participations,
  noise_multiplier,
  z_stddev,
  clip,
  delta,
  with_coefficients,
  as_json,
):
  """Shows rho and epsilon of a run with this noise, without amplification.

  FILE is a strategy file or a .npy file of the matrix C.
  """
  started = time.perf_counter()
  if (noise_multiplier is None) == (z_stddev is None):
    raise ValueError(
      errors.invalid(
        'noise_multiplier',
        noise_multiplier,
        'give either it or z_stddev, which is clip * sensitivity times it',
        'use --noise-multiplier or --z-stddev',
      )
    )
  schema = options.schema(participation, min_sep, max_participations)
  strategy = _load(file)
  if noise_multiplier is None:
    sensitivity = sensitivity_lib.sensitivity(strategy, schema)
    noise_multiplier = z_stddev / (clip * sensitivity.value)
  spec = accounting.PrivacySpec(strategy, schema, noise_multiplier)
  record = _with_privacy(
    spec, clip, delta, spec.epsilon(delta), with_coefficients
  )
  output.show({**record, 'seconds': time.perf_counter() - started}, as_json)
  return _DONE


@bandmf.command()
@options.strategy_file
@options.participation
@click.option('--epsilon', required=True, type=options.NUMBER)
@options.delta
@options.clip
@options.adjacency
@options.coefficients
@options.as_json
def calibrate(
  file,
  participation,
  min_sep,
  max_participations,
  epsilon,
  delta,
  clip,
  with_coefficients,
  as_json,
):
  """Shows the least noise that meets (epsilon, delta) for a whole run.

  FILE is a strategy file or a .npy file of the matrix C.
  """
  started = time.perf_counter()
  schema = options.schema(participation, min_sep, max_participations)
  spec = accounting.calibrate(_load(file), schema, epsilon, delta)
  record = _with_privacy(
    spec, clip, delta, spec.epsilon(delta), with_coefficients
  )
  output.show({**record, 'seconds': time.perf_counter() - started}, as_json)
  return _DONE


@bandmf.command()
@click.argument('run_dir')
@options.as_json
def report(run_dir, as_json):
  """Writes the privacy report of a run into its directory.

  Exit status 1: clients took part more often, or closer together, than was
  planned; the report claims what holds for the run as it was.
  """
  # Draws a plot: the other commands do without what that imports.
  from tff_bandmf import report as report_lib

  written = report_lib.write(run_dir)
  if as_json:
    output.show(written, as_json)
  else:
    click.echo(written['summary'])
    click.echo(str(pathlib.Path(run_dir) / report_lib.MARKDOWN_FILE))
  if written['violated']:
    click.echo(
      errors.invalid(
        'violated',
        True,
        'the ledger shows more or closer rounds of a client than were planned',
        'the report claims what holds for the run as it was',
      ),
      err=True,
    )
    return _DID_NOT_HOLD
  return _DONE


def _bands(
  family: str,
  rounds: int,
  bands: Optional[int],
  schema: participation_lib.Participation,
) -> int:
  """Returns how many bands to optimise.

  Raises:
    ValueError: none were given and none follow, or too many were given.
  """
  if family == strategies.Identity.family:
    if bands not in (None, 1):
      raise ValueError(
        errors.invalid('bands', bands, 'identity has 1', 'leave --bands out')
      )
    return 1
  if bands is None:
    if schema.min_sep is None:
      raise ValueError(
        errors.invalid(
          'bands',
          None,
          f'{family} needs it where min_sep does not give it',
          'give --bands or --min-sep',
        )
      )
    return min(schema.min_sep, rounds)
  if bands > rounds:
    raise ValueError(
      errors.invalid(
        'bands',
        bands,
        f'must not exceed rounds={rounds}',
        f'use --bands {rounds} or fewer',
      )
    )
  if schema.min_sep is not None and bands > schema.min_sep:
    raise ValueError(
      errors.invalid(
        'bands',
        bands,
        f'must not exceed min_sep={schema.min_sep}, or columns of one client '
        'overlap and sensitivity grows',
        f'use --bands {schema.min_sep} or fewer',
      )
    )
  return bands


def _optimized_toeplitz(
  rounds: int, bands: int, objective: str
) -> tuple[strategies.Strategy, dict[str, Any]]:
  """Returns an optimised banded Toeplitz strategy and how it was found."""
  # The bar shows on a terminal only.
  with tqdm.tqdm(
    desc=f'optimising {bands} bands',
    unit=' iterations',
    leave=False,
    disable=None,
    file=sys.stderr,
  ) as bar:
    # TensorFlow takes 10 seconds to import: only where it is needed, and
    # without its remarks about the machine.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    from tff_bandmf import optimize as optimize_lib

    found = optimize_lib.optimize_banded_toeplitz(
      rounds, bands, objective, callback=bar.update
    )
  return found.strategy, {
    'loss': found.loss,
    'evaluations': found.evaluations,
    'converged': found.converged,
  }


def _check_out(path: pathlib.Path) -> None:
  """Raises now what `save` would raise after the optimisation."""
  strategies.check_path(path)
  if path.is_dir() or not os.access(path.parent, os.W_OK):
    raise ValueError(
      errors.invalid(
        'out', path, 'cannot be written', 'name a file in a writable folder'
      )
    )


def _load(file: str) -> strategies.Strategy:
  """Returns the strategy in a file.

  Raises:
    ValueError: there is none.
  """
  if not os.path.isfile(file):
    raise ValueError(
      errors.invalid(
        'file',
        file,
        'is no file',
        'write one with bandmf optimize --out FILE',
      )
    )
  return strategies.load(file)


def _with_privacy(
  spec: accounting.PrivacySpec,
  clip: float,
  delta: float,
  epsilon: float,
  with_coefficients: bool,
) -> dict[str, Any]:
  """Returns the record of a strategy and of the guarantee of a run with it."""
  return {
    **output.describe(
      spec.strategy, spec.participation, spec.sensitivity, with_coefficients
    ),
    'clip': clip,
    'noise_multiplier': spec.noise_multiplier,
    'z_stddev': spec.z_stddev * clip,
    'rho': spec.rho,
    'epsilon': epsilon,
    'delta': delta,
  }
