"""Balls-in-bins sampling: each client draws one bin of an epoch, once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np

from tff_bandmf import _checks, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.accounting.kinds import (
  balls_in_bins,
  balls_in_bins_noise,
  sampled_cohorts,
  samplers,
)
from tff_bandmf.accounting.methods import accountants


def _bins(value: int) -> int:
  return _checks.count('bins', value, 'rounds of an epoch')


@attrs.frozen
class BallsInBins(sampled_cohorts.Sampled):
  """Each client draws one of b bins once; bin t mod b takes part in round t.

  The proof of the guarantee needs a C without negative entries; see
  `balls_in_bins`.

  Attributes:
    bins: b, number of bins and of rounds in an epoch, from 1 to the rounds of
      C.
    population: number of clients to draw from, >= 1; None if it is unknown.
    adjacency: `zero-out` or `add-remove`.
  """

  samples: ClassVar[int] = 200_000
  name: ClassVar[str] = 'balls-in-bins'
  flags: ClassVar[Mapping[str, str]] = {'min_sep': 'bins'}
  bins: int = attrs.field(converter=_bins)

  # PRIVACY: The claim without amplification uses this schema. If the schema
  # lacked the rounds of a bin, the sensitivity would be too small.
  # Guard: balls_in_bins_test.test_gram_is_that_of_the_bins.
  @property
  def schema(self) -> participation_lib.Participation:
    return participation_lib.FixedEpoch(self.bins)

  @property
  def rule(self) -> str:
    return (
      f'each client draws one of {self.bins} equally likely bins once, and '
      f'takes part in round t if its bin is t mod {self.bins}'
    )

  def sampler(self, words: samplers.Words) -> samplers.Sampler:
    return samplers.BallsInBins(words, self.known_population(), self.bins)

  def _drawn(self, rounds: int) -> tuple[int, np.ndarray]:
    return self.known_population(), np.full(rounds, 1 / self.bins)

  def needed_noise(self, rounds: int, epsilon: float, delta: float):
    return balls_in_bins_noise.BallsInBinsNoise(
      rounds, epsilon, delta, self.bins
    )

  def accountant(self, strategy: strategies.Strategy) -> accountants.Accountant:
    gram = balls_in_bins.bin_gram(strategy, self.bins)
    mixture_of = functools.partial(balls_in_bins.BallsInBinsMixture, gram)
    return accountants.MonteCarlo(
      strategy, self.schema, mixture_of, self.samples
    )
