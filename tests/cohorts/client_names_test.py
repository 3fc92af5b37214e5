"""Tests of the rule for names of clients, and of every reader of names."""

import re
import unicodedata
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tff_bandmf import ledger as ledger_lib
from tff_bandmf.cohorts import names
from tff_bandmf.report import participation_log
from tff_bandmf.run import clients

pa = pytest.importorskip('pyarrow')
parquet = pytest.importorskip('pyarrow.parquet')

_NO_NAMES = [
  *('', ' ', '7 ', ' 7', '7\t', '\n7', '7\r', '7\0', '7\x7f', '7\x85'),
  *('7\xa0', '\u20037', '7\u3000', '7\u2028', '\u16807', '7\u205f', '7\u202f'),
  *('\ufeff7', '7\u200b', '7\u200d', '7\xad', '7\u2060', '7\u202e', '7\u2066'),
  *('7\u3164', '7\u115f', '7\u2800', '7\ufe0f', '7\u034f', '7\U000e0020'),
  *('7\ufffd', '7\ue000', '7\uffff', '"7"', 'a"b', '\ud8007', '7\udfff'),
  *('NA', 'na', 'NaN', 'nan', 'None', 'none', '<NA>', 'null', 'NULL', 'Nil'),
  *('NaT', 'N/A', '#N/A', '-1', '-1.0', '-2147483648', '(null)', '\\N', '?'),
  *('-9223372036854775808', '-9.223372036854776e+18', '-999', '-999.0'),
  *('1.#IND', 'undefined', 'Missing', '-nan', '-'),
]
_NAMES = [
  *('7', '0', '-12', 'a b', "O'Brien", 'nina', 'NATAN', 'n/1', '1.5', 'a-b_c'),
  *('Анна', '安', 'e\u0301', '\U0001f469', '<7>', '\\n7', 'nan7', 'device-007'),
]


def _in_csv(path, name):
  path = path.with_suffix('.csv')
  text = f'round,client\n0,a\n1,{name}\n'
  path.write_bytes(text.encode('utf-8', 'surrogatepass'))
  participation_log.ParticipationLog(path)


def _in_parquet(kind):
  def read(path, name):
    path = path.with_suffix('.parquet')
    column = pa.array([b'a', name.encode('utf-8', 'surrogatepass')])
    column = (
      column.cast(pa.string(), safe=False) if kind != 'binary' else column
    )
    if kind == 'dictionary':
      column = column.dictionary_encode()
    parquet.write_table(pa.table({'round': [0, 1], 'client': column}), path)
    participation_log.ParticipationLog(path)

  return read


def _in_ledger(path, name):
  with ledger_lib.Ledger(path.with_suffix('.sqlite')) as ledger:
    ledger.start_round(ledger.next_round(), ['a', name])
    ledger.finish_round(ledger.last_round())


_READERS = {
  'csv': _in_csv,
  'strings': _in_parquet('strings'),
  'binary': _in_parquet('binary'),
  'dictionary': _in_parquet('dictionary'),
  'ledger': _in_ledger,
  'population': lambda path, name: clients.population(['a', name]),
  'array': lambda path, name: names.names(np.array(['a', name], object)),
}


@pytest.mark.slow
@pytest.mark.parametrize('read', _READERS.values(), ids=_READERS)
def test_text_that_is_no_name_is_refused_by_every_reader(tmp_path, read):
  for name in _NO_NAMES:
    with pytest.raises(ValueError, match='client|log=') as caught:
      read(tmp_path / 'log', name)
    assert '\n' not in str(caught.value), name
    assert str(caught.value).isprintable()


@pytest.mark.slow
@pytest.mark.parametrize('read', _READERS.values(), ids=_READERS)
def test_other_texts_are_names_for_every_reader(tmp_path, read):
  for name in _NAMES:
    read(tmp_path / 'log', name)


@pytest.mark.parametrize(
  'clients',
  [
    *([None, 'a'], ['a', float('nan')], [1.0], [np.float64(1)], [b'a'], [True]),
    *([np.array(True)], [np.array([1, 2])], [np.array(1.0)], [[1]]),
    *('ab', b'ab', 5, None, np.array(3), np.zeros([2, 2], int)),
    *(np.array([['a']]), np.ma.array([1, 2], mask=[False, True])),
  ],
)
def test_what_is_neither_text_nor_index_is_refused(clients):
  with pytest.raises((TypeError, ValueError), match='clients?=') as caught:
    names.names(clients)
  assert '\n' not in str(caught.value)


def test_negative_integers_are_names_in_a_log(tmp_path):
  path = tmp_path / 'log.parquet'
  columns = {'round': [0, 1, 2], 'client': [-2, -7_000_000_000, -2]}
  parquet.write_table(pa.table(columns), path)
  log = participation_log.ParticipationLog(path)
  ((_, clients),) = log.parts()
  assert clients[0] == clients[2] != clients[1]


@pytest.mark.parametrize(
  'value', [-1, -9, -99, -999, -9999, -99999, -(2**15), -(2**31), -(2**63)]
)
def test_integer_that_stands_for_a_missing_one_is_refused(tmp_path, value):
  path = tmp_path / 'log.parquet'
  columns = {'round': [0, 1], 'client': pa.array([5, value], pa.int64())}
  parquet.write_table(pa.table(columns), path)
  with pytest.raises(ValueError, match=f'row 2: client={value} stands for'):
    participation_log.ParticipationLog(path)


def _is_name(text):
  """The rule, a text at a time."""
  hidden = {'Cc', 'Cf', 'Cs', 'Co', 'Cn', 'Zl', 'Zp'}
  return (
    bool(text)
    and text.strip(' ') == text
    and '"' not in text
    and text.lower() not in names._MISSING
    and not any(
      unicodedata.category(each) in hidden
      or (unicodedata.category(each) == 'Zs' and each != ' ')
      or 0xFE00 <= ord(each) <= 0xFE0F
      or each in '\u034f\u115f\u1160\u2800\u3164\uffa0\ufffc\ufffd'
      for each in text
    )
  )


_LETTERS = 'aAB0079. .-\'"`{}()bé\u0301ÉßİK\uff17\xa0\u200b\u3164\ue000n<>安’'


@pytest.mark.slow
@settings(max_examples=150)
@given(texts=st.lists(st.text(_LETTERS, max_size=7), max_size=9))
@example(texts=['a', 'b\xa0'])
@example(texts=['é', 'nan'])
def test_first_fault_is_that_of_one_text_at_a_time(texts):
  wrong = [i for i, text in enumerate(texts) if not _is_name(text)]
  chunk = names._CHUNK
  try:
    for names._CHUNK in (2, chunk):
      fault = names.first_fault(names.Column.from_texts(texts))
      assert (fault and fault[0]) == (wrong[0] if wrong else None)
  finally:
    names._CHUNK = chunk


def _spelling(text):
  """The common spelling, a text at a time."""
  text = unicodedata.normalize('NFKC', text).casefold()
  text = unicodedata.normalize('NFKC', text).replace('’', "'")
  if re.fullmatch("b'.+'", text):
    text = text[1:]
  for opening, closing in ("''", '``', '{}', '()', '[]', '<>'):
    if len(text) > 2 and text[0] == opening and text[-1] == closing:
      text = text[1:-1]
      break
  text = re.sub(r'(?<=[0-9])\.[0.]*$', '', text)
  text = re.sub(r'(?<![0-9])(?<![0-9]\.)0+(?=[0-9])', '', text)
  return re.sub(' +', ' ', text)


@pytest.mark.slow
@settings(max_examples=300)
@given(
  texts=st.lists(
    st.text(_LETTERS, min_size=1, max_size=8).filter(_is_name), max_size=9
  )
)
@example(texts=['7.0', '7', '007', 'b.07', '1.07', '100.0', 'x.0', "b'7'"])
@example(texts=['9', '.07'])
def test_spelling_of_a_column_is_that_of_one_text_at_a_time(texts):
  column = names.Column.from_texts(texts)
  assert [*names._respelled(column)] == list(map(_spelling, texts))


@pytest.mark.slow
@settings(max_examples=100)
@given(
  texts=st.lists(
    st.text('aA07.é', min_size=1, max_size=3).filter(_is_name), max_size=30
  ),
  size=st.integers(1, 9),
  slot_bits=st.sampled_from([1, 22]),
)
def test_names_alike_are_those_of_one_spelling(texts, size, slot_bits):
  with mock.patch.object(names, '_SLOT_BITS', slot_bits):
    register = names.Register()
    hashes = np.concatenate(
      [
        register.add(names.Column.from_texts(texts[start : start + size]))
        for start in range(0, len(texts) or 1, size)
      ]
    )
  assert len(set(hashes.tolist())) == len(set(texts))
  with mock.patch.object(names, '_warning', lambda *parts: parts):
    warning = register.alike(hashes, texts.__getitem__)
  spellings = {text: _spelling(text) for text in texts}
  more = len(spellings) - len(set(spellings.values()))
  if not more:
    assert warning is None
    return
  pair = set(warning[:2])
  assert warning[2] == more and len(pair) == 2
  assert len({spellings[each] for each in pair}) == 1


def test_repeated_names_are_spelled_once(monkeypatch):
  spelled = []
  respelled = names._respelled
  monkeypatch.setattr(
    names,
    '_respelled',
    lambda column: spelled.extend(column) or respelled(column),
  )
  register = names.Register()
  texts = [f'DEVICE-{i}' for i in range(9)]
  for _ in range(3):
    register.add(names.Column.from_texts(texts))
  assert spelled == texts


@pytest.mark.parametrize(
  'one, other',
  [
    *(
      ('7', '7.0'),
      ('7', '007'),
      ('Ann', 'ann'),
      ('c-7', 'c-07'),
      ('7', "'7'"),
    ),
    *(('é', 'e\u0301'), ('7', '\uff17'), ('a b', 'a  b'), ('{a}', 'a')),
    *(('straße', 'STRASSE'), ("b'7'", '7'), ('7.00', '7'), ('“7”', '7')),
  ],
)
def test_two_spellings_are_named(one, other):
  for pair in ([one, other, 'x'], [other, 'x', one]):
    line = names.alike(pair)
    same = unicodedata.normalize('NFC', one) == unicodedata.normalize(
      'NFC', other
    )
    for name in (one, other):
      assert (ascii(name) if same else repr(name)) in line


@pytest.mark.parametrize(
  'texts',
  [['7', '70', '700'], ['a1', 'a10'], ['1.5', '1.05'], ['10.0.1', '10.1']],
)
def test_names_of_several_spellings_are_not_alike(texts):
  assert names.alike(texts) is None


@pytest.mark.slow
def test_names_of_a_large_population_are_compared():
  texts = [f'Client-{i:07d}' for i in range(300_000)]
  assert names.alike(texts) is None
  line = names.alike([*texts, 'client-299999'])
  assert "'Client-0299999'" in line and "'client-299999'" in line
