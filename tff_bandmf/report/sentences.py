"""The sentences of a report: its claim, the data covered, the parties trusted.

The report states the facts that section 5.3 of [DPfy23] asks for; App K.1 of
[BandMF23] is an example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Optional

import attrs
import scipy.special

from tff_bandmf import _files, accounting, errors, participation
from tff_bandmf.report import claim as claim_lib
from tff_bandmf.report import document
from tff_bandmf.run_files import run_json

NOT_STATED = 'not stated'

ACCOUNTING = (
  'The released integers are a function of one Gaussian release of sensitivity '
  '1, unless the run stops, which has a probability of at most tau = 4e-39. '
  'The standard deviation s of the release is noise_multiplier, divided by a '
  'factor that covers rounding errors of the sensitivity. Within tau in total '
  'variation, the run is rho-zCDP with rho = 1 / (2 s^2). (epsilon, delta) '
  'follows from the exact privacy profile of the release, rounded up, and is '
  'not converted from rho. delta includes (1 + e^epsilon) tau.'
)
AMPLIFIED = (
  'The run is compared with a run in which one client contributes zero, over '
  'all random cohorts. For cyclic-poisson cohorts, Poisson-sampled Gaussians '
  'are composed by the distributions of their privacy losses, rounded up. For '
  'other cohorts, the run is a mixture of Gaussians, whose delta is bounded by '
  'random samples. delta includes the probability that this bound fails, and '
  '(1 + e^epsilon) tau, where tau = 4e-39 bounds the probability that the run '
  'stops. rho is for the run without amplification, which is one Gaussian '
  'release, within tau in total variation.'
)
# Description of the accounting for the public report.
PUBLIC_ACCOUNTING = (
  'Epsilon and delta are computed for the whole training at once, from the '
  'exact trade-off of Gaussian noise, and rounded up. They hold for the very '
  'numbers that were released.'
)
PUBLIC_AMPLIFIED = (
  ' They assume that cohorts are drawn at random and stay secret; the report '
  'also states the epsilon without this assumption.'
)
ADJACENCY = (
  'zero-out: two data sets are neighbours if one of them has zeros in place of '
  'all contributions of one unit of privacy, in every round; all clients take '
  'part in the same rounds in both data sets'
)
_SETTING = (
  'central: the operator who trains, clips, sums and adds the noise sees the '
  'updates without noise and is trusted; the guarantee protects against '
  'everybody who sees only the released values'
)
_COVERED = (
  'the updates of training clients, through the sum of every round with its '
  'noise'
)
_COVERED_CLIP = (
  ', and through the share of updates below the clip, with noise; the share '
  'and the clip of the next round, which follows from it, are released'
)

# The beginning of a claim if nobody checked the process of the run.
UNCHECKED = 'Not checked: values of clients that bypass the aggregator. '

# The beginning of a claim if participation was worse than planned.
BROKEN = 'The planned claim does NOT hold. '

GENERATOR = 'chacha20'
_GENERATOR = {
  'algorithm': 'ChaCha20, cryptographic; each block gives 8 numbers of a round',
  'key_bits': 256,
  'key_use': 'all bits are the key of ChaCha20',
  'normals': (
    'inverse of the normal CDF of 63 bits and a sign bit, and of as many more '
    'bits as the exact rounding of the noise needs'
  ),
}

# Notes on uses of data outside training, and their titles.
ACCESSES = {
  'tuning': 'hyperparameter tuning',
  'model_selection': 'model selection',
  'pre_training': 'public pre-training',
}


def count(number: int, noun: str) -> str:
  """Returns a number with its noun: '1 round', '2 rounds'."""
  return f'{number} {noun}{"s" * (number != 1)}'


def epsilon_text(epsilon: Optional[float], text: Callable[[float], str]) -> str:
  """Returns the words for an epsilon; None is an epsilon without a proof."""
  if epsilon is None:
    return 'no epsilon is proved'
  return f'epsilon is {text(epsilon)}'


def common(
  claim: claim_lib.Claim, run: run_json.RunDetails, clients: int
) -> _files.JsonObject:
  """Returns the fields of `document.CommonFields`, and all details of a run.

  Args:
    claim: claim of the run.
    run: details of the run.
    clients: largest number of clients of a unit of privacy, >= 1.
  """
  most = f', with at most {clients} clients' if clients > 1 else ''
  clip = _COVERED_CLIP * (claim.adaptive_clip is not None)
  return {
    **attrs.asdict(run, recurse=False),
    'version': 1,
    'unit': run.unit_of_privacy + most,
    'clients_per_unit': clients,
    'adjacency_meaning': ADJACENCY,
    # PRIVACY: A reader could take a simulated run for a run of real clients.
    # `setting` says that the run is simulated.
    # Guard: run_report_test.test_simulated_run_says_that_it_is_one.
    'setting': _setting(claim) or run.setting or _SETTING,
    'covered': run.covered or _COVERED + clip,
    'data_accesses': {
      name: getattr(run, name) or f'{NOT_STATED}: assume that it is not covered'
      for name in ACCESSES
    },
  }


def attack(numbers: Mapping[str, _files.Json]) -> Optional[_files.JsonObject]:
  """Returns bounds on the success of an attacker; None without a claim.

  The attacker decides whether a client is a member, that is, took part. Let a
  be the probability that the attacker calls a non-member a member. For one
  Gaussian release of real numbers, the attacker recognises a member with
  probability at most Phi(Phi^-1(a) + mu), where mu = sqrt(2 rho) and Phi is the
  normal CDF. By (epsilon, delta) alone, the bound is
  min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a)). The result has the
  smaller of the two bounds. If the prior probability of membership is 1/2, the
  attacker decides correctly with probability at most (1 + TV) / 2, where TV is
  the total variation distance between releases with and without the client.

  Args:
    numbers: epsilon, delta, rho (None if no Gaussian bounds the release) of the
      claim.

  >>> attack({'epsilon': 8.0, 'delta': 1e-6, 'rho': 1.17045})[
  ...     'true_positive_rate']
  0.22
  """
  if numbers['epsilon'] is None:
    return None
  epsilon, delta, rho = (numbers[name] for name in ('epsilon', 'delta', 'rho'))
  # The exponential function overflows in float64 above 709.
  alpha, capped = 0.01, min(epsilon, 700.0)
  member = min(
    math.exp(capped) * alpha + delta,
    1 - math.exp(-epsilon) * (1 - delta - alpha),
  )
  variation = (math.expm1(capped) + 2 * delta) / (math.exp(capped) + 1)
  if rho is not None:
    mu = math.sqrt(2 * rho)
    member = min(member, scipy.special.ndtr(scipy.special.ndtri(alpha) + mu))
    variation = min(variation, math.erf(mu / math.sqrt(8)))
  # PRIVACY: bounds that were rounded down would promise too much protection.
  # Both probabilities are rounded up to whole percents, with an allowance of
  # 1e-9 for rounding errors and for runs that stop.
  # Guard: registry_test.test_attack_is_never_stated_weaker_than_it_may_be.
  percent = [
    min(100, math.ceil(100 * (value + 1e-9)))
    for value in (member, (1 + variation) / 2)
  ]
  return {
    'false_positive_rate': alpha,
    'true_positive_rate': percent[0] / 100,
    'right_guess': percent[1] / 100,
    'sentence': (
      f'If an attacker wrongly takes 1 % of non-members for members, the '
      f'attacker recognises at most {percent[0]} % of members. If one unit of '
      f'privacy is a member with probability 1/2, a guess whether it is a '
      f'member is right in at most {percent[1]} % of cases. A member is a unit '
      f'whose data was used.'
    ),
  }


def other_releases(
  releases: Sequence[accounting.Release],
) -> list[document.OtherRelease]:
  """Returns the guarantees of releases of other programs.

  Raises:
    ValueError: a release is an event of dp-accounting; a report lists numbers
      only, so that its reader can compose them.
  """
  for each in releases:
    if each.event is not None:
      raise errors.value_error(
        f'release={each.name}: is an event, and a report lists numbers; give '
        'its epsilon and delta, its rho, or the noise_multiplier of each query'
      )
  return [
    document.select(document.OtherRelease, attrs.asdict(each, recurse=False))
    for each in releases
  ]


def known(release: document.OtherRelease) -> str:
  """Returns the guarantee of a release of another program in words."""
  if release['epsilon'] is not None:
    return f'epsilon {release["epsilon"]}, delta {release["delta"]}'
  if release['rho'] is not None:
    return f'rho {release["rho"]}'
  return f'Gaussian noise, noise multiplier {release["noise_multiplier"]}'


def generator(run: run_json.RunDetails) -> _files.JsonObject:
  """Returns the random generator of the noise, and the origin of its key.

  Raises:
    ValueError: the run names another generator than `GENERATOR`.
  """
  name = run.noise_generator or GENERATOR
  # PRIVACY: the claim is proved for one generator, and the noise of another
  # could be predictable. A run with another generator is refused.
  # Guard: report_pages_test.test_other_generators_are_refused.
  if name != GENERATOR:
    raise errors.value_error(
      f'noise_generator={name}: must be {GENERATOR}: nothing is proved for '
      'another generator; use the release that trained the run'
    )
  return {**_GENERATOR, 'key_source': run.noise_key or NOT_STATED}


def _setting(claim: claim_lib.Claim) -> Optional[str]:
  """Returns the setting of a run that simulates a larger run, else None."""
  plan = claim.plan
  if plan.simulated is None:
    return None
  epsilon = plan.simulated.proved_epsilon(claim.delta)
  # PRIVACY: a reader could take the epsilon of the simulated larger run for a
  # claim about this run. These sentences say that this run has no guarantee.
  # Guard: run_report_test.test_simulated_run_says_that_it_is_one.
  return (
    f'SIMULATED: {plan.clients_per_round} clients a round stand for '
    f'{plan.stands_for} clients, and the mean has the noise of a mean of '
    f'{plan.stands_for}. A run of so many clients would have '
    + ('no proved epsilon' if epsilon is None else f'epsilon={epsilon:.6g}')
    + '; this run has no guarantee, and protects nobody'
  )


def _by_budget(budget: participation.Budget) -> str:
  """Returns the condition that a budget puts on the rounds of a client."""
  costs = budget.known_costs
  return (
    'the rounds P of each client cost at most '
    f'{costs.limit * costs.unit!r}, the budget (the cost of P is the sum over '
    's and t in P of |X[s, t]|, where X = C^T C; a Toeplitz C is extended by '
    'rows until all columns have the same terms), any two rounds of a client '
    f'are at least {budget.apart} apart (so a client has at most '
    f'{count(costs.most, "round")}), the run has at most {budget.horizon} '
    'rounds, a number that may depend on what was released before'
  )


def formal(
  claim: claim_lib.Claim, guarantee: _files.JsonObject, run: run_json.RunDetails
) -> str:
  """Returns the formal statement; its numbers are not rounded.

  Args:
    claim: claim of the run.
    guarantee: result of `claim.to_dict()`.
    run: details of the run.
  """
  if guarantee['rho'] is None:
    return 'None. No noise was added; this run guarantees nothing.'
  if guarantee['epsilon'] is None:
    return 'None. Nothing is proved about the arithmetic of so little noise.'
  schema = claim.unamplified.cohorts.schema
  rounds = claim.unamplified.strategy.rounds
  most = count(schema.participations(rounds), 'round')
  started = count(claim.rounds, 'round')
  # PRIVACY: the number of rounds of a run that stopped may depend on releases.
  # A statement about that number of rounds would describe another mechanism. So
  # the statement is about the number that was fixed before the first round.
  # Guard: run_until_test.test_run_that_stops_by_its_model_claims_all_rounds.
  if claim.budget is None and claim.rounds < claim.most_rounds:
    started = (
      f'at most {count(claim.most_rounds, "round")}, a number that may depend '
      'on what was released before,'
    )
  conditions = f'each client contributes to at most {most}'
  if isinstance(schema, participation.Budget):
    conditions = _by_budget(schema)
  elif schema.min_sep is not None:
    conditions += f', any two of them at least {schema.min_sep} rounds apart'
  exact = ''
  if claim.amplified is not None and claim.plan.sampled is not None:
    unamplified = guarantee['sampling']['epsilon_unamplified']
    exact = (
      f'Without amplification, if it is certain that {conditions}, '
      f'{epsilon_text(unamplified, repr)} at the same delta, and '
    )
    conditions = f'{claim.plan.sampled.rule}, with secret randomness'
  leads = '' if claim.plan.simulated is None else 'SIMULATED: '
  leads += BROKEN * claim.violated
  # PRIVACY: a reader may quote the statement without the warnings of its
  # report. If nobody checked the process, the statement itself says so first.
  # Guard: run_report_test.test_process_that_nobody_checked_leads_the_report.
  leads += UNCHECKED * claim.process_unknown
  clients = count(claim.unamplified.clients_per_unit, 'client')
  return (
    f'{leads}Let M map a data set of clients to the releases of {started} of '
    f"this run ({run.released}). Let D and D' be neighbours: D' is D with "
    f'every contribution of one unit of privacy ({run.unit_of_privacy}) set to '
    f'zero. If a unit has at most {clients}, {conditions}, and the assumptions '
    "hold, then P[M(D) in S] <= e^epsilon P[M(D') in S] + delta, also with D "
    "and D' exchanged, for every set S of outputs, with epsilon = "
    f'{guarantee["epsilon"]!r} and delta = {claim.delta!r}. M is the program '
    f'with its rounding{". " + exact if exact else "; "}but for an event of '
    f'probability 4e-39 it is a mechanism that is {guarantee["rho"]!r}-zCDP.'
  )
