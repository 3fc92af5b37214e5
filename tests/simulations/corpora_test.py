"""A corpus is found by the name that its module declares."""

import pytest

from simulations import corpora
from simulations.corpora import registry


def test_corpora_are_found_by_name():
  assert set(registry.known()) == {'chitchat', 'docstrings', 'stackoverflow'}
  for name in registry.known():
    assert registry.get(name).name == name


def test_module_that_declares_a_corpus_is_found(tmp_path, monkeypatch):
  (tmp_path / 'letters.py').write_text(
    'from simulations.corpora import registry\n'
    "CORPUS = registry.Corpus('letters', lambda data_dir: 'letters.sqlite')\n"
  )
  monkeypatch.setattr(corpora, '__path__', [*corpora.__path__, str(tmp_path)])
  registry.known.cache_clear()
  try:
    assert registry.get('letters').find(None) == 'letters.sqlite'
  finally:
    registry.known.cache_clear()


def test_file_is_a_corpus_without_a_name(tmp_path):
  path = tmp_path / 'mine.sqlite'
  path.touch()
  assert registry.get(str(path)).find(None) == str(path)


def test_name_that_nothing_has_is_refused_with_the_names():
  with pytest.raises(
    FileNotFoundError, match='data.corpus=.*chitchat, docstrings, stack'
  ):
    registry.get('docstring')


def test_data_dir_is_refused_where_it_would_be_ignored(tmp_path):
  with pytest.raises(ValueError, match='data.data_dir=.*stackoverflow'):
    registry.get('docstrings', str(tmp_path))
