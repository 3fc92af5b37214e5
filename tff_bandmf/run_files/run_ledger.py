"""The ledger of a run, in the run's folder, another file, or a server."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Optional, Union

from tff_bandmf import _files
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.run_files import run_json


def set_location(directory: pathlib.Path, url: Union[str, os.PathLike]) -> None:
  """Stores the location of the ledger of a run, for `open_ledger`.

  Args:
    directory: folder of the run.
    url: path of a SQLite file, or URL of SQLAlchemy, which may have a password.

  Raises:
    ValueError: the run has begun, and the ledger at `url` belongs to another
      run.
  """
  from tff_bandmf.ledger import ledger

  location = os.fspath(url)
  if '://' not in location:
    location = os.path.abspath(location)
  path = directory / run_json.LEDGER_URL
  if path.exists() and path.read_text() == location:
    return
  if (directory / run_json.RUN_FILE).exists():
    key = directory / run_json.LEDGER_KEY
    with ledger.Ledger(location, False, key) as other:
      if other.bound() != run_json.RunDetails.read(directory).bound():
        raise ledger.of_another_run()
  # PRIVACY: a person who reads the password in the URL could change the ledger
  # and hide participation. Only the owner of the file can read the URL.
  # Guard: run_test.test_ledger_is_where_it_is_said_to_be.
  _files.write(path, location.encode(), mode=0o600)


def open_ledger(
  directory: pathlib.Path, create: bool = False, check: bool = True
) -> ledger_lib.Ledger:
  """Returns the open ledger of a run.

  Args:
    directory: folder of the run.
    create: whether to make a missing ledger.
    check: whether to check the chain of hashes; see `Ledger`.

  Raises:
    ValueError: the ledger is missing or damaged; see `Ledger`.
  """
  # PRIVACY: With another ledger, all rounds of the run would be forgotten, and
  # their noise could be used again. A run has one ledger.
  # Guard:
  # run_folder_test.test_release_that_the_ledger_does_not_know_is_refused.
  path = directory / run_json.LEDGER_URL
  # The use of `ledger_lib.Ledger` imports SQLAlchemy. A report on training
  # outside of this library has no ledger, and so does not need SQLAlchemy.
  return ledger_lib.Ledger(
    path.read_text() if path.exists() else directory / run_json.LEDGER_FILE,
    create,
    directory / run_json.LEDGER_KEY,
    check,
  )


def results(directory: pathlib.Path) -> Optional[Mapping[str, float]]:
  """Returns the measured results of a run; None if it has not ended.

  Raises:
    ValueError: the ledger is missing or damaged; see `Ledger`.
  """
  with open_ledger(directory) as ledger:
    ended = ledger.ended()
  return None if ended is None else ended.results


def notes(directory: pathlib.Path) -> run_json.RunDetails:
  """Returns the notes on a run in the fields of `RunDetails`.

  Raises:
    ValueError: the ledger is missing or damaged; see `Ledger`.
  """
  with open_ledger(directory, check=False) as ledger:
    return run_json.RunDetails().with_notes(ledger.contents().notes)
