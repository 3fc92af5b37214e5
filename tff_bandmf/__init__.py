"""Matrix-factorization noise for differential privacy in federated learning.

The packages, in the order in which data flows through them; each imports only
from those before it:

  workloads      the matrix A: what is made of the noised sums
  participation  who may take part, how often and how far apart
  clips          what updates are clipped to
  strategies     the matrix C, its errors, its file
  sensitivity    the sensitivity of C under a participation schema
  optimize       the search for a good C (needs TensorFlow)
  accounting     noise multipliers, zCDP, epsilon
  choosing       families ranked at a budget and a memory
  reproduction   published tables, computed again
  noise          rows of C^-1 Z from a key (needs TensorFlow)
  query          a `tfp.SumAggregationDPQuery` (needs TensorFlow Privacy)
  aggregator     a `tff.aggregators` factory (needs TensorFlow Federated)
  program        plans, cohorts, ledger, rounds, checkpoints
  report         the privacy report of a run
  run            a run from its plan to its report
  cli            the `bandmf` command

Importing this package imports none of them; the names of its face come from
them when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from tff_bandmf.accounting import BallsInBins, BMinSep, CyclicPoisson
  from tff_bandmf.clips import AdaptiveClip
  from tff_bandmf.participation import FixedEpoch, MinSep, Single
  from tff_bandmf.program.mechanism import Mechanism
  from tff_bandmf.program.plan import Plan
  from tff_bandmf.run import Run
  from tff_bandmf.workloads import Workload

__version__ = '0.1.0'

_MODULES = {
  'AdaptiveClip': 'clips',
  'BMinSep': 'accounting',
  'BallsInBins': 'accounting',
  'CyclicPoisson': 'accounting',
  'FixedEpoch': 'participation',
  'Mechanism': 'program.mechanism',
  'MinSep': 'participation',
  'Plan': 'program.plan',
  'Run': 'run',
  'Single': 'participation',
  'Workload': 'workloads',
}


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.{_MODULES[name]}'), name)


def __dir__() -> list[str]:
  return sorted([*globals(), *_MODULES])
