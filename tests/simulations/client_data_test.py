"""Tests of the loader, against TFF's own writer and its tokenizer."""

import collections
import sqlite3

import numpy as np
import pytest
import small_training
import tensorflow as tf
import tensorflow_federated as tff

from simulations.corpora import client_data, corpus_file, docstrings
from simulations.corpora import vocabulary as vocabulary_lib

_STACKOVERFLOW = tff.simulation.datasets.stackoverflow
_SPLIT_OF_CLIENT = {
  'synthetic_1': 'train',
  'synthetic_2': 'train',
  'synthetic_3': 'heldout',
}


@pytest.fixture(scope='module')
def stackoverflow_path(tmp_path_factory):
  """A file of StackOverflow's columns, written by TFF."""
  path = str(tmp_path_factory.mktemp('data') / 'stackoverflow.sqlite')
  data = _STACKOVERFLOW.get_synthetic()
  tff.simulation.datasets.save_to_sql_client_data(
    data.client_ids,
    data.create_tf_dataset_for_client,
    path,
    split_names_by_client_id=_SPLIT_OF_CLIENT,
  )
  return path


@pytest.fixture(scope='module')
def vocabulary(stackoverflow_path):
  return vocabulary_lib.count(stackoverflow_path, 20, progress=False)


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """The path of a small docstring corpus, and its clients."""
  path = str(tmp_path_factory.mktemp('data') / 'docstrings.sqlite')
  clients = docstrings.read_clients([('tensorflow-privacy', '0.9.0')])
  docstrings.write_clients(clients, path)
  return path, clients


@pytest.fixture(scope='module')
def train(corpus):
  path, _ = corpus
  vocabulary = vocabulary_lib.count(path, 500, progress=False)
  return client_data.load_clients(path, 'train', vocabulary, progress=False)


def test_vocabulary_is_ordered_by_count_then_word(corpus):
  path, clients = corpus
  counts = collections.Counter(
    word
    for client in clients
    if client.split_name == 'train'
    for sentence in client.sentences
    for word in sentence.split()
  )
  expected = sorted(counts, key=lambda word: (-counts[word], word))
  for size in (1, 300, len(counts)):
    vocabulary = vocabulary_lib.count(path, size, progress=False)
    assert list(vocabulary.words) == expected[:size]


def test_vocabulary_numbers_its_ids_as_tff_does():
  vocabulary = vocabulary_lib.Vocabulary(('the', 'of', 'a'))
  special = tff.simulation.baselines.stackoverflow.word_prediction_preprocessing
  tokens = special.get_special_tokens(vocab_size=3)
  assert tokens.padding == 0
  assert [vocabulary.out_of_vocabulary_id] == tokens.out_of_vocab
  assert vocabulary.beginning_id == tokens.beginning_of_sentence
  assert vocabulary.end_id == tokens.end_of_sentence
  assert vocabulary.num_ids == 3 + tokens.get_number_of_special_tokens()


@pytest.mark.parametrize('sequence_length', [1, 4, 5, 20])
@pytest.mark.parametrize('split_name', ['train', 'heldout'])
@pytest.mark.deep(but=('train-1', 'train-4', 'heldout-5'))
def test_arrays_are_those_of_tff_for_its_own_file(
  stackoverflow_path, vocabulary, split_name, sequence_length
):
  clients = client_data.load_clients(
    stackoverflow_path,
    split_name,
    vocabulary,
    sequence_length=sequence_length,
    progress=False,
  )
  preprocessing = (
    tff.simulation.baselines.stackoverflow.word_prediction_preprocessing
  )
  preprocess = preprocessing.create_preprocess_fn(
    tff.simulation.baselines.ClientSpec(
      num_epochs=1, batch_size=2, shuffle_buffer_size=1
    ),
    vocab=list(vocabulary.words),
    sequence_length=sequence_length,
  )
  data = _STACKOVERFLOW.get_synthetic()
  assert list(clients.client_ids) == sorted(
    name for name, split in _SPLIT_OF_CLIENT.items() if split == split_name
  )
  for index, client_id in enumerate(clients.client_ids):
    theirs = list(preprocess(data.create_tf_dataset_for_client(client_id)))
    ours = list(small_training.batches(clients, index, 2))
    assert len(ours) == len(theirs)
    for (x, y), (their_x, their_y) in zip(ours, theirs):
      np.testing.assert_array_equal(x, their_x)
      np.testing.assert_array_equal(y, their_y)


def test_load_clients_holds_every_sentence_of_the_corpus(corpus, train):
  _, clients = corpus
  expected = {
    client.client_id: client.sentences
    for client in clients
    if client.split_name == 'train'
  }
  assert train.client_ids == tuple(sorted(expected))
  words = ('<pad>',) + train.vocabulary.words
  known = set(words)
  for index, client_id in enumerate(train.client_ids):
    x, y = train.client_arrays(index)
    assert x.dtype == y.dtype == np.int32
    for row, targets, sentence in zip(x, y, expected[client_id]):
      split = sentence.split()
      assert row[0] == train.vocabulary.beginning_id
      np.testing.assert_array_equal(row[1:], targets[:-1])
      for target, word in zip(targets, split):
        if word in known:
          assert words[target] == word
        else:
          assert target == train.vocabulary.out_of_vocabulary_id
      if len(split) < 20:
        assert targets[len(split)] == train.vocabulary.end_id
        assert not targets[len(split) + 1 :].any()


def test_max_sentences_per_client_keeps_the_first(corpus, train):
  path, _ = corpus
  few = client_data.load_clients(
    path,
    'train',
    train.vocabulary,
    max_sentences_per_client=3,
    progress=False,
  )
  assert few.client_ids == train.client_ids
  for index in range(few.num_clients):
    x, _ = few.client_arrays(index)
    np.testing.assert_array_equal(x, train.client_arrays(index)[0][:3])


def test_order_is_a_function_of_seed_round_and_client(train):
  index = int(np.argmax(np.diff(train.offsets)))
  plain, _ = train.client_arrays(index)
  first, targets = train.client_arrays(index, seed=1, round_index=2)
  again, _ = train.client_arrays(index, seed=1, round_index=2)
  np.testing.assert_array_equal(first, again)
  np.testing.assert_array_equal(first[:, 1:], targets[:, :-1])
  for seed, round_index in ((1, 3), (2, 2)):
    other, _ = train.client_arrays(index, seed=seed, round_index=round_index)
    assert (other != first).any()
    assert sorted(map(tuple, other)) == sorted(map(tuple, plain))


def test_arrays_are_all_clients_or_rows_at_even_distances(train):
  x, y = train.arrays()
  assert len(x) == len(y) == train.offsets[-1]
  for index in (0, train.num_clients - 1):
    rows = slice(train.offsets[index], train.offsets[index + 1])
    np.testing.assert_array_equal(x[rows], train.client_arrays(index)[0])
  some, _ = train.arrays(max_sentences=len(x) // 2)
  np.testing.assert_array_equal(some, x[::2][: len(x) // 2])


def test_load_clients_reads_a_split_once(corpus, train, tmp_path):
  path, _ = corpus
  copy = tmp_path / 'copy.sqlite'
  copy.write_bytes(open(path, 'rb').read())
  for name, vocabulary in (
    ('first', train.vocabulary),
    ('second', vocabulary_lib.Vocabulary(('other',))),
  ):
    clients = client_data.load_clients(
      str(copy), 'test', vocabulary, progress=False
    )
    assert clients.vocabulary == vocabulary, name
  caches = sorted(tmp_path.glob('*.ids'))
  assert len(caches) == 2
  inodes = [cache.stat().st_ino for cache in caches]
  again = client_data.load_clients(
    str(copy), 'test', vocabulary_lib.Vocabulary(('other',)), progress=False
  )
  np.testing.assert_array_equal(again.ids, clients.ids)
  assert again.client_ids == clients.client_ids
  assert [cache.stat().st_ino for cache in caches] == inodes


def _write_rows(path, rows, num_examples):
  """Writes a file of the form by hand; `rows` are (client id, sentence)."""
  with sqlite3.connect(path) as connection:
    connection.executescript(
      'CREATE TABLE examples (split_name TEXT, client_id TEXT, '
      'serialized_example_proto BLOB);'
      'CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, '
      'num_examples INTEGER);'
    )
    for client_id, sentence in rows:
      example = tf.train.Example()
      tokens = example.features.feature['tokens'].bytes_list
      tokens.value.append(sentence.encode())
      connection.execute(
        'INSERT INTO examples VALUES (?, ?, ?)',
        ('train', client_id, example.SerializeToString()),
      )
    for client_id, count in num_examples.items():
      connection.execute(
        'INSERT INTO client_metadata VALUES (?, ?, ?)',
        (client_id, 'train', count),
      )


def test_clients_need_not_lie_together_in_the_file(tmp_path):
  path = str(tmp_path / 'mixed.sqlite')
  rows = [('b', 'w1'), ('a', 'w2'), ('b', 'w3'), ('a', 'w1'), ('b', 'w2')]
  _write_rows(path, rows, {'b': 3, 'a': 2})
  vocabulary = vocabulary_lib.Vocabulary(('w1', 'w2', 'w3'))
  clients = client_data.load_clients(
    path, 'train', vocabulary, max_sentences_per_client=2, progress=False
  )
  assert clients.client_ids == ('a', 'b')
  assert clients.ids[:, 1].tolist() == [2, 1, 1, 3]


def test_load_clients_raises_when_examples_are_missing(tmp_path):
  path = str(tmp_path / 'short.sqlite')
  _write_rows(path, [('a', 'w1')], {'a': 2})
  with pytest.raises(ValueError, match='client_id=a: .*make it again'):
    client_data.load_clients(
      path, 'train', vocabulary_lib.Vocabulary(('w1',)), progress=False
    )
  assert not list(tmp_path.glob('*.ids'))


def test_large_vocabulary_takes_wider_ids(tmp_path):
  path = str(tmp_path / 'large.sqlite')
  _write_rows(path, [('a', 'w40000 unknown')], {'a': 1})
  vocabulary = vocabulary_lib.Vocabulary(tuple(f'w{i}' for i in range(40_001)))
  clients = client_data.load_clients(path, 'train', vocabulary, progress=False)
  assert clients.ids[0, :4].tolist() == [40_003, 40_001, 40_002, 40_004]


@pytest.mark.parametrize(
  'content, error, message',
  [
    (
      None,
      FileNotFoundError,
      'path=.*: there is no such file; .*corpus',
    ),
    (b'not a database at all', ValueError, 'path=.*: must be a SQLite file'),
    (b'', ValueError, 'lacks the table client_metadata and examples'),
  ],
)
def test_files_of_another_form_raise_one_line(
  content, error, message, tmp_path
):
  path = tmp_path / 'file.sqlite'
  if content is not None:
    path.write_bytes(content)
  vocabulary = vocabulary_lib.Vocabulary(('w',))
  with pytest.raises(error, match=message) as raised:
    vocabulary_lib.count(str(path), 10)
  assert '\n' not in str(raised.value)
  with pytest.raises(error, match=message):
    client_data.load_clients(str(path), 'train', vocabulary)


def test_bad_arguments_raise_one_line(stackoverflow_path, vocabulary, train):
  with pytest.raises(ValueError, match='vocabulary_size=0'):
    vocabulary_lib.count(stackoverflow_path, 0)
  with pytest.raises(ValueError, match='vocabulary_size=1000: .* most 57'):
    vocabulary_lib.count(stackoverflow_path, 1000)
  with pytest.raises(ValueError, match='=validation'):
    client_data.load_clients(stackoverflow_path, 'validation', vocabulary)
  for name in ('sequence_length', 'max_sentences_per_client'):
    with pytest.raises(ValueError, match=f'{name}=0'):
      client_data.load_clients(
        stackoverflow_path, 'train', vocabulary, **{name: 0}
      )
  for index in (-1, train.num_clients):
    with pytest.raises(ValueError, match=f'client_index={index}: '):
      train.client_arrays(index)
  for words in ((), ('a', 'a')):
    with pytest.raises(ValueError, match='words'):
      vocabulary_lib.Vocabulary(words)


def test_clients_are_tokenized_when_first_used(corpus, train, tmp_path):
  path, _ = corpus

  def load():
    return client_data.load_clients(
      path,
      'train',
      train.vocabulary,
      cache_directory=str(tmp_path),
      progress=False,
    )

  clients = load()
  assert clients.num_clients == train.num_clients > 10
  assert not clients.ids.any()
  for used in ([3], [3, 7]):
    x, _ = clients.client_arrays(used[-1])
    np.testing.assert_array_equal(x, train.client_arrays(used[-1])[0])
    filled = np.flatnonzero(load().ids[:, 0])
    expected = [
      np.arange(clients.offsets[i], clients.offsets[i + 1]) for i in used
    ]
    np.testing.assert_array_equal(filled, np.concatenate(expected))
  np.testing.assert_array_equal(load().arrays()[0], train.arrays()[0])


def test_some_rows_need_only_their_clients(corpus, train, tmp_path):
  clients = client_data.load_clients(
    corpus[0],
    'train',
    train.vocabulary,
    cache_directory=str(tmp_path),
    progress=False,
  )
  some, _ = clients.arrays(max_sentences=5)
  np.testing.assert_array_equal(some, train.arrays(max_sentences=5)[0])
  assert 0 < np.count_nonzero(clients.ids[:, 0]) < len(clients.ids)


def test_client_cut_off_by_a_crash_is_tokenized_again(corpus, train, tmp_path):
  clients = client_data.load_clients(
    corpus[0],
    'train',
    train.vocabulary,
    cache_directory=str(tmp_path),
    progress=False,
  )
  index = int(np.argmax(np.diff(train.offsets)))
  # The first row is written last.
  clients.ids[clients.offsets[index] + 1] = 7
  np.testing.assert_array_equal(
    clients.client_arrays(index)[0], train.client_arrays(index)[0]
  )


def test_file_without_an_index_is_tokenized_at_once(
  stackoverflow_path, vocabulary, tmp_path
):
  with sqlite3.connect(stackoverflow_path) as connection:
    assert not corpus_file.finds_clients(connection)
  clients = client_data.load_clients(
    stackoverflow_path,
    'train',
    vocabulary,
    cache_directory=str(tmp_path),
    progress=False,
  )
  assert clients.ids[:, 0].all()


def test_digest_tells_content_and_cut_and_not_what_was_used(corpus, tmp_path):
  _, clients = corpus
  words = vocabulary_lib.Vocabulary(('the', 'of'))

  def digest(written, vocabulary=words, use=False, **changes):
    path = str(tmp_path / 'copy.sqlite')
    docstrings.write_clients(written, path)
    loaded = client_data.load_clients(
      path, 'train', vocabulary, progress=False, **changes
    )
    if use:
      loaded.arrays()
    return loaded.digest()

  first = digest(clients)
  assert digest(clients, use=True) == first
  changed = docstrings.Client('a.py:f', 'a', ('is it so', 'so it is'))
  assert (
    len(
      {
        first,
        digest([*clients[1:], changed]),
        digest(clients, vocabulary_lib.Vocabulary(('of', 'the'))),
        digest(clients, sequence_length=5),
        digest(clients, max_sentences_per_client=1),
      }
    )
    == 5
  )


def test_changed_file_is_refused_while_in_use(tmp_path):
  path = str(tmp_path / 'file.sqlite')
  _write_rows(path, [('a', 'w1'), ('b', 'w1')], {'a': 1, 'b': 1})
  with sqlite3.connect(path) as connection:
    connection.execute('CREATE INDEX clients ON examples (client_id)')
  vocabulary = vocabulary_lib.Vocabulary(('w1',))
  clients = client_data.load_clients(path, 'train', vocabulary, progress=False)
  clients.client_arrays(0)
  with sqlite3.connect(path) as connection:
    connection.execute("UPDATE examples SET client_id = 'c'")
  with pytest.raises(ValueError, match='changed'):
    clients.client_arrays(1)
