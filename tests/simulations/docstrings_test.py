"""Tests of the docstring corpus; `make deep` reads all of it (20 s)."""

import collections
import pathlib
import re
import sqlite3

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from simulations.corpora import (
  corpus_file,
  docstring_text,
  docstrings,
)

pytestmark = pytest.mark.slow

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SMALL = (('tensorflow-privacy', '0.9.0'), ('dp-accounting', '0.4.3'))
_ELEMENT_SPEC = (
  tff.simulation.datasets.stackoverflow.get_synthetic().element_type_structure
)


# Checksums of the clients of two packages, and of all.
_CHECKSUMS = {
  _SMALL: '5f5b16aeeb8a9a345ace351c382f058eb96d6ca912448741c4d867553a66b452',
  docstrings.PACKAGES: docstrings.CHECKSUM,
}


@pytest.fixture(
  scope='module',
  params=[
    pytest.param(_SMALL, id='two packages'),
    pytest.param(docstrings.PACKAGES, id='all', marks=pytest.mark.deep),
  ],
)
def packages(request):
  return request.param


@pytest.fixture(scope='module')
def clients(packages):
  return docstrings.read_clients(packages)


@pytest.fixture(scope='module')
def small_clients():
  return docstrings.read_clients(_SMALL)


@pytest.mark.parametrize(
  'docstring, expected',
  [
    ('Adds one.\n\n  Is it so?  It is so.', ['is it so', 'it is so']),
    ('Wraps over\n  two lines', ['wraps over two lines']),
    ("It's so for one (e.g. here). It doesn't.", ["it's so for one e g here"]),
    ('Cut at ' + 'a ' * 40, ['cut at ' + ' '.join('a' * 18)]),
    ('Same as it. Same as it.', ['same as it']),
    ('Before code:\n\n>>> f(of the code)\nall of it\n', []),
    ('See the code::\n\n    all of it\n\nAfter the code.', None),
    ('See the code:\n\n```\nall of it\n```\nAfter the code.', None),
    (
      'See the code\n\n.. code-block:: py\n\n  all of it\n\nAfter the code.',
      None,
    ),
    ('.. versionadded:: 1.2.0 Now it is.', ['now it is']),
    ('A Heading of it\n---------------\nThe text is.', ['the text is']),
    ('x : array of the floats\n  The values of x.', ['the values of x']),
    ('Args:\n  x (int): the values.\n  y: more of it.', None),
    (':param x: the values\n:returns: more of it', None),
    ('y = g(x[0, 1:], *z) + w_2 ** -3 / {a: 1}', []),
    ('Licensed under the Apache License.', []),
    ('See https://a.b/see/all/of/it of a@b.com', []),
    ('Naïve is it. Ⅷ of it is here.', ['na ve is it', 'of it is here']),
  ],
)
def test_extract_sentences_keeps_prose_only(docstring, expected):
  if expected is None:
    expected = {
      'S': ['see the code', 'after the code'],
      'A': ['more of it'],
      ':': ['more of it'],
    }[docstring[0]]
  assert docstring_text.extract_sentences(docstring) == expected


def test_packages_are_pinned_so_in_every_lock():
  locks = sorted((_ROOT / 'requirements').glob('py3*.lock'))
  assert len(locks) == 3
  for lock in locks:
    pins = re.findall(r'^([a-z0-9-]+)==(\S+)', lock.read_text(), re.MULTILINE)
    assert set(docstrings.PACKAGES) <= set(pins), lock.name


def test_checksum_is_that_of_the_locked_packages(packages, clients):
  """Where it is another one, `docstrings` needs a new VERSION and CHECKSUM."""
  assert docstrings.checksum(clients) == _CHECKSUMS[packages]


def test_clients_have_distinct_short_sentences(packages, clients):
  assert len(clients) > 100 * len(packages)
  assert len({client.client_id for client in clients}) == len(clients)
  assert len({client.sentences for client in clients}) == len(clients)
  sentence = re.compile(r"[a-z0-9']+( [a-z0-9']+){2,19}")
  for client in clients:
    assert len(set(client.sentences)) == len(client.sentences) >= 2
    assert all(map(sentence.fullmatch, client.sentences)), client.client_id


def test_split_is_about_80_10_10(clients):
  counts = collections.Counter(client.split_name for client in clients)
  error = 2 / len(clients) ** 0.5
  assert counts['train'] / len(clients) == pytest.approx(0.8, abs=error)
  assert counts['heldout'] / len(clients) == pytest.approx(0.1, abs=error)
  assert counts['test'] / len(clients) == pytest.approx(0.1, abs=error)


def test_checksum_ignores_order_and_sees_every_word(small_clients):
  checksum = docstrings.checksum(small_clients)
  assert docstrings.checksum(small_clients[::-1]) == checksum
  first = small_clients[0]
  changed = docstrings.Client(
    first.client_id, first.package, first.sentences[:-1] + ('not so',)
  )
  assert docstrings.checksum([changed, *small_clients[1:]]) != checksum


def test_written_file_is_read_by_tff(small_clients, tmp_path):
  path = str(tmp_path / 'corpus.sqlite')
  docstrings.write_clients(small_clients, path)
  for split_name in corpus_file.SPLIT_NAMES:
    data = tff.simulation.datasets.load_and_parse_sql_client_data(
      path, _ELEMENT_SPEC, split_name
    )
    expected = {
      client.client_id: client
      for client in small_clients
      if client.split_name == split_name
    }
    assert data.client_ids == sorted(expected)
    client_id = data.client_ids[0]
    examples = list(data.create_tf_dataset_for_client(client_id))
    found = [example['tokens'].numpy().decode() for example in examples]
    assert found == list(expected[client_id].sentences)
    tags = {example['tags'].numpy().decode() for example in examples}
    assert tags == {expected[client_id].package}


def test_write_clients_leaves_nothing_when_it_fails(tmp_path):
  unencodable = docstrings.Client('a.py:f', 'a', ('is it so', '\ud800'))
  with pytest.raises(UnicodeEncodeError):
    docstrings.write_clients([unencodable], str(tmp_path / 'corpus.sqlite'))
  assert not list(tmp_path.iterdir())


def test_cached_corpus_is_built_once_and_again_when_damaged(
  small_clients, tmp_path
):
  checksum = docstrings.checksum(small_clients)

  def cached_corpus():
    return pathlib.Path(
      docstrings.cached_corpus(
        str(tmp_path / 'new'), _SMALL, checksum, progress=False
      )
    )

  path = cached_corpus()
  assert path.name == f'docstrings-{docstrings.VERSION}.sqlite'
  assert [path] == list(path.parent.iterdir())
  inode = path.stat().st_ino
  assert cached_corpus().stat().st_ino == inode
  path.write_bytes(b'half-written')
  cached_corpus()
  with sqlite3.connect(path) as connection:
    (count,) = connection.execute('SELECT COUNT(*) FROM examples').fetchone()
  assert count == sum(len(client.sentences) for client in small_clients)


@pytest.mark.parametrize(
  'packages, checksum, message',
  [
    (_SMALL[1:], '0' * 64, 'checksum=.* must be 0000.*make env'),
    ((('no-such-package', '1.0'),), '', 'no-such-package=none: .*make env'),
    (
      (('dp-accounting', '9.9'),),
      '',
      'dp-accounting=0.4.3: .* 9.9; .*make env',
    ),
  ],
)
def test_cached_corpus_raises_one_line_on_other_packages(
  packages, checksum, message, tmp_path
):
  with pytest.raises(ValueError, match=message) as error:
    docstrings.cached_corpus(str(tmp_path), packages, checksum, progress=False)
  assert '\n' not in str(error.value)
  assert not list(tmp_path.iterdir())


def test_examples_have_the_columns_of_stackoverflow(small_clients, tmp_path):
  path = str(tmp_path / 'corpus.sqlite')
  docstrings.write_clients(small_clients[:1], path)
  with sqlite3.connect(path) as connection:
    ((row,),) = connection.execute(
      'SELECT serialized_example_proto FROM examples LIMIT 1'
    )
  example = tf.train.Example.FromString(row)
  assert set(example.features.feature) == set(_ELEMENT_SPEC)
