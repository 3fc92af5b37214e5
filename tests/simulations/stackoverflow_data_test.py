"""Tests of finding TFF's StackOverflow file, on a small one in its form."""

import hashlib
import lzma
import pathlib
import sqlite3
import urllib.request

import click.testing
import numpy as np
import pytest
import tensorflow_federated as tff

from simulations import config as config_lib
from simulations import run_stackoverflow, training
from simulations.corpora import checksums, corpus_file, stackoverflow

_DEMO = pathlib.Path(__file__).resolve().parents[2] / 'configs/demo.toml'

_SPLITS = {
  'synthetic_1': 'train',
  'synthetic_2': 'heldout',
  'synthetic_3': 'test',
}


@pytest.fixture(scope='module')
def content(tmp_path_factory):
  """The bytes of a file of the real form: TFF's writer, and an index."""
  path = tmp_path_factory.mktemp('made') / 'made.sqlite'
  data = tff.simulation.datasets.stackoverflow.get_synthetic()
  tff.simulation.datasets.save_to_sql_client_data(
    data.client_ids,
    data.create_tf_dataset_for_client,
    str(path),
    split_names_by_client_id=_SPLITS,
  )
  with sqlite3.connect(path) as connection:
    connection.execute('CREATE INDEX clients ON examples (client_id)')
  return path.read_bytes()


@pytest.fixture
def data_dir(tmp_path, content):
  """A folder with the compressed file and TFF's word counts."""
  packed = lzma.compress(content, lzma.FORMAT_ALONE)
  (tmp_path / stackoverflow.COMPRESSED_FILE).write_bytes(packed)
  counts = tff.simulation.datasets.stackoverflow.get_synthetic_word_counts()
  (tmp_path / stackoverflow.WORD_COUNTS_FILE).write_text(
    ''.join(f'{word} {count}\n' for word, count in counts.items())
  )
  return tmp_path


@pytest.fixture
def no_network(monkeypatch):
  for name in ('http_proxy', 'https_proxy'):
    monkeypatch.setenv(name, 'http://127.0.0.1:9')
  monkeypatch.delenv('no_proxy', raising=False)
  # It remembers the proxies of its first use.
  monkeypatch.setattr(urllib.request, '_opener', None)


def test_compressed_file_is_decompressed_once(data_dir, content, monkeypatch):
  path = stackoverflow.find(str(data_dir), progress=False)
  assert path == str(data_dir / stackoverflow.FILE)
  assert pathlib.Path(path).read_bytes() == content
  # Its checksum was taken on the way.
  monkeypatch.setattr(checksums, 'sha256', None)
  read = corpus_file.Content.from_file(path, progress=False)
  assert read.digest == hashlib.sha256(content).hexdigest()
  (data_dir / stackoverflow.COMPRESSED_FILE).unlink()
  assert stackoverflow.find(str(data_dir), progress=False) == path


@pytest.mark.parametrize(
  'damage, message',
  [
    (lambda packed: packed[: len(packed) // 2], 'ends too early'),
    (lambda packed: b'', 'ends too early'),
    (lambda packed: b'not compressed at all', 'is not an LZMA file'),
  ],
)
def test_damaged_file_leaves_nothing(data_dir, damage, message):
  compressed = data_dir / stackoverflow.COMPRESSED_FILE
  compressed.write_bytes(damage(compressed.read_bytes()))
  before = sorted(data_dir.iterdir())
  with pytest.raises(ValueError, match=message) as raised:
    stackoverflow.find(str(data_dir), progress=False)
  assert '\n' not in str(raised.value)
  assert sorted(data_dir.iterdir()) == before


@pytest.mark.parametrize(
  'name', [stackoverflow.COMPRESSED_FILE, stackoverflow.FILE]
)
def test_published_checksum_is_verified(data_dir, content, name):
  packed = (data_dir / stackoverflow.COMPRESSED_FILE).read_bytes()
  right = {stackoverflow.COMPRESSED_FILE: packed, stackoverflow.FILE: content}
  published = data_dir / f'{name}.sha256'
  published.write_text('0' * 64 + f'  {name}\n')
  with pytest.raises(ValueError, match=f'{name}.sha256.*0000'):
    stackoverflow.find(str(data_dir), progress=False)
  assert not (data_dir / stackoverflow.FILE).exists()
  published.write_text(hashlib.sha256(right[name]).hexdigest().upper() + '\n')
  assert stackoverflow.find(str(data_dir), progress=False)


def test_empty_folder_is_told_in_one_line(tmp_path):
  with pytest.raises(FileNotFoundError, match='data_dir=.*must hold'):
    stackoverflow.find(str(tmp_path))


def test_no_network_is_told_in_one_line(tmp_path, monkeypatch, no_network):
  monkeypatch.setenv('HOME', str(tmp_path))
  for call in (
    stackoverflow.find,
    lambda: stackoverflow.vocabulary(10),
  ):
    with pytest.raises(OSError, match='cannot be downloaded') as raised:
      call()
    assert '\n' not in str(raised.value)
  # What is left of a download is never taken for the file.
  assert not list(tmp_path.rglob('*.sqlite*'))


def test_corpus_is_what_tff_makes_of_the_file(data_dir):
  """Words from TFF's counts, ids from TFF's preprocessing."""
  corpus = training.load_corpus(
    config_lib.Data(
      corpus='stackoverflow', data_dir=str(data_dir), vocabulary_size=12
    )
  )
  counts = tff.simulation.datasets.stackoverflow.get_synthetic_word_counts()
  words = list(counts)[:12]
  assert list(corpus.train.vocabulary.words) == words
  assert "TFF's" in corpus.vocabulary_source
  special = tff.simulation.baselines.stackoverflow.word_prediction_preprocessing
  preprocess = special.create_preprocess_fn(
    tff.simulation.baselines.ClientSpec(
      num_epochs=1, batch_size=8, shuffle_buffer_size=1
    ),
    vocab=words,
  )
  data = tff.simulation.datasets.stackoverflow.get_synthetic()
  for client_id, split in _SPLITS.items():
    clients = getattr(corpus, {'heldout': 'validation'}.get(split, split))
    assert clients.client_ids == (client_id,)
    ((x, y),) = preprocess(data.create_tf_dataset_for_client(client_id))
    ours = clients.client_arrays(0)
    np.testing.assert_array_equal(ours[0], x)
    np.testing.assert_array_equal(ours[1], y)


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--set', 'data.corpus=stackoverflow'], 'must hold stackoverflow.sqlite'),
    ([], 'is for data.corpus='),
  ],
)
def test_driver_takes_the_folder(tmp_path, arguments, message):
  done = click.testing.CliRunner().invoke(
    run_stackoverflow.main,
    [
      f'--config={_DEMO}',
      f'--output_dir={tmp_path / "run"}',
      f'--data-dir={tmp_path}',
      *arguments,
    ],
  )
  assert done.exit_code == 2
  assert f'data_dir={tmp_path}: {message}' in done.output
  assert not (tmp_path / 'run').exists()


def test_vocabulary_file_goes_before_the_counts(data_dir, tmp_path):
  path = tmp_path / 'words.txt'
  path.write_text('you\nthe\nis\n')
  corpus = training.load_corpus(
    config_lib.Data(
      corpus='stackoverflow',
      data_dir=str(data_dir),
      vocabulary_file=str(path),
      vocabulary_size=2,
    )
  )
  assert corpus.train.vocabulary.words == ('you', 'the')
  assert corpus.vocabulary_source == 'given as words.txt'


def test_word_counts_of_an_earlier_download_are_used(data_dir):
  (data_dir / 'datasets').mkdir()
  name = stackoverflow.WORD_COUNTS_FILE
  (data_dir / name).rename(data_dir / 'datasets' / name)
  vocabulary = stackoverflow.vocabulary(3, str(data_dir))
  counts = tff.simulation.datasets.stackoverflow.get_synthetic_word_counts()
  assert list(vocabulary.words) == list(counts)[:3]
