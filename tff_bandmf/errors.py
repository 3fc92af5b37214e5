"""Messages for values that break a rule."""

from __future__ import annotations

# Characters of a part of a message.
_LONGEST = 400


def invalid(name: str, value: object, rule: str, remedy: str) -> str:
  """Returns one line: the offending name=value, the rule, the remedy.

  >>> invalid('rounds', 0, 'must be at least 1', 'pass the number of rounds')
  'rounds=0: must be at least 1; pass the number of rounds.'

  What a file or a command line holds may stand in it: parts are cut in the
  middle where they are long, and characters that do not print are escaped.

  >>> invalid('family', 'x\\x1b[2J', 'is not known', 'use banded')
  'family=x\\\\x1b[2J: is not known; use banded.'
  """
  return f'{_line(name)}={_line(value)}: {_line(rule)}; {_line(remedy)}.'


def value_error(name: str, value: object, rule: str, remedy: str) -> ValueError:
  """Returns what to raise for a value: its message is that of `invalid`."""
  return ValueError(invalid(name, value, rule, remedy))


def type_error(name: str, value: object, rule: str, remedy: str) -> TypeError:
  """Returns what to raise for a value of another kind, as `value_error`."""
  return TypeError(invalid(name, value, rule, remedy))


def not_installed(package: str, rule: str, remedy: str) -> ImportError:
  """Returns what to raise where a package is missing."""
  return ImportError(invalid(package, 'not installed', rule, remedy))


def _line(value: object) -> str:
  text = str(value)
  if len(text) > _LONGEST:
    text = f'{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}'
  return text if text.isprintable() else repr(text)[1:-1]


def needs_tff(module: str) -> ImportError:
  """Returns what to raise where TensorFlow Federated is not installed."""
  return not_installed(
    'tensorflow_federated',
    f'{module} needs TensorFlow Federated 0.87.0',
    'install it from requirements/*.lock: make env',
  )


def needs_tensorflow(what: str) -> ImportError:
  """Returns what to raise where TensorFlow is not installed."""
  return not_installed(
    'tensorflow',
    f'{what} needs TensorFlow',
    "install it: pip install 'tff-bandmf[optimize]'",
  )


def needs_jax(what: str) -> ImportError:
  """Returns what to raise where JAX is not installed."""
  return not_installed(
    'jax',
    f'{what} needs JAX',
    "install it: pip install 'tff-bandmf[jax]', and JAX's own package for "
    'your accelerator',
  )
