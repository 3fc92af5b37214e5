"""The corpora that have a name, such as 'docstrings'.

A module of this folder registers a corpus by assigning it to `CORPUS`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Mapping
from typing import Callable, Optional

from simulations.corpora import vocabulary as vocabulary_lib
from tff_bandmf import errors

_PACKAGE = __name__.rpartition('.')[0]


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Text of many clients, in a file on this machine.

  Attributes:
    name: value of `data.corpus` that selects the corpus.
    find: function from `data.data_dir`, a folder or None, to the path of a
      SQLite file with the tables that `corpus_file` describes. The function
      downloads or builds a missing file.
    vocabulary: function from the path of the file, the number of words and
      `data.data_dir` to the vocabulary.
    vocabulary_source: origin of the vocabulary, as text for the report.
    takes_data_dir: whether `find` and `vocabulary` use `data.data_dir`.
  """

  name: str
  find: Callable[[Optional[str]], str]
  vocabulary: Callable[[str, int, Optional[str]], vocabulary_lib.Vocabulary] = (
    lambda path, size, data_dir: vocabulary_lib.count(path, size)
  )
  vocabulary_source: str = 'counted on the train split without noise'
  takes_data_dir: bool = False


@functools.cache
def known() -> Mapping[str, Corpus]:
  """Returns all corpora with a name, by their names."""
  modules = [
    importlib.import_module(f'{_PACKAGE}.{module.name}')
    for module in pkgutil.iter_modules(sys.modules[_PACKAGE].__path__)
  ]
  corpora = [module.CORPUS for module in modules if hasattr(module, 'CORPUS')]
  return {corpus.name: corpus for corpus in corpora}


def get(name: str, data_dir: Optional[str] = None) -> Corpus:
  """Returns the corpus of a configuration.

  Args:
    name: value of `data.corpus`: the name of a corpus, or the path of a SQLite
      file with the tables that `corpus_file` describes.
    data_dir: value of `data.data_dir`.

  Raises:
    FileNotFoundError: neither a corpus nor a file has this name.
    ValueError: `data_dir` is not None, and the corpus does not use it.
  """
  corpus = known().get(name)
  if corpus is None:
    if not os.path.isfile(name):
      raise FileNotFoundError(
        errors.invalid(
          f'data.corpus={name}: must be {", ".join(known())} or the path of a '
          'SQLite file; simulations.import_data makes such a file of your text'
        )
      )
    corpus = Corpus(name, lambda data_dir: name)
  if data_dir is not None and not corpus.takes_data_dir:
    takers = [each.name for each in known().values() if each.takes_data_dir]
    raise errors.value_error(
      f'data.data_dir={data_dir}: is for data.corpus={" or ".join(takers)}, '
      f'not {name}; leave out data.data_dir, or change data.corpus'
    )
  return corpus
