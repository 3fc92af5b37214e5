"""Tests of vocabulary files; counting is tested in client_data_test.py."""

import pytest

from simulations.corpora import vocabulary


def test_written_vocabulary_is_read_again(tmp_path):
  path = str(tmp_path / 'words.txt')
  words = vocabulary.Vocabulary(('the', "it's", '<URL>', 'é', ','))
  words.write(path)
  assert vocabulary.read(path, 5) == words
  assert vocabulary.read(path, 2).words == ('the', "it's")


def test_counts_after_words_are_left_out(tmp_path):
  path = tmp_path / 'stackoverflow.word_count'
  path.write_text('the 341706\n. 341563\n2 17\n')
  assert vocabulary.read(str(path), 3).words == ('the', '.', '2')


@pytest.mark.parametrize(
  'content, message',
  [
    (b'the\nof\nthe\n', 'line 3'),
    (b'the\n\nof\n', 'line 2'),
    (b'the\nin it\nof\n', 'line 2'),
    (b'the\nof 3 4\na\n', 'line 2'),
    (b'the\nof\n\xff\n', 'line 3'),
    (b'the\nof\n', 'vocabulary_size=3: must be at most 2'),
  ],
)
def test_bad_file_is_told_in_one_line(content, message, tmp_path):
  path = tmp_path / 'words.txt'
  path.write_bytes(content)
  with pytest.raises(ValueError, match=message) as raised:
    vocabulary.read(str(path), 3)
  assert '\n' not in str(raised.value)
