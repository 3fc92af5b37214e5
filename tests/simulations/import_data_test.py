"""Tests of importing one's own text; TFF reads what comes out."""

import json
import os
import pathlib
import tracemalloc

import click.testing
import pytest
import tensorflow_federated as tff

from simulations import config as config_lib
from simulations import import_data, training
from simulations.corpora import corpus_file

_ELEMENT_SPEC = (
  tff.simulation.datasets.stackoverflow.get_synthetic().element_type_structure
)
_FRACTIONS = (0.5, 0.25, 0.25)


def _records(clients, texts):
  """Returns records whose clients do not lie together."""
  return [
    {'client_id': f'user {client}', 'text': f'Text {i} of {client}. So it IS!'}
    for i in range(texts)
    for client in range(clients)
  ]


def _write(path, records):
  path.write_text(''.join(json.dumps(record) + '\n' for record in records))
  return str(path)


def _import(path, output, **options):
  return import_data.import_text(
    path, str(output), _FRACTIONS, progress=False, **options
  )


def _read_by_tff(path, split_name):
  """Returns the clients' sentences, as TFF reads them."""
  data = tff.simulation.datasets.load_and_parse_sql_client_data(
    str(path), _ELEMENT_SPEC, split_name
  )
  return {
    client_id: [
      example['tokens'].numpy().decode()
      for example in data.create_tf_dataset_for_client(client_id)
    ]
    for client_id in data.client_ids
  }


def _read(path, split_name):
  """Returns the clients' sentences; quicker than TFF."""
  clients = {}
  with corpus_file.Content.from_file(str(path)).open() as connection:
    for client_id, sentence in corpus_file.sentences(
      connection, split_name, False, ''
    ):
      clients.setdefault(client_id, []).append(sentence)
  return clients


def test_json_lines_are_read_by_tff(tmp_path):
  records = _records(12, 2)
  path = _write(tmp_path / 'a.jsonl', records)
  counts = _import(path, tmp_path / 'a.sqlite')
  expected = {name: {} for name in corpus_file.SPLIT_NAMES}
  for record in records:
    client_id = record['client_id']
    split = import_data.split_of(client_id, _FRACTIONS)
    number, client = record['text'].split()[1:4:2]
    expected[split].setdefault(client_id, []).extend(
      [f'text {number} of {client.rstrip(".")} .', 'so it is !']
    )
  for split_name, clients in expected.items():
    assert clients
    assert _read_by_tff(tmp_path / 'a.sqlite', split_name) == clients
    assert counts[split_name] == (
      len(clients),
      sum(map(len, clients.values())),
    )


def test_folder_and_lines_of_the_same_text_agree(tmp_path):
  folder = tmp_path / 'folder'
  (folder / 'deep').mkdir(parents=True)
  records = []
  for i in range(40):
    name = f'deep/c{i}' if i % 2 else f'c{i}'
    text = f'First {i}.\nSecond é\r\n\nThird'
    (folder / f'{name}.txt').write_bytes(text.encode())
    records.append({'client_id': name, 'text': text})
  (folder / 'notes.md').write_text('not a client')
  _import(str(folder), tmp_path / 'a.sqlite')
  _import(_write(tmp_path / 'b.jsonl', records), tmp_path / 'b.sqlite')
  for split_name in corpus_file.SPLIT_NAMES:
    found = _read(tmp_path / 'a.sqlite', split_name)
    assert found == _read(tmp_path / 'b.sqlite', split_name)
    for client_id, sentences in found.items():
      number = client_id.rpartition('c')[2]
      assert sentences == [f'first {number} .', 'second é', 'third']


@pytest.mark.parametrize('link', [os.symlink, os.link])
def test_file_with_two_names_is_refused(tmp_path, link):
  folder = tmp_path / 'folder'
  folder.mkdir()
  for i in range(40):
    (folder / f'{i}.txt').write_text('One two.')
  link(folder / '7.txt', folder / 'again.txt')
  with pytest.raises(ValueError, match='again.txt.*same file'):
    _import(str(folder), tmp_path / 'a.sqlite')
  assert not (tmp_path / 'a.sqlite').exists()


def test_words_are_left_as_they_are(tmp_path):
  records = [
    {'client_id': str(i), 'text': "Don't. stop  Me\nNow"} for i in range(40)
  ]
  path = _write(tmp_path / 'a.jsonl', records)
  _import(path, tmp_path / 'a.sqlite', in_words=True)
  for sentences in _read(tmp_path / 'a.sqlite', 'train').values():
    assert sentences == ["Don't. stop Me", 'Now']


def test_record_of_another_order_keeps_each_clients_order(tmp_path):
  records = _records(12, 2)
  _import(_write(tmp_path / 'a.jsonl', records), tmp_path / 'a.sqlite')
  by_client = sorted(records, key=lambda record: record['client_id'])
  _import(_write(tmp_path / 'b.jsonl', by_client), tmp_path / 'b.sqlite')
  for split_name in corpus_file.SPLIT_NAMES:
    found = _read(tmp_path / 'a.sqlite', split_name)
    assert found == _read(tmp_path / 'b.sqlite', split_name)


@pytest.mark.parametrize(
  'line, sentences',
  [
    ('Is it?  It is.', ['is it ?', 'it is .']),
    (
      "It's a well-known (e.g. here) fact",
      ["it's a well-known ( e . g .", 'here ) fact'],
    ),
    ('See http://a.b/c?d=1, or not', ['see <URL> or not']),
    ('NAÏVE 3.5 x_1', ['naïve 3 . 5 x _ 1']),
    ('  \t ', []),
  ],
)
def test_sentences_are_in_the_form_of_stackoverflow(line, sentences):
  assert list(import_data.sentences_of(line)) == sentences


def test_split_is_a_function_of_the_id_in_the_fractions_asked():
  names = [
    import_data.split_of(f'client {i}', (0.7, 0.2, 0.1)) for i in range(4000)
  ]
  for name, fraction in zip(corpus_file.SPLIT_NAMES, (0.7, 0.2, 0.1)):
    # Five standard deviations.
    assert names.count(name) / 4000 == pytest.approx(fraction, abs=0.037)
  # More train clients take none away from it.
  for i in range(4000):
    if names[i] == 'train':
      assert import_data.split_of(f'client {i}', (0.8, 0.1, 0.1)) == 'train'


_GOOD = b'{"client_id": "a", "text": "It is so."}\n'


@pytest.mark.parametrize(
  'line, message',
  [
    (b'{"client_id": "a"', 'is not JSON'),
    (b'["a", "b"]', 'strings client_id and text'),
    (b'{"client_id": "a"}', 'strings client_id and text'),
    (b'{"client_id": 3, "text": "b"}', 'strings client_id and text'),
    (b'{"client_id": "", "text": "b"}', 'must be printable'),
    (b'{"client_id": "a\'b", "text": "b"}', 'without single quotes'),
    (b'{"client_id": "a\\nb", "text": "b"}', 'must be printable'),
    (b'{"client_id": "\\ud800", "text": "b"}', 'must be printable'),
    (b'{"client_id": "a", "text": "\\ud800"}', 'is not Unicode text'),
    (b'{"client_id": "a", "text": "\xff"}', 'is not UTF-8'),
    (b'[' * 100_000, 'is not JSON'),
  ],
)
def test_bad_line_is_named_and_leaves_nothing(tmp_path, line, message):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(_GOOD + b'\n' + line + b'\n' + _GOOD)
  with pytest.raises(ValueError, match=message) as raised:
    _import(str(path), tmp_path / 'a.sqlite')
  assert f'{path}, line 3' in str(raised.value)
  assert '\n' not in str(raised.value)
  assert list(tmp_path.iterdir()) == [path]


def test_line_without_end_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(import_data, '_MAX_LINE_BYTES', 1000)
  path = tmp_path / 'a.jsonl'
  path.write_bytes(_GOOD + b' ' * 1001)
  with pytest.raises(ValueError, match='line 2: .*1000'):
    _import(str(path), tmp_path / 'a.sqlite')


def test_bad_bytes_in_a_folder_are_named(tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'good\n\xff\n')
  with pytest.raises(ValueError, match=r'a\.txt, line 2.*UTF-8'):
    _import(str(tmp_path), tmp_path / 'a.sqlite')


@pytest.mark.parametrize(
  'fractions, message',
  [
    ((0.8, 0.1, 0.2), 'train . heldout . test=.*: must be 1'),
    ((0.9, 0.1, 0.0), 'test=0.0: must be positive'),
    ((float('nan'), 0.5, 0.5), 'train=nan'),
  ],
)
def test_bad_fractions_are_refused(tmp_path, fractions, message):
  with pytest.raises(ValueError, match=message):
    import_data.import_text('missing', str(tmp_path / 'a.sqlite'), fractions)


def test_empty_split_and_empty_folder_are_refused(tmp_path):
  path = _write(tmp_path / 'a.jsonl', _records(1, 3))
  with pytest.raises(ValueError, match='no client'):
    _import(path, tmp_path / 'a.sqlite')
  with pytest.raises(ValueError, match='no .txt'):
    _import(str(tmp_path), tmp_path / 'a.sqlite')
  assert not (tmp_path / 'a.sqlite').exists()


def test_content_has_a_checksum_of_its_own(tmp_path):
  def digest(name, records):
    output = tmp_path / f'{name}.sqlite'
    _import(_write(tmp_path / 'a.jsonl', records), output)
    return corpus_file.Content.from_file(str(output)).digest

  records = _records(12, 1)
  first = digest('a', records)
  assert digest('b', records) == first
  records[3]['text'] = 'Text of another'
  assert digest('c', records) != first


def test_memory_does_not_grow_with_the_text(tmp_path):
  peaks = []
  for texts in (20, 200):
    path = _write(tmp_path / f'{texts}.jsonl', _records(12, texts))
    tracemalloc.start()
    _import(path, tmp_path / f'{texts}.sqlite')
    peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
  # The text alone is ten times as long, 60 kB more.
  assert peaks[1] < peaks[0] + 20_000


def test_command_makes_a_corpus_that_loads(tmp_path):
  path = _write(tmp_path / 'a.jsonl', _records(12, 2))
  output = str(tmp_path / 'a.sqlite')
  arguments = [
    path,
    '--out',
    output,
    '--train',
    '0.5',
    '--heldout',
    '0.25',
    '--test',
    '0.25',
  ]
  runner = click.testing.CliRunner()
  done = runner.invoke(import_data.main, arguments)
  assert done.exit_code == 0
  clients = len(_read(output, 'train'))
  train, _, _, cohorts = done.output.splitlines()
  assert f'train: {clients} clients, {4 * clients} sentences' in train
  assert f'clients_per_round * min_sep is at most {clients}' in cohorts
  corpus = training.load_corpus(
    config_lib.Data(corpus=output, vocabulary_size=10)
  )
  names = [f'user {i}' for i in range(12)]
  assert sorted(
    corpus.train.client_ids
    + corpus.validation.client_ids
    + corpus.test.client_ids
  ) == sorted(names)
  # As frequent as the others: in the order of their code points.
  assert corpus.train.vocabulary.words[:3] == ('!', '.', 'is')
  x, y = corpus.train.client_arrays(0)
  assert len(x) == 4 and (y > 0).any()
  # Nothing is replaced, and bad input is one line.
  before = pathlib.Path(output).read_bytes()
  for bad in (arguments, [str(tmp_path / 'x'), '--out', 'y.sqlite']):
    done = runner.invoke(import_data.main, bad)
    assert done.exit_code == 2
    assert done.output.count('\n') == 1
  assert pathlib.Path(output).read_bytes() == before
