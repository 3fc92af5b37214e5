"""`bandmf optimize`, `evaluate`, `account` and `calibrate`: commands on C."""

from __future__ import annotations

import math
import pathlib

import click

from tff_bandmf import accounting, errors, strategies
from tff_bandmf import optimize as optimize_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.cli import options, output


@click.command()
@options.family
@options.rounds
@options.parameters
@options.participation
@options.workload
@options.objective
@options.paths(
  out='Strategy file to write, .json or .npz, with the participation schema.'
)
@options.switches(force='Overwrite an existing strategy file.')
@options.coefficients
@options.as_json
def optimize(
  family, rounds, who, workload, objective, out, coefficients, **flags
):
  """Optimises (or builds) a strategy.

  Parameters of the family that are not given are optimised or swept. Ctrl-C
  ends the search; the result is the best strategy so far.

  Exit status 1: the search did not converge; the best strategy so far is
  printed and written.
  """
  schema = who.schema()
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
  described = output.describe(strategy, schema, coefficients, workload)
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
def evaluate(file, who, workload, coefficients):
  """Shows the errors and the sensitivity of a strategy.

  FILE is a strategy file or a .npy file of the matrix C.
  """
  strategy, stored = output.load(file)
  schema = who.schema(stored)
  output.show_result(output.describe(strategy, schema, coefficients, workload))


_cohorts_and_output = options.together(
  options.adjacency,
  options.amplification,
  options.sampling_prob,
  options.coefficients,
  options.as_json,
)


@click.command()
@options.strategy_file
@options.participation
@options.numbers(
  noise_multiplier='Standard deviation of z divided by clip * sensitivity.',
  z_stddev='Standard deviation of z, instead of --noise-multiplier.',
)
@options.clip
@options.delta
@_cohorts_and_output
def account(file, who, noise_multiplier, z_stddev, **flags):
  """Shows rho and epsilon of a run with given noise.

  epsilon, delta and rho hold for the released bits. rho holds but for a
  probability of 4e-39. FILE is a strategy file or a .npy file of the matrix C.
  The noise multiplier is relative to the number that is printed as sensitivity:
  for cyclic-poisson the largest column norm of C, else the sensitivity for the
  worst participation.
  """
  options.check_either(noise_multiplier=noise_multiplier, z_stddev=z_stddev)
  strategy, stored = output.load(file)
  cohorts = who.cohorts(stored)
  if noise_multiplier is None:
    scale = sensitivity_lib.sensitivity(strategy, cohorts.schema).value
    noise_multiplier = z_stddev / (flags['clip'] * scale)
  guarantee = accounting.Guarantee(strategy, cohorts, noise_multiplier)
  _show(guarantee, who, **flags)


@click.command()
@options.strategy_file
@options.participation
@options.epsilon
@options.delta
@options.clip
@_cohorts_and_output
def calibrate(file, who, epsilon, delta, **flags):
  """Shows the least noise that meets (epsilon, delta) for a run.

  FILE is a strategy file or a .npy file of the matrix C.
  """
  strategy, stored = output.load(file)
  guarantee = accounting.calibrate(
    strategy, who.cohorts(stored), epsilon=epsilon, delta=delta
  )
  _show(guarantee, who, delta, **flags)


def _show(
  guarantee: accounting.Guarantee,
  who: options.Participants,
  delta: float,
  clip: float,
  coefficients: bool,
) -> None:
  """Prints the values of a strategy, and of the guarantee of its run."""
  claim = guarantee.claim(delta)
  if not math.isfinite(claim.epsilon):
    raise errors.value_error(
      f'noise_multiplier={guarantee.noise_multiplier}: proves no epsilon at '
      f'delta={delta:g}; use more noise or a larger delta'
    )
  output.warn_of_weak(claim.epsilon, delta)
  # The output begins with these values. They are given again after `described`,
  # which has None in their places.
  result = {
    'z_stddev': guarantee.z_stddev_per_clip * clip,
    'noise_multiplier': guarantee.noise_multiplier,
    'epsilon': claim.epsilon,
    'delta': delta,
    'rho': guarantee.rho,
    'clip': clip,
  }
  described = output.describe(
    guarantee.strategy,
    guarantee.cohorts.schema,
    coefficients,
    sensitivity=guarantee.sensitivity,
  )
  output.show_result(
    {
      **result,
      **described,
      **result,
      **claim.to_dict(),
      'adjacency': guarantee.cohorts.adjacency,
      'amplification': who.amplification,
      'sampling_prob': who.sampling_prob,
    }
  )
