"""The differentially private query that TFF aggregates with."""

from tff_bandmf.query.clipping import Clipping, record_dimension
from tff_bandmf.query.correlated_noise import (
    CorrelatedNoiseSumQuery,
    MeanQuery,
    QueryState,
)
