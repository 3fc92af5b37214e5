"""The search for good strategies.

NumPy and SciPy are all that it takes, but for banded strategies that are not
Toeplitz, and banded Toeplitz ones under a learning rate schedule: their search
imports TensorFlow when it begins.
"""

from tff_bandmf.optimize.families import optimize
from tff_bandmf.optimize.solver import MAX, MEAN, Optimized
