"""Files that say whether they are whole, and to which ledger they belong.

  content, 32 bytes: head of the ledger's chain, 32 bytes: SHA-256 of all before

A checkpoint is one. What is behind the content does not keep a reader of ZIP
archives from reading it.
"""

from __future__ import annotations

import hashlib
import pathlib

from tff_bandmf import _files, errors

_BYTES = 32


def seal(content, head: str) -> bytes:
  """Returns what goes behind a content.

  Args:
    content: bytes.
    head: of the chain of the ledger, in hexadecimal.
  """
  sealed = bytes.fromhex(head)
  if len(sealed) != _BYTES:
    raise ValueError(
      errors.invalid(
        'head', head, f'must be {_BYTES} bytes', 'give Ledger.head()'
      )
    )
  digest = hashlib.sha256(content)
  digest.update(sealed)
  return sealed + digest.digest()


def read(path: pathlib.Path) -> tuple[bytes, str]:
  """Returns the content of a file, and the head of its ledger's chain.

  Raises:
    ValueError: it is damaged; one line that names it.
    OSError: it cannot be read.
  """
  found = _files.read(path)
  # Over the whole file: one bit that changed is seen, wherever it is.
  if (
    len(found) < 2 * _BYTES
    or hashlib.sha256(found[:-_BYTES]).digest() != found[-_BYTES:]
  ):
    raise ValueError(
      errors.invalid(
        'checkpoint',
        path,
        'is damaged',
        'restore it, or remove it: the run goes on from the one before',
      )
    )
  return found[: -2 * _BYTES], found[-2 * _BYTES : -_BYTES].hex()
