"""Who took part in which round, durable before the round runs."""

from tff_bandmf.ledger.chain import Attempt
from tff_bandmf.ledger.ledger import Ledger
from tff_bandmf.ledger.observed import Observed
