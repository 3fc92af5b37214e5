"""The differentially private query that TFF aggregates with."""

from tff_bandmf.query.clipping import clip_record
from tff_bandmf.query.clipping import is_finite_record
from tff_bandmf.query.clipping import record_dimension
from tff_bandmf.query.correlated_noise import CorrelatedNoiseSumQuery
from tff_bandmf.query.correlated_noise import QueryState
