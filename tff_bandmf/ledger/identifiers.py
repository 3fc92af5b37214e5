"""Client identifiers in a ledger: 64-bit hashes under a secret key.

| symbol | name here | meaning                                      |
|--------|-----------|----------------------------------------------|
| s      | `secret`  | 128 bits in a file of mode 0600              |
| c      | client    | an index in the population, or a string      |
| h      |           | identifier of c: 64 bits, as an int64        |

For a string, h is BLAKE2b(key = s, c). For an index, h is the result of a
permutation of the 64-bit numbers, which a person with the key can invert. The
permutation is a Feistel network of ten rounds on the halves (x, y), 32 bits
each. Round i of the network is

    (x, y) <- (y, x ^ F(i, y))    F(i, y) = 32 bits of AES(key from s; i, y)

A person who sees far fewer than 2^32 values cannot tell this permutation from a
random permutation ([LR88], [Pat10]: six rounds are enough).

Without the key, nobody can test whether a known client is in a ledger. Two
strings with the same hash count as one client, which can only overstate the
participation. Among 10^7 strings, the probability of two equal hashes is 3e-6.

[LR88]: Luby, Rackoff, How to Construct Pseudorandom Permutations from
Pseudorandom Functions. [Pat10]: Patarin, Security of Balanced and Unbalanced
Feistel Schemes with Linear Non Equalities.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterable

import numpy as np
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms, modes

from tff_bandmf import _files, errors
from tff_bandmf.cohorts import names

_BYTES = 16
_ROUNDS = 10
# Number of values that are permuted at a time; they fit in a cache.
_CHUNK = 2**15


@dataclasses.dataclass(frozen=True, repr=False)
class Identifiers:
  """The keyed hash function of one ledger; `repr` does not show the key.

  Attributes:
    secret: key of the hashes, 16 bytes.
  """

  secret: bytes

  def __repr__(self) -> str:
    return 'Identifiers(<secret>)'

  @classmethod
  def load(cls, path: pathlib.Path, create: bool = False) -> Identifiers:
    """Returns the hash function whose key is in a file.

    Args:
      path: path of the file.
      create: whether to make a key if the file is missing.

    Raises:
      ValueError: the file is missing and `create` is False; or users other than
        its owner can read or write it.
    """
    load: Callable[..., bytes] = _files.load_secret
    if create:
      load = _files.load_or_create_secret
    try:
      return cls(load(path, _BYTES, 'ledger key'))
    except FileNotFoundError:
      raise errors.value_error(
        f'ledger key={path}: is gone, and rounds were already started; restore '
        'the key: without it every client looks new'
      ) from None

  def fingerprint(self) -> int:
    """Returns a fingerprint of the key, a signed integer of 64 bits.

    The fingerprint is a one-way function of the key.
    """
    digest = self._keyed(b'bandmf ledger').digest()
    return int.from_bytes(digest, 'little', signed=True)

  def _keyed(self, person: bytes, size: int = 8) -> hashlib.blake2b:
    """Returns a keyed hash of `size` bytes that has no input yet."""
    return hashlib.blake2b(key=self.secret, digest_size=size, person=person)

  def hashes(self, clients: Iterable[names.Client]) -> np.ndarray:
    """Returns the identifiers of m clients, [m] int64, in the same order.

    Args:
      clients: indices or strings, see `names.names`.

    Raises:
      TypeError: a client is neither an index nor a string, or `clients` has
        both.
      ValueError: an index is negative or has more than 63 bits, or a string
        breaks the rule of `names`.
    """
    clients = names.names(clients)
    if isinstance(clients, np.ndarray):
      permuted = self._permuted(clients.astype(np.uint64), range(_ROUNDS))
      return permuted.view(np.int64)
    keyed = self._keyed(b'bandmf client')
    digests = bytearray()
    for client in clients:
      hashed = keyed.copy()
      hashed.update(b'$' + client.encode())
      digests += hashed.digest()
    return np.frombuffer(digests, '<i8').astype(np.int64)

  def indices(self, identifiers: np.ndarray) -> np.ndarray:
    """Returns the indices of the clients with these identifiers, [m] int64.

    For the identifier of a string, the result is a meaningless number, which
    may be negative.

    Args:
      identifiers: [m] int64, identifiers of m clients.
    """
    # The inverse permutation swaps the halves, applies the rounds of the
    # network in reverse order, and swaps the halves again.
    swapped = _swapped(identifiers.astype(np.int64).view(np.uint64))
    permuted = self._permuted(swapped, reversed(range(_ROUNDS)))
    return _swapped(permuted).view(np.int64)

  def _permuted(self, values: np.ndarray, rounds: Iterable[int]) -> np.ndarray:
    """Returns the output of the Feistel network, uint64, for uint64 values."""
    key = self._keyed(b'bandmf index', 16).digest()
    aes = ciphers.Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    rounds = tuple(rounds)
    # Row i has the halves (y, x) of value i.
    halves = values.astype('<u8').view('<u4').reshape(-1, 2)
    for start in range(0, len(halves), _CHUNK):
      part = halves[start : start + _CHUNK]
      y, x = part.T.copy()
      blocks = np.zeros([len(part), 4], '<u4')
      for i in rounds:
        blocks[:, 0], blocks[:, 1] = y, i
        mixed = np.frombuffer(aes.update(blocks.tobytes()), '<u4')[::4]
        x, y = y, x ^ mixed
      part[:, 0], part[:, 1] = y, x
    return halves.reshape(-1).view(np.uint64)


def _swapped(values: np.ndarray) -> np.ndarray:
  """Returns uint64 values with exchanged 32-bit halves."""
  return values << np.uint64(32) | values >> np.uint64(32)
