"""Cohorts that follow a participation schema.

| name            | purpose                                                   |
|-----------------|-----------------------------------------------------------|
| `admit`         | selects from clients that checked in                      |
| `CohortSampler` | draws cohorts                                             |
| `History`       | last round and number of rounds of each client            |
| `Patterns`      | all rounds of each client, for a budget                   |
"""

from tff_bandmf.cohorts.admission import Admission, admit
from tff_bandmf.cohorts.cohort_sampler import CohortError, CohortSampler
from tff_bandmf.cohorts.history import AnyHistory, History, Patterns
from tff_bandmf.cohorts.history import empty as empty_history
