"""Flags that several commands share, and the types of their values."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any, Callable, Optional

import click

from tff_bandmf import accounting, clipping_norm, errors, strategies, workloads
from tff_bandmf import participation as participation_lib
from tff_bandmf.cli import commands


class _Integer(click.IntRange):
  """An integer of at least `min`."""

  name = 'integer'


class _Number(click.FloatRange):
  """A finite number >= `min`, or > `min` if `min_open` is set."""

  name = 'number'

  def convert(self, value, param, ctx):
    number = super().convert(value, param, ctx)
    if not math.isfinite(number):
      self.fail(f'{number} is not finite.', param, ctx)
    return number


class _Clip(click.ParamType):
  """A norm, or norms of layers with commas between them."""

  name = 'number[,number]...'

  def convert(self, value, param, ctx):
    norms = tuple(
      NUMBER.convert(each, param, ctx) for each in str(value).split(',')
    )
    return norms if len(norms) > 1 else norms[0]


class _Release(click.ParamType):
  """A release of another program: a name, and the numbers of its guarantee."""

  name = 'name:key=value,...'

  def convert(self, value, param, ctx):
    name, _, rest = value.partition(':')
    pairs = [part.partition('=') for part in rest.split(',')]
    try:
      values = {key.strip(): float(text) for key, _, text in pairs}
    except ValueError:
      values = {}
    known = {'epsilon', 'delta', 'rho', 'noise_multiplier'}
    if not name or not values.keys() <= known or len(values) < len(pairs):
      raise errors.value_error(
        f'release={value}: must be a name and numbers, such as '
        'histogram:epsilon=1,delta=1e-9; the keys are epsilon, delta, rho and '
        'noise_multiplier'
      )
    return accounting.Release(name=name, **values)


# If at most this number of families take a parameter, --help names them.
_FEW_FAMILIES = 3
# The value of --amplification for cohorts without secret random sampling.
NO_AMPLIFICATION = 'none'
FAMILY = click.Choice(tuple(strategies.FAMILIES))
INTEGER, INTEGER_OR_ZERO = _Integer(min=1), _Integer(min=0)
NUMBER, NUMBER_OR_ZERO = _Number(min=0, min_open=True), _Number(min=0)


def together(*options: Callable) -> Callable[[Callable], Callable]:
  """Returns a decorator that adds several options, in this order."""

  def add(command):
    for option in reversed(options):
      command = option(command)
    return command

  return add


def typed(kind: Any, **about: Any) -> Callable[[Callable], Callable]:
  """Returns a decorator that adds options of one type.

  Args:
    kind: the type of click of their values.
    **about: {name: description for --help} of each option. The other arguments,
      `default`, `required` and `is_flag`, are settings of all these options.
  """
  settings = {'default', 'required', 'is_flag'} & about.keys()
  shared = {name: about.pop(name) for name in settings}
  options = []
  for name, text in about.items():
    flag = f'--{name.replace("_", "-")}'
    options.append(click.option(flag, type=kind, help=text, **shared))
  return together(*options)


integers = functools.partial(typed, INTEGER)
numbers = functools.partial(typed, NUMBER)
paths = functools.partial(typed, click.Path())
switches = functools.partial(typed, click.BOOL, is_flag=True)

family = typed(FAMILY, family='Family of the strategy.', required=True)
objective = typed(
  click.Choice((workloads.MEAN, workloads.MAX, workloads.LAST)),
  default='mean',
  objective='Error to minimise: the mean, largest or last of all rounds.',
)
epsilon = numbers(
  epsilon='epsilon of the (epsilon, delta) guarantee of the whole run.',
  required=True,
)
delta = numbers(delta='delta of the (epsilon, delta) guarantee.', required=True)
releases = click.option(
  '--release',
  'releases',
  type=_Release(),
  multiple=True,
  help='Release of another program on the same clients, such as '
  'histogram:epsilon=1,delta=1e-9 or counts:noise_multiplier=3 or x:rho=0.1.',
)
rounds = integers(rounds='Number of rounds of the run.', required=True)
clip = numbers(
  clip='L2 norm to which an update is clipped; z_stddev is proportional to it.',
  default=1.0,
)
adjacency = click.option(
  '--adjacency',
  default='zero-out',
  expose_value=False,
  type=click.Choice(('zero-out',)),
  help='Definition of neighbouring data sets. The accountant has no epsilon '
  'for replace-one, which changes a sum by up to twice the clip.',
)
amplification = typed(
  click.Choice((NO_AMPLIFICATION, *accounting.KINDS)),
  default=NO_AMPLIFICATION,
  amplification='Secret random sampling of cohorts, which lowers epsilon; none '
  'if cohorts are enforced, shuffled or of fixed size. For balls-in-bins, '
  '--min-sep is the number of rounds of an epoch.',
)
sampling_prob = numbers(
  sampling_prob='For cyclic-poisson: probability that a client takes part in a '
  'round of its group, bands * clients_per_round / population. For b-min-sep: '
  'probability that an eligible client takes part in a round. bandmf plan '
  'computes both from --population.'
)


def memory_copies(default: str) -> Callable[[Callable], Callable]:
  """Returns the option --memory-copies, whose default `default` describes."""
  return typed(
    INTEGER_OR_ZERO,
    memory_copies='Largest number of copies of the model that the noise may '
    'have in memory. If a banded inverse needs more copies, it keeps no copy '
    f'and computes past normals again.  [default: {default}]',
  )


strategy_file = click.argument('file', type=click.Path())
as_json, as_json_rows = (
  click.option(
    '--json',
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, _, value: ctx.meta.update({commands.AS_JSON: value}),
    help=f'Print one JSON object{end}.',
  )
  for end in ('', ' for each row')
)
coefficients = switches(coefficients='Show the first column of a Toeplitz C.')


@dataclasses.dataclass(frozen=True)
class Participants:
  """The flags for participation; each is None if it is not given.

  Attributes:
    participation: name of a schema, one of `participation.NAMES`.
    min_sep: least r2 - r1 of two rounds r1 < r2 of one client, >= 1. For the
      schema 'budget', this number is not enforced: it defines the budget. For
      balls-in-bins sampling, it is the number of rounds of an epoch.
    max_participations: largest number of rounds of one client, >= 1. For the
      schema 'budget', this number is not enforced: it defines the budget. In
      `bandmf choose` with cyclic Poisson sampling, it is the expected number of
      rounds of a client.
    apart: for the schema 'budget', least r2 - r1 of two rounds r1 < r2 of one
      client, >= 1.
    horizon: for the schema 'budget', largest number of rounds to which the run
      may be extended, >= 1.
    amplification: kind of sampling, or `NO_AMPLIFICATION`.
    sampling_prob: probability of sampling, in (0, 1]; its meaning depends on
      the kind.
  """

  participation: Optional[str]
  min_sep: Optional[int]
  max_participations: Optional[int]
  apart: Optional[int] = None
  horizon: Optional[int] = None
  amplification: str = NO_AMPLIFICATION
  sampling_prob: Optional[float] = None

  def schema(
    self, stored: Optional[participation_lib.Participation] = None
  ) -> participation_lib.Participation:
    """Returns the schema that the flags give, or `stored` without such flags.

    PRIVACY: If the command assumed that a client takes part once, and clients
    took part again, there would be too little noise. If neither flags nor a
    file give a schema, this method raises an error.
    Guard: cli_participation_test.test_participation_is_never_guessed.

    Args:
      stored: the schema in a strategy file; None if it has none.

    Raises:
      ValueError: neither flags nor a file give a schema, a parameter of the
        schema is missing, or a flag does not apply to the schema.
    """
    name, k = self.participation, self.max_participations
    if {name, self.min_sep, k, self.apart, self.horizon} == {None}:
      if stored is None:
        raise errors.value_error(
          'participation=None: neither flags nor a strategy file say who takes '
          'part, and the command does not guess; give --min-sep, the least '
          'r2 - r1 of two rounds of a client, or --participation single if no '
          'client takes part twice'
        )
      return stored
    if name is None:
      if self.min_sep is None and k not in (None, 1):
        raise errors.value_error(
          f'max_participations={k}: needs min_sep; give --min-sep, the least '
          'r2 - r1 of two rounds of a client; 1 allows consecutive rounds'
        )
      name = 'single' if self.min_sep is None else 'min-sep'
    return participation_lib.from_name(
      name, self.min_sep, k, self.apart, self.horizon
    )

  def cohorts(
    self,
    stored: Optional[participation_lib.Participation] = None,
    population: Optional[int] = None,
  ) -> participation_lib.Cohorts:
    """Returns the cohorts that the flags give, or `stored` without such flags.

    Sampled cohorts need no schema: their rule implies one.

    Args:
      stored: the schema in a strategy file; None if it has none.
      population: number of clients to draw from; None if it is unknown.

    Raises:
      ValueError: a flag is missing, or does not go with the amplification.
    """
    if self.amplification == NO_AMPLIFICATION:
      self.refuse(('sampling_prob',), 'amplification none')
      return self.schema(stored)
    self.refuse(
      ('participation', 'max_participations', 'apart', 'horizon'),
      f'amplification {self.amplification}',
    )
    return accounting.from_flags(
      self.amplification, self.min_sep, self.sampling_prob, population
    )

  def refuse(self, names: Iterable[str], rule: str) -> None:
    """Raises ValueError if a flag is given that does not go with `rule`."""
    for name in names:
      value = getattr(self, name)
      if value is not None:
        raise errors.value_error(
          f'{name}={value}: does not go with {rule}; leave it out'
        )


# Names of the flags of an adaptive clip.
_ADAPTIVE_CLIP = [
  f'clip_{field.name}'
  for field in dataclasses.fields(clipping_norm.AdaptiveClip)[1:]
]
# Maps the name of a value that `combined` makes to the names of its flags.
COMBINED: dict[str, tuple[str, ...]] = {}


def combined(
  name: str, make: Callable[..., Any], names: Iterable[str], *options: Callable
) -> Callable[[Callable], Callable]:
  """Returns a decorator that combines several flags into one value.

  Args:
    name: name of the value.
    make: function that takes the flags by name and returns the value.
    names: names of the flags; the command may lack some of them.
    *options: options that the decorator adds to the command.
  """
  flags = COMBINED[name] = tuple(names)

  def add(command):
    @functools.wraps(command)
    def wrapped(**values):
      given = {each: values.pop(each) for each in flags if each in values}
      return command(**values, **{name: make(**given)})

    return wrapped

  return together(*options, add)


log_columns = combined(
  'columns',
  dict,
  ('round_column', 'client_column'),
  *(
    click.option(
      f'--{column}-column',
      default=column,
      help=f'Name of the column of {column}s in the log.',
    )
    for column in ('round', 'client')
  ),
)
participation = combined(
  'who',
  Participants,
  [field.name for field in dataclasses.fields(Participants)],
  typed(
    click.Choice(participation_lib.NAMES),
    participation='Participation schema.  [default: min-sep if --min-sep is '
    'given; if no flag of participation is given, the schema in the strategy '
    'file]',
  ),
  integers(
    min_sep='Least r2 - r1 for two rounds r1 < r2 of one client. With '
    '--participation budget, it is not enforced: it defines the budget.',
    max_participations='Largest number of rounds of one client. With '
    '--participation budget, it is not enforced: it defines the budget.',
    apart='For --participation budget: least r2 - r1 for two rounds r1 < r2 of '
    'one client. The budget is the cost of --max-participations rounds that '
    'are --min-sep apart.  [default: 1]',
    horizon='For --participation budget: largest number of rounds to which the '
    'run may be extended.  [default: 10 times --rounds for a Toeplitz C, else '
    '--rounds]',
  ),
)
l2_norm_clip = combined(
  'l2_norm_clip',
  lambda l2_norm_clip, **flags: clipping_norm.from_options(
    l2_norm_clip,
    **{name.removeprefix('clip_'): value for name, value in flags.items()},
  ),
  ('l2_norm_clip', *_ADAPTIVE_CLIP),
  typed(
    _Clip(),
    required=True,
    l2_norm_clip='L2 norm to which an update is clipped; one norm a layer with '
    'commas between them.',
  ),
  typed(
    NUMBER_OR_ZERO,
    clip_quantile='Makes the clip adaptive; target fraction of the updates '
    'whose norm is below the clip.',
  ),
  numbers(
    clip_rate='Learning rate of the log of an adaptive clip.  [default: 0.2]',
    clip_fraction_weight='Weight of the coordinate that indicates whether an '
    'update is below an adaptive clip.  [default: 0.28]',
  ),
  integers(
    clip_until='Last round that changes an adaptive clip.  [default: the last]'
  ),
)
workload = combined(
  'workload',
  lambda workload, **given: workloads.from_name(workload, **given),
  ('workload', *workloads.PARAMETERS),
  typed(
    click.Choice(('prefix', 'momentum')),
    default='prefix',
    workload='Models whose errors count: prefix sums of the updates, or the '
    'models of SGD with momentum and learning rates.',
  ),
  typed(NUMBER_OR_ZERO, **workloads.PARAMETERS),
)


def _parameter(parameter: strategies.Parameter) -> Callable:
  """Returns the option of a family's parameter."""
  takers = [
    name
    for name, family in strategies.FAMILIES.items()
    if family.parameter(parameter.name)
  ]
  about = parameter.about
  if len(takers) <= _FEW_FAMILIES:
    about = f'For {" and ".join(takers)}: {about[0].lower()}{about[1:]}'
  if parameter.kind is bool:
    flag = f'--{parameter.name.replace("_", "-")}'
    return click.option(f'{flag}/--no-{flag[2:]}', default=None, help=about)
  kind = FAMILY if parameter.kind is strategies.Family else parameter.kind
  return typed(kind, **{parameter.name: about})


# The library refuses a parameter that a family does not take, and chooses the
# value of a missing parameter.
parameters = combined(
  'parameters',
  lambda **given: {
    name: value for name, value in given.items() if value is not None
  },
  strategies.PARAMETERS,
  *map(_parameter, strategies.PARAMETERS.values()),
)


def check_either(**values: object) -> None:
  """Raises ValueError unless exactly one of two flags is given."""
  (first, value), (second, other) = values.items()
  if (value is None) == (other is None):
    raise errors.value_error(
      f'{first}={value}: exactly one of {first} and {second} is needed; give '
      f'{first} or {second}'
    )
