"""The server's optimiser, which takes the noisy mean update as its gradient."""

from __future__ import annotations

import tensorflow as tf

from simulations import config as config_lib
from tff_bandmf.tff import names as tff


def learning_rate(training: config_lib.Training, t: tf.Tensor) -> tf.Tensor:
  """Returns the server's learning rate in round t, a scalar float32 tensor.

  Args:
    training: settings with the largest learning rate, the warm-up and the
      cooldown.
    t: index of the round, a scalar integer tensor.
  """
  rates = training.server_schedule.learning_rates(training.rounds)
  table = tf.constant(training.server_learning_rate * rates, tf.float32)
  return tf.gather(table, tf.minimum(t, training.rounds - 1))


def build(training: config_lib.Training) -> tff.learning.optimizers.Optimizer:
  """Returns the server's optimiser.

  The optimiser computes only with noisy means, so an adaptive optimiser costs
  no more privacy than SGD.

  Args:
    training: settings with the name of the optimiser and its parameters.
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
  else:
    optimizer = optimizers.build_yogi(*parameters)
  if training.server_warmup_rounds or training.server_cooldown_rounds:
    return optimizers.schedule_learning_rate(
      optimizer, lambda t: learning_rate(training, t)
    )
  return optimizer
