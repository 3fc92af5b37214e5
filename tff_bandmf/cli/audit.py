"""`bandmf audit`: lower bounds on epsilon that attacks show."""

from __future__ import annotations

import functools
import warnings

import click

from tff_bandmf import accounting, errors
from tff_bandmf.cli import conformance, options, output


@click.command()
@click.argument('file', type=click.Path(), required=False)
@options.participation
@options.number(
  '--epsilon', 'Claimed epsilon. The noise multiplier is computed from it.'
)
@options.number(
  '--noise-multiplier',
  'Standard deviation of z / (clip * sensitivity), instead of --epsilon.',
)
@options.number('--delta', 'Claimed delta, in (0, 1).')
@options.integer(
  '--canaries',
  'Clients per run whose participation an attacker tries to detect.',
  default=2000,
)
@options.integer(
  '--runs', 'Runs of the aggregator. Each has all rounds of FILE.', default=2
)
@options.number(
  '--confidence',
  'Probability that both lower bounds are at most the true epsilon.',
  default=0.95,
)
@click.option(
  '--aggregator',
  metavar='MODULE:FUNCTION',
  help='Function that returns the aggregator of somebody else to audit.',
)
@conformance.stated
@options.as_json
def audit(
  file, who, epsilon, noise_multiplier, delta, aggregator, stated, **trials
):
  """Shows lower bounds on epsilon from runs of the aggregator with canaries.

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
  statement of its author. FUNCTION(like, noise) returns a function from
  (updates, examples) to a mean, an object with initialize() and next(state,
  updates, examples) -> (state, mean), or an aggregation process or factory of
  TFF. If noise is False, it returns the aggregator without noise, or None. The
  statement is --l2-norm-clip, --z-stddev or --noise-multiplier,
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
    conformance.audit(aggregator, file, who, noise_multiplier, stated)
    return
  conformance.needed(file=file, delta=delta)
  if (epsilon is None) == (noise_multiplier is None):
    raise errors.value_error(
      f'epsilon={epsilon}: give either it or noise_multiplier; use --epsilon '
      'or --noise-multiplier'
    )
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
    from tff_bandmf.audit import run_attacks

    in_tff = audit_lib.has_tff()
    context = conformance.runtime(in_tff)
  rounds = trials['runs'] * strategy.rounds
  with context, output.progress('rounds', rounds) as step:
    audited = audit_lib.audit(
      guarantee, delta, **trials, on_round=functools.partial(step, '')
    )
  attacks = run_attacks.attack(guarantee)
  output.show_result(
    {
      **guarantee.to_dict(),
      # The record of the guarantee has no keys for values that are None.
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
