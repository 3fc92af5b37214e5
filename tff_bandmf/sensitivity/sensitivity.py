"""Sensitivity of C: exact where a theorem applies, else an upper bound.

With X = C^T C and P the patterns that a schema allows,

  sens^2 = max_{pi in P} max_{|u_i| <= 1} || sum_{i in pi} C[:, i] u_i^T ||^2

in units of the clipping norm, under zero-out adjacency: one client's
contributions become zero in every round. Contributions u_i are vectors, so a
negative X_ij does not help: only |X_ij| is ever used.
"""

from __future__ import annotations

import math

import numpy as np

from tff_bandmf import errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.sensitivity import gram, result, toeplitz, tree


def sensitivity(
  strategy: strategies.Strategy,
  participation: participation_lib.Participation,
) -> result.Sensitivity:
  """Returns the sensitivity of `strategy` under `participation`.

  Args:
    strategy: C.
    participation: which rounds one client can take part in; its guarantee is
      the assumption that every privacy claim rests on.

  Raises:
    TypeError: `participation` is no schema.
    ValueError: the sensitivity overflows, or n is too large for the family.

  >>> from tff_bandmf import participation
  >>> sensitivity(strategies.Identity(2052), participation.MinSep(342))
  Sensitivity(value=2.449489742783178, method='exact', reason='columns of \
one client do not overlap (bands <= min_sep)')
  """
  if not isinstance(participation, participation_lib.Participation):
    raise TypeError(
      errors.invalid(
        'participation',
        participation,
        'must be a participation schema',
        'use tff_bandmf.participation.MinSep(min_sep)',
      )
    )
  # What overflows is refused below.
  with np.errstate(over='ignore', invalid='ignore'):
    found = _dispatch(strategy, participation)
  if not math.isfinite(found.value):
    raise ValueError(
      errors.invalid(
        'family',
        strategy.family,
        'the sensitivity overflows',
        'scale C down or use fewer rounds',
      )
    )
  return found


def _dispatch(
  strategy: strategies.Strategy,
  participation: participation_lib.Participation,
) -> result.Sensitivity:
  """Returns the sensitivity by what is known of the family."""
  if isinstance(strategy, strategies.Toeplitz):
    return toeplitz.sensitivity(strategy, participation)
  if isinstance(strategy, strategies.ColumnNormalized):
    return toeplitz.normalized_sensitivity(strategy, participation)
  if isinstance(strategy, strategies.Tree):
    return tree.sensitivity(strategy.rounds, strategy.arity, participation)
  if isinstance(strategy, strategies.OnlineTree):
    # What is released are sums of the noisy nodes: X of `matrix` is at most
    # that of the encoder, as positive semi-definite matrices.
    encoder = tree.sensitivity(strategy.rounds, 2, participation)
    return result.Sensitivity(
      encoder.value,
      result.UPPER_BOUND,
      f'{encoder.method} for the nodes that the release is made from: '
      f'{encoder.reason}',
    )
  return gram.sensitivity(strategy, participation)
