"""Block-diagonal C = I_s (x) C_m: one short strategy, repeated."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf import _files, errors, workloads
from tff_bandmf.strategies import base, dense, families, toeplitz
from tff_bandmf.strategies import recursion as recursion_lib


@attrs.frozen(slots=False, eq=False)
class Stamped(base.Strategy):
  """Blocks of C_m down the diagonal, the last one cut at n. [SingleEpoch22]

  Noise of different blocks is independent.

  Attributes:
    rounds: n.
    block: C_m, a strategy of m rounds.

  >>> from tff_bandmf import strategies
  >>> Stamped(3, strategies.BandedToeplitz(2, [1.0, 0.5])).matrix()
  array([[1. , 0. , 0. ],
         [0.5, 1. , 0. ],
         [0. , 0. , 1. ]])
  """

  family: ClassVar[str] = 'stamped'
  rounds: int = attrs.field(converter=base.count_rounds)
  block: base.Strategy = attrs.field()

  @block.validator
  def _check_block(self, _, block: base.Strategy) -> None:
    if not isinstance(block, base.Strategy) or isinstance(block, Stamped):
      raise errors.type_error(
        f'block={block}: must be a strategy that is not stamped; give its block'
      )

  @property
  def bands(self) -> int:
    return min(self.block.bands, self.rounds)

  @property
  def inverse_bands(self):
    return self.block.inverse_bands

  @property
  def memory_copies(self) -> int:
    return self.block.memory_copies

  def _recursion(self) -> recursion_lib.Recursion:
    window = recursion_lib.Window(self, self.block.rounds)
    return self.block.buffered(self.rounds) or window

  # PRIVACY: The sensitivity is a sum over tiles. With a wrong number of tiles,
  # this sum would be the sensitivity of another C.
  # Guard:
  # random_structures_test.test_random_patterns_never_exceed_the_sensitivity.
  def tiles(self) -> list[tuple[base.Strategy, int]]:
    if self.rounds <= self.block.rounds:
      return super().tiles()
    copies, rest = divmod(self.rounds, self.block.rounds)
    # The last tile is the block cut at `rest` rounds.
    cut = [(Stamped(rest, self.block), 1)] if rest else []
    return [(self.block, copies), *cut]

  def column_norms_squared(self) -> np.ndarray:
    cut = self.rounds <= self.block.rounds
    if cut and isinstance(self.block, toeplitz.Toeplitz):
      return np.cumsum(self.block.column(self.rounds) ** 2)[::-1]
    return super().column_norms_squared()

  def column_error(self, participations: int) -> float:
    return self.block.column_error(participations)

  def band_rows(self, start: int, stop: int) -> np.ndarray:
    return self._tiled(self.block.band_rows, start, stop)[:, : self.bands]

  def inverse_band_rows(self, start: int, stop: int) -> np.ndarray:
    return self._tiled(self.block.inverse_band_rows, start, stop)

  def _tiled(self, rows, start: int, stop: int) -> np.ndarray:
    t = np.arange(start, stop) % self.block.rounds
    first, last = int(t.min()), int(t.max()) + 1
    return rows(first, last)[t - first]

  def per_query_errors(
    self, workload: workloads.Workload = workloads.PREFIX
  ) -> np.ndarray:
    if workload != workloads.PREFIX:
      return super().per_query_errors(workload)
    base.check_rounds(self.rounds)
    # Each finished block adds the error of its last prefix sum.
    e = self.block.per_query_errors(workload)
    done = np.arange(-(-self.rounds // len(e)))
    return (done[:, None] * e[-1] + e).ravel()[: self.rounds]

  def parameters(self) -> _files.JsonObject:
    return {
      'block': {
        'family': self.block.family,
        'rounds': self.block.rounds,
        'parameters': self.block.parameters(),
      }
    }

  def arrays(self) -> dict[str, np.ndarray]:
    return {
      f'block.{name}': array for name, array in self.block.arrays().items()
    }


_BLOCK_ROUNDS = families.Parameter(
  'block_rounds', int, 'Number of rounds of a block.  [default: min_sep]'
)
_BLOCK_FAMILY = families.Parameter(
  'block_family',
  families.Family,
  'Strategy family of a block.  [default: dense]',
  default=dense.Dense.family,
)
FAMILIES = (
  families.Family(
    Stamped,
    'blocks of another family',
    'SingleEpoch22',
    (_BLOCK_ROUNDS, _BLOCK_FAMILY),
    families.Memory("the block's memory", lambda rounds: 0),
    'tff_bandmf.optimize.searches:stamped',
    passes_on=True,
  ),
)
