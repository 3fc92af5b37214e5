"""The key of the noise of one run: 256 secret bits."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import secrets
from typing import Union

from tff_bandmf import _files, errors

_BYTES = 32


@dataclasses.dataclass(frozen=True, repr=False)
class Key:
  """256 bits from which all z of a run are made; never printed.

  Whoever knows the key can take the noise off every release. It stands in its
  file and, with noise in TFF's state, in the server state; nowhere else.

  Attributes:
    secret: 32 bytes.
  """

  secret: bytes

  def __post_init__(self):
    if len(self.secret) != _BYTES:
      raise errors.value_error(
        'len(key)',
        len(self.secret),
        f'must be {_BYTES} bytes',
        'use Key.from_entropy()',
      )

  def __repr__(self) -> str:
    return 'Key(<secret>)'

  @classmethod
  def from_entropy(cls) -> Key:
    """Returns a fresh key from the operating system."""
    return cls(secrets.token_bytes(_BYTES))

  @classmethod
  def from_seed(cls, seed: int) -> Key:
    """Returns the key that belongs to an integer, for repeatable simulations.

    The noise is as secret as the seed: a seed that can be guessed protects
    nobody.

    Raises:
      TypeError: `seed` is not an integer.
    """
    if isinstance(seed, bool) or not hasattr(seed, '__index__'):
      raise errors.type_error(
        'noise_seed',
        type(seed).__name__,
        'must be an integer',
        'leave it out to draw a key from the operating system',
      )
    return cls(
      hashlib.blake2b(
        str(int(seed)).encode(), digest_size=_BYTES, person=b'tff_bandmf seed'
      ).digest()
    )

  @classmethod
  def load_or_create(cls, path: Union[str, os.PathLike]) -> Key:
    """Returns the key in the file, which is made (mode 0600) if missing.

    Raises:
      ValueError: the file is not 32 bytes long, or is not its owner's alone.
      OSError: it cannot be read or made.
    """
    return cls(
      _files.load_or_create_secret(pathlib.Path(path), _BYTES, 'key file')
    )

  def identify(self, subject: bytes) -> int:
    """Returns 63 bits that name this key and subject; one-way.

    Public, so that a state can say which noise it belongs to. Who can guess
    the key (a small seed) can check the guess with it.
    """
    digest = hashlib.blake2b(
      subject, key=self.secret, digest_size=8, person=b'tff_bandmf id'
    ).digest()
    return int.from_bytes(digest, 'little') >> 1
