"""Fuzzing of run directories: a report, or one line and nothing written."""

import json
import os
import pathlib
import tempfile

import fuzzing
import hypothesis
import pytest
from hypothesis import strategies as st
from written_run import KEPT, make_run

from tff_bandmf import report
from tff_bandmf.run_files import checkpoints, run_json

pytestmark = pytest.mark.slow

_OPTIONAL = {
  'setting': 's', 'covered': 'c', 'noise_key': 'k', 'tuning': 'none',
  'noise_generator': 'chacha20', 'model_selection': 'm', 'pre_training': 'p',
  'versions': {'python': '3.11'}, 'code_sha256': '00', 'train_sha256': '00',
}  # fmt: skip


@pytest.fixture(scope='module')
def run_directory(tmp_path_factory):
  directory = tmp_path_factory.mktemp('fuzz') / 'run'
  make_run(directory, KEPT, **_OPTIONAL)
  # Fonts and imports, once.
  report.build(directory).html()
  return directory


def _check(run, directory, name, content, full):
  """Replaces a file of the run, reads it, and puts it back."""
  path = directory / name
  original = path.read_bytes()
  before = set(os.listdir(directory))
  path.write_bytes(content)
  try:
    if not full:
      status, out = fuzzing.check_cli(
        run, 'report', directory, '--what-if', 'min_sep=2', '--json'
      )
    else:
      status, out = fuzzing.check_cli(
        run, 'report', directory, '--json', statuses=(0, 1, 2)
      )
    if status == 2:
      assert set(os.listdir(directory)) == before
      return
    found = json.loads(out, parse_constant=pytest.fail)
    assert found['epsilon'] is None or found['epsilon'] > 0
    assert found['sensitivity'] > 0
  finally:
    path.write_bytes(original)
    for each in set(os.listdir(directory)) - before:
      (directory / each).unlink()


@pytest.mark.parametrize('full, share', [(False, 150), (True, 20)])
def test_damaged_run_is_reported_or_refused(run, run_directory, full, share):
  document = json.loads((run_directory / run_json.RUN_FILE).read_text())

  @fuzzing.cases(share)
  @hypothesis.given(fuzzing.json_bytes([document]))
  def check(content):
    _check(run, run_directory, run_json.RUN_FILE, content, full)

  check()


@pytest.mark.parametrize('full, share', [(False, 40), (True, 10)])
def test_damaged_result_is_reported_or_refused(run, run_directory, full, share):
  document = json.loads((run_directory / run_json.RESULT_FILE).read_text())

  @fuzzing.cases(share)
  @hypothesis.given(fuzzing.json_bytes([document]))
  def check(content):
    _check(run, run_directory, run_json.RESULT_FILE, content, full)

  check()


@st.composite
def _csv(draw):
  cell = st.sampled_from((
    '', '0', '1', '-1', '5', 'nan', 'inf', '-inf', '1e999', 'x', '"', '"\n"',
    '9' * 5000, '9' * 400, 'a' * 200_000, '\x00', '0.5', '1_0', ' 3 ', 'é',
  ))  # fmt: skip
  columns = draw(
    st.sampled_from(('round,accuracy', 'round,clients,accuracy', 'round',
                     'clients', '', 'round,round', 'round,\x1b[2J', ','))
  )  # fmt: skip
  width = columns.count(',') + draw(st.sampled_from((0, 0, 0, 1)))
  rows = draw(
    st.lists(st.lists(cell, min_size=width + 1, max_size=width + 1), max_size=4)
  )
  return '\n'.join([columns, *map(','.join, rows)]).encode()


@pytest.mark.parametrize('full, share', [(False, 60), (True, 12)])
def test_damaged_metrics_are_reported_or_refused(
  run, run_directory, full, share
):
  original = (run_directory / run_json.METRICS_FILE).read_bytes()

  @fuzzing.cases(share)
  @hypothesis.given(_csv() | fuzzing.flipped(original))
  def check(content):
    _check(run, run_directory, run_json.METRICS_FILE, content, full)

  check()


@fuzzing.cases(30)
@hypothesis.given(fuzzing.flipped(b'state' + b'\x07' * 64) | st.binary())
def test_damaged_checkpoint_is_refused(content):
  # A checkpoint that is whole would need a digest that nobody draws.
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / '00000001.npz'
    path.write_bytes(content)
    with pytest.raises(ValueError, match='is damaged') as caught:
      checkpoints.read(path)
    fuzzing.check_message(str(caught.value))
