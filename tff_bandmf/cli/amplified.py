"""The claim of a run whose cohorts are sampled, for `account`, `calibrate`."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tff_bandmf import accounting, errors, strategies
from tff_bandmf import participation as participation_lib

_FAILURE_PROBABILITY = 1e-8


def worst_participation(
  amplification: str, min_sep: Optional[int]
) -> participation_lib.Participation:
  """Returns the schema whose sensitivity scales the noise multiplier."""
  if amplification == accounting.CYCLIC_POISSON:
    return participation_lib.Single()
  name = {
    accounting.BALLS_IN_BINS: 'fixed-epoch',
    accounting.B_MIN_SEP: 'min-sep',
  }[amplification]
  return participation_lib.from_name(name, min_sep)


def account(
  strategy: strategies.Strategy,
  amplification: str,
  min_sep: Optional[int],
  sampling_prob: Optional[float],
  noise_multiplier: Optional[float],
  z_stddev: Optional[float],
  delta: float,
  dimension: Optional[int],
  max_slack: float,
) -> tuple[Any, dict[str, Any]]:
  """Returns the spec and what is printed of its claim.

  Args:
    strategy: C.
    amplification: 'cyclic-poisson', 'balls-in-bins' or 'b-min-sep'.
    min_sep: bins of an epoch, or b of b-min-sep sampling.
    sampling_prob: q or p.
    noise_multiplier: sigma, or None if `z_stddev` is given.
    z_stddev: for clip = 1.
    delta: of (epsilon, delta).
    dimension: of the model, or None.
    max_slack: that is not refused.
  """

  def make(sigma):
    return dataclasses.replace(
      _spec(strategy, amplification, min_sep, sampling_prob, sigma),
      dimension=dimension,
      max_slack=max_slack,
    )

  if noise_multiplier is None:
    # The scale of sigma is that of the spec, whatever its sigma.
    noise_multiplier = z_stddev / make(1.0).z_stddev
  spec = make(noise_multiplier)
  if amplification == accounting.CYCLIC_POISSON:
    return spec, exact(spec, delta)
  return spec, _sampled(
    spec.epsilon(delta, failure_probability=_failure_probability(delta))
  )


def calibrate(
  strategy: strategies.Strategy,
  amplification: str,
  min_sep: Optional[int],
  sampling_prob: Optional[float],
  epsilon: float,
  delta: float,
  dimension: Optional[int],
  max_slack: float,
) -> tuple[Any, dict[str, Any]]:
  """Returns the spec of least noise and what is printed of its claim.

  Args:
    strategy: C.
    amplification: as for `account`.
    min_sep: as for `account`.
    sampling_prob: as for `account`.
    epsilon: positive.
    delta: of (epsilon, delta).
    dimension: of the model, or None.
    max_slack: that is not refused.
  """
  # Checks what is given before a search.
  spec = dataclasses.replace(
    _spec(strategy, amplification, min_sep, sampling_prob, 1.0),
    dimension=dimension,
    max_slack=max_slack,
  )
  if amplification == accounting.CYCLIC_POISSON:
    spec = accounting.calibrate_cyclic_poisson(spec, epsilon, delta)
    return spec, exact(spec, delta)
  spec, bound = accounting.calibrate_sampled(
    spec,
    epsilon,
    delta,
    failure_probability=_failure_probability(delta),
  )
  return spec, _sampled(bound)


def exact(spec: Any, delta: float) -> dict[str, Any]:
  """Returns what is printed of a claim that needs no random samples."""
  slack = spec.slack(delta)
  return {
    'epsilon': spec.epsilon(delta),
    'slack_epsilon': slack.epsilon,
    'slack_delta': slack.delta,
  }


def _spec(strategy, amplification, min_sep, sampling_prob, noise_multiplier):
  """Returns the spec of a sampling, after a check of its parameters."""
  if amplification == accounting.CYCLIC_POISSON:
    _check('min_sep', min_sep, False, amplification)
    _check('sampling_prob', sampling_prob, True, amplification)
    # One cohort a group: q = groups * cohort / population.
    return accounting.CyclicPoissonSpec(
      strategy,
      population=strategy.bands,
      cohort_size=sampling_prob,
      noise_multiplier=noise_multiplier,
      sampling=amplification,
    )
  _check('min_sep', min_sep, True, amplification)
  if amplification == accounting.BALLS_IN_BINS:
    _check('sampling_prob', sampling_prob, False, amplification)
    return accounting.BallsInBinsSpec(
      strategy, min_sep, noise_multiplier, amplification
    )
  _check('sampling_prob', sampling_prob, True, amplification)
  return accounting.BMinSepSpec(
    strategy, min_sep, sampling_prob, noise_multiplier, amplification
  )


def _failure_probability(delta: float) -> float:
  """Returns the part of delta for samples that mislead."""
  return min(_FAILURE_PROBABILITY, delta / 100)


def _check(name, value, needed, amplification) -> None:
  """Raises ValueError if a parameter is missing, or does not apply."""
  if (value is not None) != needed:
    raise ValueError(
      errors.invalid(
        name,
        value,
        f'{amplification} {"needs" if needed else "takes no"} {name}',
        'see --help for its meaning' if needed else 'leave it out',
      )
    )


def _sampled(bound: accounting.DeltaBound) -> dict[str, Any]:
  """Returns what is printed of a claim that rests on random samples."""
  return {
    'epsilon': bound.epsilon,
    'delta_bound': bound.total,
    'failure_probability': bound.failure_probability,
    'slack_epsilon': bound.slack_epsilon,
    'slack_delta': bound.slack_delta,
    'samples': bound.samples,
    'seed': bound.seed,
  }
