"""The key of the noise of one run: 256 secret bits."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import secrets
from typing import SupportsIndex, Union

from tff_bandmf import _checks, _files, errors

# PRIVACY: An attacker could guess a shorter key, and subtract the noise. Keys
# have 256 bits.
# Guard: key_test.test_key_is_never_printed.
_BYTES = 32


@dataclasses.dataclass(frozen=True, repr=False)
class Key:
  """256 secret bits from which all noise of a run is computed.

  A person who knows the key can subtract the noise from every release, so the
  representation of a `Key` does not show the bits. Only `load_or_create` stores
  a key.

  Attributes:
    secret: the key, 32 bytes.
  """

  secret: bytes

  def __post_init__(self):
    if len(self.secret) != _BYTES:
      raise errors.value_error(
        f'len(key)={len(self.secret)}: must be {_BYTES} bytes; use '
        'Key.from_entropy()'
      )

  def __repr__(self) -> str:
    return 'Key(<secret>)'

  @classmethod
  def from_entropy(cls) -> Key:
    """Returns a fresh key that the operating system draws."""
    return cls(secrets.token_bytes(_BYTES))

  @classmethod
  def from_seed(cls, seed: int) -> Key:
    """Returns a key derived from an integer, for repeatable simulations.

    The noise is as secret as the seed: if an attacker can guess the seed, the
    run has no privacy.

    Args:
      seed: integer of any size and sign.

    Raises:
      TypeError: `seed` is not an integer.
    """
    if not _checks.is_number(seed, SupportsIndex):
      raise errors.type_error(
        f'noise_seed={type(seed).__name__}: must be an integer; leave it out '
        'to draw a key from the operating system'
      )
    text, person = str(int(seed)).encode(), b'tff_bandmf seed'
    digest = hashlib.blake2b(text, digest_size=_BYTES, person=person)
    return cls(digest.digest())

  @classmethod
  def load_or_create(cls, path: Union[str, os.PathLike]) -> Key:
    """Returns the key in a file; a missing file is made with a new key.

    Args:
      path: path of the file, mode 0600.

    Raises:
      ValueError: the file is not 32 bytes long, is a link or not a regular
        file, or users other than its owner can use it.
      OSError: the file cannot be read or written.
    """
    path = pathlib.Path(path)
    return cls(_files.load_or_create_secret(path, _BYTES, 'key file'))

  def identify(self, subject: bytes) -> int:
    """Returns a 63-bit one-way fingerprint of the key and a subject.

    The fingerprint is public: TFF's server state carries the fingerprint as the
    ID of the noise. If the key comes from a seed that can be guessed, the
    fingerprint confirms a right guess.

    Args:
      subject: bytes that say what the fingerprint is for. Two subjects give two
        different fingerprints of the same key.
    """
    digest = hashlib.blake2b(
      subject, key=self.secret, digest_size=8, person=b'tff_bandmf id'
    ).digest()
    return int.from_bytes(digest, 'little') >> 1
