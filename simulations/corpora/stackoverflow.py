"""TFF's StackOverflow data: finds, downloads or decompresses its file.

A client is a user. The users of the split 'heldout' are in no other split. The
split 'test' has later posts, mostly of users who are also in 'train'.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import tempfile
from typing import Optional

from simulations.corpora import checksums, corpus_file, registry
from simulations.corpora import vocabulary as vocabulary_lib
from tff_bandmf import _files, errors

FILE = 'stackoverflow.sqlite'
COMPRESSED_FILE = 'stackoverflow.sqlite.lzma'
WORD_COUNTS_FILE = 'stackoverflow.word_count'


def _default_directory() -> str:
  """Returns the folder to which TFF downloads its data sets."""
  return os.path.join(os.path.expanduser('~'), '.tff')


def find(data_dir: Optional[str] = None, progress: bool = True) -> str:
  """Returns the path of the SQLite file.

  Args:
    data_dir: folder of `stackoverflow.sqlite`, or of
      `stackoverflow.sqlite.lzma`, which is decompressed to the same folder.
      None for TFF's folder `~/.tff`; if it has neither file, TFF downloads
      `stackoverflow.sqlite` to it.
    progress: whether to draw progress bars on standard error.

  Raises:
    OSError: `data_dir` has neither file, or the download fails.
    ValueError: the compressed file is damaged.
  """
  directory = data_dir or _default_directory()
  path = os.path.join(directory, FILE)
  compressed = os.path.join(directory, COMPRESSED_FILE)
  if os.path.exists(path):
    return path
  if os.path.exists(compressed):
    return decompress(compressed, progress)
  if data_dir is None:
    _download(path)
    return path
  raise FileNotFoundError(
    errors.invalid(
      f'data_dir={data_dir}: must hold {FILE} or {COMPRESSED_FILE}; put one '
      'there, or leave data_dir out to download it with TFF'
    )
  )


def decompress(compressed: str, progress: bool = True) -> str:
  """Returns the path of the decompressed file, beside the `.lzma` file.

  The decompressed file appears under its name when it is complete. The checksum
  of either file is compared with a file FILE.sha256 in the same folder, if
  there is one. The checksum of the decompressed file is cached.

  Args:
    compressed: path of the `.lzma` file.
    progress: whether to draw a progress bar on standard error.

  Raises:
    ValueError: the file is damaged, or a FILE.sha256 states another checksum.
  """
  path = compressed[: -len('.lzma')]
  decompressor = lzma.LZMADecompressor()
  packed, unpacked = hashlib.sha256(), hashlib.sha256()
  description = f'decompressing {os.path.basename(compressed)}'
  with _files.replacing(path) as temporary:
    with (
      checksums.read_with_progress(compressed, description, progress) as blocks,
      open(temporary, 'wb') as output,
    ):
      try:
        for block in blocks:
          packed.update(block)
          content = decompressor.decompress(block)
          unpacked.update(content)
          output.write(content)
      except (lzma.LZMAError, EOFError) as error:
        raise _damaged(compressed, f'is not an LZMA file: {error}') from error
    if not decompressor.eof:
      raise _damaged(compressed, 'ends too early')
    checksums.require_published_sha256(compressed, packed.hexdigest())
    checksums.require_published_sha256(path, unpacked.hexdigest())
  stat = os.stat(path)
  corpus_file.Content(
    path, stat.st_size, stat.st_mtime_ns, unpacked.hexdigest()
  ).remember()
  return path


def _damaged(path: str, rule: str) -> ValueError:
  return errors.value_error(f'path={path}: {rule}; fetch it again')


def _download(path: str) -> None:
  """Downloads the file with TFF; it appears at `path` when it is complete."""
  from tff_bandmf.tff import names as tff

  directory = os.path.dirname(path)
  os.makedirs(directory, exist_ok=True)
  # TFF writes under the final name, and takes the incomplete file of an
  # interrupted download for complete. So TFF gets a temporary folder here.
  with tempfile.TemporaryDirectory(dir=directory) as temporary:
    try:
      tff.simulation.datasets.stackoverflow.load_data(cache_dir=temporary)
    except OSError as error:
      raise OSError(
        errors.invalid(
          f'data.corpus=stackoverflow: cannot be downloaded: {error}; give '
          f'--data-dir with {FILE} or {COMPRESSED_FILE}, or '
          "data.corpus='docstrings', which needs no network"
        )
      ) from error
    os.replace(os.path.join(temporary, FILE), path)


def vocabulary(
  size: int, data_dir: Optional[str] = None
) -> vocabulary_lib.Vocabulary:
  """Returns the vocabulary of the literature, from TFF's word counts.

  The count of a word is the number of users of 'train' who wrote it.

  Args:
    size: number of words, >= 1; the words with the largest counts are taken.
    data_dir: folder that holds `stackoverflow.word_count`, in itself or in its
      subfolder `datasets`. TFF downloads a missing file to `datasets`. None for
      TFF's folder `~/.tff`.

  Raises:
    OSError: the file is missing and cannot be downloaded.
    ValueError: the file has fewer than `size` words.
  """
  directory = data_dir or _default_directory()
  for folder in (directory, os.path.join(directory, 'datasets')):
    path = os.path.join(folder, WORD_COUNTS_FILE)
    if os.path.exists(path):
      return vocabulary_lib.read(path, size)
  from tff_bandmf.tff import names as tff

  try:
    tff.simulation.datasets.stackoverflow.load_word_counts(directory)
  # Keras raises a plain Exception for a failed download.
  except Exception as error:
    reason = ' '.join(str(error).split())
    raise OSError(
      errors.invalid(
        f'data_dir={directory}: has no {WORD_COUNTS_FILE}, and the file cannot '
        f'be downloaded: {reason}; put it there, give '
        'data.vocabulary_file, or give the path of the .sqlite file as '
        'data.corpus to count its words'
      )
    ) from error
  return vocabulary_lib.read(path, size)


CORPUS = registry.Corpus(
  'stackoverflow',
  find,
  lambda path, size, data_dir: vocabulary(size, data_dir),
  "TFF's, by the number of train users, counted without noise",
  takes_data_dir=True,
)
