"""A generator with few words, all of whose normals can be enumerated."""

import dataclasses
import functools

import numpy as np
import scipy.special

from tff_bandmf.accounting.arithmetic import cells


@dataclasses.dataclass(frozen=True)
class Sampler:
  """All normals of a small generator.

  Attributes:
    bits: number of bits of a word, with its sign.
    more: number of bits of an extension; 0 for no extended words.
    below: words with u < 2^-below are extended.
    digits: number of bits of a float's mantissa; 0 for exact numbers.
  """

  bits: int
  more: int = 0
  below: int = 0
  digits: int = 0

  @functools.cached_property
  def normals(self):
    """Returns all z >= 0 in descending order, and their probabilities.

    The probabilities are cumulated: entry i is the probability of the first i
    values, starting with 0.
    """
    k = np.arange(2 ** (self.bits - 1))
    rare = k < 2 ** (self.bits - self.below) if self.more else k < 0
    e = np.arange(2**self.more)
    u = np.concatenate(
      [
        ((k[rare][:, None] + (e + 0.5) / 2**self.more) / 2**self.bits).ravel(),
        (k[~rare] + 0.5) / 2**self.bits,
      ]
    )
    spacing = 2.0**-self.bits
    weight = np.where(u < 2.0**-self.below, spacing / 2**self.more, spacing)
    weight = weight if self.more else np.full(len(u), spacing)
    z = -scipy.special.ndtri(self.float(u))
    return self.float(z), np.concatenate([[0], np.cumsum(weight)])

  def float(self, value):
    if not self.digits:
      return value
    mantissa, exponent = np.frexp(value)
    return np.ldexp(
      np.rint(mantissa * 2**self.digits) / 2**self.digits, exponent
    )

  def beyond(self, edge):
    """Returns the probability of z >= edge, for edges of any sign."""
    z, cumulated = self.normals
    # z never increases, but may have equal neighbours.
    far = cumulated[np.searchsorted(-z, -np.abs(edge), side='right')]
    strictly = cumulated[np.searchsorted(-z, -np.abs(edge), side='left')]
    return np.where(edge >= 0, far, 1 - strictly)

  @property
  def words(self):
    return cells.Words(
      spacing=2.0**-self.bits,
      extended_spacing=2.0 ** -(self.bits + self.more),
      extended_below=2.0**-self.below if self.more else 1e-300,
      unit=2.0**-self.digits if self.digits else 0.0,
    )
