"""The DP aggregator for TFF's learning algorithms; needs TFF.

| name                     | purpose                                          |
|--------------------------|--------------------------------------------------|
| `dp_aggregator`          | makes the aggregation factory of one run         |
| `CorrelatedNoiseFactory` | the factory: guarantee, process, measurements    |
| `check_process`          | names what a process releases without noise      |
| `skip_round`             | state after a round that is not released         |
"""

from tff_bandmf.aggregator.check_process import check_process
from tff_bandmf.aggregator.factory import (
  CorrelatedNoiseFactory,
  dp_aggregator,
  skip_round,
)
