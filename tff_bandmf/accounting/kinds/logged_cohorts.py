"""Cohorts of a finished run, read from its log."""

from __future__ import annotations

from typing import ClassVar

import attrs

from tff_bandmf import _files, errors, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf import sensitivity as sensitivity_lib
from tff_bandmf.accounting.methods import accountants


@attrs.frozen(eq=False)
class Logged(participation_lib.Cohorts):
  """Cohorts of a finished run, read from its log.

  The guarantee is about the rounds in which clients took part according to this
  log, whether or not a schema was enforced. It holds if participation did not
  depend on private data.

  Attributes:
    observed: statistics of the participation patterns in the log, with the
      sensitivity of C for these patterns.
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
      strategy: C of the noise that was added in the run.
      clients_per_unit: largest number of clients of one unit of privacy.

    Raises:
      ValueError: the sensitivity in `observed` is for another strategy.
    """
    observed = self.observed
    # PRIVACY: The sensitivity of another C may be far smaller than the
    # sensitivity of the C whose noise was added, and epsilon would be too
    # small. If `observed` has the digest of another C, it is refused.
    # Guard: guarantee_test.test_log_seen_with_another_strategy_is_refused.
    if observed.sensitivity and observed.strategy_sha256 != strategy.digest():
      raise errors.value_error(
        f'strategy={strategy.digest()[:16]}: the sensitivity of the log was '
        f'computed for strategy {str(observed.strategy_sha256)[:16]}; '
        'give sensitivity.of_clients the strategy of the guarantee'
      )
    # PRIVACY: Clients in a log may have taken part more often than planned, and
    # epsilon of the planned rounds would be too small. The claim uses the
    # sensitivity for the patterns in the log.
    # Guard: accounting_cohorts_test.test_log_claims_what_its_clients_did.
    return accountants.Gaussian(
      strategy,
      self.schema,
      sensitivity=observed.sensitivity,
      clients_per_unit=clients_per_unit,
    )

  def to_dict(self) -> _files.JsonObject:
    """Returns `min_sep` and `max_participations` of the log, as JSON."""
    return {
      'participation': self.name,
      'min_sep': self.observed.min_sep,
      'max_participations': self.observed.max_participations,
    }
