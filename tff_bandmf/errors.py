"""Messages for values that break a rule."""

from __future__ import annotations

import operator
from typing import SupportsIndex

# Characters of a part of a message.
_LONGEST = 400


def invalid(name: str, value: object, rule: str, remedy: str) -> str:
  """Returns one line: the offending name=value, the rule, the remedy.

  >>> invalid('rounds', 0, 'must be at least 1', 'pass the number of rounds')
  'rounds=0: must be at least 1; pass the number of rounds.'

  What a file or a command line holds may stand in it: parts are cut in the
  middle where they are long, and what is no printable character is escaped.

  >>> invalid('family', 'x\\x1b[2J', 'is not known', 'use banded')
  'family=x\\\\x1b[2J: is not known; use banded.'
  """
  return f'{_line(name)}={_line(value)}: {_line(rule)}; {_line(remedy)}.'


def _line(value: object) -> str:
  text = str(value)
  if len(text) > _LONGEST:
    text = f'{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}'
  return text if text.isprintable() else repr(text)[1:-1]


def needs_tff(module: str) -> ImportError:
  """Returns what to raise where TensorFlow Federated is not installed."""
  return ImportError(
    invalid(
      'tensorflow_federated',
      'not installed',
      f'{module} needs TensorFlow Federated 0.87.0',
      'install it from requirements/*.lock: make env',
    )
  )


def check_count(name: str, value: object, remedy: str) -> int:
  """Returns `value` if it is an integer of at least 1, else raises.

  Raises:
    TypeError: `value` is no integer (a bool is none).
    ValueError: `value` is below 1.
  """
  if isinstance(value, bool) or not isinstance(value, SupportsIndex):
    raise TypeError(invalid(name, value, 'must be an integer', remedy))
  count = operator.index(value)
  if count < 1:
    raise ValueError(invalid(name, value, 'must be at least 1', remedy))
  return count


def check_positive(name: str, value: object, remedy: str) -> float:
  """Returns `value` as a float if it is a positive finite number, else raises.

  Raises:
    TypeError: `value` is no real number.
    ValueError: `value` is not positive, or is infinite or NaN.
  """
  if isinstance(value, bool) or not hasattr(value, '__float__'):
    raise TypeError(invalid(name, value, 'must be a number', remedy))
  if not 0 < float(value) < float('inf'):
    raise ValueError(
      invalid(name, value, 'must be positive and finite', remedy)
    )
  return float(value)
