"""The plan of a run: its strategy, its noise, its guarantee and its error.

| name        | purpose                                         |
|-------------|-------------------------------------------------|
| `Plan`      | a request, and the strategy and noise for it    |
| `Request`   | the values that a user asks for                 |
| `Mechanism` | a family of strategies and its parameters       |
"""

from tff_bandmf.plan.mechanism import Mechanism
from tff_bandmf.plan.plan import Plan
from tff_bandmf.plan.request import Request
