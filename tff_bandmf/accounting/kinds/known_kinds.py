"""The kinds of cohorts, and the accountant for each.

Cohorts are enforced (`participation`), sampled at random (`Sampled`), or read
from a log (`Logged`). Sampling amplifies privacy. An amplified guarantee holds
only for the randomness for which it was proved: cohorts of an enforced schema,
batches of a shuffled list and cohorts of a fixed size have no amplified
guarantee, even if they resemble sampled cohorts. Each sampled kind is one
frozen class in a separate file, `NAME_cohorts.py`, with its rule, sampler,
accountant, JSON and flags. `KINDS` has the classes in these files.

`participation.Cohorts` has the attributes that all kinds share.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Optional, Union

import attrs

from tff_bandmf import _files, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting import kinds
from tff_bandmf.accounting.kinds import logged_cohorts, sampled_cohorts
from tff_bandmf.accounting.methods import accountants
from tff_bandmf.accounting.methods import needed_noise as needed_noise_lib

for _file in pkgutil.iter_modules(kinds.__path__, f'{kinds.__name__}.'):
  if _file.name.endswith('_cohorts'):
    importlib.import_module(_file.name)
# PRIVACY: A kind of another package has no proof here. If it were listed, it
# could take the name of a proved kind, and files with this name would be read
# as the other kind. Only the kinds of this package are listed. `attrs` makes
# each class twice; of two classes with one name, the dict holds the second,
# which is the final class.
# Guard: accounting_cohorts_test.test_kind_of_another_package_is_unknown.
KINDS = {
  kind.name: kind
  for kind in sampled_cohorts.Sampled.__subclasses__()
  if kind.__module__.startswith(f'{kinds.__name__}.')
}


def sampled(
  cohorts: participation_lib.Cohorts,
) -> Optional[sampled_cohorts.Sampled]:
  """Returns the cohorts if they are sampled, else None."""
  return cohorts if isinstance(cohorts, sampled_cohorts.Sampled) else None


def needed_noise(
  cohorts: participation_lib.Cohorts, rounds: int, epsilon: float, delta: float
) -> Optional[needed_noise_lib.NeededNoise]:
  """Returns the function from C to the noise that C needs, for a search.

  The result is None if this noise is proportional to the sensitivity of C under
  the schema of the cohorts.
  """
  kind = sampled(cohorts)
  return kind.needed_noise(rounds, epsilon, delta) if kind else None


def accountant(
  strategy: strategies.Strategy,
  cohorts: participation_lib.Cohorts,
  clients_per_unit: int = 1,
) -> accountants.Accountant:
  """Returns the accountant of a strategy and cohorts.

  Args:
    strategy: strategy matrix C.
    cohorts: cohorts of the run.
    clients_per_unit: largest number of clients of one unit of privacy, >= 1.

  Raises:
    TypeError: `cohorts` is not an instance of `participation.Cohorts`.
    ValueError: no guarantee is proved for the strategy and the cohorts.
  """
  # PRIVACY: Guarantees are proved only for instances of `Cohorts`. If a caller
  # gave something else, such as the name of a sampling rule, an amplified claim
  # could be false. Values that are not instances of `Cohorts` are refused.
  # Guard: accounting_cohorts_test.test_other_randomness_is_refused.
  participation_lib.check_cohorts(cohorts)
  # PRIVACY: The amplification proofs are for units of one client. They do not
  # cover rounds in which several clients of one unit are drawn, so epsilon
  # could be too small. Units of several clients are refused.
  # Guards: accounting_cohorts_test.test_sampled_units_of_several_are_refused
  # and accounting_cohorts_test.test_chance_gives_no_rho.
  if isinstance(cohorts, sampled_cohorts.Sampled):
    if clients_per_unit > 1:
      raise errors.value_error(
        f'clients_per_unit={clients_per_unit}: must be 1 for sampled cohorts, '
        'or nothing is proved; enforce a schema such as min-sep'
      )
    return cohorts.accountant(strategy)
  if isinstance(cohorts, logged_cohorts.Logged):
    return cohorts.accountant(strategy, clients_per_unit)
  return accountants.Gaussian(
    strategy, cohorts.schema, clients_per_unit=clients_per_unit
  )


def from_dict(
  values: Mapping[str, _files.Json],
) -> Union[participation_lib.Participation, sampled_cohorts.Sampled]:
  """Returns the cohorts of a JSON object that `to_dict` returned.

  Raises:
    ValueError: the kind is unknown, or has no attribute for one of the keys.
  """
  fields = dict(values)
  if 'participation' in fields:
    return participation_lib.from_name(fields.pop('participation'), **fields)
  kind = _kind(fields.pop('amplification', None))
  for name in fields.keys() - attrs.fields_dict(kind).keys():
    raise errors.value_error(
      f'{name}={fields[name]}: {kind.name} does not take it; leave it out'
    )
  return kind(**{**kind.before, **fields})


def from_flags(
  amplification: str,
  min_sep: Optional[int],
  sampling_prob: Optional[float],
  population: Optional[int] = None,
) -> sampled_cohorts.Sampled:
  """Returns the sampled cohorts for flags of the command line.

  Args:
    amplification: name of the kind.
    min_sep: value of --min-sep; None for kinds without this flag.
    sampling_prob: value of --sampling-prob; None for kinds without this flag,
      and for kinds that derive it from the population.
    population: number of clients to draw from; None if it is unknown.

  Raises:
    ValueError: the kind is unknown, a flag is missing, or a flag does not
      apply.
  """
  kind = _kind(amplification)
  fields: _files.JsonObject = {}
  for name, value in (('min_sep', min_sep), ('sampling_prob', sampling_prob)):
    needed = name in kind.flags
    follows = name in kind.follows and population is not None
    if (value is not None) != needed and not (value is None and follows):
      rule = f'needs it; give {name}' if needed else f'takes no {name}; omit it'
      raise errors.value_error(f'{name}={value}: {kind.name} {rule}')
    if needed:
      fields[kind.flags[name]] = value
  return kind(**fields, population=population)


def _kind(name: str) -> type[sampled_cohorts.Sampled]:
  """Returns the sampled kind with a name.

  Raises:
    ValueError: no kind has this name.
  """
  if name not in KINDS:
    raise errors.value_error(
      f'amplification={name}: is not known; use {" or ".join(KINDS)}'
    )
  return KINDS[name]
