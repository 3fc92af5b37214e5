"""Clipping and noise: the sum of a round and its release.

| name                   | purpose                                            |
|------------------------|----------------------------------------------------|
| `Clipping`             | bounds one client's update, on an integer lattice  |
| `NoisyMean`            | clips, sums and adds the noise of a round          |
| `GraphClipping`        | `Clipping` in TensorFlow, with the same bits       |
| `CorrelatedNoiseQuery` | `NoisyMean` as a TFF query, with the same bits     |
| `check_bounds`         | validates clipping and zeroing norms               |
| `record_dimension`     | counts the coordinates of an update                |

`GraphClipping` and `CorrelatedNoiseQuery` need TensorFlow Privacy, and are
imported when they are first used.
"""

from typing import TYPE_CHECKING
from typing import Any as _Any

from tff_bandmf import errors as _errors
from tff_bandmf.query.clip_bounds import check_bounds, record_dimension
from tff_bandmf.query.clipping import Clipping
from tff_bandmf.query.noisy_mean import NoisyMean

if TYPE_CHECKING:
  from tff_bandmf.query.correlated_noise import (
    RELEASE_NAME,
    CorrelatedNoiseQuery,
  )
  from tff_bandmf.query.graph_clipping import GraphClipping

_IN_A_GRAPH = ('CorrelatedNoiseQuery', 'GraphClipping', 'RELEASE_NAME')


def __getattr__(name: str) -> _Any:
  if name not in _IN_A_GRAPH:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  with _errors.importing(f'query.{name}'):
    from tff_bandmf.query import correlated_noise, graph_clipping
  module = graph_clipping if name == 'GraphClipping' else correlated_noise
  return getattr(module, name)
