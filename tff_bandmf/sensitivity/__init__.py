"""The sensitivity of a strategy under a participation schema."""

from tff_bandmf.sensitivity.sensitivity import EXACT
from tff_bandmf.sensitivity.sensitivity import Sensitivity
from tff_bandmf.sensitivity.sensitivity import sensitivity
from tff_bandmf.sensitivity.sensitivity import UPPER_BOUND
