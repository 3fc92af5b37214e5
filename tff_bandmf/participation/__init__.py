"""Participation schemas: how often, and how far apart, a client takes part."""

from tff_bandmf.participation.schemas import FixedEpoch
from tff_bandmf.participation.schemas import MinSep
from tff_bandmf.participation.schemas import Participation
from tff_bandmf.participation.schemas import Single
from tff_bandmf.participation.schemas import from_name
