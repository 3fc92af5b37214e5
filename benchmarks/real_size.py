"""Benchmark of training at the size of the literature.

    python -m benchmarks.real_size --folder=DIR [--rounds=10] [--row=ROW]

The program writes a file with the format and the number of clients of TFF's
StackOverflow data, if DIR has none. Then the program trains the first rounds of
a row of `configs/bandmf23.toml` on this file, as a user would: a model of
4,050,748 parameters, with 100 of the 342,477 clients a round, which simulate
1,000. The words of the sentences are random, so only time, memory and disk
space are meaningful. The output is one JSON line.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import click
import numpy as np

_ROOT = pathlib.Path(__file__).resolve().parent.parent
# Number of clients of each split. TFF's StackOverflow has as many train clients
# and more clients in the other splits.
_CLIENTS = {'train': 342_477, 'heldout': 1_000, 'test': 1_000}
_VOCABULARY = 10_000
_ROW = 'stackoverflow_banded_epsilon8'
_COHORT = 100
_ROUNDS = 2052
_BANDS = 342
_PARAMETERS = 4_050_748
# Number of cores for which the duration of a whole run is predicted.
_CORES = 16


def write(folder: pathlib.Path, sentences: int) -> None:
  """Writes `stackoverflow.sqlite` and `stackoverflow.word_count`.

  Args:
    folder: folder of the files.
    sentences: number of sentences of each client, >= 1.
  """
  from simulations.corpora import corpus_file, stackoverflow

  words = np.array([f'word{i}' for i in range(_VOCABULARY)])
  generator = np.random.default_rng(0)
  # By Zipf's law, the share of word i is proportional to 1 / i.
  share = 1 / np.arange(1, _VOCABULARY + 1)
  drawn = generator.choice(words, (1 << 14, 20), p=share / share.sum())
  texts = [' '.join(row) for row in drawn.tolist()]

  def rows() -> Iterator[tuple[str, str, str, str]]:
    for split, clients in _CLIENTS.items():
      for client in range(clients):
        first = (client * 7919) % len(texts)
        for i in range(sentences):
          yield split, f'{client:08d}', '', texts[(first + i) % len(texts)]

  (folder / stackoverflow.WORD_COUNTS_FILE).write_text(
    ''.join(f'{word} {_VOCABULARY - i}\n' for i, word in enumerate(words))
  )
  corpus_file.write(
    str(folder / stackoverflow.FILE), rows(), lambda: f'random {sentences}'
  )


def _train(folder: pathlib.Path, row: str, rounds: int) -> dict[str, float]:
  """Returns the time, memory and disk space of the first rounds of a row.

  CPU times and memory are sums over all processes of the run.

  Args:
    folder: folder of the data; the run is written to its folder `run`.
    row: row of the grid.
    rounds: number of rounds to train.
  """
  import psutil

  from tff_bandmf.run_files import metrics

  run = folder / 'run'
  shutil.rmtree(run, ignore_errors=True)
  began = time.perf_counter()
  process = psutil.Popen(
    [
      sys.executable,
      '-m',
      'simulations.run_stackoverflow',
      f'--config={_ROOT / "configs" / "bandmf23.toml"}:{row}',
      f'--data-dir={folder}',
      f'--set=training.clients_per_round={_COHORT}',
      '--set=privacy.simulated_clients_per_round=1000',
      f'--stop-after={rounds}',
      f'--output_dir={run}',
    ],
    cwd=_ROOT,
    stdin=subprocess.DEVNULL,
    stdout=sys.stderr,
    # The cache is off, because a cached optimisation takes no time.
    env={**os.environ, 'BANDMF_CACHE': ''},
  )
  memory = 0
  # (rounds done, CPU seconds of the server, CPU seconds of its children).
  done: list[tuple[int, float, float]] = []
  while process.poll() is None:
    try:
      tree = [process, *process.children(recursive=True)]
      memory = max(memory, sum(each.memory_info().rss for each in tree))
      cpu = [sum(each.cpu_times()[:2]) for each in tree]
      rounds_done = len(metrics.exported(run))
      if len(cpu) > 1 and rounds_done > (done[-1][0] if done else 0):
        done.append((rounds_done, cpu[0], sum(cpu[1:])))
    except psutil.NoSuchProcess:
      pass
    time.sleep(0.5)
  if process.returncode:
    raise SystemExit(process.returncode)
  # The first round compiles functions, so it is left out.
  first, last = np.array(done[0]), np.array(done[-1])
  _, server, clients = (last - first) / (last[0] - first[0])
  return {
    'seconds': time.perf_counter() - began,
    'peak_memory_bytes': memory,
    'server_cpu_seconds_a_round': server,
    'clients_cpu_seconds_a_round': clients,
    'run_bytes': sum(
      path.stat().st_size for path in run.rglob('*') if path.is_file()
    ),
  }


@click.command()
@click.option(
  '--folder', required=True, metavar='DIR', help='Folder of data and run.'
)
@click.option(
  '--rounds', default=10, show_default=True, help='Number of rounds to train.'
)
@click.option(
  '--row',
  default=_ROW,
  show_default=True,
  help='Row of configs/bandmf23.toml.',
)
@click.option(
  '--sentences',
  default=8,
  show_default=True,
  help='Number of sentences of a client.',
)
def main(folder: str, rounds: int, row: str, sentences: int) -> None:
  """Writes the data, trains, and prints time, memory and disk space."""
  from simulations.corpora import stackoverflow
  from tff_bandmf.run_files import metrics

  directory = pathlib.Path(folder)
  directory.mkdir(parents=True, exist_ok=True)
  began = time.perf_counter()
  if not (directory / stackoverflow.FILE).exists():
    write(directory, sentences)
  written = time.perf_counter() - began
  result = _train(directory, row, rounds)
  seconds = [
    float(each['seconds']) for each in metrics.exported(directory / 'run')
  ][1:]
  cores = len(os.sched_getaffinity(0))

  def hours(cores: int) -> float:
    """Returns the predicted hours of all rounds on an otherwise idle machine.

    The clients' CPU time is divided by the number of cores; the server's is
    not.
    """
    seconds = (
      result['server_cpu_seconds_a_round']
      + result['clients_cpu_seconds_a_round'] / cores
    )
    return _ROUNDS * seconds / 3600

  print(
    json.dumps(
      {
        'case': 'real_size',
        'row': row,
        'clients': _CLIENTS['train'],
        'clients_per_round': _COHORT,
        'sentences': sentences,
        'rounds': rounds,
        'parameters': _PARAMETERS,
        'file_bytes': (directory / stackoverflow.FILE).stat().st_size,
        'write_seconds': written,
        **result,
        'seconds_a_round': statistics.median(seconds),
        'noise_bytes': 4 * (_BANDS - 1) * _PARAMETERS,
        'cores': cores,
        **{f'hours_on_{each}_cores': hours(each) for each in (cores, _CORES)},
      }
    )
  )


if __name__ == '__main__':
  main()
