"""The server's optimiser: what it makes of the noised mean of updates."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_federated as tff

from simulations import config as config_lib


def learning_rate(training: config_lib.Training, t: tf.Tensor) -> tf.Tensor:
  """Returns the server's learning rate in round t, scalar float32.

    rate * min(1, (t + 1) / warmup)
         * (end + (1 - end) * min(1, (n - t) / cooldown))

  A warm-up of 15% and a cool-down of 25% of the rounds to 0.05 is what the
  experiments of the field use; the defaults are neither.

  Args:
    training: `server_learning_rate` with `server_warmup_rounds`,
      `server_cooldown_rounds` and `server_cooldown_end`.
    t: scalar integer.
  """

  def ramp(rounds, length):
    if not length:
      return 1.0
    return tf.minimum(1.0, tf.cast(rounds, tf.float32) / length)

  end = training.server_cooldown_end
  warm = ramp(t + 1, training.server_warmup_rounds)
  cool = ramp(training.rounds - t, training.server_cooldown_rounds)
  return tf.convert_to_tensor(
    training.server_learning_rate * warm * (end + (1 - end) * cool), tf.float32
  )


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
