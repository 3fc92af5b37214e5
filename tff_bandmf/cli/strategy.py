"""`bandmf optimize` and `evaluate`: strategies and their errors."""

from __future__ import annotations

import pathlib

import click

from tff_bandmf import optimize as optimize_lib
from tff_bandmf import strategies
from tff_bandmf.cli import options, output


@click.command()
@options.family
@options.rounds
@options.parameters
@options.participation
@options.workload
@options.objective
@click.option(
  '--out',
  help='Strategy file to write, .json or .npz, with the participation schema.',
)
@options.switch('--force', 'Overwrite an existing strategy file.')
@options.coefficients
@options.as_json
def optimize(
  family, rounds, workload, objective, out, with_coefficients, **flags
):
  """Optimises (or builds) a strategy.

  Parameters of the family that are not given are optimised or swept. Ctrl-C
  ends the search; the result is the best strategy so far.

  Exit status 1: the search did not converge; the best strategy so far is
  printed and written.
  """
  schema = flags['who'].schema()
  if out is not None:
    strategies.check_path(pathlib.Path(out))
    output.check_out(out, flags['force'])
  with output.progress(f'optimising {family}') as step:
    result = optimize_lib.optimize(
      family,
      rounds,
      schema,
      workload,
      objective,
      callback=lambda loss: step(f'loss {loss:.6g}'),
      **flags['parameters'],
    )
  strategy = result.strategy
  optimized = {
    'objective': objective,
    'loss': result.loss,
    'evaluations': result.evaluations,
    'converged': result.converged,
  }
  described = output.describe(strategy, schema, with_coefficients, workload)
  if out is not None:
    strategies.save(
      strategy,
      out,
      # PRIVACY: If the file of a strategy lacked its schema, a later command
      # could use another schema for the accounting. The file has the schema.
      # Guard:
      # cli_participation_test.test_optimize_writes_what_later_commands_take.
      participation=schema,
      optimized={**workload.to_dict(), **optimized},
    )
  output.show_result({**described, **optimized})
  if not result.converged:
    written = f'; {out} is written' if out else ''
    raise output.did_not_hold(
      f'converged=False: stopped after {result.evaluations} '
      f'evaluations{written}; the errors hold for this strategy, but a better '
      'strategy may exist'
    )


@click.command()
@options.strategy_file
@options.participation
@options.workload
@options.coefficients
@options.as_json
def evaluate(file, who, workload, with_coefficients):
  """Shows the errors and the sensitivity of a strategy.

  FILE is a strategy file or a .npy file of the matrix C.
  """
  strategy, stored = output.load(file)
  schema = who.schema(stored)
  output.show_result(
    output.describe(strategy, schema, with_coefficients, workload)
  )
