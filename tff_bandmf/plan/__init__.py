"""A plan: what a run does, what it guarantees and what that costs.

| name        | purpose                                                       |
|-------------|---------------------------------------------------------------|
| `Plan`      | values that the user asks for, and the guarantee found for it |
| `Mechanism` | a family of strategies and its parameters                     |
"""

from tff_bandmf.plan.mechanism import Mechanism
from tff_bandmf.plan.plan import Plan
