"""Exact noise: y_t = RN(v_t), decided from as many words as needed.

| symbol | meaning                                                          |
|--------|------------------------------------------------------------------|
| w      | first word of a coordinate of a round: a number k and a sign     |
| e_1, .. | further words of the same coordinate and round                  |
| V      | (k + 0.e_1 e_2 ...) / 2^64, a number in (0, 1/2)                 |
| z      | -Phi^-1(V) if the sign bit is 1, else Phi^-1(V)                  |
| v_t    | the real number `Recursion.ideal`, a weighted sum of z and past y |
| RN(v)  | floor(v + 1/2)                                                   |

`producer.blocks` computes v_t in float64 with a bound of its error. If the
bound leaves the rounding in doubt, `Rounding` decides it. Each further word
narrows an interval around v_t, until all numbers in it round to one integer.

Neither the number of these decisions nor their time is logged, since both
depend on the noise.
"""

from __future__ import annotations

import fractions
from collections.abc import Sequence
from typing import Any, Optional

import mpmath
import numpy as np
import scipy.special

from tff_bandmf.noise import generator as generator_lib
from tff_bandmf.strategies import recursion as recursion_lib

# Maximum number of further words that a decision reads for each z. The
# probability that a decision needs all these words is below 2^-400.
_FURTHER_WORDS = 8
# A decision computes with `_DIGITS` decimal digits, and with `_WORD_DIGITS`
# more for each further word. A word has 19.3 digits.
_DIGITS, _WORD_DIGITS = 20, 20
# Bits of the fractions in `Recursion.ideal` for each further word.
_WORD_BITS = 96


class Rounding:
  """Decides y_t of single coordinates of one run.

  **Formal guarantee.**
  Assumption: mpmath's functions err by less than 10^4 units of their last
  digit. Statement: `decide`, `decide_of` and `column` return RN(v_t) for the
  v_t of `Recursion.ideal` and the z of the key, whatever words they read.
  Source: docs/reference/arithmetic.md.

  Attributes:
    generator: generator of the words and normals of the key.
  """

  def __init__(
    self,
    recursion: recursion_lib.Recursion,
    z_steps: float,
    generator: generator_lib.Generator,
  ):
    """Initializes the decisions of one run.

    Args:
      recursion: recursion that computes y from z, for the strategy matrix C.
      z_steps: standard deviation of z in lattice steps, > 0.
      generator: generator of the words of the key.
    """
    self._recursion = recursion
    self._z_steps = z_steps
    self.generator = generator
    # Precision is a property of a context in mpmath, and other threads may use
    # the global context.
    self._mp = mpmath.MPContext()

  def decide(self, t: int, i: int, past: Sequence[int]) -> int:
    """Returns y_t of coordinate i.

    Args:
      t: round, in [0, n).
      i: coordinate, >= 0.
      past: y_{t-1}, y_{t-2}, ..., at least `Recursion.reach(t)` of them.

    Raises:
      ArithmeticError: all words together leave the rounding in doubt; the
        probability is below 2^-400.
    """
    for words in range(_FURTHER_WORDS + 1):
      bits = _WORD_BITS * (words + 1)
      ideal = self._recursion.ideal(self._z_steps, t, past, bits)
      if words:
        y = self._decided(t, i, ideal, words)
      else:
        y = self._in_float64(t, i, ideal)
      if y is not None:
        return y
    raise ArithmeticError('noise: no rounding follows from the words')

  def decide_of(
    self, t: int, i: int, buffers: Sequence[float], errors: Sequence[float]
  ) -> int:
    """Returns y_t of coordinate i, for a recursion with buffers.

    The buffers and one further word of each z decide nearly all roundings. If
    the errors of the buffers leave a rounding in doubt, the words of all rounds
    up to t decide it.

    Args:
      t: round, in [0, n).
      i: coordinate, >= 0.
      buffers: S_t, the recursion's buffers of the coordinate, in float64.
      errors: bounds of the errors of S_t.
    """
    recursion = self._recursion
    assert isinstance(recursion, recursion_lib.Buffers)
    ideal = recursion.ideal_of(self._z_steps, t, buffers, errors)
    y = self._decided(t, i, ideal, 1)
    return self.column(i, t + 1)[t] if y is None else y

  def _decided(
    self, t: int, i: int, v: recursion_lib.Ideal, words: int
  ) -> Optional[int]:
    """Returns y_t of coordinate i, or None if the words do not decide.

    Args:
      t: round.
      i: coordinate.
      v: v_t.
      words: number of further words of z to read, > 0.
    """
    mp = self._mp
    mp.dps = _DIGITS + _WORD_DIGITS * words
    low, high = self._real(v.mean - v.radius), self._real(v.mean + v.radius)
    size = abs(low) + abs(high) + 1
    for s, factor in enumerate(v.factors):
      if factor:
        ends = [self._real(factor) * z for z in self._normal(t - s, i, words)]
        low, high = low + min(ends), high + max(ends)
        size += max(map(abs, ends))
    # Bound of the errors of these sums, and of the conversions to `mp.dps`
    # digits.
    error = size * mp.mpf(10) ** (6 - mp.dps)
    low = mp.floor(low - error + mp.mpf(1) / 2)
    if mp.isfinite(low) and low == mp.floor(high + error + mp.mpf(1) / 2):
      return int(low)
    return None

  def _in_float64(
    self, t: int, i: int, v: recursion_lib.Ideal
  ) -> Optional[int]:
    """Returns y_t of coordinate i, or None if float64 does not decide."""
    mean, error = float(v.mean), float(v.radius)
    size = abs(mean)
    for s, factor in enumerate(v.factors):
      weight = float(factor)
      z = self.generator.normal(t - s, i)
      mean += weight * z
      size += abs(weight * z)
      error += abs(weight) * generator_lib.ERROR
    error += recursion_lib.UNIT * (len(v.factors) + 8) * (size + 1)
    # PRIVACY: If the error of float64 could change the rounding, releases would
    # not be a function of the ideal mechanism, and epsilon would not hold. More
    # words decide such a rounding, and every rounding for which a normal is
    # NaN.
    # Guard: exact_noise_test.test_float64_decides_within_its_error.
    if abs(mean - np.rint(mean)) < 0.5 - error:
      return int(np.rint(mean))
    return None

  def column(self, i: int, rounds: int) -> list[int]:
    """Returns y_0, ..., y_{rounds - 1} of coordinate i, from the key alone.

    Args:
      i: coordinate, >= 0.
      rounds: number of rounds, in [0, n].
    """
    column: list[int] = []
    ideals = self._recursion.ideals(self._z_steps)
    for t in range(rounds):
      ideal = ideals.send(column[-1] if column else None)  # type: ignore
      y = self._in_float64(t, i, ideal)
      column.append(self.decide(t, i, column[::-1]) if y is None else y)
    return column

  def _real(self, fraction: fractions.Fraction) -> Any:
    return self._mp.mpf(fraction.numerator) / fraction.denominator

  # PRIVACY: Further words must be further digits of the same z. If z came from
  # other words, or the interval did not contain z, y could differ from the
  # ideal mechanism's y.
  # Guard: exact_noise_test.test_more_words_are_further_digits.
  def _normal(self, t: int, i: int, words: int) -> tuple[Any, Any]:
    """Returns (low, high) with low <= z <= high, from the first words of z.

    Args:
      t: round, >= 0.
      i: coordinate, >= 0.
      words: number of further words to read, > 0.
    """
    mp = self._mp
    first = self.generator.word(t, i, 0)
    digits = first >> 1
    for stream in range(1, words + 1):
      digits = digits << 64 | self.generator.word(t, i, stream)
    unit = mp.ldexp(mp.one, -64 * (words + 1))
    low = self._quantile(digits * unit) if digits else mp.ninf
    high = self._quantile((digits + 1) * unit)
    margin = mp.mpf(10) ** (8 - mp.dps)
    low, high = low - margin, high + margin
    return (-high, -low) if first & 1 else (low, high)

  def _quantile(self, probability: Any) -> Any:
    """Returns Phi^-1 of a number in (0, 1/2]; the last digits may be wrong."""
    mp = self._mp
    if probability > 1e-300:
      z = mp.mpf(float(scipy.special.ndtri(float(probability))))
    else:
      z = -mp.sqrt(-2 * mp.log(probability))
    # Halley's method triples the number of correct digits in each step.
    step, close = mp.inf, mp.mpf(10) ** (-mp.dps / 2)
    while abs(step) > close:
      step = (probability - mp.ncdf(z)) / mp.npdf(z)
      step /= 1 + z * step / 2
      z += step
    return z
