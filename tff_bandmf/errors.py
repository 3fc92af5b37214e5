"""Errors in one line: a value, the rule that the value breaks, and the remedy.

| function                          | purpose                                  |
|-----------------------------------|------------------------------------------|
| `value_error`, `type_error`       | errors for a value that breaks a rule    |
| `needs`, `missing`                | errors for a package that is missing     |
| `importing`                       | raises `missing` for a failed import     |
| `invalid`                         | text of an error, in one line            |
| `from_assertion`                  | error for a failed TensorFlow assertion  |
| `notice`                          | writes a line to the log and to standard |
|                                   | error                                    |

Lines go to the logger 'tff_bandmf' of Python's logging. While the logger has
its own handler, `notice` also writes to standard error, for programs without
logging.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator
from typing import Optional

# Maps the package of an import to its name in sentences and to the extra that
# installs it.
EXTRAS = {
  'dacite': ('dacite', 'tff,simulations'),
  'flwr': ('Flower 1.41 or later', 'flower'),
  'jax': ('JAX', 'jax'),
  'matplotlib': ('Matplotlib', 'plots'),
  'psycopg2': ('psycopg2', 'postgresql'),
  'pyarrow': ('PyArrow', 'logs'),
  'tensorboard': ('TensorBoard', 'tensorboard'),
  'tensorflow': ('TensorFlow', 'tff'),
  'tensorflow_federated': ('TensorFlow Federated 0.87.0', 'tff'),
  'tensorflow_privacy': ('TensorFlow Privacy 0.9.0', 'tff'),
}
# Largest number of characters of a message. A longer message loses its middle.
_LONGEST = 800
# TensorFlow prints a failed assertion of a graph as '[part] [part]', and a
# failed eager assertion with each part on a separate line.
_IN_A_GRAPH = re.compile(r'assertion failed: (\[[^\]]*\](?: \[[^\]]*\])*)')
_BRACKETS = re.compile(r'\[([^\]]*)\]')
_NOT_IN_A_WORKER = re.compile(
  r"(?:No OpKernel was registered to support Op|Op type not registered) '(\w+)'"
)
_NO_SEQUENCE = re.compile(
  r'Cannot serialize Python type (\w+) as TFF type (.*\*)\.'
)
_EAGER = re.compile(r'to be true\. Summarized data: (.*)', re.DOTALL)
_BYTES = re.compile(r"b(['\"])(.*)\1")


def invalid(message: str) -> str:
  """Returns a message in one line: `name=value: the rule; the remedy`.

  >>> invalid('rounds=0: must be at least 1; pass the number of rounds')
  'rounds=0: must be at least 1; pass the number of rounds.'

  Values in the message may come from a file or a command line. So a message
  that is too long loses its middle, and characters that do not print are
  escaped.

  >>> invalid('family=x\\x1b[2J: is not known; use banded')
  'family=x\\\\x1b[2J: is not known; use banded.'
  """
  if len(message) > _LONGEST:
    message = f'{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}'
  shown = (each if each.isprintable() else repr(each)[1:-1] for each in message)
  return ''.join(shown) + '.'


def value_error(message: str) -> ValueError:
  """Returns the error for a value that breaks a rule; see `invalid`."""
  return ValueError(invalid(message))


def type_error(message: str) -> TypeError:
  """Returns the error for a value of a wrong type; see `invalid`."""
  return TypeError(invalid(message))


LOGGER = logging.getLogger('tff_bandmf')
# A program that removes this handler keeps `notice` from standard error.
_TERMINAL = logging.NullHandler()
LOGGER.addHandler(_TERMINAL)


def notice(line: str, level: int = logging.WARNING) -> None:
  """Writes a line to the log, and to standard error above progress bars."""
  LOGGER.log(level, '%s', line)
  if _TERMINAL in LOGGER.handlers:
    import tqdm  # A late import keeps `bandmf --help` fast.

    # If standard error is closed, the calling thread must continue.
    with contextlib.suppress(OSError, ValueError):
      tqdm.tqdm.write(line, file=sys.stderr)


def install(extra: str) -> str:
  """Returns the remedy if packages of an extra of the library are missing.

  >>> install('logs')
  "install it: pip install '.[logs]' in the folder of the sources"
  """
  return f"install it: pip install '.[{extra}]' in the folder of the sources"


def from_assertion(error: Exception) -> Optional[ValueError]:
  """Returns a one-line error for a known error of TensorFlow or TFF, else None.

  If an assertion failed, the message has the parts of the assertion, without
  the names of graph nodes that TensorFlow adds. If a worker cannot read the
  data of clients, the message has a remedy.

  Args:
    error: exception that a TensorFlow or TFF computation raised.

  >>> text = 'assertion failed: [too many:] [3]\\n [[{{node}}]]'
  >>> from_assertion(RuntimeError(text))
  ValueError('too many: 3')
  >>> text = 'Expected x to be true. Summarized data: '
  >>> from_assertion(RuntimeError(text + "b'too many:'\\n3"))
  ValueError('too many: 3')
  """
  text = str(error)
  if operation := _NOT_IN_A_WORKER.search(text):
    return value_error(
      f'operation={operation[1]}: cannot run in the worker of TFF, which has '
      'only TensorFlow, without Python; for data from from_generator, '
      'py_function or another package give the batches, list(dataset)'
    )
  if kind := _NO_SEQUENCE.search(text):
    return value_error(
      f'data={kind[1]}: cannot be data of a client, whose type is {kind[2]}; '
      'give a tf.data.Dataset or a list of batches'
    )
  if graph := _IN_A_GRAPH.search(text):
    return ValueError(_BRACKETS.sub(r'\1', graph[1]))
  if eager := _EAGER.search(text):
    lines = (_BYTES.sub(r'\2', line) for line in eager[1].splitlines())
    return ValueError(' '.join(lines))
  return None


def needs(package: str, what: str, extra: str = '') -> ImportError:
  """Returns the error if a package of an extra is not installed.

  Args:
    package: name by which the package is imported, a key of `EXTRAS`.
    what: feature that needs the package.
    extra: the extra that installs the package; '' for the extra in `EXTRAS`.
  """
  name, usual = EXTRAS[package]
  extra = extra or usual
  remedy = install(extra)
  if extra.startswith('tff'):
    remedy += ', on Python 3.9 to 3.11'
  if extra == 'jax':
    remedy += ", and JAX's own package for your accelerator"
  if package == 'tensorflow_federated':
    remedy += (
      ', and then pip install --no-deps tensorflow-federated==0.87.0 '
      'google-vizier==0.1.11; or make env, which does both'
    )
  return ImportError(
    invalid(f'{package}=not installed: {what} needs {name}; {remedy}')
  )


def missing(
  error: BaseException, what: str, extra: str = ''
) -> Optional[ImportError]:
  """Returns the error for a missing package of `EXTRAS`, else None.

  Args:
    error: any exception.
    what: feature that needs the package.
    extra: see `needs`.
  """
  package = str(getattr(error, 'name', '')).partition('.')[0]
  if isinstance(error, ModuleNotFoundError) and package in EXTRAS:
    return needs(package, what, extra)
  return None


@contextlib.contextmanager
def importing(what: str, extra: str = '') -> Iterator[None]:
  """Raises the error of `missing` if an import in a `with` block fails.

  Args:
    what: feature that needs the packages.
    extra: see `needs`.
  """
  try:
    yield
  except ModuleNotFoundError as error:
    if better := missing(error, what, extra):
      raise better from error
    raise
