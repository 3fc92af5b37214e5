"""What amplification by sampling asks of the cohorts and of the neighbours.

An amplified guarantee holds for the randomness it was proved for and for no
other: cohorts that a ledger enforces, batches cut from a shuffled list or
cohorts of a fixed size give none of the guarantees here, however similar they
look. So whoever claims one says how cohorts really come about.
"""

from __future__ import annotations

import numpy as np

from tff_bandmf import errors

# Two data sets are neighbours if one client's contributions are zero in one,
# or if one of them lacks the client.
ZERO_OUT = 'zero-out'
ADD_REMOVE = 'add-remove'

CYCLIC_POISSON = 'cyclic-poisson'
BALLS_IN_BINS = 'balls-in-bins'
B_MIN_SEP = 'b-min-sep'


def check_sampling(sampling: str, needed: str) -> None:
  """Raises ValueError unless cohorts are drawn as the theorem needs.

  Args:
    sampling: how the cohorts of the run really come about.
    needed: what the theorem was proved for.
  """
  # PRIVACY: no other randomness has this guarantee.
  # Guard: cyclic_poisson_test.test_other_sampling_is_refused.
  if sampling != needed:
    raise ValueError(
      errors.invalid(
        'sampling',
        sampling,
        f'this amplification is proved for {needed} only: enforced, '
        'shuffled or fixed-size cohorts have none of it',
        f'draw cohorts by {needed}, or account without amplification',
      )
    )


def check_adjacency(adjacency: str) -> None:
  """Raises ValueError unless both directions of the loss are accounted for.

  Under replace-one both data sets are mixtures, which is no pair that the
  theorems here speak of (and dp-accounting 0.4.3 silently takes it for
  add-remove).

  Args:
    adjacency: which data sets are neighbours.
  """
  # PRIVACY: replace-one needs another pair of distributions.
  # Guard: cyclic_poisson_test.test_replace_one_is_refused.
  if adjacency not in (ZERO_OUT, ADD_REMOVE):
    raise ValueError(
      errors.invalid(
        'adjacency',
        adjacency,
        f'must be {ZERO_OUT} or {ADD_REMOVE}',
        'no amplified guarantee is proved for it',
      )
    )


def check_nonnegative(rows: np.ndarray) -> None:
  """Raises ValueError if C has a negative entry.

  With one, gradients of opposite directions can tell more participations apart
  than equal ones do, and the mixture of scalars no longer dominates the run.

  Args:
    rows: entries of C.
  """
  # PRIVACY: the theorems assume C >= 0.
  # Guard: balls_in_bins_test.test_negative_entries_are_refused.
  if np.min(rows) < 0:
    raise ValueError(
      errors.invalid(
        'strategy',
        f'entry {np.min(rows):g}',
        'this amplification is proved for C without negative entries only',
        'use another strategy, or cyclic-poisson',
      )
    )
