"""Participation logs of training outside this library: CSV and Parquet.

A log has a column of rounds, integers from 0, and a column of clients, strings
or integers; a row is one participation. Rows may be in any order, and other
columns are ignored. In CSV, each line after the first is a row. Nothing but the
names of the columns may be quoted, and every line, also the last one, has a
line end. A log is a CSV file (compressed, if it ends in .gz), a Parquet file,
or a folder of Parquet files. `cohorts.names` has the rule for names of clients.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import os
import pathlib
import re
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Optional, Union

import numpy as np

from tff_bandmf import _files, errors, sensitivity, strategies
from tff_bandmf import participation as participation_lib
from tff_bandmf.cohorts import names

if TYPE_CHECKING:
  import pyarrow as pa

ROUND = 'round'
CLIENT = 'client'
_MOST_ROUNDS = 2**31
# Size of a batch: bytes of CSV, or rows of Parquet.
_BATCH_BYTES = 2**24
_BATCH_ROWS = 2**20
_CSV = ('.csv', '.txt')
_PARQUET = ('.parquet', '.pq')
_GZIP = '.gz'
_GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
_ENDINGS = (*_CSV, *(f'{ending}{_GZIP}' for ending in _CSV), *_PARQUET)
_TEXT = re.compile('(large_)?(string|binary)(_view)?')
_LONGEST_HEADER = 2**20
# First bytes of files in other formats than CSV, with the format and the
# remedy.
_SIGNATURES = (
  (b'PAR1', 'is a Parquet file', 'let its name end in .parquet'),
  (b'\x1f\x8b', 'is compressed with gzip', 'let its name end in .csv.gz'),
  (b'PK\x03\x04', 'is a zip archive or a workbook', 'save the table as CSV'),
  (b'SQLite format 3', 'is a database', 'save the table as CSV'),
  (b'BZh', 'is compressed with bzip2', 'unpack it'),
  (b'\x28\xb5\x2f\xfd', 'is compressed with zstd', 'unpack it'),
  (b'\xfd7zXZ', 'is compressed with xz', 'unpack it'),
  (b'\xff\xfe', 'is UTF-16', 'save it as UTF-8'),
  (b'\xfe\xff', 'is UTF-16', 'save it as UTF-8'),
)
_BOM = b'\xef\xbb\xbf'
_SEPARATORS = {';': 'semicolons', '\t': 'tabs', '|': 'bars', ' ': 'blanks'}


@dataclasses.dataclass(frozen=True)
class _File:
  """A file of a log.

  Attributes:
    path: path of the file.
    kind: ending of its name, in lower case and without .gz.
    start: number of rows of the log before this file.
  """

  path: pathlib.Path
  kind: str
  start: int = 0

  def where(self, row: int) -> str:
    """Returns the words for a row of the log, such as 'log=a.csv: line 2'."""
    row -= self.start
    place = f'row {row + 1}' if self.kind in _PARQUET else f'line {row + 2}'
    return f'log={self.path}: {place}'

  def open(self) -> BinaryIO:
    opener: Any = gzip.open if self.path.suffix.lower() == _GZIP else open
    return opener(self.path, 'rb')


class ParticipationLog:
  """The participations of a log.

  Attributes:
    path: path of the file, or of the folder.
    participations: number of rows.
    rounds: 1 + the highest round; 0 without rows.
    alike: warning with two names of clients that may be two spellings of one
      client; None without such names.
  """

  def __init__(
    self,
    path: Union[str, os.PathLike],
    round_column: str = ROUND,
    client_column: str = CLIENT,
  ):
    """Reads a log and keeps 12 bytes per participation in memory.

    Args:
      path: path of a CSV or Parquet file, whose ending selects the format; or
        of a folder of Parquet files.
      round_column: name of the column of rounds.
      client_column: name of the column of clients.

    Raises:
      ValueError: the file is not a log with these columns.
      OSError: the file cannot be read.
      ImportError: pyarrow is not installed.
    """
    self.path = pathlib.Path(path)
    self._columns = {ROUND: round_column, CLIENT: client_column}
    if round_column == client_column:
      raise errors.value_error(
        f'client_column={client_column}: is the column of rounds; name another'
      )
    self._register = names.Register()
    rounds, clients = [np.empty(0, np.int32)], [np.empty(0, np.uint64)]
    kinds: dict[str, _File] = {}
    for file, start, batch in self._batches():
      rounds.append(self._rounds(file, start, batch.column(0)))
      hashes, kind = self._hashes(file, start, batch.column(1))
      clients.append(hashes)
      kinds.setdefault(kind, file)
      if len(kinds) > 1:
        first = next(iter(kinds))
        raise errors.value_error(
          f'log={file.path}: the values of {client_column} are {kind}, and '
          f'{first} in {kinds[first].path}; use strings in all files'
        )
    self._rounds_of_rows = np.concatenate(rounds)
    self._clients_of_rows = np.concatenate(clients)
    self.participations = len(self._rounds_of_rows)
    # PRIVACY: later columns of C have smaller norms, so a log whose rounds are
    # numbered from 1 would give too small an epsilon. A log without round 0 is
    # refused.
    # Guard: participation_log_test.test_rounds_from_1_are_refused.
    if self.participations and self._rounds_of_rows.min() > 0:
      raise errors.value_error(
        f'log={self.path}: the values of {round_column} begin at '
        f'{self._rounds_of_rows.min()}; give a whole log, with rounds from 0'
      )
    self.rounds = 1 + int(self._rounds_of_rows.max(initial=-1))
    self._ordered = bool(np.all(np.diff(self._rounds_of_rows) >= 0))
    self.alike = self._register.alike(
      self._clients_of_rows, lambda row: self._read(row)[1]
    )

  def _read(self, row: int) -> tuple[str, str]:
    """Returns the place and the client of a row; reads the log again."""
    for file, start, batch in self._batches():
      if row < start + len(batch):
        name = batch.column(1)[row - start].as_py()
        client = name.decode() if isinstance(name, bytes) else str(name)
        return file.where(row), client
    raise errors.value_error(
      f'log={self.path}: changed while it was read; write it first'
    )

  def sha256(self) -> str:
    """Returns the SHA-256 of the log, in hexadecimal.

    The digest of a folder is the SHA-256 of the output of `sha256sum` for its
    Parquet files, in the order of their names.
    """
    if not self.path.is_dir():
      return _files.sha256(self.path)
    files = _paths(self.path)
    lines = [f'{_files.sha256(each)}  {each.name}\n' for each in files]
    return hashlib.sha256(''.join(lines).encode()).hexdigest()

  def observed(
    self,
    strategy: strategies.Strategy,
    costs: Optional[participation_lib.Costs] = None,
  ) -> sensitivity.Observed:
    """Returns the participation in the log, and the sensitivity of C for it.

    Raises:
      ValueError: the log has no rows, a round after the last round of C, or a
        client twice in a round.
    """
    if not self.participations:
      raise errors.value_error(
        f'log={self.path}: shows no participation; give the whole log'
      )
    late = self._rounds_of_rows >= strategy.rounds
    if late.any():
      row = int(np.argmax(late))
      raise errors.value_error(
        f'round={self._rounds_of_rows[row]}: is not among the '
        f'{strategy.rounds} rounds of the strategy, in {self._read(row)[0]}; '
        'give the strategy that the run used'
      )
    try:
      return sensitivity.of_clients(self.parts(), strategy, costs)
    except ValueError as error:
      rounds, clients = self._rounds_of_rows, self._clients_of_rows
      order = np.argsort(rounds, kind='stable')
      order = order[np.argsort(clients[order], kind='stable')]
      same = (np.diff(rounds[order]) == 0) & (np.diff(clients[order]) == 0)
      if not same.any():
        raise
      # The order is stable, so the first row of the pair comes first.
      pair = order[int(np.argmax(same)) :][:2].tolist()
      (first, client), (second, _) = map(self._read, pair)
      raise errors.value_error(
        f'round={rounds[pair[0]]}: a client is twice in a round, {client!r}, '
        f'in {first} and in {second}; give each participation once'
      ) from error

  def parts(self, size: int = 2**22) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the log in parts; all rows of a client are in the same part.

    A part is a pair of [m] int64 arrays, the rounds in ascending order and
    their clients.

    Args:
      size: approximate number of participations in a part, >= 1. A part of the
        default size takes about 150 MB.
    """
    count = max(1, -(-self.participations // size))
    # Hashes are uniform, so equal ranges have similar numbers of rows.
    edges = [part * 2**64 // count for part in range(count + 1)]
    for low, end in zip(edges, edges[1:]):
      in_part = self._clients_of_rows >= np.uint64(low)
      in_part &= self._clients_of_rows <= np.uint64(end - 1)
      rounds = self._rounds_of_rows[in_part].astype(np.int64)
      clients = self._clients_of_rows[in_part].view(np.int64)
      if not self._ordered:
        order = np.argsort(rounds, kind='stable')
        rounds, clients = rounds[order], clients[order]
      yield rounds, clients

  def cohort_sizes(self) -> dict[int, int]:
    """Returns {round: number of clients} for the rounds that have clients."""
    rounds, counts = np.unique(self._rounds_of_rows, return_counts=True)
    return dict(zip(rounds.tolist(), counts.tolist()))

  def check_sizes(self, largest_cohort: int) -> None:
    """Raises ValueError if a round has more clients than a plan allows.

    Args:
      largest_cohort: largest number of clients of a round, >= 1.
    """
    for t, clients in self.cohort_sizes().items():
      # PRIVACY: a sum of more clients than the plan allows could overflow the
      # integers of the noise, and the plan's claim does not cover an overflow.
      # A log with such a round is refused.
      # Guard:
      # elsewhere_test.test_cohort_that_the_plan_has_no_room_for_is_refused.
      if clients > largest_cohort:
        raise errors.value_error(
          f'clients={clients}: are in round {t} of {self.path}, and the plan '
          f'allows {largest_cohort}; give the plan whose noise was added'
        )

  def _rounds(self, file: _File, start: int, column: pa.Array) -> np.ndarray:
    """Returns [m] int32 rounds; `start` is the first row of the column."""
    import pyarrow as pa

    name = self._columns[ROUND]
    if not pa.types.is_integer(column.type):
      raise errors.value_error(
        f'log={file.path}: {name} has type {column.type}; give integers from 0'
      )
    _check_complete(file, start, column, name, 'complete it')
    values = column.to_numpy(False)
    wrong = (values < 0) | (values >= _MOST_ROUNDS)
    if wrong.any():
      row = int(np.argmax(wrong))
      raise errors.value_error(
        f'{file.where(start + row)}: {name}={values[row]}; rounds are counted '
        f'from 0, below {_MOST_ROUNDS}'
      )
    return values.astype(np.int32)

  def _hashes(
    self, file: _File, start: int, column: pa.Array
  ) -> tuple[np.ndarray, str]:
    """Returns [m] uint64 hashes of clients, and the type of their names."""
    import pyarrow as pa

    name = self._columns[CLIENT]
    _check_complete(file, start, column, name, names.REMEDY)
    if pa.types.is_dictionary(column.type):
      with contextlib.suppress(ValueError):
        hashes, kind = self._hashes(file, start, column.dictionary)
        return hashes[column.indices.to_numpy(False)], kind
      # If a value has a fault, this call names its row.
      return self._hashes(file, start, column.dictionary_decode())
    if pa.types.is_integer(column.type):
      values = column.cast(pa.int64(), safe=False).to_numpy(False)
      missing = names.missing_integers(values)
      if missing.any() and not pa.types.is_unsigned_integer(column.type):
        row = int(np.argmax(missing))
        raise errors.value_error(
          f'{file.where(start + row)}: {name}={values[row]} stands for a '
          f'missing name; {names.REMEDY}'
        )
      return self._register.integers(values), 'integers'
    if not _TEXT.fullmatch(str(column.type)):
      raise errors.value_error(
        f'log={file.path}: {name} has type {column.type}; give strings or '
        'integers'
      )
    column = column.cast(pa.large_binary())
    # An empty column may lack its buffers.
    _, offsets, content = column.buffers()
    bounds = np.frombuffer(offsets or bytes(8), np.int64)
    bounds = bounds[column.offset : column.offset + len(column) + 1]
    texts = names.Column(np.frombuffer(content or b'', np.uint8), bounds)
    # PRIVACY: the names 'a', '"a"' and 'a' with a blank or a NUL may mean one
    # client. They would count as several clients with fewer rounds each, and
    # epsilon would be too small; a client whose name is missing would lose a
    # round. A row whose name breaks the rule of `cohorts.names` is refused.
    # Guards: participation_log_test.test_byte_never_makes_a_claim_smaller and
    # client_names_test.test_text_that_is_no_name_is_refused_by_every_reader.
    fault = names.first_fault(texts)
    if fault is not None:
      row, text_fault = fault
      raise errors.value_error(
        f'{file.where(start + row)}: {name}={texts[row]!r} {text_fault}; '
        f'{names.REMEDY}'
      )
    return self._register.add(texts), 'strings'

  def _batches(self) -> Iterator[tuple[_File, int, pa.RecordBatch]]:
    """Yields (file, first row of the batch, batch of rounds and clients).

    Raises:
      ValueError, OSError, ImportError: the errors of `ParticipationLog`.
    """
    with errors.importing('a participation log'):
      import pyarrow as pa
    start = 0
    for path in _paths(self.path):
      inner = path.with_suffix('') if path.suffix.lower() == _GZIP else path
      file = _File(path, inner.suffix.lower(), start)
      read = self._parquet if file.kind in _PARQUET else self._csv
      try:
        for batch in read(file):
          yield file, start, batch
          start += len(batch)
      except (pa.ArrowException, *_GZIP_ERRORS) as error:
        if isinstance(error, OSError) and error.errno is not None:
          raise
        raise errors.value_error(
          f'log={path}: cannot be read: {self._damage(file, error)}; give the '
          f'whole file, with the columns {" and ".join(self._columns.values())}'
        ) from error

  def _parquet(self, file: _File) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    opened = parquet.ParquetFile(file.path, page_checksum_verification=True)
    with opened:
      columns = self._choose(f'log={file.path}', opened.schema_arrow.names, '')
      for batch in opened.iter_batches(_BATCH_ROWS, columns=columns):
        yield batch.select(columns)

  def _csv(self, file: _File) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import csv

    header = _header(file)
    _check_lines(file)
    cells = [_unquoted(cell) for cell in header.split(',')]
    columns = self._choose(f'log={file.path}: line 1', cells, header)
    # The header may have a name twice, so the columns get numbers as names.
    numbers = list(map(str, range(len(cells))))
    places = [numbers[cells.index(column)] for column in columns]
    read = csv.ReadOptions(
      block_size=_BATCH_BYTES, skip_rows=1, column_names=numbers
    )
    # PRIVACY: a CSV reader that knows quotes joins all rows between two quotes
    # into one value, so participations would be missing and epsilon would be
    # too small. For this reader, a quote is an ordinary character.
    # Guard: participation_log_test.test_quote_never_makes_a_claim_smaller.
    parse = csv.ParseOptions(quote_char=False, ignore_empty_lines=False)
    convert = csv.ConvertOptions(
      column_types=dict(zip(places, (pa.int64(), pa.string()))),
      include_columns=places,
      strings_can_be_null=False,
    )
    with file.open() as stream:
      with csv.open_csv(stream, read, parse, convert) as reader:
        yield from reader

  def _choose(self, where: str, columns: list[str], header: str) -> list[str]:
    """Returns the names of the columns of rounds and of clients.

    Args:
      where: words for the place of the header.
      columns: names of all columns.
      header: the line with the names; '' for Parquet.

    Raises:
      ValueError: a column is missing, or occurs twice.
    """
    for column, wanted in self._columns.items():
      same = [each for each in columns if _is_same(each, wanted)]
      # PRIVACY: if two columns had one name, the reader could take the wrong
      # column for the clients, and epsilon would be too small. Such a log is
      # refused.
      # Guard: participation_log_test.test_column_that_occurs_twice_is_refused.
      if len(same) > 1:
        raise errors.value_error(
          f'{where} has the column {wanted!r} twice: {same}; leave one of them'
        )
      if wanted in columns:
        continue
      option = f'--{column}-column'
      fault = (
        f'the columns {columns}, none of which is {wanted!r}; name the columns '
        f'in it, or give {option}'
      )
      for separator, words in _SEPARATORS.items():
        split = map(_unquoted, header.split(separator))
        if any(_is_same(each, wanted) for each in split):
          fault = f'{words} between its columns: {header!r}; write commas'
          break
      if same:
        fault = f'{same[0]!r}, not {wanted!r}; rename it, or give {option}'
      raise errors.value_error(f'{where} has {fault}')
    return list(self._columns.values())

  def _damage(self, file: _File, error: Exception) -> str:
    """Returns the fault of a file that a reader refused."""
    if file.kind in _CSV and not isinstance(error, _GZIP_ERRORS):
      name = self._columns[ROUND]
      cells = [_unquoted(cell) for cell in _header(file).split(',')]
      place = cells.index(name)
      with file.open() as lines:
        next(lines)
        for number, line in enumerate(lines, 2):
          row = line.decode('utf-8', 'backslashreplace').strip('\r\n')
          values, fault = row.split(','), ''
          # A byte that is not UTF-8 is four characters in `row`, such as \xff.
          if row.encode() != line.strip(b'\r\n'):
            fault = f'is not UTF-8: {row!r}'
          elif len(values) != len(cells):
            fault = f'has {len(values)} cells, not {len(cells)}: {row!r}'
          elif not _is_integer(values[place]):
            fault = f'has {name}={values[place]!r}, which must be an integer'
          if fault:
            return f'line {number} {fault}'
    return ' '.join(str(error).split())


def _check_complete(
  file: _File, start: int, column: pa.Array, name: str, remedy: str
) -> None:
  """Raises ValueError if a value is missing in a column.

  The first value of the column is in row `start` of the log.
  """
  if column.null_count:
    row = start + int(np.argmax(column.is_null().to_numpy(False)))
    raise errors.value_error(
      f'{file.where(row)}: the value of {name} is missing; {remedy}'
    )


def _is_integer(text: str) -> bool:
  try:
    return text.isascii() and '_' not in text and int(text) < 2**63
  except ValueError:
    return not text.strip()  # A missing round has a message of its own.


def _is_same(column: str, wanted: str) -> bool:
  """Returns whether two names of columns may mean the same column.

  If two columns of a table have equal names, pandas adds .1 to the second one.
  """
  name = column.strip().casefold()
  return name in (wanted.strip().casefold(), f'{wanted}.1'.casefold())


def _unquoted(cell: str) -> str:
  if len(cell) > 1 and cell[0] == cell[-1] == '"':
    return cell[1:-1]
  return cell


def _paths(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of a log, in order.

  Raises:
    ValueError: the ending of a name is not known, or a folder has other
      files or no Parquet file.
    FileNotFoundError: the path does not exist.
  """
  if not path.is_dir():
    if not path.name.lower().endswith(_ENDINGS):
      raise errors.value_error(
        f'log={path}: must end in one of {", ".join(_ENDINGS)}, or be a folder '
        'of Parquet files; give a CSV or Parquet file'
      )
    if not path.is_file():
      raise FileNotFoundError(
        errors.invalid(f'log={path}: there is no such file; give a log')
      )
    return [path]
  # Programs that write folders of Parquet add files with '.' or '_' in front.
  entries = sorted(
    each for each in path.iterdir() if not each.name.startswith(('.', '_'))
  )
  others = [
    each
    for each in (*entries, path / '_temporary')
    if each.exists()
    and not (each.is_file() and each.suffix.lower() in _PARQUET)
  ]
  # PRIVACY: a file of the folder that is not read could hold participations,
  # and epsilon would be too small. A folder with other files is refused.
  # Guard: participation_log_test.test_folder_with_other_files_is_refused.
  if others or not entries:
    has = f'has {others[0].name!r}' if others else 'has no Parquet file'
    raise errors.value_error(
      f'log={path}: {has}; give a folder that has the Parquet files of one log '
      'and nothing else, or one file'
    )
  return entries


def _header(file: _File) -> str:
  """Returns the first line of a CSV file.

  Raises:
    ValueError: the file has another format or encoding, or no first line.
  """
  with file.open() as stream:
    head = stream.read(_LONGEST_HEADER)
  line = head.partition(b'\n')[0]
  for signature, fault, remedy in _SIGNATURES:
    if head.startswith(signature):
      raise errors.value_error(f'log={file.path}: {fault}; {remedy}')
  text = line.removeprefix(_BOM)
  if not head:
    fault = 'is empty'
  elif text[:8].count(b'\0') > 2:
    fault = 'is UTF-16 or UTF-32'
  elif b'\0' in line:
    fault = 'is binary: it has a NUL'
  else:
    try:
      return text.decode().rstrip('\r')
    except UnicodeDecodeError:
      fault = f'is not UTF-8: line 1 begins with {text[:20]!r}'
  raise errors.value_error(
    f'log={file.path}: cannot be read: {fault}; give a CSV file in UTF-8 whose '
    'first line names its columns'
  )


def _check_lines(file: _File) -> None:
  """Raises ValueError if line ends of a file differ, or if one is missing."""
  ends, returns, last = 0, 0, b'\n'
  with file.open() as stream:
    while block := stream.read(_BATCH_BYTES):
      ends += block.count(b'\n')
      returns += block.count(b'\r')
      last = block[-1:]
  # PRIVACY: if a damaged file lacks the end of a client ID, the row counts as
  # another client, and the claim misses a round of the true client. Such damage
  # shows in a last line without a line end, or in lines that end in different
  # ways. These files are refused.
  # Guard: participation_log_test.test_byte_never_makes_a_claim_smaller.
  if last != b'\n' or returns not in (0, ends):
    fault = f'{returns} carriage returns are in {ends} lines'
    if last != b'\n':
      fault = f'line {ends + 1}, the last one, has no line end'
    raise errors.value_error(
      f'log={file.path}: {fault}, so the file may be cut or damaged; end all '
      'lines, also the last line, in the same way'
    )
