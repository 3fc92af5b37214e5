"""What a training program adds: cohorts, their ledger, the TFF runtime.

`runtime` is imported by its own name, since it needs TensorFlow Federated.
"""

from tff_bandmf.program.cohorts import CohortError, CohortSampler, History
from tff_bandmf.program.ledger import Ledger, Observed
