"""The rule for names of clients, for every reader of names.

A name is an integer or a text. Logs in CSV and Parquet, populations and cohorts
of runs, cohorts of Flower, and ledgers all read names by the functions here.

| a text ...                                                    | is         |
|---------------------------------------------------------------|------------|
| empty, or a word for a missing value, see `_MISSING`          | refused    |
| with a blank at an end, a control character, a quote `"`, or  | refused    |
| a character that nobody sees, see `_unseen`                   |            |
| that is not UTF-8                                             | refused    |
| with the same spelling as another name, see `_respelled`      | a warning  |
| that no row above describes                                   | a name     |

A negative integer is a name too, since programs hash names to signed integers.
It is refused if `_MISSING` contains it. The integers of a ledger are indices in
the population, so they are at least 0. Names that differ in one bit count as
different clients.

If there are many names, a `Column` stores them as bytes, and each function
handles the whole column at once.
"""

from __future__ import annotations

import dataclasses
import operator
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Optional, Union

import numpy as np

from tff_bandmf import errors

Client = Union[int, str]

REMEDY = 'write each client under one bare name, such as 7 or device-7'
# Words that programs write for a missing value, in lower case. -1, -9, -99 and
# so on, and the least integers of 16, 32 and 64 bits, stand for a missing
# integer. pandas may convert them to floats, such as -1.0.
_MISSING = frozenset(
  'na nan nat none null nil undefined undef missing unknown n/a #n/a #na <na> '
  r'<null> <none> <nan> (null) [null] \n -nan +nan 1.#ind -1.#ind 1.#qnan '
  'na_character_ na_integer_ -9.223372036854776e+18 - -- ? .'.split()
) | {'#n/a n/a'}
_MISSING |= {
  f'{number}{end}'
  for number in (-1, -9, -99, -999, -9999, -99999, -(2**15), -(2**31), -(2**63))
  for end in ('', '.0')
}
_LONGEST_MISSING = max(map(len, _MISSING))
# Entry [x, y] is True if a word in `_MISSING` begins with byte x and ends with
# byte y.
_ENDS_OF_MISSING = np.zeros([256, 256], bool)
for _word in _MISSING:
  _ENDS_OF_MISSING[ord(_word[0]), ord(_word[-1])] = True
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)
# ASCII characters that a name may have. `_CLOSING` has the closing character of
# each opening quote or bracket.
_ALLOWED = bytes(set(range(32, 127)) - {ord('"')})
_CLOSING = np.zeros(256, np.uint8)
_CLOSING[list(b"'`{([<")] = list(b"'`})]>")
_CLOSES = np.isin(np.arange(256), _CLOSING[_CLOSING > 0])
# Refused Unicode categories: control, format, private-use and unassigned
# characters, surrogates (halves of a character in UTF-16), and separators.
_UNSEEN_CATEGORIES = ('Cc', 'Cf', 'Cs', 'Co', 'Cn', 'Zl', 'Zp', 'Zs')
# Ranges (first, last) of further refused characters: those that Unicode does
# not show (Default_Ignorable_Code_Point), the empty Braille cell U+2800, the
# empty note head U+1D159, and U+FFFC and U+FFFD, which replace an object and a
# damaged character.
_UNSEEN_RANGES = (
  *((0x34F, 0x34F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
  *((0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0)),
  *((0xFFF0, 0xFFFD), (0x1D159, 0x1D159), (0xE0000, 0xE0FFF)),
)
# Quotes that NFKC leaves unchanged; each is replaced by '.
_QUOTES = str.maketrans(dict.fromkeys('‘’‚‛“”„‟«»‹›', "'"))
# Number of names that are handled at a time; their bytes fit in a cache.
_CHUNK = 2**16
# Factors of the finaliser of SplitMix64.
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
# `Register` has 2^22 slots. A slot has the hash of the latest name whose hash
# begins with the 22 bits of the slot.
_SLOT_BITS = 22


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
  """Texts, stored one after another.

  Attributes:
    content: [bytes] uint8, the texts in UTF-8.
    bounds: [m + 1] int64, the index of the first byte of each text, and the end
      of the last text.
  """

  content: np.ndarray
  bounds: np.ndarray

  @classmethod
  def from_texts(cls, texts: Sequence[str]) -> Column:
    """Returns a column of texts; a surrogate becomes invalid UTF-8."""
    joined = ''.join(texts)
    if joined.isascii():
      encoded, sizes = joined.encode(), map(len, texts)
    else:
      parts = [text.encode('utf-8', 'surrogatepass') for text in texts]
      encoded, sizes = b''.join(parts), map(len, parts)
    bounds = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(sizes, np.int64, len(texts)), out=bounds[1:])
    return cls(np.frombuffer(encoded, np.uint8), bounds)

  def __len__(self) -> int:
    return len(self.bounds) - 1

  def __getitem__(self, place: int) -> str:
    low, high = self.bounds[place], self.bounds[place + 1]
    return self.content[low:high].tobytes().decode('utf-8', 'backslashreplace')

  def __iter__(self) -> Iterator[str]:
    return map(self.__getitem__, range(len(self)))

  def chunks(self) -> Iterable[Column]:
    """Yields columns of at most `_CHUNK` texts, whose bounds begin at 0."""
    for start in range(0, len(self), _CHUNK):
      bounds = self.bounds[start : start + _CHUNK + 1]
      content = self.content[bounds[0] : bounds[-1]]
      yield Column(content, bounds - bounds[0])

  def select(self, places: np.ndarray) -> Column:
    """Returns the texts at some places, [m] integers in ascending order."""
    if len(places) == len(self):
      return self
    starts, bounds = self.bounds[places], np.zeros(len(places) + 1, np.int64)
    lengths = self.bounds[places + 1] - starts
    np.cumsum(lengths, out=bounds[1:])
    byte = np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])
    return Column(self.content[byte], bounds)


def names(clients: Iterable[Client]) -> Union[np.ndarray, list[str]]:
  """Returns the names of clients in order: all indices, or all strings.

  Args:
    clients: indices (any kind of integer, at least 0) or strings, in a list, a
      range or an array of any dtype.

  Returns:
    An array of int64 indices, or a list of strings. Without clients, the result
    is an empty array.

  Raises:
    TypeError: a client is neither an index nor a string, `clients` has both, or
      it is not a sequence of names.
    ValueError: an index is negative, or has more than 63 bits; or a string
      breaks the rule of the module.

  >>> names(np.array([3, np.int32(1)], object)).tolist()
  [3, 1]
  """
  # Each character of a text would count as a client.
  if isinstance(clients, (str, bytes)) or (
    not np.iterable(clients) or getattr(clients, 'ndim', 1) > 1
  ):
    raise errors.type_error(
      f'clients={clients!r}: must be a list or an array of names, of one '
      'dimension; write [name] for one client'
    )
  if np.ma.is_masked(clients):
    raise errors.value_error(
      'clients=masked array: has masked names; give the clients that took part'
    )
  if isinstance(clients, range):
    clients = np.arange(clients.start, clients.stop, clients.step)
  if isinstance(clients, np.ndarray) and clients.dtype.kind in 'iu':
    for client in (clients.min(), clients.max()) if len(clients) else ():
      _index(client)
    return clients.astype(np.int64)
  if isinstance(clients, np.ndarray):
    # `tolist` gives Python values: each element of an object array stays an
    # integer or a string.
    clients = clients.tolist()
  clients = list(clients)
  strings = [client for client in clients if isinstance(client, str)]
  # PRIVACY: a program that reads names from two sources may name one client
  # both '1' and 1, and this client could take part twice within min_sep rounds.
  # A mixture of strings and indices is refused here, before NumPy could convert
  # all names to strings.
  # Guard: identifiers_test.test_names_of_two_kinds_are_refused.
  if 0 < len(strings) < len(clients):
    raise errors.type_error(
      f'clients={len(strings)} strings and {len(clients) - len(strings)} '
      'others: must be all indices or all strings, since 1 and "1" would count '
      'as two clients; name all clients in one way'
    )
  if not strings:
    return np.array([_index(client) for client in clients], np.int64)
  column = Column.from_texts(strings)
  # PRIVACY: names such as '7' and '7 ' may be one client, which would count as
  # two clients with fewer rounds each, so epsilon would be too small. A string
  # that breaks the rule of this module is refused.
  # Guard:
  # client_names_test.test_text_that_is_no_name_is_refused_by_every_reader.
  fault = first_fault(column)
  if fault is not None:
    place, rule = fault
    raise errors.value_error(f'client={column[place]!r}: {rule}; {REMEDY}')
  return strings


def _index(client: object) -> int:
  remedy = 'give an index in the population, or name all clients by string'
  try:
    # A cohort can have millions of clients, and a function of `_checks` would
    # be slow.
    if isinstance(client, (bool, np.bool_)):
      raise TypeError
    index = operator.index(client)  # type: ignore[arg-type]
  except TypeError:
    raise errors.type_error(
      f'client={client}: must be an integer; {remedy}'
    ) from None
  if not 0 <= index < 2**63:
    raise errors.value_error(f'client={index}: must be in [0, 2^63); {remedy}')
  return index


def missing_integers(values: np.ndarray) -> np.ndarray:
  """Returns which integers stand for a missing name, [m] bool."""
  if not len(values) or values.min() >= 0:
    return np.zeros(len(values), bool)
  stand_ins = [int(word) for word in _MISSING if word[1:].isdigit()]
  return np.isin(values, np.array(stand_ins, np.int64))


def first_fault(column: Column) -> Optional[tuple[int, str]]:
  """Returns the place of the first text that breaks the rule, and its fault.

  The result is None if every text is a name.
  """
  for i, chunk in enumerate(column.chunks()):
    for place, fault in sorted(_faults(chunk)):
      return i * _CHUNK + place, fault
  return None


# PRIVACY: If '7' and '7 ' were both names, one client could count as two. If
# 'nan' were a name, all clients without a name would count as one. A text is
# refused if it is empty, stands for a missing name, begins or ends with a
# blank, is not UTF-8, or has a refused character anywhere.
# Guards: client_names_test.test_text_that_is_no_name_is_refused_by_every_reader
# and client_names_test.test_first_fault_is_that_of_one_text_at_a_time.
def _faults(column: Column) -> Iterable[tuple[int, str]]:
  """Yields (place, fault) of some faulty texts, always of the first one."""
  content, starts, ends = column.content, column.bounds[:-1], column.bounds[1:]
  for place, fault in _first(starts == ends, 'is empty'):
    yield place, fault
    # Below, each text has a first and a last byte.
    yield from _faults(column.select(np.arange(place)))
    return
  if not len(column):
    return
  first, last = content[starts], content[ends - 1]
  yield from _first(first == ord(' '), 'begins with a blank')
  yield from _first(last == ord(' '), 'ends with a blank')
  ends_match = _ENDS_OF_MISSING[_LOWER[first], _LOWER[last]]
  ends_match &= ends - starts <= _LONGEST_MISSING
  for i in np.flatnonzero(ends_match).tolist():
    if column[i].lower() in _MISSING:
      yield i, 'stands for a missing name'
      break
  encoded = content.tobytes()
  unseen: Iterable[str]
  if encoded.isascii():
    unseen = encoded.translate(None, _ALLOWED)[:1].decode()
  else:
    yield from _first(first & 0xC0 == 0x80, 'is not UTF-8')
    try:
      text = encoded.decode()
    except UnicodeDecodeError as error:
      yield _place(column, error.start), 'is not UTF-8'
      return
    # Each different character is looked up once.
    present = np.zeros(0x110000, bool)
    present[np.frombuffer(text.encode('utf-32-le'), '<u4')] = True
    unseen = filter(_unseen, map(chr, np.flatnonzero(present).tolist()))
  for character in unseen:
    place = _place(column, encoded.index(character.encode()))
    about = unicodedata.name(character, 'a control character')
    about = 'a quote' if character == '"' else about
    yield place, f'has U+{ord(character):04X}, {about}'


def _first(holds: np.ndarray, fault: str) -> list[tuple[int, str]]:
  """Returns [(first place where `holds` is True, fault)], or []."""
  return [(place, fault) for place in np.flatnonzero(holds)[:1].tolist()]


def _place(column: Column, byte: int) -> int:
  return int(np.searchsorted(column.bounds, byte, 'right')) - 1


# PRIVACY: Two names can differ only in an invisible character, so one client
# would count as two. Such characters are refused.
# Guard: client_names_test.test_first_fault_is_that_of_one_text_at_a_time.
def _unseen(character: str) -> bool:
  """Returns whether a character is refused in names.

  >>> [_unseen(each) for each in ('a', ' ', '\\xa0', '\\u200b', '\\u3164')]
  [False, False, True, True, True]
  """
  code = ord(character)
  if code < 128:
    return code not in _ALLOWED
  return unicodedata.category(character) in _UNSEEN_CATEGORIES or any(
    low <= code <= high for low, high in _UNSEEN_RANGES
  )


def _respelled(column: Column) -> Column:
  """Returns the simplified spelling of each name.

  Names that may mean one client get the same spelling. The function applies
  NFKC and lower case, and removes quotes or brackets around a name, zeros
  before a number, `.0` after a number at the end of a name, and repeated
  blanks.

  >>> [*_respelled(Column.from_texts(['007', '7.0', "b'7'", 'A-07', 'a-7']))]
  ['7', '7', '7', 'a-7', 'a-7']
  """
  encoded, bounds = column.content.tobytes(), column.bounds
  if encoded.isascii():
    text = encoded.lower()
  else:
    text, bounds = _normalised(column)
  content = np.frombuffer(text, np.uint8)
  starts, ends = bounds[:-1].copy(), bounds[1:].copy()
  digit = content - np.uint8(ord('0')) < 10
  if _CLOSES[content[ends - 1]].any():
    _drop_quotes(content, starts, ends)
  if b'.' in text:
    _drop_fractions(content, digit, starts, ends)
  dropped = _leading_zeros(content, digit, starts, ends)
  if b'  ' in text:
    dropped[1:] |= (content[1:] == ord(' ')) & (content[:-1] == ord(' '))
  if (ends - starts).sum() < len(content):
    # The sum is 1 at each byte between the start and the end of a text.
    inside = np.zeros(len(content) + 1, np.int8)
    inside[starts] += 1
    inside[ends] -= 1
    dropped |= np.cumsum(inside[:-1], dtype=np.int8) == 0
  gone = np.flatnonzero(dropped)
  if not len(gone):
    return column if text == encoded else Column(content, bounds)
  return Column(content[~dropped], bounds - np.searchsorted(gone, bounds))


def _normalised(column: Column) -> tuple[bytes, np.ndarray]:
  """Applies NFKC and case folding, and replaces every quote by '.

  The result is (content, bounds).
  """
  count = len(column)
  place = np.arange(len(column.content))
  place += np.repeat(np.arange(count), np.diff(column.bounds))
  lines = np.full(len(place) + count - 1, ord('\n'), np.uint8)
  lines[place] = column.content
  text = unicodedata.normalize('NFKC', lines.tobytes().decode()).casefold()
  text = unicodedata.normalize('NFKC', text)
  if any(map(text.__contains__, map(chr, _QUOTES))):
    text = text.translate(_QUOTES)
  content = np.frombuffer(text.encode(), np.uint8)
  is_end = content == ord('\n')
  ends = np.flatnonzero(is_end) - np.arange(count - 1)
  content = content[~is_end]
  return content.tobytes(), np.concatenate([[0], ends, [len(content)]])


def _drop_quotes(
  content: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> None:
  """Moves starts and ends of texts in quotes or brackets, in place."""
  second = content[np.minimum(starts + 1, ends - 1)]
  of_bytes = (content[starts] == ord('b')) & (second == ord("'"))
  of_bytes &= (content[ends - 1] == ord("'")) & (ends - starts > 3)
  starts += of_bytes
  closing = _CLOSING[content[starts]]
  quoted = (closing != 0) & (closing == content[ends - 1]) & (ends - starts > 2)
  starts += quoted
  ends -= quoted


def _drop_fractions(
  content: np.ndarray, digit: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> None:
  """Moves the ends of texts such as 7.0 to the point, in place."""
  point, zero = content == ord('.'), content == ord('0')
  texts = np.arange(len(ends))
  last = ends - 1
  while len(texts):
    at = last[texts]
    tail = (point[at] | zero[at]) & (at > starts[texts])
    texts, at = texts[tail], at[tail]
    cut = point[at] & digit[at - 1]
    ends[texts[cut]] = at[cut]
    last[texts] -= 1


# PRIVACY: The names '7' and '07' may be one client, who would count as two.
# This function finds the zeros before a number, so that both names get one
# spelling.
# Guard:
# client_names_test.test_spelling_of_a_column_is_that_of_one_text_at_a_time.
def _leading_zeros(
  content: np.ndarray, digit: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
  """Returns which bytes are zeros before a number in a text."""
  zero = content == ord('0')
  # True for a byte if the byte before it in the same text is a digit, or a
  # point that follows a digit.
  follows = np.zeros(len(content), bool)
  follows[1:] = digit[:-1]
  follows[2:] |= (content[1:-1] == ord('.')) & digit[:-2]
  inner = starts[ends - starts > 1]
  follows[inner + 1] = digit[inner]
  follows[starts] = False
  # True for a byte if the next byte of the same text is a digit.
  followed = np.zeros(len(content), bool)
  followed[:-1] = digit[1:]
  followed[ends - 1] = False
  dropped = np.zeros(len(content), bool)
  place = np.flatnonzero(zero & followed & ~follows)
  while len(place):
    dropped[place] = True
    place = place[followed[place]] + 1
    place = place[zero[place] & followed[place]]
  return dropped


class Register:
  """Hashes of names, and the names that may be two spellings of one client.

  Two names with the same hash count as one client, which can only raise the
  sensitivity. The probability that two of 10^7 names have the same hash is
  3e-6.
  """

  def __init__(self):
    # Without this secret random factor, an attacker could choose client names
    # that have the same hash.
    self._factor = np.uint64(secrets.randbits(64) | 1)
    # For each slot, the hash of the last name in it. The first bits of a hash
    # are the index of its slot.
    self._latest = np.zeros(2**_SLOT_BITS, np.uint64)
    # Hashes of names, and of the spellings that `_respelled` gives them. A name
    # may be in the list more than once.
    self._names: list[np.ndarray] = []
    self._spellings: list[np.ndarray] = []

  def add(self, column: Column) -> np.ndarray:
    """Returns [m] uint64 hashes of texts that are names."""
    hashes = [np.empty(0, np.uint64)]
    for chunk in column.chunks():
      hashes.append(self._hashes(chunk))
      slots = _first_bits(hashes[-1], _SLOT_BITS)
      # If a name is the latest in its slot, its spelling was computed already.
      # PRIVACY: If a new name were mistaken for an earlier name, its spelling
      # would not be compared with others, and one client could have two names.
      # Names are compared by their whole hashes.
      # Guard: client_names_test.test_names_alike_are_those_of_one_spelling.
      new = np.flatnonzero(self._latest[slots] != hashes[-1])
      self._latest[slots] = hashes[-1]
      name, chunk = hashes[-1][new], chunk.select(new)
      respelled = _respelled(chunk)
      self._names.append(name)
      spelling = name if respelled is chunk else self._hashes(respelled)
      self._spellings.append(spelling)
    return np.concatenate(hashes)

  def integers(self, values: np.ndarray) -> np.ndarray:
    """Returns [m] uint64 hashes of integers of 64 bits."""
    return _mixed(values.view(np.uint64) * self._factor)

  def _hashes(self, column: Column) -> np.ndarray:
    """Returns a hash of each text under the secret factor.

    The hash h begins as the length of the text. For each next 8 bytes w of the
    text, h becomes mixed(h * factor + w). The last w is padded with zeros.
    """
    starts, lengths = column.bounds[:-1], np.diff(column.bounds)
    padded = np.append(column.content, np.zeros(8, np.uint8))
    # For each byte, the number that this byte and the next 7 bytes form.
    words: np.ndarray = np.ndarray(len(padded) - 7, '<u8', padded, strides=(1,))
    hashes = lengths.astype(np.uint64)
    texts = np.arange(len(lengths))
    for i in range(0, int(lengths.max(initial=0)), 8):
      left = lengths[texts] - i
      texts, left = texts[left > 0], left[left > 0]
      word = words[starts[texts] + i]
      unused = (8 * np.maximum(8 - left, 0)).astype(np.uint64)
      word = (word << unused) >> unused
      hashes[texts] = _mixed(hashes[texts] * self._factor + word)
    return hashes

  def alike(
    self, hashes: np.ndarray, text: Callable[[int], str]
  ) -> Optional[str]:
    """Returns a warning if names may be two spellings of one client, or None.

    Args:
      hashes: [m] uint64, hashes of all names that were added.
      text: function from an index in `hashes` to the name.
    """
    if all(map(operator.is_, self._names, self._spellings)):
      return None
    name = np.concatenate(self._names)
    spelling = np.concatenate(self._spellings)
    # The spellings of the names in one slot have some bits in common. The loop
    # leaves only names whose slot has two different names; these are sorted
    # below.
    for skipped in 0, 20, 40:
      bits = 1 + len(name).bit_length()
      slots = _first_bits(spelling << np.uint64(skipped), bits)
      # Comparing half of each hash takes half of the time. Two different names
      # have the same half with probability 2^-32; such a pair may be missed.
      half = name.astype(np.uint32)
      name_in_slot = np.zeros(2**bits, np.uint32)
      name_in_slot[slots] = half
      has_two = np.zeros(len(name_in_slot), bool)
      has_two[slots[name_in_slot[slots] != half]] = True
      left = np.flatnonzero(has_two[slots])
      name, spelling = name[left], spelling[left]
    order = np.argsort(spelling)
    name, spelling = name[order], spelling[order]
    # If two names have one spelling, two neighbours with this spelling differ.
    differ = (spelling[1:] == spelling[:-1]) & (name[1:] != name[:-1])
    if not differ.any():
      return None
    several = np.isin(spelling, spelling[1:][differ])
    count = len(np.unique(name[several])) - len(np.unique(spelling[several]))
    place = int(np.argmax(differ))
    one, other = (
      text(int(np.argmax(hashes == each))) for each in name[place : place + 2]
    )
    return _warning(one, other, count)


def _first_bits(hashes: np.ndarray, bits: int) -> np.ndarray:
  """Returns the first bits of each hash as an int64 index."""
  return (hashes >> np.uint64(64 - bits)).view(np.int64)


def _mixed(values: np.ndarray) -> np.ndarray:
  """Returns the image of each value under a bijection that mixes its bits."""
  for shift, factor in zip((30, 27), _MIX):
    values = (values ^ (values >> np.uint64(shift))) * factor
  return values ^ (values >> np.uint64(31))


# Sentence of a report about names that may be two spellings of one client.
NOT_COVERED = (
  'some names of clients differ from others only in case, zeros, quotes, '
  'blanks or Unicode form: a client with several such names'
)


def alike(texts: Sequence[str]) -> Optional[str]:
  """Returns a warning if names may be two spellings of one client, or None.

  >>> alike(['7', '07', 'a'])[:22]
  "client='07': and '7' d"
  """
  register = Register()
  hashes = register.add(Column.from_texts(texts))
  return register.alike(hashes, texts.__getitem__)


def _warning(one: str, other: str, count: int = 1) -> str:
  """Returns the warning about names that may be two spellings of one client.

  Args:
    one: a name.
    other: a name with the same spelling.
    count: number of names less the number of their spellings.
  """
  one, other = sorted([one, other])
  # Two Unicode forms of one text look the same unless they are escaped.
  forms = {unicodedata.normalize('NFC', name) for name in (one, other)}
  shown = repr if len(forms) > 1 else ascii
  more = f', and so do {count - 1} more names' if count > 1 else ''
  return (
    f'client={shown(one)}: and {shown(other)} differ only in case, zeros, '
    f'quotes, blanks or Unicode form{more}; if two names are one client, '
    'epsilon is too small: write each client under one name'
  )


class Spellings:
  """The spellings of names that come one cohort after another."""

  def __init__(self):
    # {spelling: name}, for names that differ from their spelling.
    self._names: dict[str, str] = {}

  def alike(
    self, texts: Sequence[str], took_part: Callable[[list[str]], np.ndarray]
  ) -> Optional[str]:
    """Returns the warning about names with one spelling, or None.

    Names of the cohort are compared with each other and with earlier names.

    Args:
      texts: names of a cohort.
      took_part: function from names to [m] bool, whether each name took part.
    """
    respelled = _respelled(Column.from_texts(texts))
    spellings = dict(zip(texts, respelled))
    for name, spelling in spellings.items():
      earlier = self._names.get(spelling, name)
      if earlier != name:
        return _warning(name, earlier)
    changed = {
      spelling: name
      for name, spelling in spellings.items()
      if name != spelling and first_fault(Column.from_texts([spelling])) is None
    }
    self._names.update(changed)
    for spelling in np.array(list(changed))[took_part(list(changed))].tolist():
      return _warning(changed[spelling], spelling)
    return alike(texts)
