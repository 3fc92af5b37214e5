"""Benchmarks of sampled cohorts: drawing them, and calibrating their noise."""

from __future__ import annotations

import statistics
import time
from typing import Any

_CLIENTS = 10**7
_ROUNDS = 8


def sampled() -> list[dict[str, Any]]:
  """Returns the time to draw 10^4 of 10^7 clients, for each kind of cohorts.

  `seconds` is the median time of a round. `begin` is the time in seconds to
  create the sampler, once in every start of a program.
  """
  from tff_bandmf import accounting
  from tff_bandmf.noise import generator, key

  results = []
  for cohorts in (
    accounting.CyclicPoisson(1e-3, 1, population=_CLIENTS),
    accounting.CyclicPoisson(0.064, 64, population=_CLIENTS),
    accounting.BallsInBins(1000, population=_CLIENTS),
    accounting.BMinSep(342, 1 / 658, population=_CLIENTS),
  ):
    words = generator.Generator(key.Key.from_entropy()).words
    began = time.perf_counter()
    sampler = cohorts.sampler(words)
    begin = time.perf_counter() - began
    seconds, sizes = [], []
    for t in range(_ROUNDS):
      began = time.perf_counter()
      sizes.append(len(sampler.cohort(t)))
      seconds.append(time.perf_counter() - began)
    results.append(
      {
        'cohorts': cohorts.to_dict(),
        'size': statistics.mean(sizes),
        'begin': begin,
        'seconds': statistics.median(seconds),
      }
    )
  return results


def calibration() -> list[dict[str, Any]]:
  """Returns the CPU time to calibrate the noise of 2,048 rounds by sampling."""
  from tff_bandmf import accounting, strategies

  strategy = strategies.BandedSqrt(2048, 342)
  results = []
  for cohorts in accounting.BallsInBins(342), accounting.BMinSep(342, 1 / 342):
    began = time.process_time()
    guarantee = accounting.calibrate(strategy, cohorts, epsilon=8.0, delta=1e-6)
    bound = guarantee.claim(1e-6)
    results.append(
      {
        'cohorts': cohorts.name,
        'noise_multiplier': guarantee.noise_multiplier,
        'estimate': bound.estimate,
        'bound': bound.upper,
        'cpu_seconds': time.process_time() - began,
        'goal_cpu_seconds': 30.0,
      }
    )
  return results
