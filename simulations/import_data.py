"""Makes a corpus of your own text, a file for the key `data.corpus`.

    python -m simulations.import_data posts.jsonl --out corpus.sqlite
    python -m simulations.import_data folder/ --out corpus.sqlite

The input is a JSON Lines file or a folder. Each line of a JSON Lines file is an
object with the strings `client_id` and `text`. A client may have many lines, in
any order. In a folder and its subfolders, each `.txt` file is a client, and the
id of the client is the path of the file in the folder without `.txt`. Text is
UTF-8. One client is the unit of privacy of a training run, so all text of one
person should be in one client. Ids are compared character by character: 'Ann',
'ann' and 'ann ' are three clients.

Text is split into sentences as in TFF's StackOverflow data: in lower case, cut
at the ends of lines and after '.', '!' and '?', with each punctuation mark as a
word. With --words, each line is one sentence whose words are separated by
spaces.

The split of a client (train, heldout or test) depends only on the id of the
client and on the fractions.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pathlib
import re
import sqlite3
import sys
from collections.abc import Iterator

import click
import tqdm

from simulations.corpora import corpus_file
from tff_bandmf import _checks, errors

_MAX_LINE_BYTES = 2**26
_URL = re.compile(r'https?://\S+')
_SENTENCE_END = re.compile(r'(?<=[.!?])\s+')
_WORD = re.compile(r"<URL>|[^\W_]+(?:['’-][^\W_]+)*|[^\w\s]|_")


def sentences_of(line: str) -> Iterator[str]:
  """Yields the sentences of a line: words with single spaces between them.

  >>> list(sentences_of("It's so (I think). See https://a.b/c!"))
  ["it's so ( i think ) .", 'see <URL>']
  """
  for sentence in _SENTENCE_END.split(_URL.sub('<URL>', line)):
    words = _WORD.findall(sentence)
    if words:
      yield ' '.join(
        word if word == '<URL>' else word.lower() for word in words
      )


def split_of(client_id: str, fractions: tuple[float, float, float]) -> str:
  """Returns the split of a client, which depends on the SHA-256 of its id.

  Args:
    client_id: name of the client.
    fractions: shares of clients in the train, heldout and test split; the sum
      is 1.
  """
  digest = hashlib.sha256(client_id.encode('utf-8')).digest()
  # A float represents a 53-bit integer divided by 2^53 exactly.
  uniform = (int.from_bytes(digest[:8], 'big') >> 11) / 2**53
  train, heldout, _ = fractions
  if uniform < train:
    return 'train'
  return 'heldout' if uniform < train + heldout else 'test'


class _Importer:
  """Yields the sentences of clients, and counts and hashes the sentences."""

  def __init__(
    self, fractions: tuple[float, float, float], in_words: bool, progress: bool
  ):
    self._fractions = fractions
    self._in_words = in_words
    self._progress = progress
    self._sha = hashlib.sha256(f'{fractions} {in_words}'.encode())
    self.sentences = dict.fromkeys(corpus_file.SPLIT_NAMES, 0)

  def checksum(self) -> str:
    return self._sha.hexdigest()

  def rows(self, path: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields (split name, client id, tags, sentence) for `corpus_file.write`.

    Raises:
      ValueError: a line is malformed, or a split has no sentence.
    """
    texts = (
      self._of_folder(path) if os.path.isdir(path) else self._of_lines(path)
    )
    for client_id, text in texts:
      split_name = split_of(client_id, self._fractions)
      for line in text.splitlines():
        for sentence in (
          [' '.join(line.split())] if self._in_words else sentences_of(line)
        ):
          if sentence:
            self._sha.update(f'{client_id}\n{sentence}\n'.encode())
            self.sentences[split_name] += 1
            yield split_name, client_id, '', sentence
    for split_name, count in self.sentences.items():
      if not count:
        fraction = self._fractions[corpus_file.SPLIT_NAMES.index(split_name)]
        raise errors.value_error(
          f'{split_name}={fraction}: no client with a sentence fell into this '
          'split; give more clients or another fraction'
        )

  def _of_lines(self, path: str) -> Iterator[tuple[str, str]]:
    """Yields (client id, text) of a JSON Lines file."""
    with self._bar(os.path.getsize(path)) as bar:
      for place, line in _lines(path, bar):
        if not line.strip():
          continue
        try:
          record = json.loads(line)
        except (ValueError, RecursionError) as error:
          raise _bad_input(place, f'is not JSON: {error}') from error
        client_id, text = (
          record.get(name) if isinstance(record, dict) else None
          for name in ('client_id', 'text')
        )
        if not isinstance(client_id, str) or not isinstance(text, str):
          raise _bad_input(
            place, 'must be an object with strings client_id and text'
          )
        _check_client_id(place, client_id)
        yield client_id, _encodable(place, text)

  def _of_folder(self, path: str) -> Iterator[tuple[str, str]]:
    """Yields (client id, text) of the text files below a folder."""
    names = sorted(
      file.relative_to(path).as_posix()
      for file in pathlib.Path(path).rglob('*.txt')
      if file.is_file()
    )
    if not names:
      raise errors.value_error(
        f'input={path}: holds no .txt file; put a file for each client there'
      )
    paths = [os.path.join(path, name) for name in names]
    _check_one_client_a_file(paths)
    with self._bar(sum(map(os.path.getsize, paths))) as bar:
      for name, file in zip(names, paths):
        client_id = name[: -len('.txt')]
        _check_client_id(file, client_id)
        for _, line in _lines(file, bar):
          yield client_id, line

  def _bar(self, total: int) -> tqdm.tqdm:
    return tqdm.tqdm(
      total=total,
      desc='importing',
      unit='B',
      unit_scale=True,
      disable=None if self._progress else True,
    )


def _lines(path: str, bar: tqdm.tqdm) -> Iterator[tuple[str, str]]:
  """Yields (file name and line number, text) for the lines of a file."""
  with open(path, 'rb') as file:
    number = 0
    while line := file.readline(_MAX_LINE_BYTES + 1):
      number += 1
      place = f'{path}, line {number}'
      if len(line) > _MAX_LINE_BYTES:
        raise _bad_input(place, f'is longer than {_MAX_LINE_BYTES} bytes')
      try:
        text = line.decode('utf-8-sig' if number == 1 else 'utf-8')
      except UnicodeDecodeError as error:
        raise _bad_input(place, f'is not UTF-8: {error}') from error
      bar.update(len(line))
      yield place, text


def _bad_input(place: str, rule: str) -> ValueError:
  return errors.value_error(f'input={place}: {rule}; correct it')


def _encodable(place: str, text: str) -> str:
  """Returns the text; raises ValueError if UTF-8 cannot encode it.

  In JSON, an escaped half of a surrogate pair is such text.
  """
  try:
    text.encode('utf-8')
  except UnicodeEncodeError as error:
    raise _bad_input(place, f'is not Unicode text: {error}') from error
  return text


def _check_one_client_a_file(paths: list[str]) -> None:
  # PRIVACY: If a link gave a file a second name, the text of one person would
  # become two clients, and the guarantee for one client would not cover the
  # person. A folder in which two names lead to one file is refused.
  # Guard: import_data_test.test_file_with_two_names_is_refused.
  names: dict[tuple[int, int], str] = {}
  for path in paths:
    stat = os.stat(path)
    other = names.setdefault((stat.st_dev, stat.st_ino), path)
    if other != path:
      raise _bad_input(path, f'is the same file as {other}')


def _check_client_id(place: str, client_id: str) -> None:
  # TFF's reader puts the id, unescaped, between single quotes in an SQL query.
  if not client_id or "'" in client_id or not client_id.isprintable():
    raise _bad_input(
      place,
      f'client_id {client_id[:80]!a} must be printable, without single quotes',
    )


def import_text(
  path: str,
  output: str,
  fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
  in_words: bool = False,
  progress: bool = True,
) -> dict[str, tuple[int, int]]:
  """Writes the corpus of a text to a SQLite file.

  The file appears under its name when it is complete. The memory use does not
  depend on the amount of text.

  Args:
    path: path of a JSON Lines file or a folder.
    output: path of the SQLite file to write.
    fractions: shares of clients in the train, heldout and test split; positive
      numbers whose sum is 1.
    in_words: whether each line is one sentence whose words are separated by
      spaces.
    progress: whether to draw a progress bar on standard error.

  Returns:
    (number of clients, number of sentences) of each split, by name.

  Raises:
    FileExistsError: `output` exists.
    OSError: the input cannot be read, or the output cannot be written.
    ValueError: a line is malformed, a fraction is out of range, or a split
      would be empty.
  """
  for name, fraction in zip(corpus_file.SPLIT_NAMES, fractions):
    _checks.positive(name, fraction, 'fractions are 0.8, 0.1, 0.1, say')
  if not math.isclose(sum(fractions), 1.0, abs_tol=1e-9):
    raise errors.value_error(
      f'train + heldout + test={sum(fractions)}: must be 1; change one of them'
    )
  if os.path.exists(output):
    raise FileExistsError(
      errors.invalid(
        f'out={output}: the file exists; remove it or choose another name'
      )
    )
  importer = _Importer(fractions, in_words, progress)
  corpus_file.write(output, importer.rows(path), importer.checksum)
  with corpus_file.Content.from_file(output).open() as connection:
    return {
      name: (len(corpus_file.client_sizes(connection, name)[0]), count)
      for name, count in importer.sentences.items()
    }


@click.command(help=__doc__.replace('\n\n ', '\n\n\b\n '))
@click.argument('path', metavar='INPUT')
@click.option(
  '--out',
  'output',
  required=True,
  metavar='FILE.sqlite',
  help='Corpus file to write.',
)
@click.option(
  '--train',
  default=0.8,
  show_default=True,
  help='Share of clients for training.',
)
@click.option(
  '--heldout',
  default=0.1,
  show_default=True,
  help='Share of clients for validation.',
)
@click.option(
  '--test',
  default=0.1,
  show_default=True,
  help='Share of clients for the final test.',
)
@click.option(
  '--words',
  is_flag=True,
  help='Each line is one sentence, whose words are separated by spaces.',
)
def main(
  path: str,
  output: str,
  train: float,
  heldout: float,
  test: float,
  words: bool,
) -> None:
  try:
    counts = import_text(path, output, (train, heldout, test), words)
  except (ValueError, OSError, sqlite3.Error) as error:
    click.echo(str(error), err=True)
    sys.exit(2)
  for name, (clients, count) in counts.items():
    click.echo(f'{output}: {name}: {clients} clients, {count} sentences')
  clients, _ = counts['train']
  click.echo(
    'Cohorts can be filled if clients_per_round * min_sep is at most '
    f'{clients}: {_example(clients)}'
  )


def _example(clients: int) -> str:
  """Returns an example of a cohort size and the largest min_sep for it."""
  cohort = max(1, math.isqrt(clients) // 2)
  return f'with {cohort} clients a round min_sep is at most {clients // cohort}'


if __name__ == '__main__':
  main()
