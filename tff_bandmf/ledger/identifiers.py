"""Client identifiers in a ledger: hashes of 64 bits under a secret key.

| symbol | name here | meaning                                      |
|--------|-----------|----------------------------------------------|
| s      | `secret`  | 128 bits in a file of mode 0600              |
| c      | client    | an index in the population, or a string      |
| h      |           | 64 bits, as an int64                         |

For a string, h is BLAKE2b(key = s, c). For an index, h is a permutation of 64
bits, which a holder of the key can invert: ten rounds of a Feistel network on
two halves (x, y) of 32 bits,

    (x, y) <- (y, x ^ F(i, y))    F(i, y) = 32 bits of AES(key from s; i, y)

which cannot be told from a random permutation with far fewer than 2^32 values
([LR88], [Pat10]: six rounds are enough).

Without the key nobody can test whether a known client is in a ledger. Two
strings with the same hash count as one client, which can only overstate the
participation; among 10^7 strings the probability of such a pair is 3e-6.

[LR88]: Luby, Rackoff, How to Construct Pseudorandom Permutations from
Pseudorandom Functions. [Pat10]: Patarin, Security of Balanced and Unbalanced
Feistel Schemes with Linear Non Equalities.
"""

from __future__ import annotations

import dataclasses
import hashlib
import operator
import pathlib
from collections.abc import Iterable
from typing import Union

import numpy as np
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms, modes

from tff_bandmf import _files, errors

Client = Union[int, str]

_BYTES = 16
_ROUNDS = 10
# Number of values at a time, so that they fit in a cache.
_CHUNK = 2**15


@dataclasses.dataclass(frozen=True, repr=False)
class Identifiers:
  """The hash function of one ledger; never printed.

  Attributes:
    secret: 16 bytes.
  """

  secret: bytes

  def __post_init__(self):
    if len(self.secret) != _BYTES:
      raise errors.value_error(
        f'len(ledger key)={len(self.secret)}: must be {_BYTES} bytes; restore '
        'the file that the ledger was started with'
      )

  def __repr__(self) -> str:
    return 'Identifiers(<secret>)'

  @classmethod
  def load(cls, path: pathlib.Path) -> Identifiers:
    """Returns the hash function of the key in a file.

    Raises:
      ValueError: there is no file, or others than its owner can use it.
    """
    try:
      return cls(_files.load_secret(path, _BYTES, 'ledger key'))
    except FileNotFoundError:
      raise errors.value_error(
        f'ledger key={path}: is gone, and rounds were already started; without '
        'it every client looks new: restore it'
      ) from None

  @classmethod
  def load_or_create(cls, path: pathlib.Path) -> Identifiers:
    """Returns the hash function of the key in a file; makes a missing file.

    Raises:
      ValueError: others than its owner can use the file.
    """
    return cls(_files.load_or_create_secret(path, _BYTES, 'ledger key'))

  def fingerprint(self) -> int:
    """Returns 64 bits, signed, a one-way function of the key."""
    digest = hashlib.blake2b(
      key=self.secret, digest_size=8, person=b'bandmf ledger'
    ).digest()
    return int.from_bytes(digest, 'little', signed=True)

  def hashes(self, clients: Iterable[Client]) -> np.ndarray:
    """Returns the identifiers of clients, [m] int64, in their order.

    Args:
      clients: indices or strings, see `names`.

    Raises:
      TypeError: a client is neither an index nor a string, or there are both.
      ValueError: an index is negative, or has more than 63 bits.
    """
    clients = names(clients)
    if isinstance(clients, np.ndarray):
      return self._permuted(clients.astype(np.uint64), range(_ROUNDS))
    keyed = hashlib.blake2b(
      key=self.secret, digest_size=8, person=b'bandmf client'
    )
    digests = bytearray()
    for client in clients:
      hashed = keyed.copy()
      hashed.update(b'$' + client.encode())
      digests += hashed.digest()
    return np.frombuffer(digests, '<i8').astype(np.int64)

  def indices(self, identifiers: np.ndarray) -> np.ndarray:
    """Returns the indices that have these identifiers, [m] int64.

    The identifier of a string gives a meaningless number, maybe a negative one.

    Args:
      identifiers: [m] int64.
    """
    # The inverse is the same network, in reverse order, with swapped halves.
    swapped = _swapped(identifiers.astype(np.int64).view(np.uint64))
    return _swapped(
      self._permuted(swapped, reversed(range(_ROUNDS))).view(np.uint64)
    ).view(np.int64)

  def _permuted(self, values: np.ndarray, rounds: Iterable[int]) -> np.ndarray:
    """Returns the network's output for [m] uint64, as int64."""
    key = hashlib.blake2b(
      key=self.secret, digest_size=16, person=b'bandmf index'
    ).digest()
    aes = ciphers.Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    rounds = tuple(rounds)
    permuted = np.empty(len(values), np.uint64)
    for start in range(0, len(values), _CHUNK):
      part = values[start : start + _CHUNK]
      x = (part >> np.uint64(32)).astype('<u4')
      y = part.astype('<u4')
      blocks = np.zeros([len(part), 4], '<u4')
      for i in rounds:
        blocks[:, 0], blocks[:, 1] = y, i
        mixed = np.frombuffer(aes.update(blocks.tobytes()), '<u4')[::4]
        x, y = y, x ^ mixed
      permuted[start : start + _CHUNK] = x.astype(np.uint64) << np.uint64(
        32
      ) | y.astype(np.uint64)
    return permuted.view(np.int64)


def names(clients: Iterable[Client]) -> Union[np.ndarray, list[str]]:
  """Returns the names of clients, [m], in their order: all of one kind.

  Args:
    clients: indices (any kind of integer, at least 0) or strings, in a list, a
      range or an array of any dtype.

  Returns:
    int64 indices, or strings in a list. No clients give an array of indices.

  Raises:
    TypeError: a client is neither an index nor a string, or there are both.
    ValueError: an index is negative, or has more than 63 bits.

  >>> names(np.array([3, np.int32(1)], object)).tolist()
  [3, 1]
  """
  if isinstance(clients, range):
    clients = np.arange(clients.start, clients.stop, clients.step)
  if isinstance(clients, np.ndarray) and clients.dtype.kind in 'iu':
    for client in (clients.min(), clients.max()) if len(clients) else ():
      _index(client)
    return clients.astype(np.int64)
  if isinstance(clients, np.ndarray):
    # The elements of an array of objects keep their kinds.
    clients = clients.tolist()
  clients = list(clients)
  strings = sum(isinstance(client, str) for client in clients)
  # PRIVACY: a program that reads names from two sources may have '1' and 1 for
  # one client, which would take part twice within min_sep. NumPy would make
  # strings of both, so a mixture is refused before any conversion.
  # Guard: identifiers_test.test_names_of_two_kinds_are_refused.
  if 0 < strings < len(clients):
    raise errors.type_error(
      f'clients={strings} strings and {len(clients) - strings} others: must be '
      'all indices or all strings: 1 and "1" would be two clients; name all '
      'clients in one way'
    )
  if strings:
    return [client for client in clients if isinstance(client, str)]
  return np.array([_index(client) for client in clients], np.int64)


def _swapped(values: np.ndarray) -> np.ndarray:
  """Returns [m] uint64 with their halves exchanged."""
  return values << np.uint64(32) | values >> np.uint64(32)


def _index(client: object) -> int:
  if isinstance(client, (bool, np.bool_)) or not hasattr(client, '__index__'):
    raise errors.type_error(
      f'client={type(client).__name__}: must be an integer or a string; name '
      'clients by their index or by their identifier'
    )
  index = operator.index(client)
  if not 0 <= index < 2**63:
    rule = 'must be at least 0' if index < 0 else 'must be below 2^63'
    raise errors.value_error(
      f'client={index}: {rule}; it is an index in the population'
    )
  return index
