"""Tests of SQLite files of TFF's form: what is in them, and are they whole."""

import hashlib
import os
import sqlite3

import pytest

from simulations.corpora import checksums, corpus_file


@pytest.fixture
def path(tmp_path):
  """The path of a file as TFF writes it: no checksum, no index."""
  path = tmp_path / 'file.sqlite'
  rows = [('train', f'c{i}', '', f'sentence {i}') for i in range(500)]
  corpus_file.write(str(path), rows, lambda: 'x')
  with sqlite3.connect(path) as connection:
    connection.executescript('DROP TABLE corpus; DROP INDEX examples_client;')
  return path


@pytest.mark.parametrize(
  'columns, found',
  [
    ('client_id', True),
    ('split_name, client_id', True),
    ('split_name', False),
    ('split_name, serialized_example_proto, client_id', False),
  ],
)
def test_finds_clients_sees_which_index_helps(path, columns, found):
  with sqlite3.connect(path) as connection:
    assert not corpus_file.finds_clients(connection)
    connection.execute(f'CREATE INDEX some_index ON examples ({columns})')
    assert corpus_file.finds_clients(connection) == found


def test_clients_have_their_sizes_in_the_order_of_their_ids(path):
  with corpus_file.Content.from_file(
    str(path), progress=False
  ).open() as connection:
    client_ids, sizes = corpus_file.client_sizes(connection, 'train')
    assert client_ids == tuple(sorted(f'c{i}' for i in range(500)))
    assert sizes == [1] * 500
    assert corpus_file.client_sentences(connection, 'train', 'c7', 3) == [
      'sentence 7'
    ]
    assert corpus_file.client_sentences(connection, 'test', 'c7', 3) == []


def test_file_is_hashed_once_and_again_when_changed(path, monkeypatch):
  content = corpus_file.Content.from_file(str(path), progress=False)
  expected = hashlib.sha256(path.read_bytes()).hexdigest()
  assert content.digest == expected
  with monkeypatch.context() as patch:
    patch.setattr(checksums, 'sha256', None)
    assert corpus_file.Content.from_file(str(path), progress=False) == content
  with sqlite3.connect(path) as connection:
    connection.execute("UPDATE examples SET client_id = 'c'")
  changed = corpus_file.Content.from_file(str(path), progress=False)
  assert changed.digest == hashlib.sha256(path.read_bytes()).hexdigest()
  assert changed.digest != expected


def test_file_with_the_same_content_may_take_its_place(path, tmp_path):
  content = corpus_file.Content.from_file(str(path), progress=False)
  copy = tmp_path / 'copy'
  copy.write_bytes(path.read_bytes())
  os.replace(copy, path)
  os.utime(path, ns=(1, 1))
  with content.open() as connection:
    assert corpus_file.client_sizes(connection, 'train')[1] == [1] * 500
  with sqlite3.connect(path) as connection:
    connection.execute("UPDATE examples SET client_id = 'c'")
  with pytest.raises(ValueError, match='changed'), content.open():
    pass


def test_published_checksum_is_verified_every_time(path):
  content = corpus_file.Content.from_file(str(path), progress=False)
  published = path.with_name('file.sqlite.sha256')
  published.write_text(f'{content.digest}  file.sqlite\n')
  assert corpus_file.Content.from_file(str(path), progress=False) == content
  published.write_text('0' * 64 + '  file.sqlite\n')
  with pytest.raises(ValueError, match='fetch it again'):
    corpus_file.Content.from_file(str(path), progress=False)


def test_damaged_memory_of_a_checksum_is_made_again(path, tmp_path):
  content = corpus_file.Content.from_file(str(path), progress=False)
  (kept,) = tmp_path.glob('*sha256.json')
  for damage in ('', '{', '[]', '{"size": 1}'):
    kept.write_text(damage)
    assert corpus_file.Content.from_file(str(path), progress=False) == content


def test_cut_off_file_raises_one_line(path):
  content = path.read_bytes()
  path.write_bytes(content[: len(content) // 2])
  with pytest.raises(ValueError, match='SQLite says: .*malformed') as raised:
    corpus_file.Content.from_file(str(path), progress=False)
  assert '\n' not in str(raised.value)


def test_write_leaves_what_was_there_when_it_fails(path, tmp_path):
  before = path.read_bytes()

  def rows():
    yield 'train', 'a', '', 'one'
    raise ValueError('no more')

  with pytest.raises(ValueError, match='no more'):
    corpus_file.write(str(path), rows(), lambda: 'x')
  assert path.read_bytes() == before
  assert list(tmp_path.iterdir()) == [path]


def test_cache_goes_elsewhere_when_the_folder_is_read_only(
  tmp_path, monkeypatch
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(os, 'access', lambda path, mode: False)
  found = corpus_file.cache_path('/data/a.sqlite', None, 'x')
  assert found == str(tmp_path / 'cache' / 'tff_bandmf' / 'a-1-x')
