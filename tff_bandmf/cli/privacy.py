"""`bandmf account` and `bandmf calibrate`: the guarantee of a run."""

from __future__ import annotations

import math
from typing import Any

import click

from tff_bandmf import accounting, errors, participation, strategies
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.cli import options, output

_run_options = options.together(
  options.adjacency,
  options.amplification,
  options.sampling_prob,
  options.coefficients,
  options.as_json,
)


@click.command()
@options.strategy_file
@options.participation
@options.number(
  '--noise-multiplier', 'Standard deviation of z divided by clip * sensitivity.'
)
@options.number(
  '--z-stddev', 'Standard deviation of z, instead of --noise-multiplier.'
)
@options.clip
@options.delta
@_run_options
def account(file, noise_multiplier, z_stddev, **flags):
  """Shows rho and epsilon of a run with given noise.

  epsilon, delta and rho hold for the released bits. rho holds but for a
  probability of 4e-39. FILE is a strategy file or a .npy file of the matrix C.
  The noise multiplier is relative to the number that is printed as sensitivity:
  for cyclic-poisson the largest column norm of C, else the sensitivity for the
  worst participation.
  """
  if (noise_multiplier is None) == (z_stddev is None):
    raise errors.value_error(
      f'noise_multiplier={noise_multiplier}: give either it or z_stddev = clip '
      '* sensitivity * noise_multiplier; use --noise-multiplier or --z-stddev'
    )
  strategy, cohorts = _run(file, flags)
  if noise_multiplier is None:
    scale = sensitivity_lib.sensitivity(strategy, cohorts.schema).value
    noise_multiplier = z_stddev / (flags['clip'] * scale)
  _show(accounting.Guarantee(strategy, cohorts, noise_multiplier), flags)


@click.command()
@options.strategy_file
@options.participation
@options.epsilon
@options.delta
@options.clip
@_run_options
def calibrate(file, epsilon, **flags):
  """Shows the least noise that meets (epsilon, delta) for a whole run.

  FILE is a strategy file or a .npy file of the matrix C.
  """
  guarantee = accounting.calibrate(
    *_run(file, flags), epsilon=epsilon, delta=flags['delta']
  )
  _show(guarantee, flags)


def _run(
  file: str, flags: dict[str, Any]
) -> tuple[strategies.Strategy, participation.Cohorts]:
  """Returns the strategy and the cohorts of a command."""
  strategy, stored = output.load(file)
  return strategy, flags['who'].cohorts(
    flags['amplification'], flags['sampling_prob'], stored
  )


def _show(guarantee: accounting.Guarantee, flags: dict[str, Any]) -> None:
  """Prints the values of a strategy, and of the guarantee of its run."""
  delta, clip = flags['delta'], flags['clip']
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
    flags['with_coefficients'],
    sensitivity=guarantee.sensitivity,
  )
  output.show_result(
    {
      **result,
      **described,
      **result,
      **claim.to_dict(),
      'adjacency': guarantee.cohorts.adjacency,
      'amplification': flags['amplification'],
      'sampling_prob': flags['sampling_prob'],
    }
  )
