"""How y = C^-1 z follows, round by round, from z and what is remembered.

  Y = P Z + Q S

for one round or a block of m, where S is the memory before it:

| S                          | plan         | families                       |
|----------------------------|--------------|--------------------------------|
| last bands - 1 rounds of y | `WindowPlan` | C of few bands, or dense       |
| last p - 1 rounds of z     | `WindowPlan` | C^-1 of p bands                |
| `buffers` sums             | `BltPlan`    | blt                            |
| one estimate a level       | `TreePlan`   | online-tree                    |

Each plan writes its recursion down once, for one round and in float64. Blocks
are composed of rounds in float64 too, and matrices are cast to float32 once.
"""

from __future__ import annotations

import abc
import functools
from typing import Any, Optional

import numpy as np
import scipy.linalg

from tff_bandmf import strategies
from tff_bandmf.noise import key as key_lib

# What the memory holds: a window of past rounds of y or of z, latest first, or
# buffers that every round adds to.
PAST_Y = 'y'
PAST_Z = 'z'
BUFFERS = 'buffers'


class Plan(abc.ABC):
  """The recursion of one strategy; `Plan.of` chooses it.

  All placements of the noise use it: a block of rounds at a time where
  Python makes the noise, one round at a time in a graph.

  Attributes:
    rounds: n.
    digest: of C; see `strategies.Strategy.digest`.
    keeps: what the memory holds: `PAST_Y`, `PAST_Z` or `BUFFERS`.
    memory: rows of S. It starts at zero.
    draws: most rows of z that one round takes.
    phases: how many different (P, Q) single rounds have.
  """

  keeps: str
  memory: int
  draws: int = 1
  phases: int

  def __init__(self, strategy: strategies.Strategy):
    self.rounds = strategy.rounds
    self.digest = strategy.digest()

  @staticmethod
  def of(strategy: strategies.Strategy) -> Plan:
    """Returns the plan of `strategy` with the least memory.

    A C that is dense and has no recursion of its own keeps up to n - 1 rounds
    of y.
    """
    # A stamp forgets its past, so one round of it is one of its block.
    block = (
        strategy.block if isinstance(strategy, strategies.Stamped)
        else strategy)
    norms = None
    inner = block
    if isinstance(block, strategies.ColumnNormalized):
      inner, norms = block.toeplitz, block.column_norms
    if isinstance(inner, strategies.Blt):
      return BltPlan(strategy, inner, norms)
    if isinstance(inner, strategies.OnlineTree):
      return TreePlan(strategy, inner)
    return WindowPlan(strategy, block.rounds)

  @property
  def added(self) -> int:
    """Rows of P and Q after those of y: what is added to the buffers."""
    return self.memory if self.keeps == BUFFERS else 0

  @property
  def table_bytes(self) -> int:
    """Size of `table`."""
    return 4 * self.phases * (1 + self.added) * (self.draws + self.memory)

  def first_draw(self, t: Any) -> Any:
    """Returns the number of the first row of z of round t.

    PRIVACY: rounds t and t + 1 share no row, so none is used twice. Guard:
    plan_test.test_rounds_draw_every_z_once.

    Args:
      t: integer or int64 tensor.
    """
    return t

  @abc.abstractmethod
  def phase(self, t: Any) -> Any:
    """Returns where `table` holds round t, an integer or int64 tensor."""

  @abc.abstractmethod
  def table(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns (P, Q) of single rounds by phase.

    Returns:
      P [phases, 1 + added, draws] and Q [phases, 1 + added, memory], float32,
      zero for the draws that a round does not take.
    """

  @abc.abstractmethod
  def block(self, first: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (P, Q) of Y = P Z + Q S for some rounds together.

    Args:
      first: the first of them.
      rounds: m, with first + m <= n.

    Returns:
      P [m + added, rows of z drawn] and Q [m + added, memory], float32. Row 0
      of Z and Y is the earliest round, row 0 of a window S the latest. The
      rows after the first m are what is to be added to the buffers.
    """

  def identify(
      self, key: key_lib.Key, dimension: int, generator: str
  ) -> int:
    """Returns 63 bits that name the noise of this key, C, size and generator.
    """
    return key.identify(
        np.array([dimension], '<i8').tobytes()
        + f'{self.digest} {generator}'.encode())


class WindowPlan(Plan):
  """Weighted sums over a window of rounds.

    C of few bands:      y_t = (z_t - sum_{s>=1} C[t, t-s] y_{t-s}) / C[t, t]
    C^-1 of few bands:   y_t = sum_s C^-1[t, t-s] z_{t-s}

  C and C^-1 may be different in every round.
  """

  def __init__(self, strategy: strategies.Strategy, period: int):
    """Initializes the plan.

    Args:
      strategy: C.
      period: rounds after which the rows of C repeat.
    """
    super().__init__(strategy)
    self._strategy = strategy
    few = strategy.inverse_bands
    self.keeps = PAST_Y if few is None else PAST_Z
    self.memory = (strategy.bands if few is None else few) - 1
    # Where t < s a row of a Toeplitz C meets the zeros of the memory's start.
    self._constant = isinstance(strategy, strategies.Toeplitz)
    self.phases = 1 if self._constant else min(period, self.rounds)

  def phase(self, t: Any) -> Any:
    return t % self.phases

  def weights(self, start: int, stop: int) -> np.ndarray:
    """Returns the recursion: weights of z_t and of the window behind it.

    Returns:
      [stop - start, 1 + memory] float64.
    """
    if self._constant:
      return np.broadcast_to(
          self._last_row, (stop - start, len(self._last_row)))
    return self._weights(start, stop)

  def _weights(self, start: int, stop: int) -> np.ndarray:
    if self.keeps == PAST_Z:
      return self._strategy.inverse_band_rows(start, stop)
    rows = self._strategy.band_rows(start, stop)
    return np.concatenate([np.ones((len(rows), 1)), -rows[:, 1:]], 1) / rows[
        :, :1]

  @functools.cached_property
  def _last_row(self) -> np.ndarray:
    return self._weights(self.rounds - 1, self.rounds)[0]

  def table(self) -> tuple[np.ndarray, np.ndarray]:
    weights = self.weights(0, self.phases).astype(np.float32)
    return weights[:, np.newaxis, :1], weights[:, np.newaxis, 1:]

  def block(self, first: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    weights = self.weights(first, first + rounds)
    own = np.diag(weights[:, 0])
    # Row r, column s: the weight of round first + s, or first - 1 - s.
    near = np.zeros((rounds, rounds))
    far = np.zeros((rounds, self.memory))
    for r in range(rounds):
      window = weights[r, 1:]
      behind = min(r, self.memory)
      near[r, r - behind:r] = window[:behind][::-1]
      far[r, :self.memory - behind] = window[behind:]
    if self.keeps == PAST_Z:
      return _float32(own + near, far)
    solved = scipy.linalg.solve_triangular(
        np.eye(rounds) - near, np.concatenate([own, far], 1), lower=True,
        unit_diagonal=True)
    return _float32(solved[:, :rounds], solved[:, rounds:])


class _BufferPlan(Plan):
  """A recursion over buffers: S <- S + what a round adds.

  Adding, and not S <- F S, leaves what float32 cannot tell from 1, like the
  decay of a slow buffer, to the difference from 1, which it holds well.
  """

  keeps = BUFFERS

  @abc.abstractmethod
  def step(self, phase: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the recursion: (P, Q) of a single round, float64."""

  def table(self) -> tuple[np.ndarray, np.ndarray]:
    shape = self.phases, 1 + self.memory
    scales = np.zeros((*shape, self.draws))
    weights = np.zeros((*shape, self.memory))
    for phase in range(self.phases):
      scale, weights[phase] = self.step(phase)
      scales[phase, :, :scale.shape[1]] = scale
    return _float32(scales, weights)

  def block(self, first: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    b = self.memory
    start = self.first_draw(first)
    columns = self.first_draw(first + rounds) - start + b
    # What y and the buffers are made of: rows of z, then buffers at the start.
    y = np.zeros((rounds, columns))
    buffers = np.eye(b, columns, columns - b)
    for r in range(rounds):
      t = first + r
      scale, weights = self.step(self.phase(t))
      out = weights @ buffers
      draws = slice(self.first_draw(t) - start, self.first_draw(t + 1) - start)
      out[:, draws] += scale
      y[r] = out[0]
      buffers = buffers + out[1:]
    added = buffers - np.eye(b, columns, columns - b)
    both = np.concatenate([y, added])
    return _float32(both[:, :columns - b], both[:, columns - b:])


class BltPlan(_BufferPlan):
  """A buffer a decay, [BLT24]; with columns of C scaled, y is scaled.

    y_t = d_t out,   out = z_t - omega . S,   S <- S + (theta - 1) * S + out
  """

  def __init__(
      self,
      strategy: strategies.Strategy,
      blt: strategies.Blt,
      norms: Optional[np.ndarray],
  ):
    """Initializes the plan.

    Args:
      strategy: C, made of `blt`.
      blt: without scaled columns and stamps.
      norms: [n] float64, d; None where it is 1.
    """
    super().__init__(strategy)
    self.memory = blt.buffers
    self._blt = blt
    self._norms = norms
    self._period = blt.rounds
    # The first round is apart: it forgets a stamp before.
    self.phases = min(2, blt.rounds) if norms is None else blt.rounds

  def phase(self, t: Any) -> Any:
    local = t % self._period
    if self._norms is not None:
      return local
    return (local + self._period - 1) // self._period

  def step(self, phase: int) -> tuple[np.ndarray, np.ndarray]:
    omega, theta = self._blt.omega, self._blt.theta
    scale = np.ones((1 + self.memory, 1))
    if phase:
      weights = np.concatenate([-omega[None], np.diag(theta - 1) - omega])
    else:
      weights = np.concatenate(
          [np.zeros((1, self.memory)), -np.eye(self.memory)])
    if self._norms is not None:
      scale[0] *= self._norms[phase]
      weights[0] *= self._norms[phase]
    return scale, weights


class TreePlan(_BufferPlan):
  """The last estimate of every level; a row of z is a node. [DPFTRL21]

  Round t finishes one node a height h <= H, H the number of ones at the end
  of t in binary. With E_h their estimates and S_h that of the sibling before:

    E_0 = z,   E_{h+1} = (E_h + S_h) v_{h+1} / (2 v_h) + v_{h+1} z
    y_t = E_H - sum_{h<H} S_h,   S_H <- E_H

  A round draws as many rows of z as it finishes nodes; they are numbered in
  the order of `OnlineTree.prefix_decoder`.
  """

  def __init__(
      self, strategy: strategies.Strategy, tree: strategies.OnlineTree
  ):
    """Initializes the plan.

    Args:
      strategy: C, `tree` or stamps of it.
      tree: without stamps.
    """
    super().__init__(strategy)
    self.draws = self.phases = tree.levels
    # The root is nobody's sibling.
    self.memory = tree.levels - 1
    self._variances = tree.node_variances()
    self._period = tree.rounds

  def first_draw(self, t: Any) -> Any:
    return (
        t // self._period * self._nodes(self._period)
        + self._nodes(t % self._period))

  def _nodes(self, t: Any) -> Any:
    """Returns the nodes that end before round t, an integer or a tensor."""
    return sum(t // 2**h for h in range(self.draws))

  def phase(self, t: Any) -> Any:
    return self.first_draw(t + 1) - self.first_draw(t) - 1

  def step(self, phase: int) -> tuple[np.ndarray, np.ndarray]:
    v = self._variances
    # Of z, one column a node, and of S.
    own = np.zeros(phase + 1)
    siblings = np.zeros(self.memory)
    own[0] = 1.0
    for h in range(phase):
      ratio = v[h + 1] / (2 * v[h])
      own *= ratio
      own[h + 1] = v[h + 1]
      siblings[h] = 1.0
      siblings *= ratio
    scale = np.zeros((1 + self.memory, phase + 1))
    weights = np.zeros((1 + self.memory, self.memory))
    scale[0] = own
    weights[0] = siblings
    weights[0, :phase] -= 1.0
    if phase < self.memory:
      scale[1 + phase] = own
      weights[1 + phase] = siblings
      weights[1 + phase, phase] -= 1.0
    return scale, weights


def _float32(
    first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  return first.astype(np.float32), second.astype(np.float32)
