"""A ledger of the clients of each round, durable before the round runs."""

from tff_bandmf.ledger.chain import Attempt
from tff_bandmf.ledger.ledger import Ledger
from tff_bandmf.ledger.observed import Observed
