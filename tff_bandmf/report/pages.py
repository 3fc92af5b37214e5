"""The files of a report: JSON, Markdown and HTML."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Optional, Union

import jinja2

from tff_bandmf import _files
from tff_bandmf.report import sentences

if TYPE_CHECKING:
  from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Pages:
  """A report that can be written as JSON, Markdown and HTML.

  Attributes:
    content: content of the JSON file.
    figures: maps the name of a plot to its matplotlib figure.
    NAME: name of the files of the report and of its template, without endings.
  """

  NAME: ClassVar[str]

  content: Mapping[str, _files.Json]
  figures: dict[str, Figure]

  def json(self) -> str:
    """Returns the text of the JSON file."""
    return json.dumps(self.content, indent=1, allow_nan=False) + '\n'

  def markdown(self) -> str:
    """Returns the text of the Markdown file."""
    plots = {name: name for name in self.content.get('plots', ())}
    return self._render('form.md.j2', plots)

  def html(self) -> str:
    """Returns the text of the HTML page, which needs no other file."""
    return self._render('form.html.j2', self._images('data_uri'))

  def _render(self, form: str, images: Mapping[str, str]) -> str:
    """Returns the text of the template that is filled with the content.

    The values are escaped if the file `form` is for HTML.

    Args:
      form: name of the file of macros for headings and rows, in Markdown or
        HTML.
      images: maps the name of a plot to the URL of its image.
    """
    content = self.content
    return _template(f'{self.NAME}.j2', form).render(
      {**content, 'content': content, 'images': images, 'form_file': form}
    )

  def _images(self, form: str) -> dict[str, Any]:
    """Returns {name of a plot: its image}, made by a function of `_figures`."""
    if not self.figures:
      return {}
    from tff_bandmf import _figures

    image = getattr(_figures, form)
    return {name: image(figure) for name, figure in self.figures.items()}

  def files(self) -> dict[str, bytes]:
    """Returns {name of the file: its content} for the files of the report."""
    texts = {'md': self.markdown(), 'html': self.html(), 'json': self.json()}
    return {f'{self.NAME}.{end}': text.encode() for end, text in texts.items()}

  def write(self, directory: Union[str, os.PathLike]) -> _files.JsonObject:
    """Writes the files of the report; returns the content of the JSON file.

    Raises:
      OSError: a file cannot be written.
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in self.files().items():
      _files.write(directory / name, content)
    return dict(self.content)


def figures(
  accuracies: Mapping[str, Sequence[tuple[int, float]]],
  curve: list[dict[str, float]],
  stated: tuple[float, float],
  planned: Optional[list[dict[str, float]]] = None,
  path: Sequence[tuple[int, float]] = (),
) -> dict[str, Figure]:
  """Returns {name: figure} of a report; {} without Matplotlib.

  Args:
    accuracies: maps a label to pairs (rounds done, accuracy in [0, 1]).
    curve: points with `epsilon` and `delta`; if empty, they are not drawn.
    stated: (epsilon, delta) of the claim, which the figure shows as a dot.
    planned: points of the planned curve; None if `curve` is the planned curve.
    path: pairs (rounds done, clip); if empty, they are not drawn.
  """
  try:
    from tff_bandmf import _figures
  except ImportError:
    return {}
  drawn: dict[str, Figure] = {}
  if any(accuracies.values()):
    drawn['accuracy'] = _figures.accuracy(accuracies)
  if path:
    drawn['clip'] = _figures.clip(path)
  if curve:
    drawn['epsilon'] = _figures.epsilon(curve, stated, planned)
  return drawn


def number(value: Optional[float], up: bool = True, digits: int = 6) -> str:
  """Returns a number as text, rounded; 'no guarantee' for None.

  PRIVACY: a rounded number could state less privacy loss, or more noise, than
  the computed number. This function never rounds to the nearest number. Callers
  set `up` to False for noise, and keep True for privacy loss.
  Guard: report_pages_test.test_printed_epsilon_is_never_below_the_computed_one.

  Args:
    value: number to print; None if a run has no guarantee.
    up: whether to round up; otherwise down.
    digits: number of significant digits, >= 1.
  """
  if value is None:
    return 'no guarantee'
  if value == 0:
    return '0'
  places = digits - 1 - math.floor(math.log10(abs(value)))
  rounded = (math.ceil if up else math.floor)(value * 10**places)
  return f'{rounded / 10**places:.{digits}g}'


def cell(value: object) -> str:
  """Returns a value as a cell of a Markdown table."""
  return ' '.join(str(value).replace('|', '\\|').split())


def _sha256(text: str) -> str:
  """Returns the base64 SHA-256 of a script or style of a page.

  The Content-Security-Policy of the page allows scripts and styles by digest.
  """
  return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _template(name: str, form: str) -> jinja2.Template:
  """Returns a compiled template from a cache, since compiling is slow.

  Args:
    name: file name of the template, which selects and orders values.
    form: name of the file of macros.
  """
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('tff_bandmf.report', '.'),
    autoescape='.html' in form,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  environment.filters['cell'] = cell
  environment.globals.update(
    number=number,
    accesses=sentences.ACCESSES,
    known=sentences.known,
    sha256=_sha256,
  )
  return environment.get_template(name)
