"""The run of a plan in a folder, from the first round to the report.

A run has its own folder, noise key and ledger, and one process at a time holds
the lock of the folder. A program that is killed and started again continues the
run.
"""

from tff_bandmf.run.opening import RunOptions
from tff_bandmf.run.rounds import Epsilon, FinishedRound, Round
from tff_bandmf.run.run import Run
