"""The server's optimiser, which takes the noisy mean update as its gradient."""

from __future__ import annotations

import tensorflow as tf

from simulations import config as config_lib
from tff_bandmf.tff import names as tff


def learning_rate(training: config_lib.Training, t: tf.Tensor) -> tf.Tensor:
  """Returns the server's learning rate in round t, a scalar float32 tensor.

  Args:
    training: settings of the learning rates.
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
  if training.server_weight_decay:
    optimizer = _Decaying(optimizer, training.server_weight_decay / rate)
  if not training.server_schedule.is_toeplitz:
    return optimizers.schedule_learning_rate(
      optimizer, lambda t: learning_rate(training, t)
    )
  return optimizer


class _Decaying(tff.learning.optimizers.Optimizer):
  """An optimiser with weight decay that is decoupled from its gradients."""

  def __init__(
    self, optimizer: tff.learning.optimizers.Optimizer, decay: float
  ):
    """Makes the optimiser.

    Args:
      optimizer: the optimiser that computes the step of a round.
      decay: fraction of the model that a round removes, divided by the learning
        rate of the round.
    """
    self._optimizer, self._decay = optimizer, decay

  def initialize(self, specs):
    return self._optimizer.initialize(specs)

  def next(self, state, weights, gradients):
    removed = self._decay * state[tff.learning.optimizers.LEARNING_RATE_KEY]
    state, stepped = self._optimizer.next(state, weights, gradients)
    return state, tf.nest.map_structure(
      lambda after, before: after - tf.cast(removed, before.dtype) * before,
      stepped,
      weights,
    )
