"""Cohorts of a run that is over, as its log shows them."""

from __future__ import annotations

from typing import ClassVar

import attrs

from tff_bandmf import _files, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting.methods import accountants


@attrs.frozen(eq=False)
class Logged(participation_lib.Cohorts):
  """Cohorts of a run that is over, as its log shows them.

  No schema need have been enforced: the guarantee is about the rounds in which
  clients took part. It is a statement about this one log, and holds if the
  participation of clients did not depend on private data.

  Attributes:
    observed: patterns in the log, and the sensitivity of C for them.
  """

  name: ClassVar[str] = 'log'
  adjacency: ClassVar[str] = participation_lib.ZERO_OUT
  observed: sensitivity_lib.Observed

  @property
  def schema(self) -> participation_lib.Participation:
    """The strictest schema that the log satisfies."""
    if self.observed.min_sep is None:
      return participation_lib.Single()
    return participation_lib.MinSep(
      self.observed.min_sep, self.observed.max_participations
    )

  def accountant(
    self, strategy: strategies.Strategy, clients_per_unit: int = 1
  ) -> accountants.Accountant:
    """Returns the accountant of a strategy.

    Args:
      strategy: C, whose noise was added in the run.
      clients_per_unit: largest number of clients of one unit of privacy.

    Raises:
      ValueError: the sensitivity in `observed` is another strategy's.
    """
    # PRIVACY: another C may have a far smaller sensitivity than the C whose
    # noise was added. An observation with the digest of another C is refused.
    # Guard: guarantee_test.test_log_seen_with_another_strategy_is_refused.
    if (
      self.observed.sensitivity is not None
      and self.observed.strategy_sha256 != strategy.digest()
    ):
      raise errors.value_error(
        f'strategy={strategy.digest()[:16]}: is not the one that the log was '
        f'looked at with, {str(self.observed.strategy_sha256)[:16]}; give '
        'sensitivity.of_clients the strategy of the guarantee'
      )
    # PRIVACY: clients in a log may have taken part more often than planned. The
    # claim is made from the sensitivity of the log.
    # Guard: accounting_cohorts_test.test_log_claims_what_its_clients_did.
    return accountants.Logged(
      strategy, self.schema, self.observed.sensitivity, clients_per_unit
    )

  def to_dict(self) -> _files.JsonObject:
    """Returns the counts of the log as a JSON object."""
    return {
      'participation': self.name,
      'min_sep': self.observed.min_sep,
      'max_participations': self.observed.max_participations,
    }
