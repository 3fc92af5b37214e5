"""Aggregators of TensorFlow Federated for `bandmf audit --aggregator`.

  bandmf optimize --family online-tree --rounds 128 --min-sep 128 \
      --out tree.json
  bandmf audit tree.json --aggregator benchmarks.tff_aggregators:tree \
      --l2-norm-clip 1 --z-stddev 1 --clients-per-round 100

The noise of the other functions is independent: leave out the file.
`aggregators` defines clip, standard deviation and cohort.
"""

from __future__ import annotations

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import aggregators
from tff_bandmf import aggregator, participation, strategies

_CLIP, _CLIENTS = aggregators.CLIP, aggregators.CLIENTS


def _noise_multiplier(noise):
  return aggregators.Z_STDDEV / _CLIP if noise else 0.0


def ours(like, noise):
  """Returns `dp_aggregator` with the noise of `aggregators.Ours`."""
  return aggregator.dp_aggregator(
    _noise_multiplier(noise),
    _CLIENTS,
    l2_norm_clip=_CLIP,
    strategy=strategies.Identity(aggregators.ROUNDS),
    participation=participation.Single(),
  )


def gaussian_fixed(like, noise):
  """Returns `DifferentiallyPrivateFactory.gaussian_fixed`."""
  return tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier=_noise_multiplier(noise),
    clients_per_round=_CLIENTS,
    clip=_CLIP,
  )


def gaussian_adaptive(like, noise):
  """Returns `DifferentiallyPrivateFactory.gaussian_adaptive`.

  Its learning rate is 0, because an audit needs a clip that is stated: with the
  default of 0.2 the clip follows the updates. A noise multiplier of 1 is for
  the sum and for the count of clipped updates together. So the sum has noise of
  (1 - 1 / (2 * 5)^2)^(-1/2) = 1.00504 clips.
  """
  return tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
    noise_multiplier=_noise_multiplier(noise),
    clients_per_round=_CLIENTS,
    initial_l2_norm_clip=_CLIP,
    learning_rate=0.0,
  )


def tree(like, noise):
  """Returns `DifferentiallyPrivateFactory.tree_aggregation`."""
  return tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
    noise_multiplier=_noise_multiplier(noise),
    clients_per_round=_CLIENTS,
    l2_norm_clip=_CLIP,
    record_specs=[tf.TensorSpec(each.shape) for each in like],
  )
