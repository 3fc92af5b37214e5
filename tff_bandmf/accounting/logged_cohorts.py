"""Who took part in a run that is over, as its log shows."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf import strategies
from tff_bandmf.accounting import accountants


@attrs.frozen(eq=False)
class Logged:
  """Cohorts of a run that is over, as its log shows them.

  Nobody need have enforced anything: the guarantee is about the rounds that
  clients really took. It is a statement about this log, and holds if who took
  part did not depend on private data.

  Attributes:
    found: what the log shows, with the sensitivity of the strategy.
  """

  name: ClassVar[str] = 'log'
  adjacency: ClassVar[str] = participation_lib.ZERO_OUT
  found: sensitivity_lib.Observed

  @property
  def schema(self) -> participation_lib.Participation:
    """The least schema that the log keeps."""
    if self.found.min_sep is None:
      return participation_lib.Single()
    return participation_lib.MinSep(
      self.found.min_sep, self.found.max_participations
    )

  def accountant(
    self, strategy: strategies.Strategy, clients_per_unit: int = 1
  ) -> accountants.Accountant:
    """Returns what accounts for a strategy, and units of so many clients."""
    # PRIVACY: of the log, which may be worse than any schema that was planned.
    # Guard: accounting_cohorts_test.test_log_claims_what_its_clients_did.
    return accountants.Logged(
      strategy, self.schema, self.found.sensitivity, clients_per_unit
    )

  def to_dict(self) -> dict[str, Any]:
    """Returns the counts of the log as a JSON object."""
    return {
      'participation': self.name,
      'min_sep': self.found.min_sep,
      'max_participations': self.found.max_participations,
    }
