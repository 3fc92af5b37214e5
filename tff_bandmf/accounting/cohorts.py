"""Who takes part, where chance decides: the kinds that amplify.

An amplified guarantee holds for the randomness it was proved for and for no
other: cohorts that a ledger enforces, batches cut from a shuffled list or
cohorts of a fixed size give none of the guarantees here, however similar they
look. Each kind is one frozen value: the rule, what draws by it, what accounts
for it, its JSON and its flags, in a file of its own, `NAME_cohorts`, which
`KINDS` finds. Kinds that are enforced are in `participation`.

| attribute      | of every kind, enforced or sampled                          |
|----------------|-------------------------------------------------------------|
| `name`         | word of the command line and of JSON                        |
| `schema`       | what a client can do at worst; noise multipliers are        |
|                | relative to the sensitivity under it                        |
| `adjacency`    | which data sets are neighbours                              |
| `to_dict()`    | JSON, which `from_dict` reads back                          |
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Union

import attrs

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting import (
  accountants,
  cyclic_cohorts,
  logged_cohorts,
  sampled_cohorts,
)

_PACKAGE = __name__.rpartition('.')[0]


def _kinds() -> Iterator[type[sampled_cohorts.Sampled]]:
  """Yields the kinds that amplify, of the files of this package."""
  for module in pkgutil.iter_modules(sys.modules[_PACKAGE].__path__):
    if module.name.endswith('_cohorts'):
      file = importlib.import_module(f'{_PACKAGE}.{module.name}')
      for kind in vars(file).values():
        if isinstance(kind, type) and issubclass(kind, sampled_cohorts.Sampled):
          yield kind


KINDS = {
  kind.name: kind for kind in _kinds() if kind is not sampled_cohorts.Sampled
}

Cohorts = Union[
  participation_lib.Participation,
  sampled_cohorts.Sampled,
  logged_cohorts.Logged,
]


def sampled(cohorts: Cohorts) -> Optional[sampled_cohorts.Sampled]:
  """Returns cohorts that chance decides; None for others."""
  return cohorts if isinstance(cohorts, sampled_cohorts.Sampled) else None


def completed(cohorts: Cohorts, bands: int) -> Cohorts:
  """Returns the cohorts of a C with so many bands, all of it said.

  Raises:
    ValueError: as `CyclicPoisson.completed`.
  """
  if isinstance(cohorts, cyclic_cohorts.CyclicPoisson):
    return cohorts.completed(bands)
  return cohorts


def expecting(cohorts: Cohorts, clients_per_round: float) -> Cohorts:
  """Returns cohorts that expect so many clients, where they do not say."""
  if (
    isinstance(cohorts, cyclic_cohorts.CyclicPoisson)
    and cohorts.sampling_prob is None
  ):
    return attrs.evolve(cohorts, clients_per_round=clients_per_round)
  return cohorts


def bands_to_compare(cohorts: Cohorts, rounds: int) -> Optional[list[int]]:
  """Returns the numbers of bands that cohorts ask for; None for any."""
  if isinstance(cohorts, cyclic_cohorts.CyclicPoisson):
    return cohorts.bands_to_compare(rounds)
  return None


def check(cohorts: object) -> None:
  """Raises TypeError for what does not say who takes part."""
  if not isinstance(cohorts, (sampled_cohorts.Sampled, logged_cohorts.Logged)):
    participation_lib.check(cohorts)


def accountant(
  strategy: strategies.Strategy,
  cohorts: Cohorts,
  clients_per_unit: int = 1,
) -> accountants.Accountant:
  """Returns what accounts for a strategy and who takes part.

  A unit of privacy has at most `clients_per_unit` clients.

  Raises:
    TypeError: `cohorts` is of neither kind.
    ValueError: nothing is proved for them.
  """
  # PRIVACY: no randomness but the kinds' own has their guarantees.
  # Guard: accounting_cohorts_test.test_other_randomness_is_refused.
  check(cohorts)
  if isinstance(cohorts, sampled_cohorts.Sampled):
    # PRIVACY: clients of one unit may be drawn together or not. Guard:
    # accounting_cohorts_test.test_sampled_units_of_several_are_refused.
    if clients_per_unit > 1:
      raise errors.value_error(
        'clients_per_unit',
        clients_per_unit,
        'nothing is proved for a unit of several clients that are sampled',
        'enforce a schema: MinSep',
      )
    return cohorts.accountant(strategy)
  if isinstance(cohorts, logged_cohorts.Logged):
    return cohorts.accountant(strategy, clients_per_unit)
  return accountants.Gaussian(
    strategy, cohorts, clients_per_unit=clients_per_unit
  )


def from_dict(
  record: Mapping[str, Any],
) -> Union[participation_lib.Participation, sampled_cohorts.Sampled]:
  """Returns the cohorts of what `to_dict` gave.

  Raises:
    ValueError: an unknown kind, or a value that it does not take.
  """
  fields = dict(record)
  if 'participation' in fields:
    return participation_lib.from_name(fields.pop('participation'), **fields)
  kind = _kind(fields.pop('amplification', None))
  for name in fields.keys() - attrs.fields_dict(kind).keys():
    raise errors.value_error(
      name, fields[name], f'{kind.name} does not take it', 'leave it out'
    )
  return kind(**fields)


def of_claim(record: Mapping[str, Any]) -> Optional[sampled_cohorts.Sampled]:
  """Returns the sampled cohorts of `Guarantee.to_dict`; None for others.

  Raises:
    ValueError: an unknown kind, or a value that it does not take.
  """
  if 'amplification' not in record:
    return None
  kind = _kind(record['amplification'])
  # What a round expects is a number of the run, and q is there.
  return kind(
    **{
      name: record[name]
      for name in attrs.fields_dict(kind)
      if name in record and name != 'clients_per_round'
    }
  )


def from_flags(
  amplification: str,
  min_sep: Optional[int],
  sampling_prob: Optional[float],
  population: Optional[int] = None,
) -> sampled_cohorts.Sampled:
  """Returns the cohorts that flags of the command line name.

  Args:
    amplification: name of the kind.
    min_sep: of the kinds that need it.
    sampling_prob: likewise; it may follow from a population.
    population: clients to draw from; None where they are not known.

  Raises:
    ValueError: an unknown kind, a flag is missing, or one does not apply.
  """
  kind = _kind(amplification)
  fields: dict[str, Any] = {}
  for name, value in (('min_sep', min_sep), ('sampling_prob', sampling_prob)):
    needed = name in kind.flags
    follows = name in kind.follows and population is not None
    if (value is not None) != needed and not (value is None and follows):
      raise errors.value_error(
        name,
        value,
        f'{kind.name} {"needs" if needed else "takes no"} {name}',
        'see --help for its meaning' if needed else 'leave it out',
      )
    if needed:
      fields[kind.flags[name]] = value
  return kind(**fields, population=population)


def _kind(name: Any) -> type[sampled_cohorts.Sampled]:
  """Returns the kind of this name.

  Raises:
    ValueError: there is none.
  """
  if name not in KINDS:
    raise errors.value_error(
      'amplification', name, 'is not known', f'use {" or ".join(KINDS)}'
    )
  return KINDS[name]
