"""Participation logs of training outside this library: CSV and Parquet.

A log has the columns `round`, integers from 0, and `client`, strings or
integers; a row is one participation. Rows may be in any order, and other
columns are ignored. In CSV, each line after the first is a row. Nothing is
quoted, and every line, also the last one, has a line end.

Clients are identified by 64-bit hashes. Two strings with the same hash count as
one client, which can only raise the sensitivity. The probability that two of
10^7 strings have the same hash is 3e-6.
"""

from __future__ import annotations

import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Union

import numpy as np

from tff_bandmf import errors

if TYPE_CHECKING:
  import pyarrow as pa

COLUMNS = ('round', 'client')
# Number of participations in a part that `parts` yields; about 150 MB.
_PART_SIZE = 2**22
_MOST_ROUNDS = 2**31
# Client names in CSV may not have a quote, a control character, or a blank at
# either end.
_BAD_NAME = r'["\x00-\x1f\x7f]|^\s|\s$'
# Size of a batch: bytes of CSV, or rows of Parquet.
_BATCH_BYTES = 2**24
_BATCH_ROWS = 2**20
_CSV = ('.csv', '.txt')
_PARQUET = ('.parquet', '.pq')
# Factors of the finaliser of SplitMix64.
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class ParticipationLog:
  """The participations of a log.

  Attributes:
    path: path of the file.
    participations: number of rows.
    rounds: 1 + the highest round; 0 without rows.
  """

  def __init__(self, path: Union[str, os.PathLike]):
    """Reads a log and keeps 12 bytes per participation in memory.

    Args:
      path: path of a CSV or Parquet file; the ending of its name selects the
        format.

    Raises:
      ValueError: the file is not a log with the columns `COLUMNS`.
      OSError: the file cannot be read.
      ImportError: pyarrow is not installed.
    """
    self.path = pathlib.Path(path)
    # Without this secret random factor, an attacker could choose client names
    # that have the same hash.
    self._factor = np.uint64(secrets.randbits(64) | 1)
    rounds, clients = [np.empty(0, np.int32)], [np.empty(0, np.uint64)]
    kinds = set()
    for batch in _batches(self.path):
      rounds.append(self._rounds(batch.column(0)))
      hashes, kind = self._hashes(batch.column(1))
      clients.append(hashes)
      kinds.add(kind)
    if len(kinds) > 1:
      raise self._refused('client', 'are of several types', 'use strings')
    self._rounds_of_rows = np.concatenate(rounds)
    self._clients_of_rows = np.concatenate(clients)
    self.participations = len(self._rounds_of_rows)
    # PRIVACY: later columns of C have smaller norms, so a log whose rounds are
    # numbered from 1 would give too small an epsilon. A log without round 0 is
    # refused.
    # Guard: participation_log_test.test_rounds_from_1_are_refused.
    if self.participations and self._rounds_of_rows.min() > 0:
      raise self._refused(
        'round',
        f'begin at {self._rounds_of_rows.min()}',
        'give a whole log, and number its rounds from 0',
      )
    self.rounds = 1 + int(self._rounds_of_rows.max(initial=-1))
    self._ordered = bool(np.all(np.diff(self._rounds_of_rows) >= 0))

  def parts(
    self, size: int = _PART_SIZE
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the log in parts; all rows of a client are in the same part.

    A part is a pair of [m] int64 arrays, the rounds in ascending order and
    their clients.

    Args:
      size: approximate number of participations in a part, >= 1.
    """
    count = max(1, -(-self.participations // size))
    # Hashes are uniform, so equal ranges have similar numbers of rows.
    edges = [part * 2**64 // count for part in range(1, count)]
    for low, high in zip([0, *edges], [*edges, None]):
      in_part = self._clients_of_rows >= np.uint64(low)
      if high is not None:
        in_part &= self._clients_of_rows < np.uint64(high)
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

  def _rounds(self, column: pa.Array) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute

    if not pa.types.is_integer(column.type):
      raise self._refused('round', f'are {column.type}', 'give integers from 0')
    if column.null_count:
      raise self._refused('round', 'are missing in some rows', 'complete it')
    least, most = pa.compute.min_max(column).as_py().values()
    if column and not 0 <= least <= most < _MOST_ROUNDS:
      raise self._refused(
        'round',
        f'are {least}..{most}',
        f'rounds are counted from 0, below {_MOST_ROUNDS}',
      )
    return column.cast(pa.int32()).to_numpy(zero_copy_only=False)

  def _hashes(self, column: pa.Array) -> tuple[np.ndarray, str]:
    """Returns [m] uint64 hashes of clients, and the type of their names."""
    import pyarrow as pa

    if column.null_count:
      raise self._refused('client', 'are missing in some rows', 'complete it')
    if pa.types.is_dictionary(column.type):
      hashes, kind = self._hashes(column.dictionary)
      return hashes[column.indices.to_numpy(zero_copy_only=False)], kind
    if pa.types.is_integer(column.type):
      values = column.cast(pa.int64(), safe=False).to_numpy(
        zero_copy_only=False
      )
      return _mixed(values.view(np.uint64) * self._factor), 'integers'
    if column.type not in (
      pa.string(),
      pa.large_string(),
      pa.binary(),
      pa.large_binary(),
    ):
      raise self._refused(
        'client', f'are {column.type}', 'give strings or integers'
      )
    column = column.cast(pa.large_binary())
    if not len(column):
      return np.empty(0, np.uint64), 'strings'
    _, offsets, content = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)
    bounds = bounds[column.offset : column.offset + len(column) + 1]
    return self._string_hashes(
      np.frombuffer(content, np.uint8), bounds
    ), 'strings'

  def _string_hashes(
    self, content: np.ndarray, bounds: np.ndarray
  ) -> np.ndarray:
    """Returns a hash of each string under the secret factor.

    The hash h begins as the length of the string. Each byte in turn replaces h
    by mixed(h * factor + byte).

    Args:
      content: [bytes] uint8, the strings one after another.
      bounds: [m + 1] int64, the index of the first byte of each string, and the
        end of the last string.

    Returns:
      [m] uint64.
    """
    lengths = np.diff(bounds)
    hashes = lengths.astype(np.uint64)
    for i in range(int(lengths.max())):
      longer = np.flatnonzero(lengths > i)
      byte = content[bounds[longer] + i].astype(np.uint64)
      hashes[longer] = _mixed(hashes[longer] * self._factor + byte)
    return hashes

  def _refused(self, column: str, fault: str, remedy: str) -> ValueError:
    return _refused(self.path, column, fault, remedy)


def _refused(
  path: pathlib.Path, column: str, fault: str, remedy: str
) -> ValueError:
  return errors.value_error(
    f'log={path}: the values of {column} {fault}; {remedy}'
  )


def _mixed(values: np.ndarray) -> np.ndarray:
  """Returns the image of each value under a bijection that mixes its bits."""
  for shift, factor in zip((30, 27), _MIX):
    values = (values ^ (values >> np.uint64(shift))) * factor
  return values ^ (values >> np.uint64(31))


def _batches(path: pathlib.Path) -> Iterator[pa.RecordBatch]:
  """Yields record batches of the columns of a log.

  Raises:
    ValueError, OSError, ImportError: the errors of `ParticipationLog`.
  """
  try:
    import pyarrow as pa
    from pyarrow import csv, parquet
  except ImportError as error:
    raise errors.not_installed(
      'pyarrow',
      'participation logs are read with it',
      errors.install('logs'),
    ) from error
  if path.suffix not in (*_CSV, *_PARQUET):
    raise errors.value_error(
      f'log={path}: must end in one of {", ".join((*_CSV, *_PARQUET))}; give a '
      'CSV or Parquet file'
    )
  if not path.is_file():
    raise FileNotFoundError(
      errors.invalid(f'log={path}: there is no such file; give a log')
    )
  try:
    if path.suffix in _PARQUET:
      with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        for column in COLUMNS:
          if column not in file.schema_arrow.names:
            raise KeyError(column)
        for batch in file.iter_batches(_BATCH_ROWS, columns=list(COLUMNS)):
          yield batch.select(COLUMNS)
      return
    _check_lines(path)
    with csv.open_csv(
      path,
      read_options=csv.ReadOptions(block_size=_BATCH_BYTES),
      # PRIVACY: a CSV reader that knows quotes joins all rows between two
      # quotes into one value, so participations would be missing and epsilon
      # would be too small. For this reader, a quote is an ordinary character.
      # Guard: participation_log_test.test_quote_never_makes_a_claim_smaller.
      parse_options=csv.ParseOptions(
        quote_char=False, ignore_empty_lines=False
      ),
      convert_options=csv.ConvertOptions(
        column_types={'round': pa.int64(), 'client': pa.string()},
        include_columns=list(COLUMNS),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
      ),
    ) as reader:
      for batch in reader:
        _check_names(path, batch.column(1))
        yield batch
  except (pa.ArrowException, KeyError) as error:
    if isinstance(error, OSError) and error.errno is not None:
      raise
    text = ' '.join(str(error).split())
    raise errors.value_error(
      f'log={path}: cannot be read: {text}; give the columns '
      f'{" and ".join(COLUMNS)}, one row a participation, nothing quoted'
    ) from error


def _check_lines(path: pathlib.Path) -> None:
  """Raises ValueError unless all lines of a file have the same line end."""
  ends, returns, last = 0, 0, b'\n'
  with open(path, 'rb') as file:
    while block := file.read(_BATCH_BYTES):
      ends += block.count(b'\n')
      returns += block.count(b'\r')
      last = block[-1:]
  # PRIVACY: if a damaged file lacks the end of a client ID, the row counts as
  # another client, and the claim misses a round of the true client. Such damage
  # shows in a last line without a line end, or in lines that end in different
  # ways. These files are refused.
  # Guard: participation_log_test.test_byte_never_makes_a_claim_smaller.
  if last != b'\n' or returns not in (0, ends):
    raise errors.value_error(
      f'log={path}: a line has no line end, or another line end than other '
      'lines, so the file may be cut or damaged; end all lines, also the last '
      'line, in the same way'
    )


def _check_names(path: pathlib.Path, names: pa.Array) -> None:
  """Raises ValueError for a name that a damaged byte may have changed."""
  import pyarrow.compute

  wrong = pyarrow.compute.match_substring_regex(names, _BAD_NAME)
  # PRIVACY: the names 'a', '"a"' and 'a' with a blank or a NUL may mean one
  # client. They would count as several clients with fewer rounds each, and
  # epsilon would be too small. A name with a quote, a control character, or a
  # blank at either end is refused.
  # Guard: participation_log_test.test_byte_never_makes_a_claim_smaller.
  if pyarrow.compute.any(wrong).as_py():
    name = names.filter(wrong)[0].as_py()
    raise _refused(
      path,
      'client',
      f'have a quote, a control character or a blank at an end, as in {name!r}',
      'write bare names: nothing is quoted in a log',
    )
