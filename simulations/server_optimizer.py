"""The server's optimiser: what it makes of the noised mean of updates."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_federated as tff

from simulations import config as config_lib


def learning_rate(training: config_lib.Training, t: tf.Tensor) -> tf.Tensor:
  """Returns the server's learning rate in round t, scalar float32.

  Args:
    training: gives the schedule, `workloads.Workload.learning_rates`.
    t: scalar integer.
  """
  rates = training.server_schedule.learning_rates(training.rounds)
  table = tf.constant(training.server_learning_rate * rates, tf.float32)
  return tf.gather(table, tf.minimum(t, training.rounds - 1))


def build(training: config_lib.Training) -> tff.learning.optimizers.Optimizer:
  """Returns the optimiser.

  It sees the noised means alone: adapting to them costs no privacy.
  """
  rate = training.server_learning_rate
  optimizers = tff.learning.optimizers
  if training.server_optimizer == config_lib.SGD:
    optimizer = optimizers.build_sgdm(rate, training.server_momentum or None)
  elif training.server_optimizer == config_lib.ADAM:
    optimizer = optimizers.build_adam(
      rate,
      training.server_momentum,
      training.server_beta_2,
      training.server_epsilon,
    )
  else:
    optimizer = optimizers.build_yogi(
      rate,
      training.server_momentum,
      training.server_beta_2,
      training.server_epsilon,
    )
  if training.server_warmup_rounds or training.server_cooldown_rounds:
    return optimizers.schedule_learning_rate(
      optimizer, lambda t: learning_rate(training, t)
    )
  return optimizer
