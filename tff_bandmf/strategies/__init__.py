"""Strategy matrices C: one file a family."""

from tff_bandmf.strategies.banded_toeplitz import BandedToeplitz
from tff_bandmf.strategies.base import Strategy
from tff_bandmf.strategies.dense import Dense
from tff_bandmf.strategies.files import check_path, load, save
from tff_bandmf.strategies.identity import Identity
