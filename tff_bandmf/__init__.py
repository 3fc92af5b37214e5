"""Matrix-factorization noise for differential privacy in federated learning.

The packages, in the order in which data flows through them; each imports only
from those before it:

  workloads      the matrix A: what is made of the noised sums
  participation  who may take part, how often and how far apart
  strategies     the matrix C, its errors, its file
  sensitivity    the sensitivity of C under a participation schema
  optimize       the search for a good C (needs TensorFlow)
  accounting     noise multipliers, zCDP, epsilon
  choosing       families ranked at a budget and a memory
  reproduction   published tables, computed again
  noise          rows of C^-1 Z from a key (needs TensorFlow)
  query          a `tfp.SumAggregationDPQuery` (needs TensorFlow Privacy)
  aggregator     a `tff.aggregators` factory (needs TensorFlow Federated)
  program        runtime, cohorts, ledger: what a training program adds
  report         the privacy report of a finished run
  cli            the `bandmf` command

Importing this package imports none of them.
"""

__version__ = '0.1.0'
