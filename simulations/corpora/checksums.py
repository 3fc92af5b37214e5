"""Checksums of the files of a corpus."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import BinaryIO

import tqdm

from tff_bandmf import errors

_BLOCK = 2**20


@contextlib.contextmanager
def read_with_progress(
  path: str, description: str, progress: bool
) -> Iterator[Iterator[bytes]]:
  """Yields an iterator over the blocks of a file, each of at most 1 MiB.

  Args:
    path: path of the file.
    description: text of the progress bar.
    progress: whether to draw a progress bar on standard error.
  """
  with (
    open(path, 'rb') as file,
    tqdm.tqdm(
      total=os.path.getsize(path),
      desc=description,
      unit='B',
      unit_scale=True,
      disable=None if progress else True,
    ) as bar,
  ):
    yield _blocks(file, bar)


def _blocks(file: BinaryIO, bar: tqdm.tqdm) -> Iterator[bytes]:
  while block := file.read(_BLOCK):
    yield block
    bar.update(len(block))


def sha256(path: str, progress: bool = True) -> str:
  """Returns the SHA-256 of a file, in hexadecimal.

  Args:
    path: path of the file.
    progress: whether to draw a progress bar on standard error.
  """
  digest = hashlib.sha256()
  description = f'checking {os.path.basename(path)}'
  with read_with_progress(path, description, progress) as blocks:
    for block in blocks:
      digest.update(block)
  return digest.hexdigest()


def require_published_sha256(path: str, actual: str) -> None:
  """Raises ValueError if `PATH.sha256` states another checksum than `actual`.

  If there is no file `PATH.sha256`, every checksum is accepted.

  Args:
    path: path of a corpus file; `PATH.sha256` is the output of `sha256sum`.
    actual: SHA-256 of the corpus file, in hexadecimal.
  """
  published = path + '.sha256'
  if not os.path.exists(published):
    return
  with open(published, encoding='utf-8', errors='replace') as file:
    expected = (file.readline().split() or [''])[0].lower()
  if expected != actual:
    raise errors.value_error(
      f'sha256={actual}: differs from the checksum in {published}, '
      f'{expected[:64]}; {path} is damaged or another file: fetch it again'
    )
