"""The vocabulary of a model: its words and their ids.

A vocabulary counted on the train split reveals the most frequent words of the
clients, without noise. As in the literature, the guarantee of a training run
does not cover this choice of words. With `data.vocabulary_file`, the words can
come from other text.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
from typing import Optional

from simulations.corpora import corpus_file
from tff_bandmf import _checks, _files, errors

# Maximum number of words whose counts are cached.
_WORDS_CACHED = 200_000


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Words and their ids, in the order of TFF's StackOverflow task.

  | id        | meaning                                            |
  |-----------|----------------------------------------------------|
  | 0         | padding                                            |
  | 1 to V    | words                                              |
  | V + 1     | out of vocabulary: any other word                  |
  | V + 2     | beginning of a sentence                            |
  | V + 3     | end of a sentence                                  |

  A model has `num_ids` = V + 4 embeddings and as many logits.

  Attributes:
    words: V distinct words, V >= 1; the word at index i has id i + 1.

  >>> Vocabulary(('the', 'of')).encode('the heart of the matter', 6)
  [4, 1, 3, 2, 1, 3, 5]
  """

  words: tuple[str, ...]

  def __post_init__(self):
    if not self.words or len(set(self.words)) != len(self.words):
      raise errors.value_error(
        f'len(words)={len(self.words)}: must be at least 1, and all words '
        f'distinct; {len(set(self.words))} words are distinct'
      )

  @property
  def size(self) -> int:
    return len(self.words)

  @property
  def out_of_vocabulary_id(self) -> int:
    return self.size + 1

  @property
  def beginning_id(self) -> int:
    return self.size + 2

  @property
  def end_id(self) -> int:
    return self.size + 3

  @property
  def num_ids(self) -> int:
    return self.size + 4

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {word: index + 1 for index, word in enumerate(self.words)}

  def encode(self, sentence: str, sequence_length: int) -> list[int]:
    """Returns `sequence_length + 1` ids: beginning, words, end, padding.

    As in TFF, the result has no end if the sentence has `sequence_length` words
    or more.

    Args:
      sentence: words with single spaces between them.
      sequence_length: maximum number of words, >= 1; further words are dropped.
    """
    words = sentence.split(' ', sequence_length)[:sequence_length]
    unknown = self.out_of_vocabulary_id
    ids = [self.beginning_id]
    ids += [self._ids.get(word, unknown) for word in words]
    if len(words) < sequence_length:
      ids += [self.end_id] + [0] * (sequence_length - 1 - len(words))
    return ids

  def fingerprint(self) -> str:
    """Returns the SHA-256 of the words in order, in hexadecimal."""
    return hashlib.sha256('\n'.join(self.words).encode('utf-8')).hexdigest()

  def write(self, path: str) -> None:
    """Writes a file for `read`, with one word a line."""
    _files.write(
      pathlib.Path(path),
      ''.join(f'{word}\n' for word in self.words).encode(),
    )


def read(path: str, size: int) -> Vocabulary:
  """Returns the first words of a file with one word a line, in UTF-8.

  Args:
    path: path of the file. A line may be a word and its count, as in TFF's
      `stackoverflow.word_count`.
    size: number of words to read, >= 1.

  Raises:
    OSError: the file cannot be read.
    ValueError: the file has fewer than `size` words, a line is not a single
      word, or a word is there twice.
  """
  _checks.count('vocabulary_size', size, '10000 is usual')
  words: dict[str, None] = {}
  with open(path, 'rb') as file:
    for number, line in enumerate(itertools.islice(file, size), 1):
      try:
        fields = line.decode('utf-8').split()
      except UnicodeDecodeError:
        fields = []
      word = fields[0] if fields else ''
      counted = len(fields) == 2 and fields[1].isdecimal()
      if not (len(fields) == 1 or counted) or word in words:
        raise errors.value_error(
          f'vocabulary_file={path}, line {number}: must be one word in UTF-8, '
          'different from the words before it; correct the line'
        )
      words[word] = None
  _require_size(size, len(words), f'the words of {path}')
  return Vocabulary(tuple(words))


def count(
  path: str,
  size: int,
  *,
  cache_directory: Optional[str] = None,
  progress: bool = True,
) -> Vocabulary:
  """Returns the most frequent words of the train split.

  Words with equal counts are in the order of their code points. The counts are
  cached in a text file, as lines 'word count'.

  Args:
    path: path of a SQLite file with the tables that `corpus_file` describes.
    size: number of words, >= 1.
    cache_directory: folder of the cached counts; None for the default folder of
      `corpus_file.cache_path`.
    progress: whether to draw a progress bar on standard error while counting.

  Raises:
    FileNotFoundError: `path` is not a file.
    ValueError: the file lacks the tables or has fewer than `size` words, or
      `size` < 1.
  """
  _checks.count('vocabulary_size', size, '10000 is usual')
  content = corpus_file.Content.from_file(path, cache_directory, progress)
  cached = corpus_file.cache_path(
    path, cache_directory, f'{content.digest[:12]}-words.txt'
  )
  if not os.path.exists(cached):
    counts: collections.Counter[str] = collections.Counter()
    with content.open() as connection:
      corpus_file.require_split(connection, 'train')
      for _, sentence in corpus_file.sentences(
        connection, 'train', progress, 'counting words'
      ):
        counts.update(sentence.split())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    _files.write(
      pathlib.Path(cached),
      *(f'{word} {n}\n'.encode() for word, n in ranked[:_WORDS_CACHED]),
    )
  with open(cached, encoding='utf-8') as file:
    words = tuple(
      line.rpartition(' ')[0] for line in itertools.islice(file, size)
    )
  _require_size(size, len(words), 'the words of the train split')
  return Vocabulary(words)


def _require_size(size: int, available: int, source: str) -> None:
  if available < size:
    raise errors.value_error(
      f'vocabulary_size={size}: must be at most {available}, the number of '
      f'{source}; take fewer'
    )
