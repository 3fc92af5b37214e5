"""`bandmf account` and `bandmf calibrate`: what a run guarantees."""

from __future__ import annotations

import time
from typing import Any

import click

from tff_bandmf import accounting, errors
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.cli import amplified, options, output


@click.command()
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
@options.amplification
@options.sampling_prob
@options.dimension
@options.max_slack
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
  amplification,
  sampling_prob,
  dimension,
  max_slack,
  with_coefficients,
  as_json,
):
  """Shows rho and epsilon of a run with this noise.

  epsilon is that of the released bits: slack_epsilon and slack_delta of it are
  what the arithmetic of the noise costs, rho is that of real numbers.
  FILE is a strategy file or a .npy file of the matrix C. With --amplification
  the noise multiplier is relative to what its theorem asks for, printed as
  sensitivity: the largest column norm for cyclic-poisson, else that of the
  worst participations.
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
  options.check_amplification(
    amplification, sampling_prob, participation, max_participations
  )
  strategy, kept = output.load(file)
  if amplification == 'none':
    schema = options.schema(participation, min_sep, max_participations, kept)
    if noise_multiplier is None:
      sensitivity = sensitivity_lib.sensitivity(strategy, schema)
      noise_multiplier = z_stddev / (clip * sensitivity.value)
    spec = accounting.PrivacySpec(
      strategy, schema, noise_multiplier, dimension, max_slack
    )
    claim = {'rho': spec.rho, **amplified.exact(spec, delta)}
  else:
    schema = amplified.worst_participation(amplification, min_sep)
    spec, claim = amplified.account(
      strategy,
      amplification,
      min_sep,
      sampling_prob,
      noise_multiplier,
      z_stddev and z_stddev / clip,
      delta,
      dimension,
      max_slack,
    )
  output.warn_of_weak(claim['epsilon'], delta)
  claim.update(amplification=amplification, sampling_prob=sampling_prob)
  record = _with_privacy(spec, schema, clip, delta, claim, with_coefficients)
  output.show({**record, 'seconds': time.perf_counter() - started}, as_json)
  return output.DONE


@click.command()
@options.strategy_file
@options.participation
@click.option('--epsilon', required=True, type=options.NUMBER)
@options.delta
@options.clip
@options.adjacency
@options.amplification
@options.sampling_prob
@options.dimension
@options.max_slack
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
  amplification,
  sampling_prob,
  dimension,
  max_slack,
  with_coefficients,
  as_json,
):
  """Shows the least noise that meets (epsilon, delta) for a whole run.

  FILE is a strategy file or a .npy file of the matrix C.
  """
  started = time.perf_counter()
  options.check_amplification(
    amplification, sampling_prob, participation, max_participations
  )
  strategy, kept = output.load(file)
  if amplification == 'none':
    schema = options.schema(participation, min_sep, max_participations, kept)
    spec = accounting.calibrate(
      strategy, schema, epsilon, delta, dimension, max_slack
    )
    claim = {'rho': spec.rho, **amplified.exact(spec, delta)}
  else:
    schema = amplified.worst_participation(amplification, min_sep)
    spec, claim = amplified.calibrate(
      strategy,
      amplification,
      min_sep,
      sampling_prob,
      epsilon,
      delta,
      dimension,
      max_slack,
    )
  output.warn_of_weak(claim['epsilon'], delta)
  claim.update(amplification=amplification, sampling_prob=sampling_prob)
  record = _with_privacy(spec, schema, clip, delta, claim, with_coefficients)
  output.show({**record, 'seconds': time.perf_counter() - started}, as_json)
  return output.DONE


def _with_privacy(
  spec: Any,
  schema: participation_lib.Participation,
  clip: float,
  delta: float,
  claim: dict[str, Any],
  with_coefficients: bool,
) -> dict[str, Any]:
  """Returns the record of a strategy and of the guarantee of a run with it."""
  return {
    **output.describe(
      spec.strategy,
      schema,
      sensitivity_lib.sensitivity(spec.strategy, schema),
      with_coefficients,
    ),
    'clip': clip,
    'noise_multiplier': spec.noise_multiplier,
    'z_stddev': spec.z_stddev * clip,
    'delta': delta,
    **claim,
  }
