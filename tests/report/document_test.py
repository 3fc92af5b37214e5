"""Tests of the documents of a report."""

import inspect

import jsonschema
import msgspec
import pytest
import written_run
from hypothesis import given
from hypothesis import strategies as st

from tff_bandmf import report
from tff_bandmf.report import document


@given(st.floats(1e-6, 1e6))
def test_figures_are_rounded_to_the_safe_side(value):
  assert value <= document.three(value) <= value * 1.0101
  assert value * 0.9899 <= document.three(value, up=False) <= value


def test_figures_are_shown_with_three_digits():
  assert document.three(1.2, up=False) == 1.2
  assert document.three(8.0) == 8.0
  assert document.three(3.4240073) == 3.43
  assert document.three(None) is None


def test_declared_fields_alone_are_taken_and_rounded():
  values = {'epsilon': 1.2341, 'rho': None, 'composition': 'exact', 'runs': []}
  assert document.select(document.PublicTogether, values) == {
    'epsilon': 1.24,
    'rho': None,
    'composition': 'exact',
  }
  row = document.select(document.PublicRun, {'noise_multiplier': 0.6789})
  assert row == {'noise_multiplier': 0.678}


@pytest.mark.slow
def test_written_file_is_read_as_the_declared_type(tmp_path):
  written_run.make_run(tmp_path, written_run.KEPT)
  report.write(tmp_path)
  report.publish([report.of_run(tmp_path)]).write(tmp_path)
  for name, kind in ('report', document.Report), ('public', document.Public):
    text = (tmp_path / f'{name}.json').read_bytes()
    jsonschema.Draft202012Validator.check_schema(report.json_schema(name))
    content = msgspec.json.decode(text, type=kind)
    assert content.keys() == kind.__annotations__.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, value',
  [('epsilon', -1.0), ('delta', 1.0), ('rounds', 2.5), ('enforced', {})],
)
def test_value_outside_its_declaration_is_refused(tmp_path, name, value):
  written_run.make_run(tmp_path, written_run.KEPT)
  content = report.build(tmp_path).content
  with pytest.raises(ValueError, match=rf'report=Report: .*{name}'):
    document.with_digest(document.Report, {**content, name: value})


def test_fields_are_described_without_indentation_too():
  """Python 3.13 takes the common indentation out of docstrings."""
  flat = type('Flat', (), {'__doc__': inspect.cleandoc(document.Notes.__doc__)})
  described = document._descriptions(document.Notes)
  assert list(described) == list(document.NOTES[1:])
  assert document._descriptions(flat) == described
