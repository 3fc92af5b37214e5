"""Tree aggregation: noisy sums of the nodes of a tree over the rounds.

The leaves of a complete tree of the given arity are the rounds 0, 1, 2, ....
The encoder is a matrix with one row for each node: ones at the rounds below
the node, zeros elsewhere. A node above a round >= n has no row. X is the Gram
matrix of the encoder: X[i, j] is the number of nodes above both i and j.

The encoder is not square. Gaussian noise is determined by its covariance, so
each mechanism still has a square, lower-triangular C that gives the same noise;
`matrix` returns this C.
"""

from __future__ import annotations

import fractions
import functools
from typing import TYPE_CHECKING, ClassVar, Optional

import attrs
import numpy as np

from tff_bandmf import workloads
from tff_bandmf.strategies import base, dense, families
from tff_bandmf.strategies import recursion as recursion_lib

_ARITY = families.Parameter(
  'arity', int, 'Number of children of a node.  [default: 2]', low=2, default=2
)


class _OfNodes(base.Strategy):
  """A strategy that adds noise to nodes of a tree.

  Subclasses have `rounds` and `arity`.
  """

  if TYPE_CHECKING:  # See the comment in `base.Strategy`.

    @property
    def arity(self) -> int: ...

  @property
  def bands(self) -> int:
    return self.sizes[-1]

  def gram(self) -> np.ndarray:
    """Returns X of the encoder, [n, n] float64, integers."""
    base.check_dense(self.rounds)
    gram = np.zeros((self.rounds, self.rounds))
    for size in self.sizes:
      for first in range(0, self.rounds - size + 1, size):
        gram[first : first + size, first : first + size] += 1
    return gram

  def gram_entries(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns X[i, j] of the encoder, [m] float64."""
    common = np.zeros(len(first))
    for size in self.sizes:
      node = first // size
      common += (node == second // size) & ((node + 1) * size <= self.rounds)
    return common

  @functools.cached_property
  def _dense(self) -> dense.Dense:
    return dense.Dense(dense.lower_factor(self.gram()))

  def matrix(self) -> np.ndarray:
    return self._dense.matrix()

  def band_rows(self, start: int, stop: int) -> np.ndarray:
    return self._dense.band_rows(start, stop)

  def per_query_errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> np.ndarray:
    return self._dense.per_query_errors(workload)

  @property
  def sizes(self) -> list[int]:
    """Numbers of rounds below a node of height 0, 1, 2, ...."""
    sizes = [1]
    while sizes[-1] * self.arity <= self.rounds:
      sizes.append(sizes[-1] * self.arity)
    return sizes


@attrs.frozen(slots=False)
class Tree(_OfNodes):
  """The tree with its optimal decoder, A times the encoder's pseudo-inverse.

  The noise of the prefix sums has covariance A X^-1 A^T. Every C with C^T C = X
  gives this covariance; `matrix` returns the lower-triangular C.
  [DPFTRL21, MultiEpoch23]

  Attributes:
    rounds: n, at most 20,000, because C is dense.
    arity: children of a node, at least 2.

  >>> Tree(rounds=2).gram()
  array([[2., 1.],
         [1., 2.]])
  """

  family: ClassVar[str] = 'tree'
  structure: ClassVar[str] = base.TREE
  rounds: int = attrs.field(converter=base.count_rounds)
  arity: int = attrs.field(default=2, converter=lambda x: _ARITY.check(x))

  def __attrs_post_init__(self):
    base.check_dense(self.rounds)


@attrs.frozen(slots=False)
class OnlineTree(_OfNodes):
  """The binary tree with Honaker's online decoder. [DPFTRL21]

  The sum of a node of height j is estimated from its own noisy sum and the
  estimates of its two children, weighted by their inverse variances:

    v_0 = 1,   v_j = 1 / (1 + 1 / (2 v_{j-1}))

  Prefix sum t adds up the estimates of one node for each set bit of t + 1. The
  noise needs log2(n) vectors of the model's size, rounded down: one for each
  level of the tree below the root.

  `matrix` returns the C of the noise that `TreeBuffers` computes. X - C^T C is
  positive semi-definite, because the decoded sums are computed from the noisy
  nodes and so reveal no more than the nodes reveal.

  Attributes:
    rounds: n.

  >>> OnlineTree(rounds=3).per_query_errors()
  array([1.        , 0.66666667, 1.66666667])
  """

  family: ClassVar[str] = 'online-tree'
  structure: ClassVar[str] = base.DECODED_TREE
  arity: ClassVar[int] = 2
  rounds: int = attrs.field(converter=base.count_rounds)

  @property
  def memory_copies(self) -> int:
    # The root has no sibling.
    return len(self.sizes) - 1

  def buffered(
    self, rounds: int, norms: Optional[np.ndarray] = None
  ) -> recursion_lib.Buffers:
    # The columns of this family are never scaled.
    return TreeBuffers(self, rounds)

  def node_variances(self) -> np.ndarray:
    """Returns v of each height, float64."""
    v = np.ones(len(self.sizes))
    for j in range(1, len(v)):
      v[j] = 1 / (1 + 1 / (2 * v[j - 1]))
    return v

  @functools.cached_property
  def _dense(self) -> dense.Dense:
    base.check_dense(self.rounds)
    tree = TreeBuffers(self, self.rounds)
    values = np.eye(self.rounds)
    for t, row in enumerate(values):
      height = tree.phase(t)
      for h, weight in enumerate(tree.step(height).readout[:height]):
        # Rounds of the left sibling of the node of height h that ends at t.
        row[t + 1 - 2 ** (h + 1) : t + 1 - 2**h] = -weight
      row /= tree.scales[height]
    return dense.Dense(values)

  def per_query_errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> np.ndarray:
    if workload != workloads.PREFIX:
      return super().per_query_errors(workload)
    base.check_rounds(self.rounds)
    t = np.arange(1, self.rounds + 1)
    e = np.zeros(self.rounds)
    for j, variance in enumerate(self.node_variances()):
      e += variance * ((t >> j) & 1)
    return e


class TreeBuffers(recursion_lib.Buffers):
  """The noise of the last finished node of every height. [DPFTRL21]

  S_h is the noise of the estimate of the last finished node of height h. Round
  t finishes one node of each height h <= H, where H is the number of trailing
  ones of t in binary. E_h is the noise of the estimate of the node of height h
  that round t finishes, and v_h is the variance of this noise:

    E_0 = g_0,   E_{h+1} = (E_h + S_h) v_{h+1} / (2 v_h) + v_{h+1} g_{h+1}
    y_t = E_H - sum_{h<H} S_h

  Here g_0, ..., g_H are independent unit normals for round t alone. With
  weights w and a_h, E_H = w . g + sum_{h<H} a_h S_h. The first term is Gaussian
  with standard deviation |w|. So a single unit normal z_t for each round gives
  the same noise:

    y_t = |w| z_t + sum_{h<H} (a_h - 1) S_h,   S_H <- y_t + sum_{h<H} S_h

  S holds integers. The noise has the covariance of the decoder's noise, and its
  C is `OnlineTree.matrix`.
  """

  is_exact = True

  def __init__(self, tree: OnlineTree, rounds: int):
    """Makes the buffers of a run.

    Args:
      tree: strategy; a new tree begins after each `tree.rounds` rounds.
      rounds: number of rounds of the run.
    """
    self.rounds = rounds
    self.phases = len(tree.sizes)
    self.memory = tree.memory_copies
    variances = self._variances_of_nodes = tree.node_variances()
    self._period = tree.rounds
    scales = np.empty(self.phases)
    readout = np.zeros((self.phases, self.memory))
    self._numbers = {'readout': readout, 'scales': scales}
    own, siblings = np.ones(1), np.zeros(0)
    for height, variance in enumerate(variances):
      if height:
        ratio = variance / (2 * variances[height - 1])
        own = np.append(own * ratio, variance)
        siblings = np.append(siblings, 1.0) * ratio
      scales[height] = np.linalg.norm(own)
      readout[height, :height] = siblings - 1.0

  def phase(self, t: recursion_lib.Index) -> recursion_lib.Index:
    local = t % self._period
    return self._nodes(local + 1) - self._nodes(local) - 1

  def _nodes(self, t: recursion_lib.Index) -> recursion_lib.Index:
    """Returns the number of nodes that end before round t."""
    return sum(t // 2**h for h in range(self.phases))

  @property
  def scales(self) -> np.ndarray:
    return self._numbers['scales']

  def step(self, phase: int) -> recursion_lib.Step:
    heights = np.arange(self.memory)
    gain = (heights == phase).astype(float)
    # S_h is reset for h < `phase`, and does not change for h > `phase`.
    update = np.diag(heights > phase).astype(float)
    update[heights == phase, :phase] = 1.0
    readout = self._numbers['readout'][phase]
    return recursion_lib.Step(float(self.scales[phase]), readout, update, gain)

  def reach(self, t: int) -> int:
    return t % self._period

  def exact_weights(self, t):
    height = self.phase(t)
    weights = map(fractions.Fraction, self._numbers['readout'][height].tolist())
    return fractions.Fraction(float(self.scales[height])), list(weights)

  def exact_update(self, buffers, t, y, bits):
    height = self.phase(t)
    after = [0] * min(height, self.memory) + list(buffers[height:])
    if height < self.memory:
      after[height] = (y << bits) + sum(buffers[:height])
    return after

  def _variances(self) -> np.ndarray:
    # Siblings have independent noise, so variances add up.
    v = self._variances_of_nodes[: self.memory]
    by_height = self.scales**2 + self._numbers['readout'] ** 2 @ v
    return by_height[self.phase(np.arange(self.rounds))]


FAMILIES = (
  families.Family(
    Tree,
    'nodes of a tree, optimal decoder',
    'DPFTRL21',
    (_ARITY,),
    # The noise keeps one vector less than the largest node has rounds: none if
    # the arity exceeds the rounds.
    families.Memory('up to rounds - 1', lambda rounds: 0),
  ),
  families.Family(
    OnlineTree,
    "nodes of a binary tree, Honaker's decoder",
    'DPFTRL21',
    memory=families.Memory('log2(rounds)', lambda n: n.bit_length() - 1),
  ),
)
