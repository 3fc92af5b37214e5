"""What a training program adds: cohorts, their ledger, the TFF runtime.

`runtime` is imported by its own name, since it needs TensorFlow Federated.
"""

from tff_bandmf.program.cohorts import CohortError
from tff_bandmf.program.cohorts import CohortSampler
from tff_bandmf.program.cohorts import History
from tff_bandmf.program.ledger import Ledger
from tff_bandmf.program.ledger import Observed
