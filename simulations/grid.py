"""Grids: many experiments from one small file.

  python -m simulations.grid FILE     # writes a config a row next to FILE

A grid is TOML. Its rows are all corpora x mechanisms x epsilons:

| key                      | says                                             |
|--------------------------|--------------------------------------------------|
| `base`                   | what all rows share: the tables of an experiment |
|                          | (`simulations/config.py`), or such a file's name |
| `epsilons`               | a list; a mechanism may have one of its own      |
| `seeds`                  | of a sweep, that test the chosen rates; 3        |
| `assumed`                | keys whose value the source does not give        |
| `corpora.NAME`           | optional; what changes with the corpus; `leaves` |
|                          | lists mechanisms it does without                 |
| `mechanisms.NAME`        | what changes with the mechanism, and             |
| `  .about`               | where its rows come from                         |
| `  .rate_exponents`      | i, or candidates [i, ...], of a server learning  |
|                          | rate of 1.7^i; a corpus may have its own         |
| `  .noise_multiplier`    | of rows whose epsilon rests on sampling that no  |
|                          | sampler here does: the row has that noise, and   |
|                          | claims the larger epsilon that holds without     |

A table with epsilons for keys (0.5 in quotes) has one value an epsilon. Several
candidates are to be tuned (`simulations/sweep.py`); the written file has the
middle one.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import pathlib
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Optional

import click

from simulations import config as config_lib
from simulations import run_stackoverflow
from tff_bandmf import accounting, errors

RATE_BASE = 1.7
_GROUPS = ('data', 'model', 'training', 'privacy')
_KEYS = ('base', 'epsilons', 'seeds', 'assumed', 'corpora', 'mechanisms')
_MECHANISM_KEYS = (
    *_GROUPS, 'about', 'epsilons', 'rate_exponents', 'noise_multiplier')
_CORPUS_KEYS = (*_GROUPS, 'rate_exponents', 'leaves')
_DEFAULT_SEEDS = 3


@dataclasses.dataclass(frozen=True)
class Row:
  """An experiment but for its seed, and for its learning rate if that is tuned.

  Attributes:
    name: unique in the grid; of a file or a folder.
    series: its corpus, if the grid has several, and its mechanism.
    epsilon: of the grid; that of `tree` where no sampling is relied on.
    exponents: candidates i of the server learning rate 1.7^i; none if the base
      gives the rate.
    tree: the experiment, with the middle candidate.
    comments: what a reader of the experiment should know.
  """

  name: str
  series: str
  epsilon: float
  exponents: tuple[int, ...]
  tree: dict[str, Any]
  comments: tuple[str, ...]

  def config(
      self, exponent: Optional[int] = None, settings: tuple[str, ...] = ()
  ) -> config_lib.Config:
    """Returns the checked experiment.

    Args:
      exponent: of the learning rate, in place of the middle candidate.
      settings: as `config.load` takes them; they come last.

    Raises:
      ValueError: an unknown or missing key, or a value out of range.
    """
    tree = copy.deepcopy(self.tree)
    if exponent is not None:
      _set_rate(tree, exponent)
    config_lib.apply_settings(tree, settings)
    return config_lib.from_tree(tree)


@dataclasses.dataclass(frozen=True)
class Grid:
  """What a grid file says."""

  rows: tuple[Row, ...]
  seeds: int


def rate(exponent: int) -> float:
  """Returns the learning rate 1.7^exponent, to six digits.

  >>> rate(-3), rate(2)
  (0.203542, 2.89)
  """
  return float(f'{RATE_BASE**exponent:.6g}')


def load(path: str) -> Grid:
  """Returns the grid in a TOML file, every row checked.

  Raises:
    ValueError: no TOML, an unknown or missing key, or a value out of range.
    OSError: the file, or that of its base, cannot be read.
  """
  tree = config_lib.read(path)
  _check_keys('grid', tree, _KEYS)
  base = tree.get('base', {})
  if isinstance(base, str):
    base = config_lib.read(os.path.join(os.path.dirname(path), base))
    base.pop('compare', None)
  _check_keys('base', base, _GROUPS)
  seeds = errors.check_count(
      'seeds', tree.get('seeds', _DEFAULT_SEEDS), 'how many test a row')
  rows = tuple(
      _row(tree, base, corpus, mechanism, epsilon)
      for corpus in tree.get('corpora', {'': {}})
      for mechanism, epsilon in _mechanisms(tree, corpus))
  if not rows:
    raise ValueError(
        errors.invalid(
            'mechanisms', path, 'gives no row',
            'add [mechanisms.NAME] and epsilons'))
  for row in rows:
    row.config()
  return Grid(rows, seeds)


def _mechanisms(
    tree: dict[str, Any], corpus: str
) -> Iterator[tuple[str, float]]:
  """Yields the mechanisms of a corpus with each of their epsilons."""
  changes = tree.get('corpora', {}).get(corpus, {})
  for mechanism, own in tree.get('mechanisms', {}).items():
    _check_keys(f'mechanisms.{mechanism}', own, _MECHANISM_KEYS)
    if mechanism in changes.get('leaves', ()):
      continue
    for epsilon in own.get('epsilons', tree.get('epsilons', ())):
      yield mechanism, errors.check_positive(
          'epsilons', epsilon, 'give a list of epsilons')


def _row(
    tree: dict[str, Any], base: dict[str, Any], corpus: str, mechanism: str,
    epsilon: float,
) -> Row:
  of_corpus = tree.get('corpora', {}).get(corpus, {})
  _check_keys(f'corpora.{corpus}', of_corpus, _CORPUS_KEYS)
  of_mechanism = tree['mechanisms'][mechanism]
  layers = [_at(layer, epsilon) for layer in (base, of_corpus, of_mechanism)]
  merged: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
  for layer in layers:
    for group in _GROUPS:
      merged[group].update(layer.get(group, {}))
  merged['privacy']['epsilon'] = epsilon
  comments = [layers[2]['about']] if 'about' in layers[2] else []
  multiplier = layers[2].get('noise_multiplier')
  if multiplier is not None:
    # PRIVACY: what the cohorts of the run support, not what sampling would.
    # Guard: grid_test.test_amplified_rows_claim_what_holds_without_sampling.
    claimed = accounting.gaussian_epsilon(
        multiplier, merged['privacy'].get('delta', 0))
    merged['privacy']['epsilon'] = float(f'{claimed:.9g}')
    comments.append(
        f'Has the noise that gives epsilon {epsilon:g} with cyclic Poisson '
        'sampling. No sampler here draws cohorts so: the run claims the '
        'epsilon below, which holds without.')
  exponents = layers[1].get(
      'rate_exponents', layers[2].get('rate_exponents'))
  exponents = () if exponents is None else (
      tuple(exponents) if isinstance(exponents, list) else (exponents,))
  if exponents:
    _set_rate(merged, exponents[len(exponents) // 2])
  if len(exponents) > 1:
    listed = ', '.join(map(str, exponents))
    comments.append(
        'Server learning rate: to be tuned among 1.7^i, '
        f'i = {listed}; the middle one stands here.')
  if tree.get('assumed'):
    comments.append(
        'Not given by the source: ' + ', '.join(tree['assumed']) + '.')
  series = f'{corpus}_{mechanism}' if corpus else mechanism
  return Row(
      f'{series}_epsilon{epsilon:g}', series, float(epsilon), exponents, merged,
      tuple(comments))


def _at(value: Any, epsilon: float) -> Any:
  """Returns a nested value with its tables by epsilon looked up.

  Raises:
    ValueError: such a table lacks this epsilon.
  """
  if not isinstance(value, dict):
    return value
  if value and all(_is_number(key) for key in value):
    found = [each for key, each in value.items() if float(key) == epsilon]
    if not found:
      raise ValueError(
          errors.invalid(
              'epsilons', f'{epsilon:g}', f'is not in the table {value}',
              'add it there, or give the mechanism epsilons of its own'))
    return found[0]
  return {key: _at(each, epsilon) for key, each in value.items()}


def _is_number(text: str) -> bool:
  return text.replace('.', '', 1).isdigit()


def _set_rate(tree: dict[str, Any], exponent: int) -> None:
  tree['training'] = {
      **tree.get('training', {}), 'server_learning_rate': rate(exponent)}


def _check_keys(
    name: str, table: dict[str, Any], known: tuple[str, ...]
) -> None:
  for key in table:
    if key not in known:
      raise ValueError(
          errors.invalid(
              name, key, 'is no known key', f'use {", ".join(known)}'))


def to_toml(row: Row, source: str) -> str:
  """Returns the file of a row.

  Args:
    row: of a grid.
    source: the grid's file name.
  """
  comments = (
      *row.comments, f'Written by `python -m simulations.grid` from {source}.')
  lines = [
      f'# {line}' for comment in comments
      for line in textwrap.wrap(comment, 78, break_on_hyphens=False)]
  for group, table in row.tree.items():
    lines += ['', f'[{group}]']
    lines += [f'{key} = {_value(table[key])}' for key in table]
  return '\n'.join(lines) + '\n'


def _value(value: Any) -> str:
  if isinstance(value, bool):
    return str(value).lower()
  # TOML's literal strings and its numbers are written as Python's.
  return repr(value)


@click.command(help=__doc__.split('\n')[0])
@click.argument('path', metavar='FILE')
@run_stackoverflow.one_line_errors
def main(path: str) -> None:
  file = pathlib.Path(path)
  rows = load(path).rows
  for row in rows:
    file.with_name(f'{row.name}.toml').write_text(to_toml(row, file.name))
  click.echo(f'{len(rows)} experiments next to {path}', err=True)
  sys.exit(0)


if __name__ == '__main__':
  main()
