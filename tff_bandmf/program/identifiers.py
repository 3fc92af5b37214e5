"""Client identifiers as a ledger keeps them: keyed hashes.

| symbol | name here | meaning                                      |
|--------|-----------|----------------------------------------------|
| s      | `secret`  | 128 bits in a file of mode 0600              |
| c      | client    | an index in the population, or a string      |
| h      |           | 64 bits of BLAKE2b(key = s, c), as an int64  |

Without the key nobody can tell whether a known client is in a ledger. Two
clients with one hash (10^7 clients: with probability 3e-6) are taken for one,
which can only make a participation look worse than it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Iterable
from typing import Union

import numpy as np

from tff_bandmf import durable, errors

Client = Union[int, str]

_BYTES = 16


@dataclasses.dataclass(frozen=True, repr=False)
class Identifiers:
  """The hash function of one ledger; never printed.

  Attributes:
    secret: 16 bytes.
  """

  secret: bytes

  def __post_init__(self):
    if len(self.secret) != _BYTES:
      raise ValueError(
          errors.invalid(
              'len(ledger key)', len(self.secret), f'must be {_BYTES} bytes',
              'restore the file that the ledger was started with'))

  def __repr__(self) -> str:
    return 'Identifiers(<secret>)'

  @classmethod
  def load(cls, path: pathlib.Path) -> Identifiers:
    """Returns those of the key in the file.

    Raises:
      ValueError: there is no such file, or it is not its owner's alone.
    """
    try:
      return cls(durable.load_secret(path, _BYTES, 'ledger key'))
    except FileNotFoundError:
      raise ValueError(
          errors.invalid(
              'ledger key', path, 'is gone, and rounds were already started',
              'without it every client looks new: restore it')) from None

  @classmethod
  def load_or_create(cls, path: pathlib.Path) -> Identifiers:
    """Returns those of the key in the file, which is made if it is missing.

    Raises:
      ValueError: it is there and is not its owner's alone.
    """
    # PRIVACY: on the disk before any round: rounds that outlive their key could
    # not be told from new clients. Guard:
    # durable_test.test_name_appears_after_the_content_is_on_the_disk.
    return cls(durable.load_or_create_secret(path, _BYTES, 'ledger key'))

  def fingerprint(self) -> int:
    """Returns 64 bits, signed, that name the key; one-way."""
    digest = hashlib.blake2b(
        key=self.secret, digest_size=8, person=b'bandmf ledger').digest()
    return int.from_bytes(digest, 'little', signed=True)

  def of(self, clients: Iterable[Client]) -> np.ndarray:
    """Returns the identifiers of clients, [m] int64, in their order.

    Args:
      clients: indices (any kind of integer, at least 0) or strings.

    Raises:
      TypeError: a client is neither.
      ValueError: an index is negative.
    """
    keyed = hashlib.blake2b(
        key=self.secret, digest_size=8, person=b'bandmf client')
    digests = bytearray()
    for name in _names(clients):
      hashed = keyed.copy()
      hashed.update(name)
      digests += hashed.digest()
    return np.frombuffer(digests, '<i8').astype(np.int64, copy=False)


def places(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
  """Returns all places in `known` of what is in `wanted`, ascending.

  Args:
    known: [n] int64 ascending; what is there twice has two places.
    wanted: [m] int64 ascending.
  """
  start = np.searchsorted(known, wanted)
  count = np.searchsorted(known, wanted, 'right') - start
  before = np.cumsum(count) - count
  return np.repeat(start - before, count) + np.arange(count.sum())


def _names(clients: Iterable[Client]) -> Iterable[bytes]:
  """Yields one name a client; no index has the name of a string."""
  if isinstance(clients, range):
    highest = max(clients.start, clients.stop)
    if min(clients.start, clients.stop) >= 0 and highest < 2**63:
      return (b'#%d' % client for client in clients)
  if isinstance(clients, np.ndarray):
    clients = clients.tolist()
  return map(_name, clients)


def _name(client: Client) -> bytes:
  if isinstance(client, str):
    return b'$' + client.encode()
  if isinstance(client, (bool, np.bool_)) or not hasattr(client, '__index__'):
    raise TypeError(
        errors.invalid(
            'client', type(client).__name__, 'must be an integer or a string',
            'name clients by their index or by their identifier'))
  if client < 0:
    raise ValueError(
        errors.invalid(
            'client', client, 'must be at least 0',
            'it is an index in the population'))
  return b'#%d' % client
