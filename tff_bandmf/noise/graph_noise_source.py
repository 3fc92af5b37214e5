"""The source of noise in TFF's graph: it adds y_t to the sum of round t.

| symbol  | meaning                                                       |
|---------|---------------------------------------------------------------|
| C       | strategy matrix of the mechanism                              |
| S, S_t  | sums of the clipped records; row t is the sum of round t      |
| Z       | unit normals; row t is for round t                            |
| y, y_t  | noise z_steps C^-1 Z, rounded; row t is for round t           |

S_t and y_t are in steps of `lattice`. A placement is the user's choice of
where y_t comes from. The source reads y_t from a tape: files that a producer
writes before the round.
"""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf

from tff_bandmf.noise import graph_released_sums, placements
from tff_bandmf.noise.tape import graph_reader, open_tape
from tff_bandmf.strategies import recursion as recursion_lib

# The run ID of a state that `begin` did not create.
_NOBODY = 0

# State of a noise source: nested structure of tensors.
State = Any


class NoiseSource:
  """Adds y_t to an integer sum inside a graph that never outputs y_t alone.

  The methods that run in a graph read only their arguments, the files of the
  tape and the files of a `released_sums.Position`. The process that runs the
  round must see these files. `begin` also draws random numbers.

  The state names the tape. Each round of a tape serves one run: the first run
  that releases this round. `begin` gives each run its own ID. All states that
  `begin` did not create share the ID 0. A source without a tape serves a run
  that claims no privacy: it adds nothing, and its state is empty.

  Attributes:
    placement: where y_t comes from: 'tape' or 'none'.
    dimension: d, number of coordinates of y_t, > 0.
    start_round: the first round of a run that `begin` creates, >= 0.
  """

  def __init__(
    self,
    placement: placements.Placement,
    recursion: recursion_lib.Recursion,
    z_steps: float,
    dimension: int,
  ):
    """Opens the tape of a placement, or starts its producer.

    Args:
      placement: the user's choice of where y_t comes from.
      recursion: recursion that computes y from z, for the strategy matrix C.
      z_steps: standard deviation of z in lattice steps, >= 0; 0 means no noise.
      dimension: d, number of coordinates of y_t, > 0.

    Raises:
      TypeError: `placement` is of an unknown kind, and z_steps > 0.
      ValueError: a value is out of range; another source of this process uses
        the key; the folder of a tape cannot be used; or a folder of a
        noise-server does not fit this run or has another reader.
      ImportError: the backend of a tape is not installed.
      OSError: a folder or a file of a tape cannot be made.
    """
    self.placement = 'tape' if z_steps else 'none'
    self.dimension = dimension
    self.start_round = placement.start_round
    self._tape = open_tape.open_tape(placement, recursion, z_steps, dimension)
    self._position = self._tape.position if self._tape else None

  def initial_state(self) -> State:
    """Returns the state of a run that has not begun, nested tensors."""
    if self._tape is None:
      return ()
    return collections.OrderedDict(
      tape_id=tf.constant(self._tape.tape_id, tf.int64),
      run=tf.constant(_NOBODY, tf.int64),
    )

  def begin(self, state: State) -> State:
    """Returns the first state of a new run, given `initial_state()`."""
    if self._tape is None:
      return state
    # The run ID is public and has 62 random bits. The lowest bit is 1, so that
    # the ID is never `_NOBODY`.
    number = tf.raw_ops.NonDeterministicInts(shape=[1], dtype=tf.int64)[0]
    run = tf.bitwise.bitwise_and(number, 2**63 - 1) | 1
    return collections.OrderedDict(tape_id=state['tape_id'], run=run)

  def round_index(self, stated: tf.Tensor) -> tf.Tensor:
    """Returns the round t to be released, scalar int64.

    Args:
      stated: scalar int64, the round that TFF's state counts; negative if the
        run has not begun.
    """
    if self._position is None:
      return stated
    return graph_released_sums.open_round(self._position, stated)

  def release(
    self, state: State, t: tf.Tensor, total: tf.Tensor, counts: Any = None
  ) -> tuple[tf.Tensor, State]:
    """Returns (total + y_t, state of the next round).

    **Formal guarantee.**
    Assumption: the key is secret and serves one run; the noise of each round is
    added to one sum; the recursion and `z_steps` belong to a `Lattice` on which
    no value of the run is out of range; and nobody can distinguish words of
    ChaCha20 from uniform ones. Statement: if the Gaussian mechanism C S +
    z_steps Z on real numbers is (epsilon, delta)-DP, then the releases of all
    rounds are (epsilon, delta + (1 + e^epsilon) tau)-DP, where tau bounds the
    probability that a run stops. A round that fails releases nothing. Source:
    docs/reference/arithmetic.md, whose last section lists what is assumed.

    `tape.graph_reader.release` enforces that each round has one sum. A source
    without a tape guarantees nothing.

    Args:
      state: state of the round, from `begin` or from the previous release.
      t: round, scalar int64.
      total: [dimension] int32, S_t in lattice steps.
      counts: [2] integers: the number of updates in the total, and the number
        of all-zero updates among them. A source with a `released_sums.Position`
        needs the counts; all other sources ignore them.
    """
    if self._tape is None:
      return total, state
    if self._position is not None:
      checked = graph_released_sums.check_updates(self._position, counts[0], t)
      with tf.control_dependencies([checked]):
        total = tf.identity(total)
    released, released_sum = graph_reader.release(self._tape, total, state, t)
    if self._position is not None:
      released = graph_released_sums.mark(
        self._position, released, released_sum, counts, t
      )
    return released, state

  def metrics(self, t: tf.Tensor) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns {name: metric} of a round; no metric depends on the noise.

    Args:
      t: round, scalar int64.
    """
    # If the noise fails its self-test, the round fails. So a round that has
    # metrics has passed the self-test.
    metrics = collections.OrderedDict(
      noise_placement=tf.constant(self.placement),
      noise_checked=tf.constant(self._tape is not None),
    )
    if self._tape is not None:
      metrics['rounds_ahead'] = graph_reader.rounds_ahead(self._tape, t)
    return metrics

  def close(self) -> None:
    """Closes the tape, if there is one."""
    if self._tape is not None:
      self._tape.close()
