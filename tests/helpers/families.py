"""One example of every family, for all tests of families.

If a family has no line in `EXAMPLES`, `families_test` fails.
"""

from __future__ import annotations

import dataclasses
from typing import Callable

import numpy as np
from hypothesis import strategies as st

from tff_bandmf import strategies

_SERIES = (1.0, 0.5, 0.375)
_ROWS = (1.0, 0.5, 0.25)


@dataclasses.dataclass(frozen=True)
class Example:
  """An example of a family.

  Attributes:
    make: function from the number of rounds, >= 6, to a strategy.
    draw: function from the number of rounds to a Hypothesis strategy, which
      draws strategies of the family.
    flags: flags with which `bandmf optimize` builds a strategy of 24 rounds
      without a search.
  """

  make: Callable[[int], strategies.Strategy]
  draw: Callable[[int], st.SearchStrategy]
  flags: str = ''


def fraction(low=0.0, high=1.0):
  return st.floats(low, high, allow_subnormal=False)


@st.composite
def _series(draw, rounds, low=-1.0):
  """Draws the start of a series with a bounded inverse."""
  tail = np.array(
    draw(st.lists(fraction(low), max_size=rounds - 1)), np.float64
  )
  # The series need not decrease, and has signs unless `low` is 0. It is far
  # from a series with a root in the unit disc.
  tail *= 0.9 / max(1.0, np.abs(tail).sum())
  return draw(fraction(0.5, 2)) * np.concatenate([[1.0], tail])


@st.composite
def _robust(draw, rounds):
  series = draw(_series(rounds, low=0.0))
  b0 = draw(st.integers(1, len(series)))
  return strategies.RobustToeplitz(rounds, strategies.taper(series, b0), b0)


@st.composite
def _blt(draw, rounds):
  buffers = draw(st.integers(1, 3))
  theta = draw(
    st.lists(fraction(0, 0.95), min_size=buffers, max_size=buffers, unique=True)
  )
  omega = [draw(fraction(-0.2, 0.3)) * (1 - t) for t in theta]
  return strategies.Blt(rounds, omega, theta)


@st.composite
def _lower(draw, rounds, bands):
  """Draws rows of a banded matrix with a dominant diagonal."""
  entry = fraction(draw(st.sampled_from([0.0, -1.0])))
  rows = np.array(
    draw(st.lists(entry, min_size=rounds * bands, max_size=rounds * bands))
  ).reshape(rounds, bands)
  rows *= 0.9 / bands
  rows[:, 0] = 0.5 + np.abs(rows[:, 0])
  return np.where(np.arange(rounds)[:, None] >= np.arange(bands), rows, 0.0)


@st.composite
def _banded(draw, rounds):
  bands = draw(st.integers(1, min(rounds, 4)))
  return strategies.Banded(draw(_lower(rounds, bands)))


@st.composite
def _dense(draw, rounds):
  # The matrix may have few bands.
  return strategies.Dense(draw(_banded(rounds)).matrix())


@st.composite
def _stamped(draw, rounds):
  block = draw(st.integers(1, rounds + 1))
  name = draw(st.sampled_from(sorted(set(DRAWN) - {'stamped'})))
  return strategies.Stamped(rounds, draw(DRAWN[name](block)))


def _rows(rounds):
  rows = np.tril(np.ones((rounds, 3))) * _ROWS
  return rows * np.linspace(1, 1.5, rounds)[:, None]


def _down(rows):
  """Returns columns[j, s] = rows[j + s, s]."""
  columns = np.zeros_like(rows)
  for s, column in enumerate(rows.T):
    columns[: len(rows) - s, s] = column[s:]
  return columns


def _of(kind, *drawn):
  return lambda rounds: st.builds(kind, st.just(rounds), *drawn)


def _with_bands(kind, *others):
  return lambda n: st.builds(kind, st.just(n), st.integers(1, n), *others)


EXAMPLES = {
  'identity': Example(strategies.Identity, _of(strategies.Identity)),
  'banded': Example(lambda n: strategies.Banded(_rows(n)), _banded),
  'banded-toeplitz': Example(
    lambda n: strategies.BandedToeplitz(n, _SERIES),
    lambda n: st.builds(strategies.BandedToeplitz, st.just(n), _series(n)),
  ),
  'robust-toeplitz': Example(
    lambda n: strategies.RobustToeplitz(
      n, strategies.taper(np.array(_SERIES), 2), 2
    ),
    _robust,
  ),
  'banded-sqrt': Example(
    lambda n: strategies.BandedSqrt(n, 4),
    _with_bands(strategies.BandedSqrt),
    '--bands 4',
  ),
  'banded-fractional': Example(
    lambda n: strategies.BandedFractional(n, 5, 0.6),
    _with_bands(strategies.BandedFractional, fraction()),
    '--bands 4 --alpha 0.4',
  ),
  'inverse-plus-constant': Example(
    lambda n: strategies.InversePlusConstant(n, 4, 0.3),
    _with_bands(strategies.InversePlusConstant, fraction(0, 3)),
    '--bands 4 --constant 0.2',
  ),
  'sqrt-toeplitz': Example(
    strategies.SqrtToeplitz, _of(strategies.SqrtToeplitz)
  ),
  'lti': Example(
    lambda n: strategies.Lti(n, 0.05),
    _of(strategies.Lti, fraction()),
    '--nu 0.1',
  ),
  'blt': Example(lambda n: strategies.Blt(n, [0.3, 0.2], [0.9, 0.5]), _blt),
  'dp-cgd': Example(
    lambda n: strategies.DpCgd(n, 0.8),
    _of(strategies.DpCgd, fraction()),
    '--lambda 0.9 --column-normalize',
  ),
  'banded-inverse': Example(
    lambda n: strategies.BandedInverse(n, [1.0, -0.5, -0.2]),
    lambda n: st.builds(strategies.BandedInverse, st.just(n), _series(n)),
  ),
  'banded-inverse-sqrt': Example(
    lambda n: strategies.BandedInverseSqrt(n, 3),
    _with_bands(strategies.BandedInverseSqrt),
    '--bands 4',
  ),
  'banded-inverse-fractional': Example(
    lambda n: strategies.BandedInverseFractional(n, 4, 0.4),
    _with_bands(strategies.BandedInverseFractional, fraction()),
    '--bands 4 --alpha 0.6',
  ),
  'dense': Example(
    lambda n: strategies.Dense(strategies.Banded(_rows(n)).matrix()), _dense
  ),
  'custom': Example(
    lambda n: strategies.custom(n, inverse_coefficients=[1.0, -0.5, -0.2]),
    lambda n: st.one_of(
      _series(n).map(lambda c: strategies.custom(n, coefficients=c)),
      _series(n).map(lambda r: strategies.custom(n, inverse_coefficients=r)),
      _banded(n).map(lambda c: strategies.custom(matrix=c.matrix())),
      st.integers(1, min(n, 4)).flatmap(
        lambda bands: _lower(n, bands).map(
          lambda rows: strategies.custom(columns=_down(rows))
        )
      ),
    ),
  ),
  'tree': Example(
    strategies.Tree,
    _of(strategies.Tree, st.sampled_from([2, 3])),
    '--arity 3',
  ),
  'online-tree': Example(strategies.OnlineTree, _of(strategies.OnlineTree)),
  'stamped': Example(
    lambda n: strategies.Stamped(n, strategies.BandedSqrt(6, 3)),
    _stamped,
    '--block-family banded-sqrt --bands 4',
  ),
}

TOEPLITZ = [
  name
  for name, family in strategies.FAMILIES.items()
  if issubclass(family.kind, strategies.Toeplitz)
]
# Functions from the number of rounds to a Hypothesis strategy, by the name of
# the family; entries with 'columns normalised' scale the columns to unit norm.
DRAWN = {
  **{name: example.draw for name, example in EXAMPLES.items()},
  **{
    f'{name}, columns normalised': (
      lambda n, draw=EXAMPLES[name].draw: draw(n).map(
        strategies.ColumnNormalized
      )
    )
    for name in TOEPLITZ
  },
}


def made(rounds: int) -> dict[str, strategies.Strategy]:
  """Returns a strategy of each family, and a BLT with scaled columns."""
  found = {name: each.make(rounds) for name, each in EXAMPLES.items()}
  found['normalised'] = strategies.ColumnNormalized(found['blt'])
  return found
