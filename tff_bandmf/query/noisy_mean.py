"""The noisy mean of a round t in NumPy: clip, sum, add the noise y_t, divide.

`correlated_noise` computes the same bits in TensorFlow's graph: both clip to
the same integers, add the same y_t, and scale and round the sum in the same
way.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tree

from tff_bandmf import _checks, accounting, clipping_norm, errors
from tff_bandmf.noise import definition, placements
from tff_bandmf.noise.tape import open_tape, reader
from tff_bandmf.query import clip_bounds, clipping

# Number of coordinates that are scaled at once, so few that they stay in cache.
_PIECE = 1 << 13


class Release(NamedTuple):
  """The release of one round.

  Attributes:
    mean: the mean with noise, in the structure, shapes and dtypes of an update.
    released: empty for a constant clip. For an adaptive clip, `l2_norm_clip` is
      the clip of the next round, and `fraction` is the share of updates below
      the clip of this round, with noise.
  """

  mean: Any
  released: dict[str, float]


class NoisyMean:
  """Releases (sum_i clip(x_i) + y_t) / clients_per_round in round t.

  `correlated_noise` defines the symbols, and its class `CorrelatedNoiseQuery`
  has the formulas.

  Attributes:
    clip: clipping of one record, in steps of `lattice`.
    lattice: range of sums and noise, which are integers.
    like: update of zeros with the structure, shapes and dtypes of all updates.
  """

  def __init__(
    self,
    guarantee: accounting.Guarantee,
    like: object,
    bounds: tuple[clipping_norm.Clip, Optional[float], float],
    clients_per_round: float,
    *,
    largest_cohort: int,
    placement: Union[placements.Tape, placements.Served],
  ):
    """Creates the lattice and opens the tape; call `close` when the run ends.

    Args:
      guarantee: guarantee of the run, with its noise in units of the clip.
      like: example of an update: nested structure of float arrays.
      bounds: l2_norm_clip, zeroing_norm and zeroing_norm_order of
        `Bounds.from_clip`, in this order.
      clients_per_round: divisor of the mean, > 0.
      largest_cohort: largest number of clients of any round, >= 1.
      placement: the user's choice of where noise comes from.

    Raises:
      TypeError: a leaf of `like` is not a float, or an argument has another
        type.
      ValueError: the sizes of records, cohort and noise are incompatible.
    """
    _checks.instance(
      'guarantee', guarantee, accounting.Guarantee, 'give Plan.guarantee'
    )
    l2_norm_clip, zeroing_norm, order = bounds
    # Arrays of zeros that take no memory.
    zeros = [
      np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
      for leaf in _arrays('like', like)
    ]
    self.like = tree.unflatten_as(like, zeros)
    dimension = clip_bounds.record_dimension(self.like)
    dimension += clipping_norm.indicator_count(l2_norm_clip)
    recursion, self.lattice = definition.of_run(
      guarantee.strategy.recursion(),
      placement,
      guarantee.z_stddev_per_clip,
      largest_cohort=largest_cohort,
      dimension=dimension,
    )
    self.clip = clipping.Clipping.from_clip(
      l2_norm_clip, self.like, self.lattice.clip_bits, zeroing_norm, order
    )
    self._clients_per_round = _checks.positive(
      'clients_per_round', clients_per_round, 'it is the divisor of the mean'
    )
    self._rounds = guarantee.strategy.rounds
    self._dimension = dimension
    # The public run ID, which the tape stores with each released round.
    self._run = secrets.randbits(63) | 1
    self._tape = open_tape.open_tape(
      placement, recursion, self.lattice.z_steps, dimension
    )

  def close(self) -> None:
    """Stops the thread that computes noise, if there is one."""
    if self._tape is not None:
      self._tape.close()

  @property
  def z_stddev(self) -> float:
    """Standard deviation of z in the unit of updates, in the first round."""
    return self.lattice.z_steps * self.clip.step

  def release(
    self,
    t: int,
    updates: Iterable[object],
    l2_norm_clip: Optional[float] = None,
  ) -> Release:
    """Returns the mean of updates with the noise of round t.

    **Formal guarantee.** The guarantee of
    `correlated_noise.CorrelatedNoiseQuery.get_noised_result` holds here too.

    Args:
      t: index of the round, in [0, n).
      updates: one update for each client, with the structure and shapes of
        `like`. The method holds one update at a time in memory.
      l2_norm_clip: adaptive clip of this round, > 0; None if the clip is
        constant or the round is the first.

    Raises:
      ValueError: an update has another structure or shape than `like`; the
        round is past the last round, not open, or has more clients than
        `largest_cohort`; or the noise is damaged or was used for another sum.
    """
    last, scale = self.clip.initial, 1.0
    if self.clip.adaptive is not None:
      last = l2_norm_clip or last
      scale = self.clip.scale(last)
    total, counts = self._summed(updates, scale)
    # PRIVACY: C has no row for a round past the last one, so the run has no
    # noise for such a round. If the round used the noise of an earlier round,
    # the difference of the two releases would have no noise. The round fails.
    # Guard: noisy_mean_test.test_round_past_the_last_raises.
    if not 0 <= t < self._rounds:
      raise errors.value_error(
        f'round={t}: the strategy supports {self._rounds} rounds and all are '
        'done; optimise one for more rounds and account for both runs'
      )
    self._add_noise(t, total, counts)
    released = {}
    if self.clip.adaptive is not None:
      # PRIVACY: The next clip is released. If this clip came from sums without
      # noise, it would reveal updates. It comes from the released sum of
      # indicators, which has noise.
      # Guard: noisy_mean_test.test_bits_are_those_of_tensorflow.
      steps = float(total[-1])
      adapted = self.clip.adapted(last, steps, self._clients_per_round, t)
      released = {name: float(value) for name, value in adapted.items()}
    unit = self.clip.step / self._clients_per_round * scale
    return Release(self._mean(total, unit), released)

  def _summed(
    self, updates: Iterable[object], scale: float
  ) -> tuple[np.ndarray, tuple[int, int]]:
    """Returns the sum of clipped updates, and counts of updates.

    Returns:
      [dimension] int32, the sum in steps; the number of updates, and the number
      of updates that became zero.
    """
    total = np.zeros(self._dimension, np.int32)
    record = np.empty(self._dimension, np.int32)
    coordinates = record[: sum(map(np.size, tree.flatten(self.like)))]
    count = without_effect = 0
    for update in updates:
      # PRIVACY: The guarantee assumes that no sum of clipped updates wraps
      # around in int32. A sum over too many clients could wrap around. A round
      # with more clients than `largest_cohort` fails before its release.
      # Guard: noisy_mean_test.test_round_of_more_than_the_largest_cohort_fails.
      count += 1
      if count > self.lattice.largest_cohort:
        raise errors.value_error(
          f'updates={count} or more: a round has room for '
          f'{self.lattice.largest_cohort}; give the plan a larger '
          'largest_cohort, or admit fewer clients'
        )
      name = f'updates[{count - 1}]'
      self.clip.clip(self._checked(name, update), scale, out=record)
      total += record
      without_effect += not coordinates.any()
    return total, (count, without_effect)

  def _checked(self, name: str, update: object) -> list[np.ndarray]:
    """Returns the leaves of an update with the structure of `like`.

    Args:
      name: name of the update, for errors.
      update: update of a client.

    Raises:
      TypeError: a leaf has no real numbers.
      ValueError: the structure or a shape differs.
    """
    try:
      tree.assert_same_structure(self.like, update)
    except (TypeError, ValueError) as error:
      raise errors.value_error(
        f'{name}={_described(update)}: must be {_described(self.like)}, as in '
        '`like`; give arrays in its structure'
      ) from error
    leaves = _arrays(name, update)
    # PRIVACY: All updates are clipped into one array. If an update had too few
    # entries, entries of another update would stay in the array and be added
    # twice, so a client could change the sum by more than the clip. An update
    # whose shapes are not the shapes of `like` is refused.
    # Guard: run_test.test_update_of_another_shape_is_refused.
    for i, (leaf, example) in enumerate(zip(leaves, tree.flatten(self.like))):
      if leaf.shape != example.shape:
        raise errors.value_error(
          f'{name}{_place(update, i)}.shape={leaf.shape}: must be '
          f'{example.shape}, as in `like`; give arrays of its shapes'
        )
    return leaves

  def _add_noise(
    self, t: int, total: np.ndarray, counts: tuple[int, int]
  ) -> None:
    """Adds y_t to a sum in place, and marks the sum as released in round t."""
    if self._tape is None:
      return
    position = self._tape.position
    if position is not None:
      # PRIVACY: A round can end while its updates arrive. If its sum was then
      # released, another sum could have the same noise. The sum is released
      # only if the round is still open.
      # Guard: run_test.test_round_that_ends_among_its_updates_releases_nothing.
      position.check(t, counts[0])
    released = reader.release(self._tape, total, round_index=t, run=self._run)
    if position is not None:
      position.mark(released, counts, t)

  def _mean(self, released: np.ndarray, unit: float) -> object:
    """Returns a release in the unit and types of an update.

    Args:
      released: [dimension] int32, in steps.
      unit: float64, step of the round divided by `clients_per_round`.
    """
    leaves, start = [], 0
    for example in tree.flatten(self.like):
      leaf = np.empty(example.size, example.dtype)
      # PRIVACY: If a part of the array were not written, it would keep earlier
      # content, such as an update. Each piece is written.
      # Guard: noisy_mean_test.test_updates_may_be_of_any_real_numbers.
      for first in range(0, example.size, _PIECE):
        piece = leaf[first : first + _PIECE]
        exact = released[start + first :][: len(piece)].astype(np.float64)
        exact *= unit
        with np.errstate(over='ignore'):
          # TensorFlow also rounds float64 to 16 bits by way of float32.
          piece[:] = exact.astype(np.float32) if leaf.itemsize < 4 else exact
      leaves.append(leaf.reshape(example.shape))
      start += example.size
    return tree.unflatten_as(self.like, leaves)


def _arrays(name: str, update: object) -> list[np.ndarray]:
  """Returns the leaves of an update as arrays of real numbers.

  Args:
    name: name of the update, for errors.
    update: nested structure of arrays or numbers.

  Raises:
    TypeError: a leaf has other values than real numbers, or also a mask or a
      unit.
  """
  leaves = []
  for i, leaf in enumerate(tree.flatten(update)):
    try:
      leaves.append(clipping.real(leaf))
    except TypeError as error:
      raise errors.type_error(
        f'{name}{_place(update, i)}={error}: must be an array of floats or '
        'integers; convert it to one'
      ) from error
  return leaves


def _place(update: object, i: int) -> str:
  """Returns the path of leaf i, such as '[w.0]'; '' if the update is a leaf."""
  path, _ = tree.flatten_with_path(update)[i]
  return f'[{".".join(map(str, path))}]' if path else ''


def _described(update: object) -> str:
  """Returns the paths and shapes of the leaves of an update."""
  return ', '.join(
    f'{".".join(map(str, path))}{np.shape(leaf)}'
    for path, leaf in tree.flatten_with_path(update)
  )
