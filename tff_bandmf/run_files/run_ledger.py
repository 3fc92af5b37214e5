"""Where the ledger of a run is: in its folder, or in a database."""

from __future__ import annotations

import os
import pathlib
from typing import Union

from tff_bandmf import _files
from tff_bandmf.ledger import ledger as ledger_lib
from tff_bandmf.run_files import run_json


def set_location(directory: pathlib.Path, url: Union[str, os.PathLike]) -> None:
  """Says where the ledger of a run is, for `open_ledger`.

  Args:
    directory: of the run.
    url: of SQLAlchemy, which may hold a password, or the path of a SQLite file.

  Raises:
    ValueError: the run has begun, and the ledger there is not its own.
  """
  said = os.fspath(url)
  if '://' not in said:
    said = os.path.abspath(said)
  path = directory / run_json.LEDGER_URL
  if path.exists() and path.read_text() == said:
    return
  if (directory / run_json.RUN_FILE).exists():
    with ledger_lib.Ledger(
      said, False, directory / run_json.LEDGER_KEY
    ) as ledger:
      if ledger.bound() != run_json.RunRecord.read(directory).bound():
        raise ledger_lib.of_another_run()
  # PRIVACY: a password in it is for nobody else. Guard:
  # run_test.test_ledger_is_where_it_is_said_to_be.
  _files.write(path, said.encode(), mode=0o600)


def open_ledger(
  directory: pathlib.Path, create: bool = False
) -> ledger_lib.Ledger:
  """Returns the ledger of a run, open, wherever it is.

  Raises:
    ValueError: as `Ledger`.
  """
  path = directory / run_json.LEDGER_URL
  return ledger_lib.Ledger(
    path.read_text() if path.exists() else directory / run_json.LEDGER_FILE,
    create,
    directory / run_json.LEDGER_KEY,
  )
