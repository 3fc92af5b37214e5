"""Matrix-factorization noise for differential privacy in federated learning.

This list has all packages; some are single modules. A package imports only
from the packages before it:

Core: the mechanism and its guarantee
  errors         one-line error messages: name=value, the rule, the remedy
  _blas          the number of threads of BLAS
  _checks        checks of arguments that many packages use
  _files         atomic writes, locks, and files that hold secrets
  _figures       pictures of strategies, plans, runs and reports
  workloads      the workload matrix A: prefix sums, momentum, learning rates
  participation  schemas: the rounds in which one client may take part
  clipping_norm  the norm of clipped updates, constant or adaptive
  strategies     the strategy matrix C, its errors and its file
  sensitivity    the sensitivity of C, exact or bounded
  optimize       the search for C
  accounting     noise, zCDP and epsilon, also for sampled cohorts
  choosing       families of C, ranked by error at the same (epsilon, delta)
  noise          the noise C^-1 Z from a key, in NumPy or in a TensorFlow graph
  query          clipping, sums and noise, in NumPy or as a TF Privacy query
  tff            TFF's functions and types, its local runtime, worker processes
  aggregator     a `tff.aggregators` factory (needs TensorFlow Federated)
  plan           the rounds, strategy, noise and guarantee of a run

Applications: runs and their reports
  cohorts        the clients that may take part in a round
  ledger         the durable list of the clients of each round
  run_files      the folder of a run on disk
  report         privacy reports of runs, and of training outside this library
  run            the rounds of a run, from its plan to its report
  flower         training with Flower, whose server rounds are rounds of a run
  verify         the check of a run or a report, without the other packages

Additions, and the command
  reproduction   published tables, computed again
  audit          attacks on a claimed epsilon
  cli            the `bandmf` command
  __main__       the same command, as `python -m tff_bandmf`

An import of `tff_bandmf` imports none of these packages. A public name of
`tff_bandmf`, such as `Plan`, is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from tff_bandmf.accounting import BallsInBins, BMinSep, CyclicPoisson
  from tff_bandmf.clipping_norm import AdaptiveClip
  from tff_bandmf.participation import Budget, FixedEpoch, MinSep, Single
  from tff_bandmf.plan import Mechanism, Plan
  from tff_bandmf.run import Epsilon, Run
  from tff_bandmf.workloads import Workload

__version__ = '0.1.0'

_MODULES = {
  'AdaptiveClip': 'clipping_norm',
  'BMinSep': 'accounting',
  'BallsInBins': 'accounting',
  'Budget': 'participation',
  'CyclicPoisson': 'accounting',
  'Epsilon': 'run',
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
