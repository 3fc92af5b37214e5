"""The search for good strategies, in NumPy and SciPy."""

from tff_bandmf.optimize.families import optimize
from tff_bandmf.optimize.solver import MAX, MEAN, Noise, Optimized
