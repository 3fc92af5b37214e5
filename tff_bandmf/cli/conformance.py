"""`bandmf audit --aggregator`: aggregators that others wrote."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any, Optional

import numpy as np

from tff_bandmf import accounting, errors, strategies
from tff_bandmf.cli import options, output

# Options that go with `--aggregator`: the statement about the aggregator, and
# the size of the audit. A command gets them in one dict, `stated`.
stated = options.together(
  options.number(
    '--l2-norm-clip',
    'Stated clip: largest norm of the contribution of one client.',
  ),
  options.number(
    '--z-stddev',
    'Stated standard deviation of z in units of the updates, instead of '
    '--noise-multiplier.',
  ),
  options.integer(
    '--clients-per-round',
    'Stated number of clients of a round, and divisor of the mean.',
  ),
  options.integer(
    '--rounds',
    'Largest number of rounds of a run of --aggregator.',
    default=128,
  ),
  options.integer(
    '--draws',
    'Normals of --aggregator among which large ones are counted.',
    default=2**30,
  ),
  options.combined(
    ('l2_norm_clip', 'z_stddev', 'clients_per_round', 'rounds', 'draws'),
    'stated',
    dict,
  ),
)


def runtime(in_tff: bool) -> contextlib.AbstractContextManager:
  """Returns TFF's runtime for a `with` block; one that does nothing without."""
  if not in_tff:
    return contextlib.nullcontext()
  from tff_bandmf.tff import runtime

  return runtime.local_runtime()


def needed(**values: object) -> None:
  """Raises ValueError with the names of all values that are None, if any."""
  missing = [name for name, value in values.items() if value is None]
  if missing:
    flags = (
      name.upper() if name == 'file' else f'--{name.replace("_", "-")}'
      for name in missing
    )
    raise errors.value_error(
      f'{", ".join(missing)}=None: bandmf audit needs '
      f'{"it" if len(missing) == 1 else "each of them"}; give '
      f'{", ".join(flags)}'
    )


def audit(
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
    stated: maps the names of the options `stated` to their values.

  Raises:
    ValueError: a part of the statement is missing or given twice, or the
      aggregator cannot be loaded or run.
    click.exceptions.Exit: an answer is not 'pass'.
  """
  l2_norm_clip, z_stddev = stated['l2_norm_clip'], stated['z_stddev']
  clients_per_round = stated['clients_per_round']
  needed(l2_norm_clip=l2_norm_clip, clients_per_round=clients_per_round)
  if (noise_multiplier is None) == (z_stddev is None):
    raise errors.value_error(
      f'noise_multiplier={noise_multiplier}: give either it or z_stddev; use '
      '--noise-multiplier or --z-stddev'
    )
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
  statement = conformance.Statement(
    l2_norm_clip, z_stddev_per_clip, clients_per_round, matrix
  )
  in_tff = 'tensorflow_federated' in sys.modules
  with runtime(in_tff), output.progress('rounds') as step:
    answers = conformance.answers(
      make,
      statement,
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
