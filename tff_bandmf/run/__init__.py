"""A run: one folder, one lock, one key, one ledger, one plan, one position.

A program that is killed is begun again as it is, and goes on.
"""

from tff_bandmf.run.opening import Program
from tff_bandmf.run.rounds import Done, Round
from tff_bandmf.run.run import Run
