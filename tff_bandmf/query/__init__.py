"""Clipping and noise as a TFF query: what one round adds up and releases.

| name                   | purpose                                          |
|------------------------|--------------------------------------------------|
| `Clipping`             | bounds one client's update, on an integer lattice |
| `CorrelatedNoiseQuery` | sums clipped updates and adds the noise of round t |
| `check_bounds`         | validates clipping and zeroing norms             |
| `record_dimension`     | counts the coordinates of an update              |
"""

from tff_bandmf import errors as _errors

try:
  import tensorflow_privacy as _  # noqa: F401
except ImportError as _error:
  raise _errors.needs_tensorflow_privacy(
    'what clips and adds noise, round.release too,'
  ) from _error

from tff_bandmf.query.clipping import (
  Clipping,
  check_bounds,
  record_dimension,
)
from tff_bandmf.query.correlated_noise import RELEASE_NAME, CorrelatedNoiseQuery
