"""The DP aggregator for TFF's learning algorithms; needs TFF.

| name                     | purpose                                          |
|--------------------------|--------------------------------------------------|
| `dp_aggregator`          | creates the aggregation factory of one run       |
| `CorrelatedNoiseFactory` | the factory: guarantee, process, measurements    |
| `check_process`          | names the values released without noise          |
| `skip_round`             | returns the state after a round without release  |
"""

from tff_bandmf.aggregator.check_process import check_process
from tff_bandmf.aggregator.factory import (
  CorrelatedNoiseFactory,
  dp_aggregator,
  skip_round,
)
