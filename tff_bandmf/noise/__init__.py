"""Rows of C^-1 Z from a key."""

from tff_bandmf.noise.generators import AES_CTR, PHILOX
from tff_bandmf.noise.key import Key
from tff_bandmf.noise.normal import standard_normal
from tff_bandmf.noise.plan import Plan
from tff_bandmf.noise.served_tape import ServedTape
from tff_bandmf.noise.source import (
    NoiseSource,
    RegenerateSource,
    StateSource,
    TapeSource,
)
from tff_bandmf.noise.tape import Tape
