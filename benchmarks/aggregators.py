"""Aggregators for `bandmf audit --aggregator`, each of a few lines.

  bandmf audit --aggregator benchmarks.aggregators:Ours --l2-norm-clip 1 \
      --z-stddev 1 --clients-per-round 100

Every class is an aggregator with the clip, standard deviation and cohort of
this command. `Flower` needs flwr and `JaxPrivacy` needs jax_privacy: run each
where its package is installed. The aggregators of TensorFlow Federated are in
`tff_aggregators`.
"""

from __future__ import annotations

import logging
import math
import secrets

import numpy as np

CLIP, Z_STDDEV, CLIENTS = 1.0, 1.0, 100
# Rounds of an audit.
ROUNDS = 128


class Ours:
  """`query.NoisyMean`, the aggregation of `Round.release`, in NumPy."""

  def __init__(self, like, noise):
    from tff_bandmf import accounting, participation, query, strategies
    from tff_bandmf.noise import placements

    mean = query.NoisyMean(
      accounting.Guarantee(
        strategies.Identity(ROUNDS),
        participation.Single(),
        Z_STDDEV / CLIP if noise else 0.0,
      ),
      like,
      (CLIP, None, math.inf),
      CLIENTS,
      largest_cohort=CLIENTS,
      placement=placements.Tape(),
    )
    self._mean, self.close = mean, mean.close

  def initialize(self):
    return 0

  def next(self, state, updates, examples):
    return state + 1, self._mean.release(state, updates).mean


class Flower:
  """Flower's `DifferentialPrivacyServerSideFixedClipping` around `FedAvg`."""

  def __init__(self, like, noise):
    from flwr import common
    from flwr.server import strategy

    # Flower logs a line for each client.
    logging.getLogger('flwr').setLevel(logging.ERROR)
    self._common = common
    self._zeros = common.ndarrays_to_parameters(like)
    self._strategy = strategy.DifferentialPrivacyServerSideFixedClipping(
      strategy.FedAvg(),
      noise_multiplier=Z_STDDEV / CLIP if noise else 0.0,
      clipping_norm=CLIP,
      num_sampled_clients=CLIENTS,
    )
    # Clients return weights. The model's weights are 0, so these are the
    # updates.
    self._strategy.current_round_params = like

  def initialize(self):
    return 1

  def next(self, state, updates, examples):
    status = self._common.Status(self._common.Code.OK, '')
    results = [
      (
        None,
        self._common.FitRes(
          status, self._common.ndarrays_to_parameters(update), count, {}
        ),
      )
      for update, count in zip(updates, examples)
    ]
    mean, _ = self._strategy.aggregate_fit(state, results, [])
    return state + 1, self._common.parameters_to_ndarrays(mean)


class JaxPrivacy:
  """jax_privacy's `clipped_fun` and `gaussian_privatizer`."""

  def __init__(self, like, noise):
    import jax
    from jax_privacy import clipping, noise_addition

    self._jax, self._like = jax, like
    self._clipped_sum = jax.jit(
      clipping.clipped_fun(
        lambda update: update, keep_batch_dim=False, l2_clip_norm=CLIP
      )
    )
    self._privatizer = noise_addition.gaussian_privatizer(
      stddev=Z_STDDEV if noise else 0.0,
      prng_key=jax.random.key(secrets.randbits(32)),
    )

  def initialize(self):
    return self._privatizer.init(self._like)

  def next(self, state, updates, examples):
    total = self._clipped_sum([np.stack(layer) for layer in zip(*updates)])
    noisy, state = self._privatizer.update(total, state)
    return state, self._jax.tree.map(lambda leaf: leaf / CLIENTS, noisy)
