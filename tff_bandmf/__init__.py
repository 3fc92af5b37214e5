"""Matrix-factorization noise for differential privacy in federated learning.

The packages, in the order in which data flows through them; each imports only
from those before it:

  errors         how a refusal is worded: name=value, the rule, the remedy
  _checks        checks of values that many rooms take
  _files         files that survive a crash, and secrets in files
  workloads      the matrix A: prefix sums, momentum, learning rates
  participation  schemas: who may take part, how often, how far apart
  clips          the norm that updates are clipped to, fixed or adaptive
  strategies     the matrix C, its errors, its file
  sensitivity    how far one client moves C, exact or bounded
  optimize       the search for C (large ones need TensorFlow)
  accounting     noise multipliers, zCDP, epsilon; kinds of cohorts; slack
  choosing       families ranked by error at a budget and a memory
  reproduction   published tables, computed again
  noise          rows of C^-1 Z from a key, on the lattice; in NumPy or a graph
  query          clipping and noising, in NumPy or as a `tfp` query
  tff            the names, the runtime and the workers of TFF
  aggregator     a `tff.aggregators` factory (needs TensorFlow Federated)
  cohorts        who may take part in a round now
  plan           what a run will do, and what it will guarantee
  ledger         who took part in which round
  run_files      the folder of a run on disk
  audit          what an attack can show of a claimed epsilon
  report         what may be said of a run, and of a log
  run            the loop, from a plan to its report
  verify         whether a report is right, by code that imports no other room
  cli            the `bandmf` command
  __main__       the same command, as `python -m tff_bandmf`

Importing this package imports none of them; the names of its face come from
them when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from tff_bandmf.accounting import BallsInBins, BMinSep, CyclicPoisson
  from tff_bandmf.clips import AdaptiveClip
  from tff_bandmf.participation import Budget, FixedEpoch, MinSep, Single
  from tff_bandmf.plan import Mechanism, Plan
  from tff_bandmf.run import Run
  from tff_bandmf.workloads import Workload

__version__ = '0.1.0'

_MODULES = {
  'AdaptiveClip': 'clips',
  'BMinSep': 'accounting',
  'BallsInBins': 'accounting',
  'Budget': 'participation',
  'CyclicPoisson': 'accounting',
  'FixedEpoch': 'participation',
  'Mechanism': 'plan',
  'MinSep': 'participation',
  'Plan': 'plan',
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
