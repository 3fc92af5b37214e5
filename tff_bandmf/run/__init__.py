"""A run of a plan: one folder, one lock, one key, one ledger, one position.

A program that is killed and started again goes on with its run.
"""

from tff_bandmf.run.opening import RunOptions
from tff_bandmf.run.rounds import Done, Round
from tff_bandmf.run.run import Run
