"""A federated text corpus of chats, from the Python package chitchat-dataset.

A file of the package holds the chats of 1,315 people as JSON:

    {conversation: {'messages': [[{'text', 'timestamp', 'sender'}, ...], ...]}}

`sender` is the pseudonym of one person. A client is one person, with all of the
person's messages in the order of time. Each person is in one split only, so no
person of the train split is in validation or test. `cached_corpus` writes a
SQLite file with the tables that `corpus_file` describes.

The vocabulary of a model comes from the docstring corpus, which is public. A
vocabulary counted on the chats would fit them better, but would reveal what
people wrote.
"""

from __future__ import annotations

import collections
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, Optional

from simulations import import_data
from simulations.corpora import (
  checksums,
  corpus_file,
  docstrings,
  registry,
)
from simulations.corpora import vocabulary as vocabulary_lib
from tff_bandmf import _files, errors

PACKAGE, PACKAGE_VERSION = 'chitchat-dataset', '0.9.0'
FILE = 'dataset.json'

# Part of the file's name. Raise this number when a rule of this module changes
# the corpus.
VERSION = 1
# A person with fewer than MIN_WORDS words is left out. A sentence of a person
# is left out if it ends after the person's first MAX_WORDS words. Both rules
# depend on the text of this person only, so no person changes the text of
# another person.
MIN_WORDS, MAX_WORDS = 20, 1600
# Shares of people in the train, heldout and test split.
FRACTIONS = (0.75, 0.05, 0.20)

_SENTENCE_END = re.compile(r'(?<=[.!?])\s+|\n+')
# The pattern of words in the docstring corpus, whose words are the vocabulary.
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")
_SENDER = re.compile(r'[\w-]{1,100}', re.ASCII)


def sentences_of(message: str) -> Iterator[str]:
  """Yields the sentences of a message: lower-case words with single spaces.

  >>> list(sentences_of("I’m fine, thanks! And you?"))
  ["i'm fine thanks", 'and you']
  """
  for sentence in _SENTENCE_END.split(message):
    words = _WORD.findall(sentence.lower().replace('’', "'"))
    if words:
      yield ' '.join(words)


def read_people(path: str) -> dict[str, list[str]]:
  """Returns the sentences of each person, by pseudonym.

  Args:
    path: path of the package's file `dataset.json`.

  Raises:
    ValueError: the file has another structure than the module docstring shows.
  """
  try:
    with open(path, encoding='utf-8') as file:
      messages = sorted(_messages(json.load(file)), key=lambda each: each[:2])
  except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
    # The original error is dropped, because it may quote a message of a person.
    raise errors.value_error(
      f'dataset={path}: must be conversations of messages with text, timestamp '
      f'and sender; give the file of {PACKAGE} {PACKAGE_VERSION}'
    ) from None
  people: dict[str, list[str]] = {}
  words: collections.Counter[str] = collections.Counter()
  for sender, _, text in messages:
    for sentence in sentences_of(text):
      count = sentence.count(' ') + 1
      if words[sender] + count <= MAX_WORDS:
        people.setdefault(sender, []).append(sentence)
      words[sender] += count
  return {
    sender: sentences
    for sender, sentences in people.items()
    if words[sender] >= MIN_WORDS
  }


def _messages(conversations: Any) -> Iterator[tuple[str, str, str]]:
  """Yields (sender, timestamp, text) of each message."""
  for conversation in conversations.values():
    for turn in conversation['messages']:
      for message in turn:
        fields = tuple(message[key] for key in ('sender', 'timestamp', 'text'))
        if not all(isinstance(each, str) for each in fields):
          raise TypeError
        if not _SENDER.fullmatch(fields[0]):
          raise ValueError
        yield fields


def split_of(sender: str) -> str:
  """Returns the split of a person, a function of the pseudonym."""
  return import_data.split_of(sender, FRACTIONS)


def _dataset(data_dir: Optional[str]) -> str:
  """Returns the path of the package's file `dataset.json`."""
  if data_dir is not None:
    path = os.path.join(data_dir, FILE)
    if os.path.isfile(path):
      return path
    raise FileNotFoundError(
      errors.invalid(
        f'data_dir={data_dir}: must hold {FILE}; leave out data_dir to read '
        f'the file of the package {PACKAGE}'
      )
    )
  try:
    distribution = importlib.metadata.distribution(PACKAGE)
    installed = distribution.version
  except importlib.metadata.PackageNotFoundError:
    installed = 'none'
  if installed != PACKAGE_VERSION:
    raise errors.value_error(
      f'{PACKAGE}={installed}: the corpus chitchat is built from {PACKAGE} '
      f'{PACKAGE_VERSION}; pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}'
    )
  # The file is read without importing the package.
  return str(distribution.locate_file(f'chitchat_dataset/{FILE}'))


def cached_corpus(
  data_dir: Optional[str] = None,
  directory: Optional[str] = None,
  progress: bool = True,
) -> str:
  """Returns the path of the corpus; builds the file if it is missing.

  Args:
    data_dir: folder of `dataset.json`; None for the folder of the package.
    directory: folder of the corpus file, made if missing; None for the user's
      cache folder.
    progress: whether to draw a progress bar on standard error.

  Raises:
    FileNotFoundError: `data_dir` has no `dataset.json`.
    ValueError: the package is missing or not of version `PACKAGE_VERSION`, or
      `dataset.json` has another structure than the module docstring shows.
  """
  source = _dataset(data_dir)
  digest = checksums.sha256(source, progress)
  folder = pathlib.Path(directory or _files.cache_directory())
  path = folder / f'chitchat-{VERSION}-{digest[:16]}.sqlite'
  if not path.exists():
    people = read_people(source)
    folder.mkdir(parents=True, exist_ok=True)
    corpus_file.write(
      str(path),
      (
        (split_of(sender), sender, '', sentence)
        for sender, sentences in sorted(people.items())
        for sentence in sentences
      ),
      lambda: checksum(people),
    )
  return str(path)


def checksum(people: dict[str, list[str]]) -> str:
  """Returns the SHA-256, in hexadecimal, of the content of a corpus.

  The content is the split, the pseudonym and the sentences of each person, in
  the order of the pseudonyms.
  """
  rows = [
    [split_of(sender), sender, *sentences]
    for sender, sentences in sorted(people.items())
  ]
  return hashlib.sha256(json.dumps(rows).encode('ascii')).hexdigest()


CORPUS = registry.Corpus(
  'chitchat',
  cached_corpus,
  lambda path, size, data_dir: vocabulary_lib.count(
    docstrings.cached_corpus(), size
  ),
  'counted on public text, the docstrings of packages',
  takes_data_dir=True,
)
