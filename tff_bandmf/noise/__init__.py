"""Rows of C^-1 Z from a key."""

from tff_bandmf.noise.key import Key
from tff_bandmf.noise.lattice import Lattice
from tff_bandmf.noise.producer.stream import Stream
