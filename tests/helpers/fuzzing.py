"""Shared parts of the fuzz tests: number of cases, damaged files, checks.

BANDMF_FUZZ_CASES=10000 runs about 10,000 cases in place of 800.
BANDMF_FRESH_CASES=1 draws the cases with a fresh seed. `make fuzz` sets both.
"""

import contextlib
import copy
import json
import os
import resource
import signal
import tracemalloc

import hypothesis
from hypothesis import strategies as st

_SHARES = 2000
_CASES = int(os.environ.get('BANDMF_FUZZ_CASES', 800))
# Maximum duration of a case, also on a busy machine.
_SECONDS = 60
# Number of bytes that a case may allocate, whatever the size of its input.
_FREE_BYTES = 48 * 2**20
# Further bytes that a case may allocate for each byte of JSON, which becomes
# Python lists and then arrays.
_BYTES_A_BYTE = 60
# Growth of the address space that a case may need, far too small to make a
# machine swap.
_ADDRESS_SPACE = 2**29
_LONGEST_MESSAGE = 2000

# Values that replace a value of a file.
ODD_VALUES = (
  None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 10**18, -(10**18), 10**400,
  0.0, -0.0, 0.5, 1e-320, 1e308, float('nan'), float('inf'), -float('inf'),
  '', '1', 'x', '0.5', 'banded', 'stamped', 'min-sep', 'single', 'a' * 5000,
  '\x1b[2J\nnew line\u2028\x00\u202e', '\ud800', '../../etc/passwd', [], {},
  [[]], [1.0], [1.0, 0.5], [[1.0]], [1, [2]], ['a' * 20_000] + ['b'] * 20_000,
  [True], [10**400], {'family': 'identity'}, {'rounds': 3}, {'': {}},
)  # fmt: skip
_ODD_KEYS = (
  '', 'rounds', 'rounds_', 'lambda_', 'self', 'family', 'block', 'coefficients',
  'values', '__class__', '\x00', 'k' * 3000,
)  # fmt: skip


class Hang(BaseException):
  """A case took too long. No program catches this BaseException."""


def cases(share):
  """Returns a decorator that sets the number of cases of a test.

  Args:
    share: number of cases if the fuzz tests have 2,000 in all, >= 1.
  """
  return hypothesis.settings(
    max_examples=max(1, share * _CASES // _SHARES),
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
  )


@contextlib.contextmanager
def bounded(size=None):
  """Fails on a case that hangs, or that allocates much for its input.

  Memory counts when Python, NumPy or JSON allocates it, even if it is not used.
  Without `size` the memory is not counted, because counting is slow; a case
  that needs half a gigabyte then fails with a MemoryError.

  Args:
    size: size of the input in bytes, or None.
  """

  def stop(*_):
    raise Hang(f'more than {_SECONDS} s')

  before = resource.getrlimit(resource.RLIMIT_AS)
  with open('/proc/self/statm') as stream:
    used = int(stream.read().split()[0]) * resource.getpagesize()
  handler = signal.signal(signal.SIGALRM, stop)
  resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESS_SPACE, before[1]))
  signal.setitimer(signal.ITIMER_REAL, _SECONDS)
  peak = 0
  if size is not None:
    tracemalloc.start()
  try:
    yield
    if size is not None:
      peak = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
    signal.setitimer(signal.ITIMER_REAL, 0)
    resource.setrlimit(resource.RLIMIT_AS, before)
    signal.signal(signal.SIGALRM, handler)
  assert peak <= _FREE_BYTES + _BYTES_A_BYTE * (size or 0), (peak, size)


def check_message(text, secrets=()):
  """Checks that an error is one short, printable line without secrets."""
  assert text.strip()
  assert len(text) <= _LONGEST_MESSAGE, text[:300]
  assert text.isprintable(), repr(text)
  text.encode()
  for secret in secrets:
    assert secret not in text


def check_cli(run, *arguments, statuses=(0, 2), size=None, **kwargs):
  """Runs `bandmf`, and checks that status 2 comes with one line of error.

  Args:
    run: function from arguments to status, standard output and standard error.
    *arguments: arguments of `run`.
    statuses: statuses that the command may have.
    size: argument of `bounded`.
    **kwargs: arguments of `check_message`.
  """
  with bounded(size):
    status, out, error = run(*arguments)
  assert status in statuses
  if status == 2:
    assert out == ''
    assert error.endswith('\n')
    assert 'Unable to allocate' not in error and error[0] != ';', error
    check_message(error[:-1], **kwargs)
  return status, out


@st.composite
def damaged(draw, documents):
  """Draws one of several JSON objects, with one to three values changed.

  Args:
    draw: function of Hypothesis.
    documents: the JSON objects.
  """
  tree = copy.deepcopy(draw(st.sampled_from(documents)))
  for _ in range(draw(st.integers(1, 3))):
    _damage(draw, tree)
  return tree


def _damage(draw, tree):
  """Changes one value of a tree of dictionaries and lists, in place."""
  container, key = draw(st.sampled_from(list(_places(tree)) or [(tree, 'x')]))
  if isinstance(container, dict) and key not in container:
    container[key] = draw(st.sampled_from(ODD_VALUES))
    return
  value = container[key]
  change = draw(st.integers(0, 12))
  if change == 0:
    del container[key]
  elif change == 1 and isinstance(container, dict):
    container[draw(st.sampled_from(_ODD_KEYS))] = container.pop(key)
  elif change == 2 and isinstance(container, list):
    container.insert(0, copy.deepcopy(value))
  elif change == 3:
    container[key] = [value] * draw(st.sampled_from((1, 2, 40)))
  elif change == 4 and isinstance(value, (int, float)) and value == value:
    container[key] = draw(
      st.sampled_from((-value, value + 1, value * 1000, str(value)))
    )
  else:
    container[key] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))


def _places(tree):
  """Yields (container, key) of every value in nested containers."""
  items = tree.items() if isinstance(tree, dict) else enumerate(tree)
  for key, value in list(items):
    yield tree, key
    if isinstance(value, (dict, list)):
      yield from _places(value)


@st.composite
def json_bytes(draw, documents):
  """Draws the bytes of a JSON file with changed values or changed text."""
  if draw(st.integers(0, 3)):
    return json.dumps(draw(damaged(documents))).encode()
  text = json.dumps(draw(st.sampled_from(documents)))
  return draw(
    st.sampled_from(
      (
        b'[' * 20_000,
        b'{"a":' * 10_000,
        b'\xef\xbb\xbf' + text.encode(),
        text.encode('utf-16'),
        text.encode('utf-32'),
        b'',
        b'null',
        b'[]',
        b'1' * 5000,
        text.replace(
          '{', '{"rounds": 9, "rounds": 3, "format": "x", ', 1
        ).encode(),
        text.replace('"rounds":', '"rounds": 3, "rounds":', 1).encode(),
        text.replace(': ', ': 1e999, "x": ', 1).encode(),
        b'\x00' * 1000,
      )
    )
    | flipped(text.encode())
  )


@st.composite
def flipped(draw, content):
  """Draws `content` with bytes changed, removed, repeated or inserted."""
  content = bytearray(content)
  for _ in range(draw(st.integers(1, 4))):
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    change = draw(st.integers(0, 4))
    if change == 0:
      del content[place:]
    elif change == 1:
      content[place:place] = draw(st.binary(max_size=16))
    elif change == 2:
      del content[place : place + draw(st.integers(1, 64))]
    elif change == 3:
      content += content[place : place + 64]
    elif content:
      content[place] = draw(st.integers(0, 255))
  return bytes(content)
