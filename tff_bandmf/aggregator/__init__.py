"""TFF aggregation factories (needs TensorFlow Federated)."""

from tff_bandmf import errors as _errors

try:
  import tensorflow_federated as _  # noqa: F401
except ImportError as _error:
  raise ImportError(
      _errors.invalid(
          'tensorflow_federated', 'not installed',
          'tff_bandmf.aggregator and tff_bandmf.program.runtime need '
          'TensorFlow Federated 0.87.0',
          'install it from requirements/*.lock: make env')) from _error

from tff_bandmf.aggregator.factory import (
  CorrelatedNoiseFactory,
  correlated_noise_aggregator,
)
