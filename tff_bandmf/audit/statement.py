"""The statement about an aggregator, and the answers that audits give to it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Callable, Optional

import numpy as np

from tff_bandmf import _files
from tff_bandmf.audit import aggregators

PASS, FAIL, CANNOT_TELL = 'pass', 'fail', 'cannot tell'


@dataclasses.dataclass(frozen=True)
class Statement:
  """A statement of the author of an aggregator.

  Attributes:
    l2_norm_clip: largest norm of one client's contribution to the sum, > 0.
    z_stddev: standard deviation of z, in clips, > 0.
    clients_per_round: B, number of clients and divisor of the mean, >= 1.
    matrix: C, [n, n] float64, lower-triangular; the identity for noise that is
      independent between rounds. An audit runs at most n rounds.
  """

  l2_norm_clip: float
  z_stddev: float
  clients_per_round: int
  matrix: np.ndarray


@dataclasses.dataclass(frozen=True)
class Answer:
  """The answer to one question.

  Attributes:
    question: name of the question.
    verdict: 'pass', 'fail' or 'cannot tell'.
    statistic: measured number; None if it is not finite or was not measured.
    least: least statistic of a sound aggregator.
    most: largest statistic of a sound aggregator.
    unit: unit of the statistic, in words.
    false_alarm: probability with which a sound aggregator fails.
  """

  question: str
  verdict: str
  statistic: Optional[float]
  least: float
  most: float
  unit: str
  false_alarm: float

  @property
  def passes(self) -> bool:
    """Whether the aggregator passed a test that it could have failed."""
    return self.verdict == PASS

  def to_dict(self) -> _files.JsonObject:
    """Returns the attributes as JSON values."""
    return dataclasses.asdict(self)

  def __str__(self) -> str:
    number = '-' if self.statistic is None else f'{self.statistic:.6g}'
    return (
      f'{self.verdict:12}{self.question:12}{number} {self.unit}; sound is '
      f'{self.least:.6g} to {self.most:.6g}, false alarm {self.false_alarm:g}'
    )


@dataclasses.dataclass(frozen=True)
class Subject:
  """An aggregator and the statement that it is compared with.

  Attributes:
    make: function that returns a new aggregator; see `aggregators`.
    statement: statement of its author.
    false_alarm: probability with which a sound aggregator fails a question.
    on_round: function that is called after every round.
  """

  make: aggregators.Make
  statement: Statement
  false_alarm: float
  on_round: Callable[[], object]

  def opened(
    self, shapes: Sequence[tuple[int, ...]], noise: bool = True
  ) -> contextlib.AbstractContextManager[Optional[aggregators.Run]]:
    """Returns a new run for a `with` block; see `aggregators.opened`."""
    return aggregators.opened(self.make, shapes, noise, self.on_round)

  def answer(
    self,
    question: str,
    verdict: str,
    statistic: float,
    limits: tuple[float, float],
    unit: str,
  ) -> Answer:
    """Returns an answer with the false alarm of this audit."""
    return Answer(
      question,
      verdict,
      float(statistic) if math.isfinite(statistic) else None,
      float(limits[0]),
      float(limits[1]),
      unit,
      self.false_alarm,
    )
