"""Kills runs at random times, resumes them, and compares the results.

  python -m simulations.kill_test --kills=50

Every run is a small `training.run` in its own process, on the docstrings of one
package. One run, the undisturbed run, is never killed. All other runs have the
noise key of the undisturbed run. The test kills each of them (SIGKILL) at one
or several random times; a run that ends earlier is not killed. Two fifths of
the times are uniform until the end of a run, half of them from the start of its
process, half of them from the start of round 0. The other times are in the
first, the middle or the last round.

After the last resume of a run

  * the cohort and the released sum of every round, and the final model, are the
    same, bit for bit, as in the undisturbed run;
  * the ledger has one cohort and one release for each round;
  * metrics and report differ only in times, numbers of attempts, and names.

The output is one JSON line; the exit status is 1 if a comparison fails.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any, Callable, Optional

import click

from simulations import config as config_lib
from simulations import config_keys, run_stackoverflow
from tff_bandmf import strategies

_PACKAGE = 'absl-py'


def experiment(corpus: pathlib.Path, rounds: int) -> config_lib.Config:
  """Returns a small experiment: correlated noise, momentum and adaptive clip.

  A resumed run must restore the states of all three, and of the learning rate
  schedule.

  Args:
    corpus: path of the corpus file.
    rounds: number of rounds.
  """
  return config_keys.from_tree(
    {
      'data': {
        'corpus': str(corpus),
        'vocabulary_size': 100,
        'max_sentences_per_client': 4,
      },
      'model': {'embedding_size': 8, 'lstm_size': 8, 'tied': True},
      'training': {
        'rounds': rounds,
        'clients_per_round': 4,
        'client_groups': 2,
        'evaluate_every': 3,
        'evaluation_sentences': 50,
        'server_cooldown_rounds': rounds // 2,
      },
      'privacy': {
        'family': strategies.BandedToeplitz.family,
        'min_sep': 4,
        'max_participations': 2,
        'epsilon': 8.0,
        'delta': 1e-5,
        'l2_norm_clip': 0.5,
        'clip_quantile': 0.5,
      },
    }
  )


def start(work: Callable[[], None], log: pathlib.Path) -> int:
  """Starts a process that does the work, and returns its process ID.

  The exit status of the process is 1 if the work raises an exception. The
  process is forked, so it does not spend time on imports.
  """
  child = os.fork()
  if child:
    return child
  status = 1
  try:
    with open(log, 'ab') as output:
      for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    work()
    status = 0
  except BaseException:
    traceback.print_exc()
  finally:
    sys.stderr.flush()
    os._exit(status)


def in_round(directory: pathlib.Path, t: int) -> Callable[[], bool]:
  """Returns a function that returns whether round t of a run is open."""

  def is_open() -> bool:
    try:
      content = (directory / 'private' / 'position').read_text()
    except FileNotFoundError:
      return False
    return content.split()[1:2] == [str(t)]

  return is_open


def finish(
  child: int,
  after: Optional[float] = None,
  when: Callable[[], bool] = lambda: True,
) -> tuple[int, float]:
  """Waits for a process, or kills it.

  Args:
    child: process ID.
    after: number of seconds from the first True of `when` to the kill; None to
      wait until the process ends.
    when: function that returns a bool; it is called until it returns True.

  Returns:
    The status of `os.waitpid`, and the duration of the process in seconds.
  """
  began = time.monotonic()
  moment = None
  while True:
    ended, status = os.waitpid(child, os.WNOHANG)
    seconds = time.monotonic() - began
    if ended:
      return status, seconds
    if moment is None and when():
      moment = seconds
    if after is not None and moment is not None and seconds >= moment + after:
      os.kill(child, signal.SIGKILL)
      os.waitpid(child, 0)
      return signal.SIGKILL, seconds
    time.sleep(0.002)


def train(
  config: config_lib.Config, directory: pathlib.Path, secret: bytes
) -> None:
  """Starts or resumes a run, and writes its report.

  Args:
    config: the experiment.
    directory: folder of the run.
    secret: noise key of the run.
  """
  from simulations import training
  from tff_bandmf import _files, report
  from tff_bandmf.run_files import folder, run_json
  from tff_bandmf.tff import runtime

  # The runs of this test share a noise key so that they can be compared. Every
  # other run of the library has its own random key.
  if not (directory / run_json.RUN_FILE).exists():
    _files.load_or_create_secret(
      directory / f'{run_json.NOISE_KEY}{run_json.NEW_KEY}',
      len(secret),
      'noise.key',
      lambda _: secret,
    )
    folder.bind(directory, begun=False)
  corpus = training.load_corpus(config.data)
  with runtime.local_runtime():
    training.run(config, corpus, directory, resume=True)
  report.write(directory)


def _observed(ledger) -> Any:
  """Returns the part of a ledger's content that must not depend on kills.

  An interrupted attempt of a round is an event of the ledger's hash chain, so
  the last hashes are left out. `_result` compares the results of the runs.
  """
  return dataclasses.replace(ledger.observed(), head='', ended=None)


def differences(
  whole: pathlib.Path, killed: pathlib.Path, rounds: int
) -> Iterator[str]:
  """Yields the names of files and values that differ between two runs.

  Args:
    whole: folder of the undisturbed run.
    killed: folder of a run that was killed.
    rounds: number of rounds of the runs.
  """
  from tff_bandmf.run_files import run_ledger

  with run_ledger.open_ledger(whole) as expected:
    with run_ledger.open_ledger(killed) as ledger:
      if _observed(ledger) != _observed(expected):
        yield 'observed'
      for t in range(rounds):
        release = expected.attempts(t)[-1].sum_digest
        results = {attempt.sum_digest for attempt in ledger.attempts(t)} - {
          None
        }
        if results != {release}:
          yield f'release of round {t}'
        cohort, wanted = ledger.cohort(t), expected.cohort(t)
        if (
          cohort is None
          or wanted is None
          or (cohort.tolist() != wanted.tolist())
        ):
          yield f'cohort of round {t}'
  if _result(whole) != _result(killed):
    yield 'result'
  if _rows(whole) != _rows(killed):
    yield 'metrics'
  if _report(whole) != _report(killed):
    yield 'report'


def _contents(directory: pathlib.Path, name: str) -> Any:
  return json.loads((directory / name).read_text())


def _result(directory: pathlib.Path) -> dict[str, Any]:
  """Returns the result without the ledger's last hash.

  The hash depends on the number of interrupted attempts.
  """
  from tff_bandmf.run_files import run_json

  content = _contents(directory, run_json.RESULT_FILE)
  del content[run_json.LEDGER_HEAD]
  return content


def _rows(directory: pathlib.Path) -> list[dict[str, str]]:
  from tff_bandmf.run_files import metrics

  return [
    {
      name: value
      for name, value in row.items()
      if name not in ('seconds', 'memory_mib')
    }
    for row in metrics.exported(directory)
  ]


def _report(directory: pathlib.Path) -> dict[str, Any]:
  """Returns the report without the parts that differ between any two runs."""
  from tff_bandmf import report

  content = _contents(directory, report.JSON_FILE)
  # These hashes depend on times and on failed attempts.
  del content['ledger_head'], content['content_sha256']
  # The name of a run is the name of its folder.
  for run in content['check']['runs']:
    del run['name']
  return content


@click.command(help=__doc__.split('\n')[0])
@click.option(
  '--kills', default=50, show_default=True, help='Number of runs to kill.'
)
@click.option(
  '--rounds', default=30, show_default=True, help='Number of rounds of a run.'
)
@click.option(
  '--seed', default=0, show_default=True, help='Seed of the times of kills.'
)
@click.option(
  '--out',
  metavar='DIR',
  help='Folder of the runs; deleted at the end by default.',
)
@run_stackoverflow.one_line_errors
def main(kills: int, rounds: int, seed: int, out: Optional[str]) -> None:
  with tempfile.TemporaryDirectory() as temporary:
    result = run(
      pathlib.Path(out or temporary), kills, rounds, random.Random(seed)
    )
  click.echo(json.dumps(result))
  sys.exit(1 if result['failed'] else 0)


def run(
  directory: pathlib.Path, kills: int, rounds: int, instants: random.Random
) -> dict[str, Any]:
  """Kills and compares runs, and returns the JSON object that `main` prints.

  Args:
    directory: folder of the runs.
    kills: number of runs to kill.
    rounds: number of rounds of a run.
    instants: generator of the times of kills.
  """
  # The processes of the runs are forked, so they do not import these modules
  # again.
  from simulations import training
  from simulations.corpora import docstrings
  from tff_bandmf import noise
  from tff_bandmf.tff import runtime  # noqa: F401

  directory.mkdir(parents=True, exist_ok=True)
  corpus = directory / 'corpus.sqlite'
  docstrings.write_clients(
    docstrings.read_clients(
      [p for p in docstrings.PACKAGES if p[0] == _PACKAGE]
    ),
    str(corpus),
  )
  config = experiment(corpus, rounds)
  # These lines write the caches beside the corpus file. The runs, whose times
  # are measured, then only read them.
  loaded = training.load_corpus(config.data)
  for split in loaded.train, loaded.validation, loaded.test:
    split.arrays()
  secret = noise.Key.from_entropy().secret

  def work(name):
    return start(
      lambda: train(config, directory / name, secret), directory / f'{name}.log'
    )

  began = time.time()
  status, seconds = finish(work('whole'))
  if status:
    raise RuntimeError((directory / 'whole.log').read_text())
  # The time of `ledger.key` is the start of the rounds: round 0 creates it.
  before_rounds = (
    directory / 'whole' / 'private' / 'ledger.key'
  ).stat().st_mtime - began
  failed = {}
  killed = replayed = 0
  for i in range(kills):
    name = f'killed{i}'
    while True:
      t = instants.choice([None, None, 0, rounds // 2, rounds - 1])
      if t is None:
        after = instants.uniform(instants.choice([0, before_rounds]), seconds)
        status, _ = finish(work(name), after)
      else:
        status, _ = finish(
          work(name),
          instants.uniform(0, (seconds - before_rounds) / rounds),
          in_round(directory / name, t),
        )
      if status != signal.SIGKILL:
        break
      killed += 1
      # With probability 0.3 the loop goes on, and kills the resumed process.
      if instants.random() < 0.7:
        status, _ = finish(work(name))
        break
    problems = (
      ['status']
      if status
      else list(differences(directory / 'whole', directory / name, rounds))
    )
    replayed += _replayed(directory / name, rounds)
    if problems:
      failed[name] = problems
    click.echo(
      f'{name}: {", ".join(problems) or "equal"} ({killed} kills)', err=True
    )
  return {
    'runs': kills,
    'kills': killed,
    'rounds': rounds,
    'seconds_of_a_run': seconds,
    'seconds_before_rounds': before_rounds,
    'rounds_replayed': replayed,
    'failed': failed,
  }


def _replayed(directory: pathlib.Path, rounds: int) -> int:
  from tff_bandmf.run_files import run_ledger

  with run_ledger.open_ledger(directory) as ledger:
    return sum(len(ledger.attempts(t)) > 1 for t in range(rounds))


if __name__ == '__main__':
  main()
