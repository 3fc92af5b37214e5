"""The flags that commands share, and the types of their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

import click

from tff_bandmf import errors
from tff_bandmf import participation as participation_lib


class _Integer(click.ParamType):
  """An integer of at least 1."""

  name = 'integer'

  def convert(self, value, param, ctx):
    try:
      number = int(value)
    except ValueError:
      raise ValueError(
        errors.invalid(
          param.name, value, 'must be an integer', 'give 1 or more'
        )
      ) from None
    return errors.check_count(param.name, number, 'give 1 or more')


class _Number(click.ParamType):
  """A positive, finite number."""

  name = 'number'

  def convert(self, value, param, ctx):
    try:
      number = float(value)
    except ValueError:
      raise ValueError(
        errors.invalid(
          param.name, value, 'must be a number', 'give a number above 0'
        )
      ) from None
    return errors.check_positive(param.name, number, 'give a number above 0')


class _OneOf(click.ParamType):
  """One of several words."""

  name = 'word'

  def __init__(
    self,
    words: Sequence[str],
    refused: Sequence[str] = (),
    rule: str = 'is not in this release',
  ):
    """Takes the words to accept, and others with the rule against them."""
    self._words = words
    self._refused = refused
    self._rule = rule

  def get_metavar(self, param, ctx=None):
    return f'[{"|".join(self._words)}]'

  def convert(self, value, param, ctx):
    if value in self._words:
      return value
    raise ValueError(
      errors.invalid(
        param.name,
        value,
        self._rule if value in self._refused else 'is not known',
        f'use {" or ".join(self._words)}',
      )
    )


INTEGER = _Integer()
NUMBER = _Number()

family = click.option(
  '--family',
  required=True,
  type=_OneOf(
    ('identity', 'banded-toeplitz'),
    refused=(
      'banded',
      'banded-fractional',
      'banded-inverse',
      'banded-inverse-fractional',
      'banded-inverse-sqrt',
      'banded-sqrt',
      'blt',
      'dense',
      'dp-cgd',
      'inverse-plus-constant',
      'lti',
      'online-tree',
      'robust-toeplitz',
      'sqrt-toeplitz',
      'stamped',
      'tree',
    ),
  ),
  help='Family of the strategy.',
)
objective = click.option(
  '--objective',
  default='mean',
  show_default=True,
  type=_OneOf(('mean', 'max')),
  help='Error to minimise, over the prefix sums.',
)
workload = click.option(
  '--workload',
  default='prefix',
  show_default=True,
  type=_OneOf(('prefix',), refused=('momentum',)),
  help='What the errors are of.',
)
delta = click.option(
  '--delta', required=True, type=NUMBER, help='Of (epsilon, delta).'
)
clip = click.option(
  '--clip',
  default=1.0,
  show_default=True,
  type=NUMBER,
  help='L2 norm that a contribution is clipped to; z_stddev is multiplied.',
)
adjacency = click.option(
  '--adjacency',
  default='zero-out',
  show_default=True,
  expose_value=False,
  type=_OneOf(
    ('zero-out',),
    refused=('replace-one',),
    rule='would move a sum by up to 2 clip, and dp-accounting answers with '
    'the smaller epsilon of zero-out',
  ),
  help='What neighbouring data sets are.',
)
strategy_file = click.argument('file', type=click.Path())
as_json = click.option(
  '--json', 'as_json', is_flag=True, help='Print one JSON object.'
)
coefficients = click.option(
  '--coefficients',
  'with_coefficients',
  is_flag=True,
  help='Show the first column of a Toeplitz C.',
)


def participation(command: Callable) -> Callable:
  """Adds the flags that `schema` takes."""
  for option in (
    click.option(
      '--max-participations',
      type=INTEGER,
      help='Rounds of one client, at most, on top of --min-sep.',
    ),
    click.option(
      '--min-sep',
      type=INTEGER,
      help='Least r2 - r1 of two rounds of one client.',
    ),
    click.option(
      '--participation',
      type=_OneOf(('single', 'fixed-epoch', 'min-sep')),
      help='Default: min-sep if --min-sep is given, else single.',
    ),
  ):
    command = option(command)
  return command


def schema(
  participation: Optional[str],
  min_sep: Optional[int],
  max_participations: Optional[int],
) -> participation_lib.Participation:
  """Returns the schema that the flags of `participation` describe.

  Raises:
    ValueError: a parameter is missing, or does not apply.
  """
  if participation is None:
    if min_sep is None and max_participations not in (None, 1):
      raise ValueError(
        errors.invalid(
          'max_participations',
          max_participations,
          'needs min_sep',
          'give --min-sep, the least r2 - r1; 1 allows consecutive rounds',
        )
      )
    participation = 'single' if min_sep is None else 'min-sep'
  return participation_lib.from_name(participation, min_sep, max_participations)
