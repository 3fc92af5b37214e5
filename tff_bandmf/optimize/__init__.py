"""The search for good strategies.

Most searches need NumPy and SciPy only. The searches for banded strategies that
are not Toeplitz, and for banded Toeplitz strategies under a learning rate
schedule, import TensorFlow when they begin.
"""

from tff_bandmf.optimize.families import optimize
from tff_bandmf.optimize.solver import MAX, MEAN, Optimized
