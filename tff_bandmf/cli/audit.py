"""`bandmf audit`: lower bounds on epsilon that attacks show.

With --aggregator, it audits an aggregator that others wrote.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from typing import Any, Optional

import click
import numpy as np

from tff_bandmf import accounting, errors, strategies
from tff_bandmf.cli import commands, options, output


@click.command()
@click.argument('file', type=click.Path(), required=False)
@options.participation
@options.numbers(
  epsilon='Claimed epsilon. The noise multiplier is computed from it.',
  noise_multiplier='Stddev of z / (clip * sensitivity), instead of --epsilon.',
  delta='Claimed delta, in (0, 1).',
)
@options.integers(
  canaries='Clients per run whose participation an attacker tries to detect.',
  default=2000,
)
@options.integers(
  runs='Runs of the aggregator. Each has all rounds of FILE.', default=2
)
@options.numbers(
  confidence='Probability that both lower bounds are at most the true epsilon.',
  default=0.95,
)
@click.option(
  '--aggregator',
  metavar='MODULE:FUNCTION',
  help='Function that returns the aggregator of somebody else to audit.',
)
# The specification of an aggregator, and the size of its audit.
@options.numbers(
  l2_norm_clip='Stated clip: largest norm of the contribution of one client.',
  z_stddev='Stated standard deviation of z in units of the updates, instead of '
  '--noise-multiplier.',
)
@options.integers(
  clients_per_round='Stated clients of a round, and divisor of the mean.'
)
@options.integers(
  rounds='Largest number of rounds of a run of --aggregator.', default=128
)
@options.integers(
  draws='Normals of --aggregator among which large ones are counted.',
  default=2**30,
)
@options.combined(
  'stated',
  dict,
  ('l2_norm_clip', 'z_stddev', 'clients_per_round', 'rounds', 'draws'),
)
@options.as_json
def audit(
  file, who, epsilon, noise_multiplier, delta, aggregator, stated, **trials
):
  """Shows lower bounds on epsilon from runs with canaries.

  FILE is a strategy file or a .npy file of the matrix C. A canary is a client
  that takes part as often as the schema allows, or not at all. An attacker
  who sees every release and knows the updates of all other clients guesses
  which of the two it was. If TFF is installed, the aggregation is TFF's
  process; else it is round.release in NumPy. The line 'aggregation' names it.
  gaussian_bound assumes Gaussian noise, clopper_pearson_bound does not. A bound
  above the claimed epsilon shows that the claim is wrong, and the exit status
  is 1. If the claim is true, this happens with probability at most
  1 - confidence. Bounds below the claimed epsilon prove nothing.

  Four attacks on the arithmetic follow. They examine sums of a cohort for which
  rounding of floats is worst, the tail of the normals, the last bits of
  releases, and the matrix C of the noise. If an attack succeeds, the exit
  status is 1. An attack on sound arithmetic succeeds with probability 2e-6.

  With --aggregator the audit compares an aggregator of somebody else with the
  specification of its author. FUNCTION(like, noise) returns a function from
  (updates, examples) to a mean, an object with initialize() and next(state,
  updates, examples) -> (state, mean), or an aggregation process or factory of
  TFF. If noise is False, it returns the aggregator without noise, or None. The
  specification is --l2-norm-clip, --z-stddev or --noise-multiplier,
  --clients-per-round, and FILE, the strategy; without FILE the noise is
  independent between rounds. Each of eight lines has the verdict (pass, fail or
  cannot tell), the measured number, its limits, and the probability with which
  a sound aggregator fails. The exit status is 0 only if every line passes.
  """
  if aggregator is not None:
    if (epsilon, delta) != (None, None):
      raise errors.value_error(
        f'epsilon, delta={epsilon}, {delta}: do not go with aggregator; leave '
        'out --epsilon and --delta'
      )
    _audit_aggregator(aggregator, file, who, noise_multiplier, stated)
    return
  _needed(file=file, delta=delta)
  options.check_either(epsilon=epsilon, noise_multiplier=noise_multiplier)
  strategy, stored = output.load(file)
  schema = who.schema(stored)
  if epsilon is not None:
    guarantee = accounting.calibrate(
      strategy, schema, epsilon=epsilon, delta=delta
    )
  else:
    guarantee = accounting.Guarantee(strategy, schema, noise_multiplier)
  output.warn_of_weak(guarantee.proved_epsilon(delta), delta)
  with warnings.catch_warnings():
    # Packages that TensorFlow Federated imports print warnings.
    warnings.simplefilter('ignore')
    from tff_bandmf import audit as audit_lib
    from tff_bandmf.audit import arithmetic_attacks

    in_tff = audit_lib.has_tff()
    context = _runtime(in_tff)
  rounds = trials['runs'] * strategy.rounds
  with context, output.progress('rounds', rounds) as step:
    audited = audit_lib.audit(
      guarantee, delta, **trials, on_round=functools.partial(step, '')
    )
  attacks = arithmetic_attacks.attack(guarantee)
  output.show_result(
    {
      **guarantee.to_dict(),
      # `to_dict` has no keys for values that are None.
      'min_sep': schema.min_sep,
      'max_participations': schema.to_dict().get('max_participations'),
      'rho': guarantee.rho,
      'epsilon': audited.claimed_epsilon,
      'canaries': trials['canaries'],
      'runs': trials['runs'],
      'aggregation': 'tensorflow_federated' if in_tff else 'numpy',
      **audited.to_dict(),
      'arithmetic': [
        each.to_dict() if output.as_json() else str(each) for each in attacks
      ],
    }
  )
  if not audited.holds or any(each.succeeded for each in attacks):
    raise output.did_not_hold()


def _runtime(in_tff: bool) -> contextlib.AbstractContextManager:
  """Returns TFF's runtime for a `with` block; without TFF, an empty block."""
  if not in_tff:
    return contextlib.nullcontext()
  from tff_bandmf.tff import runtime

  return runtime.local_runtime()


def _needed(**values: object) -> None:
  """Raises ValueError with the names of all values that are None, if any."""
  absent = [name for name, value in values.items() if value is None]
  if absent:
    raise ValueError(commands.missing(click.get_current_context(), absent))


def _audit_aggregator(
  aggregator: str,
  file: Optional[str],
  who: options.Participants,
  noise_multiplier: Optional[float],
  stated: dict[str, Any],
) -> None:
  """Prints the answers about an aggregator.

  Args:
    aggregator: MODULE:FUNCTION.
    file: path of the strategy file; None if the noise is independent between
      rounds.
    who: flags for participation. The sensitivity follows from them if both
      `file` and `noise_multiplier` are given; else they are not used.
    noise_multiplier: standard deviation of z / (clip * sensitivity), or None.
    stated: specification of the aggregator and size of the audit, by option.

  Raises:
    ValueError: a part of the specification is missing or given twice, or the
      aggregator cannot be loaded or run.
    click.exceptions.Exit: an answer is not 'pass'.
  """
  l2_norm_clip, z_stddev = stated['l2_norm_clip'], stated['z_stddev']
  clients_per_round = stated['clients_per_round']
  _needed(l2_norm_clip=l2_norm_clip, clients_per_round=clients_per_round)
  options.check_either(noise_multiplier=noise_multiplier, z_stddev=z_stddev)
  matrix, family = np.eye(stated['rounds']), strategies.Identity.family
  # Without FILE, the noise multiplier is relative to the sensitivity of one
  # round, which is 1 clip.
  z_stddev_per_clip = noise_multiplier
  if file is not None:
    strategy, stored = output.load(file)
    rounds = min(stated['rounds'], strategy.rounds)
    matrix, family = strategy.matrix()[:rounds, :rounds], strategy.family
    if noise_multiplier is not None:
      z_stddev_per_clip = accounting.Guarantee(
        strategy, who.schema(stored), noise_multiplier
      ).z_stddev_per_clip
  if z_stddev is not None:
    z_stddev_per_clip = z_stddev / l2_norm_clip
  assert z_stddev_per_clip is not None
  from tff_bandmf.audit import aggregators, conformance
  from tff_bandmf.audit import answers as answers_lib

  make = aggregators.load(aggregator)
  specification = conformance.Specification(
    l2_norm_clip, z_stddev_per_clip, clients_per_round, matrix
  )
  in_tff = 'tensorflow_federated' in sys.modules
  with _runtime(in_tff), output.progress('rounds') as step:
    answers = conformance.answers(
      make,
      specification,
      stated['draws'],
      on_round=functools.partial(step, ''),
      again=functools.partial(aggregators.load, aggregator, again=True),
    )
  passes = all(each.verdict == answers_lib.PASS for each in answers)
  output.show_result(
    {
      'aggregator': aggregator,
      'l2_norm_clip': l2_norm_clip,
      'z_stddev': z_stddev_per_clip * l2_norm_clip,
      'clients_per_round': clients_per_round,
      'family': family,
      'rounds': len(matrix),
      'answers': [each.to_dict() for each in answers]
      if output.as_json()
      else answers_lib.texts(answers),
      'holds': passes,
    }
  )
  if not passes:
    raise output.did_not_hold()
