"""The sentences of a report: what is claimed, covered and trusted.

The fields are those of section 5.3 of [DPfy23], as filled in by [BandMF23,
App K.1].
"""

from __future__ import annotations

from typing import Any

from tff_bandmf import errors
from tff_bandmf.program import run_record
from tff_bandmf.report import claim as claim_lib

NOT_STATED = 'not stated'

ACCOUNTING = (
  'The run is one Gaussian release of sensitivity 1 and standard deviation '
  'noise_multiplier, less what cut weights and rounding add to the '
  'sensitivity, in real numbers: rho-zCDP with rho = 1 / (2 '
  'noise_multiplier^2), and (epsilon, delta) from its exact privacy profile, '
  'rounded up; not converted from rho. What is released is integers on a '
  'lattice with noise from 64-bit words: slack_epsilon and slack_delta of '
  'epsilon and delta are what that costs at most.'
)
AMPLIFIED = (
  'The run is compared with one in which the client contributes zero, over all '
  'that chance can draw: composed Poisson-sampled Gaussians by the '
  'distributions of their losses, rounded up, for cyclic-poisson; a mixture '
  'of Gaussians for the others, whose delta is bounded by random samples, the '
  'probability that the bound fails being part of delta. That a cohort is too '
  'large for the lattice is part of delta as well, and so are slack_epsilon '
  'and slack_delta, what the arithmetic of the noise costs. Without '
  'amplification the run is one Gaussian release: rho is of that.'
)
ADJACENCY = (
  'zero-out: in one of two neighbouring data sets all contributions of one '
  'unit of privacy are zero, in every round in which it takes part; who takes '
  'part is the same in both'
)
_SETTING = (
  'central: whoever trains, clips, sums and adds the noise sees updates in '
  'the clear and is trusted; protected against whoever sees what is released'
)
_COVERED = (
  'the updates of training clients, through the noised sum of every round'
)
_COVERED_CLIP = (
  ', and through the noised share of updates below the clip, from which the '
  'clip of the next round follows: both are released'
)

GENERATOR = 'chacha20'
_GENERATOR = {
  'algorithm': 'ChaCha20, a block for 8 numbers of a round; cryptographic',
  'key_bits': 256,
  'key_use': 'all bits are the key of ChaCha20',
  'normals': (
    'inverse of the CDF of 63 bits and a sign in 64-bit floats, 64 more '
    'bits in the tail: up to 13 standard deviations'
  ),
}

# What `run.json` says of each use of data outside training, and its title.
ACCESSES = {
  'tuning': 'hyperparameter tuning',
  'model_selection': 'model selection',
  'pre_training': 'public pre-training',
}


def count(number: int, noun: str) -> str:
  """Returns a number of things: '1 round', '2 rounds'."""
  return f'{number} {noun}{"s" * (number != 1)}'


def data_accesses(run: run_record.RunRecord) -> dict[str, str]:
  """Returns what `run.json` says of each use of data outside training."""
  return {
    name: getattr(run, name) or f'{NOT_STATED}: take it as not covered'
    for name in ACCESSES
  }


def accounting(claim: claim_lib.Claim) -> str:
  """Returns what kind of accounting the claim rests on."""
  return ACCOUNTING if claim.amplified is None else AMPLIFIED


def generator(run: run_record.RunRecord) -> dict[str, Any]:
  """Returns what made the noise, and where its key came from.

  Raises:
    ValueError: the run names a generator of another release.
  """
  name = run.noise_generator or GENERATOR
  # PRIVACY: the slack is that of this generator and of no other.
  # Guard: report_pages_test.test_other_generators_are_refused.
  if name != GENERATOR:
    raise errors.value_error(
      'noise_generator',
      name,
      f'must be {GENERATOR}: nothing is proved '
      'here about the arithmetic of another',
      'use the release that trained the run',
    )
  return {**_GENERATOR, 'key_source': run.noise_key or NOT_STATED}


def setting(run: run_record.RunRecord) -> str:
  """Returns who is trusted, and against whom the guarantee protects."""
  return run.setting or _SETTING


def covered(run: run_record.RunRecord) -> str:
  """Returns the accesses to data that the guarantee counts."""
  if run.covered:
    return run.covered
  return _COVERED + _COVERED_CLIP * bool(run.claim.get('adaptive_clip'))


def formal(
  claim: claim_lib.Claim, guarantee: dict[str, Any], run: run_record.RunRecord
) -> str:
  """Returns the formal statement; its numbers are not rounded.

  Args:
    claim: of the run.
    guarantee: `claim.to_dict()`.
    run: what `run.json` says.
  """
  if guarantee['rho'] is None:
    return 'None. No noise was added; this run guarantees nothing.'
  if guarantee['epsilon'] is None:
    return 'None. Nothing is proved about the arithmetic of so little noise.'
  simulated = '' if run.simulated is None else 'SIMULATED: '
  schema = claim.held.cohorts.schema
  rounds = claim.held.strategy.rounds
  most = count(schema.participations(rounds), 'round')
  started = count(claim.rounds, 'round')
  together = (
    ''
    if schema.min_sep is None
    else f', any two of them at least {schema.min_sep} rounds apart'
  )
  conditions = f'each client contributes to at most {most}{together}'
  exact = ''
  if claim.amplified is not None and claim.cohorts is not None:
    unamplified = guarantee['sampling']['epsilon_unamplified']
    exact = (
      'Without amplification, if for sure '
      f'{conditions}, '
      + (
        'no epsilon is proved'
        if unamplified is None
        else f'epsilon is {unamplified!r}'
      )
      + ' at the same delta, and '
    )
    conditions = f'{claim.cohorts.rule}, by secret chance'
  return (
    f'{simulated}Let M map a data set of clients to what {started} of this '
    f"run release ({run.released}). Let D and D' be neighbours: D' is D "
    'with every contribution of one unit of privacy '
    f'({run.unit_of_privacy}) set to zero. If a unit has at most '
    f'{count(claim.held.clients_per_unit, "client")}, {conditions}, and the '
    "assumptions hold, then P[M(D) in S] <= e^epsilon P[M(D') in S] + "
    "delta, also with D and D' exchanged, for every set S of outputs, with "
    f'epsilon = {guarantee["epsilon"]!r} and delta = {claim.delta!r}. M is '
    f'the program with its rounding{". " + exact if exact else "; "}the same '
    f'with real numbers and exact Gaussians is {guarantee["rho"]!r}-zCDP.'
  )
