"""Which mechanism has the least error at a privacy budget and a memory."""

from tff_bandmf.choosing.choose import (
  Choice,
  Ranking,
  choose,
  choose_cyclic_poisson,
)
