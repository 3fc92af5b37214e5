"""Tests of the corpus of people, on a small file of its form."""

import importlib.metadata
import json

import pytest
import small_chat

from simulations.corpora import (
  chitchat,
  client_data,
  corpus_file,
  docstrings,
  registry,
)
from simulations.corpora import vocabulary as vocabulary_lib


def _message(sender, text, timestamp='2018-05-02T19:38:15Z'):
  return {'sender': sender, 'text': text, 'timestamp': timestamp}


def _read(folder, *turns):
  (folder / 'dataset.json').write_text(json.dumps({'c': {'messages': turns}}))
  return chitchat.read_people(str(folder / 'dataset.json'))


def test_person_has_all_that_she_wrote_in_its_order(tmp_path):
  people = _read(
    tmp_path,
    [_message('ann', 'LATER words. ' + 9 * 'x ', '2018-06-01T00:00:00Z')],
    [_message('bob', 20 * 'y '), _message('ann', 9 * 'z ')],
  )
  assert people == {
    'ann': [' '.join(9 * 'z'), 'later words', ' '.join(9 * 'x')],
    'bob': [' '.join(20 * 'y')],
  }


def test_words_of_a_person_are_capped_and_few_are_left_out(tmp_path):
  people = _read(
    tmp_path,
    [_message('ann', 100 * 'a b c d e f g h i j k l m n o p q. ')],
    [_message('bob', 19 * 'y ')],
  )
  assert set(people) == {'ann'}
  assert sum(len(each.split()) for each in people['ann']) == 94 * 17
  assert chitchat.MAX_WORDS - 17 < 94 * 17 <= chitchat.MAX_WORDS


def test_each_person_is_in_one_split(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  folder = small_chat.write(tmp_path)
  path = registry.get('chitchat', str(folder)).find(str(folder))
  with corpus_file.Content.from_file(path).open() as connection:
    ids = [
      corpus_file.client_sizes(connection, split)[0]
      for split in corpus_file.SPLIT_NAMES
    ]
  assert sorted(sum(ids, ())) == sorted(
    f'person-{i}' for i in range(small_chat.PEOPLE)
  )
  assert all(ids)
  assert len(ids[0]) > len(ids[2]) > len(ids[1])


def test_corpus_is_built_once_and_read_as_clients(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  folder = str(small_chat.write(tmp_path))
  path = chitchat.cached_corpus(folder)
  assert chitchat.cached_corpus(folder) == path
  clients = client_data.load_clients(
    path, 'train', vocabulary_lib.Vocabulary(small_chat.WORDS)
  )
  x, _ = clients.client_arrays(0)
  # Six messages of eight words, none of them unknown.
  assert x.shape == (6, 20)
  assert (x != clients.vocabulary.out_of_vocabulary_id).all()
  # Another file is another corpus.
  small_chat.write(tmp_path, people=30)
  assert chitchat.cached_corpus(folder) != path


def test_words_of_the_model_are_those_of_public_text(tmp_path, monkeypatch):
  packages = [each for each in docstrings.PACKAGES if each[0] == 'absl-py']
  public = tmp_path / 'public.sqlite'
  docstrings.write_clients(docstrings.read_clients(packages), str(public))
  monkeypatch.setattr(docstrings, 'cached_corpus', lambda: str(public))
  found = chitchat.CORPUS.vocabulary('no such file', 50, None)
  assert found == vocabulary_lib.count(str(public), 50)


def test_missing_package_is_told_with_the_remedy(monkeypatch):
  def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)

  monkeypatch.setattr(importlib.metadata, 'distribution', missing)
  with pytest.raises(
    ValueError, match='chitchat-dataset=.*pip install --no-deps chitchat'
  ) as caught:
    chitchat.cached_corpus()
  assert '\n' not in str(caught.value)


def test_folder_without_the_file_is_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match='data_dir=.*dataset.json'):
    chitchat.cached_corpus(str(tmp_path))


@pytest.mark.parametrize(
  'turn',
  [
    [{'sender': 'ann', 'text': 'a secret'}],
    [{'sender': 3, 'text': 'a secret', 'timestamp': ''}],
    [{'sender': "a'b", 'text': 'a secret', 'timestamp': ''}],
    'a secret',
  ],
)
def test_file_of_another_form_is_refused_without_its_text(tmp_path, turn):
  with pytest.raises(ValueError, match='dataset=.*sender') as caught:
    _read(tmp_path, turn)
  assert 'secret' not in str(caught.value)
  assert caught.value.__suppress_context__
