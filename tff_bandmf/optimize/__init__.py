"""The search for good strategies, in TensorFlow."""

from tff_bandmf.optimize.toeplitz import MEAN, MAX
from tff_bandmf.optimize.toeplitz import optimize_banded_toeplitz
from tff_bandmf.optimize.toeplitz import Optimized
