"""Messages for values that break a rule."""

from __future__ import annotations


def invalid(name: str, value: object, rule: str, remedy: str) -> str:
  """Returns one line: the offending name=value, the rule, the remedy.

  >>> invalid('rounds', 0, 'must be at least 1', 'pass the number of rounds')
  'rounds=0: must be at least 1; pass the number of rounds.'
  """
  return f'{name}={value}: {rule}; {remedy}.'


def check_count(name: str, value: object, remedy: str) -> int:
  """Returns `value` if it is an integer of at least 1, else raises.

  Raises:
    TypeError: `value` is no integer (a bool is none).
    ValueError: `value` is below 1.
  """
  if isinstance(value, bool) or not hasattr(value, '__index__'):
    raise TypeError(invalid(name, value, 'must be an integer', remedy))
  if value < 1:
    raise ValueError(invalid(name, value, 'must be at least 1', remedy))
  return int(value)


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
