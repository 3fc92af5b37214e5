"""The search for good strategies, in TensorFlow."""

from tff_bandmf.optimize.toeplitz import (
    MAX,
    MEAN,
    Optimized,
    optimize_banded_toeplitz,
)
