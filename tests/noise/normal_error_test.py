"""A proof that the float64 inverse of the normal CDF errs by at most 2^-47.

`scipy.special.ndtri` evaluates Cephes' rational functions, one for each of
three regions. For each region two errors are bounded over short intervals that
cover
it, with balls that hold all real numbers in question:

- the formula in exact arithmetic against -x for u = Phi(-x), by a Taylor
  polynomial in x around the middle of an interval, with its remainder;
- rounding in float64, by running error analysis: each operation errs by 2^-53
  of its result, and the logarithm by at most 2 units in its last place.

The proof covers u in [2^-65, 1/2]: all that `Generator` asks for.
"""

import math

import numpy as np
import pytest
import scipy.special

from tff_bandmf.noise import generator

flint = pytest.importorskip('flint')

pytestmark = pytest.mark.slow

_UNIT = 2.0**-53 * (1 + 2.0**-40)
_LOG_UNITS = 2.0
_TERMS = 14
# Cephes' coefficients, highest power first; scale of the centre.
_CENTRE = (
  (
    -5.99633501014107895267e1, 9.80010754185999661536e1,
    -5.66762857469070293439e1, 1.39312609387279679503e1,
    -1.23916583867381258016e0,
  ),
  (
    1.0, 1.95448858338141759834e0, 4.67627912898881538453e0,
    8.63602421390890590575e1, -2.25462687854119370527e2,
    2.00260212380060660359e2, -8.20372256168333339912e1,
    1.59056225126211695515e1, -1.18331621121330003142e0,
  ),
)  # fmt: skip
_MIDDLE = (
  (
    4.05544892305962419923e0, 3.15251094599893866154e1,
    5.71628192246421288162e1, 4.40805073893200834700e1,
    1.46849561928858024014e1, 2.18663306850790267539e0,
    -1.40256079171354495875e-1, -3.50424626827848203418e-2,
    -8.57456785154685413611e-4,
  ),
  (
    1.0, 1.57799883256466749731e1, 4.53907635128879210584e1,
    4.13172038254672030440e1, 1.50425385692907503408e1,
    2.50464946208309415979e0, -1.42182922854787788574e-1,
    -3.80806407691578277194e-2, -9.33259480895457427372e-4,
  ),
)  # fmt: skip
_TAIL = (
  (
    3.23774891776946035970e0, 6.91522889068984211695e0,
    3.93881025292474443415e0, 1.33303460815807542389e0,
    2.01485389549179081538e-1, 1.23716634817820021358e-2,
    3.01581553508235416007e-4, 2.65806974686737550832e-6,
    6.23974539184983293730e-9,
  ),
  (
    1.0, 6.02427039364742014255e0, 3.67983563856160859403e0,
    1.37702099489081330271e0, 2.16236993594496635890e-1,
    1.34204006088543189037e-2, 3.28014464682127739104e-4,
    2.89247864745380683936e-6, 6.79019408009981274425e-9,
  ),
)  # fmt: skip
_SCALE = 2.50662827463100050242e0
_EDGE = 0.13533528323661269189
# Regions of x = -Phi^-1(u) that overlap: coefficients, ends, and numbers of
# intervals for the two errors. Words end at 2^-64.
_REGIONS = {
  'centre': (_CENTRE, 0.0, -float(scipy.special.ndtri(_EDGE)), 100, 2000),
  'middle': (
    _MIDDLE,
    -float(scipy.special.ndtri(_EDGE)),
    -float(scipy.special.ndtri(math.exp(-32))),
    400,
    8000,
  ),
  'tail': (_TAIL, -float(scipy.special.ndtri(math.exp(-32))), 9.25, 300, 400),
}
_BOUND = 2.0**-47


def _horner(coefficients, x):
  value = coefficients[0]
  for coefficient in coefficients[1:]:
    value = value * x + coefficient
  return value


def _formula(u, part, log, sqrt):
  """Returns Cephes' formula for Phi^-1(u), for floats, balls or series."""
  top, bottom = part
  if part is _CENTRE:
    y = u - 0.5
    square = y * y
    ratio = square * _horner(top, square) / _horner(bottom, square)
    return (y + y * ratio) * _SCALE
  x = sqrt(-2 * log(u))
  near = x - log(x) / x
  inverse = 1 / x
  return -(near - inverse * _horner(top, inverse) / _horner(bottom, inverse))


def test_formula_is_that_of_scipy():
  rng = np.random.default_rng(0)
  u = np.concatenate(
    [rng.uniform(0, 0.5, 3000), 2.0 ** -rng.uniform(1, 65, 3000)]
  )
  for each in map(float, u):
    part = _CENTRE
    if each <= _EDGE:
      part = _MIDDLE if math.sqrt(-2 * math.log(each)) < 8 else _TAIL
    z = _formula(each, part, math.log, math.sqrt)
    # Compilers order sums as they like, and may fuse operations.
    expected = float(scipy.special.ndtri(each))
    assert abs(z - expected) <= 4 * 2.0**-52 * max(1.0, abs(expected))


def _ball(low, high):
  return flint.arb((low + high) / 2, (high - low) / 2 * (1 + 2.0**-40) + 1e-300)


def _upper(ball):
  return float(abs(ball).upper()) * (1 + 2.0**-50)


def _series_formula(x, part):
  """Returns (formula at u = Phi(-x)) + x, a power series."""
  half = flint.arb(1) / 2
  u = (x * half.sqrt()).erfc() * half
  balls = tuple([flint.arb(c) for c in side] for side in part)
  if part is _CENTRE:
    y = u - half
    square = y * y
    ratio = square * _horner(balls[0], square) / _horner(balls[1], square)
    return (y + y * ratio) * flint.arb(_SCALE) + x
  root = (u.log() * flint.arb(-2)).sqrt()
  inverse = 1 / root
  ratio = inverse * _horner(balls[0], inverse) / _horner(balls[1], inverse)
  return -(root - root.log() * inverse - ratio) + x


def _formula_error(low, high, part):
  """Bounds |formula + x| for x in [low, high], in exact arithmetic."""
  flint.ctx.cap = _TERMS + 1
  middle, radius = (low + high) / 2, flint.arb((high - low) / 2)
  near = _series_formula(flint.arb_series([flint.arb(middle), 1]), part)
  whole = _series_formula(flint.arb_series([_ball(low, high), 1]), part)
  total = flint.arb(0)
  for j, coefficient in enumerate(near.coeffs()[:_TERMS]):
    total += abs(coefficient) * radius**j
  rest = whole.coeffs()
  if len(rest) > _TERMS:
    total += abs(rest[_TERMS]) * radius**_TERMS
  return _upper(total)


class _Rounded:
  """A ball of the exact value, and a bound of the float64 value's error."""

  def __init__(self, ball, error=0.0):
    self.ball, self.error = ball, error

  def _result(self, ball, error):
    return _Rounded(ball, error + _UNIT * (_upper(ball) + error))

  def __add__(self, other):
    return self._result(self.ball + other.ball, self.error + other.error)

  def __sub__(self, other):
    return self._result(self.ball - other.ball, self.error + other.error)

  def __mul__(self, other):
    return self._result(
      self.ball * other.ball,
      _upper(self.ball) * other.error
      + _upper(other.ball) * self.error
      + self.error * other.error,
    )

  def __truediv__(self, other):
    least = float(abs(other.ball).lower()) * (1 - 2.0**-50) - other.error
    assert least > 0
    ratio = self.ball / other.ball
    return self._result(
      ratio, (self.error + _upper(ratio) * other.error) / least
    )

  def sqrt(self):
    least = float(self.ball.lower()) - self.error
    return self._result(self.ball.sqrt(), self.error / (2 * math.sqrt(least)))

  def log(self):
    least = float(self.ball.lower()) - self.error
    assert least > 0
    ball, error = self.ball.log(), self.error / least
    units = 2 * _UNIT * _LOG_UNITS * (_upper(ball) + error)
    return _Rounded(ball, error + units)

  def doubled(self):
    """Returns -2 times the number, without error."""
    return _Rounded(self.ball * -2, 2 * self.error)


def _constant(value):
  return _Rounded(flint.arb(value))


def _rounding_error(low, high, part):
  """Bounds the error of float64 arithmetic for x in [low, high]."""
  # Phi(-x) decreases.
  ends = [float(scipy.special.ndtr(-x)) for x in (high, low)]
  u = _Rounded(_ball(ends[0] * (1 - 1e-12), min(0.5, ends[1] * (1 + 1e-12))))
  top, bottom = ([_constant(c) for c in side] for side in part)

  def monic(x):
    value = x + bottom[1]  # The highest power has no product.
    for coefficient in bottom[2:]:
      value = value * x + coefficient
    return value

  if part is _CENTRE:
    y = u - _constant(0.5)
    square = y * y
    ratio = square * _horner(top, square) / monic(square)
    return ((y + y * ratio) * _constant(_SCALE)).error
  x = u.log().doubled().sqrt()
  near = x - x.log() / x
  inverse = _constant(1.0) / x
  return (near - inverse * _horner(top, inverse) / monic(inverse)).error


@pytest.mark.parametrize('region', _REGIONS)
def test_inverse_cdf_is_within_its_bound(region):
  part, first, last, formulas, roundings = _REGIONS[region]
  flint.ctx.prec = 160
  margin = 1e-9
  # The worst of both errors, over max(1, x).
  worst = []
  for bound, count in (
    (_formula_error, formulas), (_rounding_error, roundings)
  ):  # fmt: skip
    edges = np.linspace(max(0.0, first - margin), last + margin, count + 1)
    worst.append(
      max(
        bound(float(a), float(b), part) / max(1.0, a)
        for a, b in zip(edges, edges[1:])
      )
    )
  print(f'{region}: 2^{math.log2(worst[0]):.2f}, 2^{math.log2(worst[1]):.2f}')
  assert sum(worst) <= _BOUND


def test_bound_of_the_inverse_and_of_words_is_that_of_the_generator():
  """Words that are not read move a tail by half of the last word's unit."""
  for bits in np.arange(1.0, 64.0, 0.01):
    x = -float(scipy.special.ndtri(2.0**-bits))
    k = 2.0 ** (64 - bits)
    unread = 0.5 if k >= generator.EXTENDED_BELOW else 2.0**-65
    # A tail that moves by a part of itself moves x by that part times Mills'
    # ratio.
    mills = math.exp(scipy.special.log_ndtr(-x) + x * x / 2) * math.sqrt(
      2 * math.pi
    )
    # The tail as a float errs by 1.5 units.
    moved = (unread / k + 3 * _UNIT) * mills * (1 + 2.0**-30)
    assert moved + _BOUND * max(1.0, x) < generator.ERROR
  assert x < generator.MOST_DEVIATIONS
