"""Fixtures of runs; they import TFF when they are used."""

import pytest


@pytest.fixture(scope='module')
def whole(tmp_path_factory, runtime):
  """The folder of an undisturbed run and its last state."""
  import small_run

  directory = small_run.with_key(tmp_path_factory.mktemp('whole') / 'run')
  return directory, small_run.train(directory)


@pytest.fixture
def opened(tmp_path):
  import small_run

  from tff_bandmf import run

  with run.Run(tmp_path / 'run', small_run.small_plan(), keep_key=True) as mine:
    with mine.round(cohort=['a']) as opened:
      yield opened
