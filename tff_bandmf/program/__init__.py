"""What a training program adds: cohorts, their ledger, the TFF runtime.

`runtime`, `data_source` and `folder` are imported by their own names,
since they need TensorFlow or TensorFlow Federated.
"""

from tff_bandmf.program.admission import Admission, admit
from tff_bandmf.program.availability import Diurnal
from tff_bandmf.program.chain import Attempt
from tff_bandmf.program.cohorts import CohortError, CohortSampler
from tff_bandmf.program.history import History
from tff_bandmf.program.ledger import Ledger
from tff_bandmf.program.observed import Observed
from tff_bandmf.program.run_record import RunRecord
