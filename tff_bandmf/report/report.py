"""`report.md`, `report.json` and the plot of a run directory."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import pathlib
from typing import Any, Optional, Union

import jinja2

from tff_bandmf.report import claim, files, plot

_PACKAGES = (
    'tff-bandmf', 'tensorflow-federated', 'tensorflow', 'tensorflow-privacy',
    'dp-accounting', 'numpy', 'scipy')


def write(directory: Union[str, os.PathLike]) -> dict[str, Any]:
  """Writes the report of a run into its directory, and returns it.

  Args:
    directory: of the run; runs below `compare/` are shown next to it.

  Returns:
    The content of `report.json`: the numbers of `claim.established` under the
    keys of the `bandmf` commands, and what `run.json` says of the rest.

  Raises:
    ValueError: the files do not support a claim.
    OSError: a file cannot be read or written.
  """
  directory = pathlib.Path(directory)
  run = files.read_run(directory)
  established = claim.established(directory)
  result = files.read_result(directory)
  rows = [_row(directory, established['family'])]
  curves = {rows[0]['name']: files.read_accuracy(directory)}
  for path in sorted((directory / files.COMPARE_DIRECTORY).glob('*')):
    if (path / files.RESULT_FILE).exists():
      rows.append(_row(path, path.name))
      curves[path.name] = files.read_accuracy(path)
  drawn = plot.accuracy(curves, directory / files.PLOT_FILE)
  report = {
      **established,
      'completed': bool(result),
      'population': run['population'],
      'unit_of_privacy': run['unit_of_privacy'],
      'data': run['data'],
      'released': run['released'],
      'not_covered': run['not_covered'],
      'side_releases': run['side_releases'],
      'runs': rows if result else [],
      'plot': files.PLOT_FILE if drawn else None,
      'versions': run.get('versions', {}),
  }
  report['summary'] = _summary(report)
  environment = jinja2.Environment(
      loader=jinja2.PackageLoader('tff_bandmf.report', '.'),
      trim_blocks=True, undefined=jinja2.StrictUndefined)
  environment.globals['number'] = _number
  markdown = environment.get_template('report.md.j2').render(report)
  _replace(directory / files.MARKDOWN_FILE, markdown)
  _replace(
      directory / files.JSON_FILE,
      json.dumps(report, indent=1, allow_nan=False) + '\n')
  return report


def _row(directory: pathlib.Path, name: str) -> dict[str, Any]:
  """Returns a line of the table of results."""
  established = claim.established(directory)
  return {
      'name': name,
      **{key: established[key]
         for key in ('epsilon', 'delta', 'sensitivity', 'rmse')},
      **files.read_result(directory),
  }


def _summary(report: dict[str, Any]) -> str:
  """Returns the claim in one sentence."""
  if report['epsilon'] is None:
    return 'This run added no noise and guarantees nothing.'
  return (
      f"({_number(report['epsilon'])}, {report['delta']})-differential privacy "
      f"for {report['unit_of_privacy']}, {report['adjacency']} adjacency, "
      f"{report['observed']['rounds']} rounds of "
      f"{report['clients_per_round']} clients, {report['family']} noise.")


def _number(value: Optional[float], up: bool = True) -> str:
  """Returns a number with six digits; 'no guarantee' for None.

  PRIVACY: up for what a client loses, down for the noise that protects it, so
  that no claim is printed stronger than the one computed. Guard:
  report_test.test_printed_epsilon_is_never_below_the_computed_one.
  """
  if value is None:
    return 'no guarantee'
  if value == 0:
    return '0'
  digits = 5 - math.floor(math.log10(abs(value)))
  rounded = (math.ceil if up else math.floor)(value * 10**digits)
  return f'{rounded / 10**digits:.6g}'


def versions() -> dict[str, str]:
  """Returns the versions of what the claim depends on, for `run.json`."""
  found = {}
  for package in _PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      found[package] = 'not installed'
  return found


def _replace(path: pathlib.Path, text: str) -> None:
  """Writes a text file, complete or not at all."""
  temporary = path.with_suffix('.part')
  temporary.write_text(text)
  os.replace(temporary, path)
