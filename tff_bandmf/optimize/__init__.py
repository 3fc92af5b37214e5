"""The search for good strategies.

What needs TensorFlow, which takes long to import, is imported when it is used:
closed-form families and scalar sweeps do without.
"""

from tff_bandmf.optimize.families import optimize
from tff_bandmf.optimize.solver import MAX, MEAN, Optimized
