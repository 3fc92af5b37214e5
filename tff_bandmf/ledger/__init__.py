"""A ledger of the clients of each round, durable before the round runs."""

from typing import TYPE_CHECKING
from typing import Any as _Any

from tff_bandmf.ledger.chain import Attempt, Attempts
from tff_bandmf.ledger.counts import Counts

if TYPE_CHECKING:
  from tff_bandmf.ledger.ledger import Ledger


def __getattr__(name: str) -> _Any:
  # This import is here since it loads SQLAlchemy, which only `Ledger` needs.
  if name != 'Ledger':
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  from tff_bandmf.ledger import ledger

  return ledger.Ledger
