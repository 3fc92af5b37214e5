"""Answers of an audit: verdicts, and the lines of a table."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence

from tff_bandmf import _files

PASS, FAIL, CANNOT_TELL = 'pass', 'fail', 'cannot tell'
_BY_NUMBER = operator.itemgetter(1)


@dataclasses.dataclass(frozen=True)
class Answer:
  """The answer to one question.

  Attributes:
    question: name of the question.
    verdict: 'pass', 'fail' or 'cannot tell'.
    statistic: measured number, or a bound on it; NaN or infinite if nothing was
      measured or a released mean is not finite.
    least: least statistic that passes.
    most: largest statistic that passes. If the statistic is an upper bound
      above `most`, the verdict is 'cannot tell'. If the statistic is a lower
      bound, the verdict is 'fail', and `most` is the limit that the bound
      exceeds.
    unit: unit of the statistic, in words.
    false_alarm: largest probability with which a sound aggregator fails the
      question, in [0, 1).
    probes: names of the probes that measured the statistic.
    refused: names of the probes that the aggregator refused.
  """

  question: str
  verdict: str
  statistic: float
  least: float
  most: float
  unit: str
  false_alarm: float
  probes: Sequence[str] = ()
  refused: Sequence[str] = ()

  def to_dict(self) -> _files.JsonObject:
    """Returns the attributes; a number that is not finite becomes None."""
    return {
      name: None
      if isinstance(value, float) and not math.isfinite(value)
      else value
      for name, value in dataclasses.asdict(self).items()
    }

  def __str__(self) -> str:
    number = f'{self.statistic:.6g}' if math.isfinite(self.statistic) else '-'
    return (
      f'{self.verdict:12}{self.question:12}{number} {self.unit}; sound is '
      f'{self.least:.6g} to {self.most:.6g}, false alarm {self.false_alarm:g}'
    )


def texts(answers: Sequence[Answer]) -> list[str]:
  """Returns lines for a table: the answers, and the probes of each answer."""
  lines: list[str] = []
  first: dict[tuple[str, ...], str] = {}
  for answer in answers:
    lines.append(str(answer))
    for word, names in (('at', answer.probes), ('refused', answer.refused)):
      kinds: dict[str, list[str]] = {}
      for name in names:
        kind, _, detail = name.partition(': ')
        kinds.setdefault(kind, []).append(detail)
      text = '; '.join(
        f'{kind}: {", ".join(details)}' for kind, details in kinds.items()
      )
      question = first.setdefault((word, *names), answer.question)
      if question != answer.question:
        text = f'the probes of {question}'
      if names:
        lines.append(f'{"":12}{word:12}{text}')
  return lines


# Lower and upper bound on the contribution of one client, in clips.
Interval = tuple[float, float]


class Bounds:
  """Lower and upper bounds on a number, by probe.

  Attributes:
    low: largest lower bound of each probe.
    high: least upper bound of each probe; infinite if there is none.
  """

  def __init__(self):
    self.low: dict[str, float] = {}
    self.high: dict[str, float] = {}

  def add(self, name: str, interval: Interval) -> None:
    """Adds bounds for a probe; an upper bound that is NaN is ignored."""
    self.low[name] = max(self.low.get(name, 0.0), interval[0])
    if not math.isnan(interval[1]):
      self.high[name] = min(self.high.get(name, math.inf), interval[1])

  def answer(
    self,
    question: str,
    limits: tuple[float, float],
    unit: str,
    false_alarm: float,
    refused: Sequence[str],
  ) -> Answer:
    """Returns the answer that follows from the bounds.

    Args:
      question: name of the question.
      limits: two numbers. If a lower bound exceeds the first number, the answer
        is 'fail'. Otherwise it is 'pass' if no upper bound exceeds the second.
      unit: unit of the number, in words, with {} in place of 'least' or 'most'.
      false_alarm: largest probability with which a bound is wrong.
      refused: names of refused probes.
    """
    nothing = {'no probe': math.inf}
    name, statistic = max((self.low or nothing).items(), key=_BY_NUMBER)
    failed = bool(self.low) and statistic > limits[0]
    if not failed:
      name, statistic = max((self.high or nothing).items(), key=_BY_NUMBER)
    return Answer(
      question,
      verdict(failed, statistic <= limits[1]),
      statistic,
      0.0,
      limits[not failed],
      f'{unit.format("least" if failed else "most")}, by "{name}"',
      false_alarm,
      tuple(self.low),
      tuple(name for name in refused if name not in self.low),
    )


def verdict(failed: bool, decidable: bool) -> str:
  """Returns a verdict; `decidable` is whether the test could have failed."""
  return FAIL if failed else PASS if decidable else CANNOT_TELL
