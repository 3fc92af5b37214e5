"""A small experiment on real text, and its run, for the tests of whole runs."""

import pathlib
import shutil

import pytest


@pytest.fixture(scope='session')
def corpus_path(tmp_path_factory):
  """The path of a corpus of the docstrings of one small package."""
  from simulations.corpora import docstrings

  packages = [p for p in docstrings.PACKAGES if p[0] == 'absl-py']
  path = tmp_path_factory.mktemp('corpus') / 'absl.sqlite'
  docstrings.write_clients(docstrings.read_clients(packages), str(path))
  return path


@pytest.fixture(scope='session')
def small(corpus_path):
  """An experiment of four rounds and its corpus."""
  from simulations import kill_test, training

  config = kill_test.experiment(corpus_path, 4)
  return config, training.load_corpus(config.data)


@pytest.fixture(scope='session')
def ended(small, tmp_path_factory, runtime):
  """The directory of that experiment's run, with its report."""
  from simulations import training
  from tff_bandmf import report

  directory = tmp_path_factory.mktemp('ended') / 'run'
  training.run(*small, directory, keep_key=True)
  report.write(directory)
  return directory


@pytest.fixture
def run_copy(ended, tmp_path):
  """A copy of that directory, with which only `moved` goes on."""
  return pathlib.Path(shutil.copytree(ended, tmp_path / 'run'))
