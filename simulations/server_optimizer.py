"""The server's optimiser; its gradient is the noised mean of updates."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf

import tff_bandmf
from simulations import config as config_lib
from tff_bandmf import errors
from tff_bandmf.tff import names as tff


def learning_rate(training: config_lib.Training, t: tf.Tensor) -> tf.Tensor:
  """Returns the server's learning rate in round t, scalar float32.

  Args:
    training: settings with the schedule, `workloads.Workload.learning_rates`.
    t: scalar integer.
  """
  rates = training.server_schedule.learning_rates(training.rounds)
  table = tf.constant(training.server_learning_rate * rates, tf.float32)
  return tf.gather(table, tf.minimum(t, training.rounds - 1))


def build(
  training: config_lib.Training, plan: tff_bandmf.Plan
) -> tff.learning.optimizers.Optimizer:
  """Returns the optimiser.

  The optimiser sees only noised means, so its adaptation costs no privacy.

  Args:
    training: settings with the name and the parameters of the optimiser.
    plan: plan of the run.
  """
  rate = training.server_learning_rate
  optimizers = tff.learning.optimizers
  parameters = (
    rate,
    training.server_momentum,
    training.server_beta_2,
    training.server_epsilon,
  )
  if training.server_optimizer == config_lib.SGD:
    optimizer = optimizers.build_sgdm(rate, training.server_momentum or None)
  elif training.server_optimizer == config_lib.ADAM:
    optimizer = optimizers.build_adam(*parameters)
  elif training.server_optimizer == config_lib.DENOISED_ADAM:
    optimizer = DenoisedAdam(plan, *parameters)
  else:
    optimizer = optimizers.build_yogi(*parameters)
  if training.server_warmup_rounds or training.server_cooldown_rounds:
    return optimizers.schedule_learning_rate(
      optimizer, lambda t: learning_rate(training, t)
    )
  return optimizer


def noise_variances(plan: tff_bandmf.Plan) -> np.ndarray:
  """Returns the noise variance of one coordinate of each mean, [n] float64.

    s_t^2 = (z_stddev |row t of C^-1| / clients_per_round)^2

  Args:
    plan: plan of the run, with one number as its clip.

  Raises:
    ValueError: the clip adapts, or each layer has its own clip, so that s_t is
      not one number.
  """
  clip = plan.l2_norm_clip
  if not isinstance(clip, (int, float)):
    raise errors.value_error(
      f'l2_norm_clip={clip}: must be one number for noise of a known variance; '
      f'give one, or another server_optimizer than {config_lib.DENOISED_ADAM}'
    )
  z_stddev = plan.guarantee.z_stddev_per_clip * clip
  rows = plan.strategy.recursion().row_norms
  return (z_stddev * rows / plan.clients_per_round) ** 2


class DenoisedAdam(tff.learning.optimizers.Optimizer):
  """Adam with an estimate of the second moment of means without noise.

    m_t = beta_1 m_{t-1} + (1 - beta_1) g_t
    v_t = beta_2 v_{t-1} + (1 - beta_2) (g_t^2 - s_t^2)
    w_t = w_{t-1} - rate m_t / (1 - beta_1^t)
                    / sqrt(max(v_t / (1 - beta_2^t), epsilon^2))

  E[g_t^2] is the square of the clients' mean plus the known variance s_t^2,
  which would make steps nearly equal in all coordinates. g_t^2 - s_t^2 may be
  negative by chance, so epsilon^2 is the least second moment. Noise of
  different rounds is correlated, but each g_t^2 contains the noise of one round
  only, so s_t^2 is correct.

  t counts released means. A burnt round releases no mean, and every later s_t
  is then that of one round before.
  """

  def __init__(
    self,
    plan: tff_bandmf.Plan,
    learning_rate: float,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-3,
  ):
    """Initializes the optimiser.

    Args:
      plan: plan of the run; see `noise_variances`.
      learning_rate: learning rate, > 0.
      beta_1: decay of the average of the means, in [0, 1).
      beta_2: decay of the average of their squares, in [0, 1).
      epsilon: least square root of the second moment, > 0, in the unit of an
        update.
    """
    self._variances = noise_variances(plan)
    self._learning_rate = learning_rate
    self._betas = beta_1, beta_2
    self._epsilon = epsilon

  def initialize(self, specs: Any) -> Any:
    def zeros():
      return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)

    return collections.OrderedDict(
      [
        (tff.learning.optimizers.LEARNING_RATE_KEY, self._learning_rate),
        ('step', 0),
        ('mean', zeros()),
        ('square', zeros()),
      ]
    )

  def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
    rate = state[tff.learning.optimizers.LEARNING_RATE_KEY]
    step = tf.convert_to_tensor(state['step'])
    table = tf.constant(self._variances, tf.float32)
    variance = tf.gather(table, tf.minimum(step, len(self._variances) - 1))
    beta_1, beta_2 = self._betas
    done = tf.cast(step + 1, tf.float32)
    mean_weight = 1.0 - beta_1**done
    square_weight = 1.0 - beta_2**done
    mean = tf.nest.map_structure(
      lambda m, g: m + (g - m) * (1.0 - beta_1), state['mean'], gradients
    )
    square = tf.nest.map_structure(
      lambda v, g: v + (tf.square(g) - variance - v) * (1.0 - beta_2),
      state['square'],
      gradients,
    )
    updated = tf.nest.map_structure(
      lambda w, m, v: (
        w
        - rate
        * (m / mean_weight)
        / tf.sqrt(tf.maximum(v / square_weight, self._epsilon**2))
      ),
      weights,
      mean,
      square,
    )
    state = collections.OrderedDict(
      [
        (tff.learning.optimizers.LEARNING_RATE_KEY, rate),
        ('step', step + 1),
        ('mean', mean),
        ('square', square),
      ]
    )
    return state, updated
