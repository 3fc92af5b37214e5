"""Simulates cohorts of devices and checks the ledger against a raw log.

  python -m simulations.deployment

Devices are available at night while they are charged, and some selected devices
drop out. Every round uses the sampler and the ledger of real training, but does
not train a model. The selected clients are also written to a raw log, a file of
plain numbers. From the raw log alone, `count` computes the separation and the
number of participations of clients, without the code of the ledger. The output
is one JSON line. The exit status is 1 if the result of `count` differs from the
ledger, or violates the participation schema.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import sys
import tempfile
import time
from typing import Any, Optional

import click
import numpy as np

from simulations import availability, run_stackoverflow
from tff_bandmf import cohorts
from tff_bandmf import ledger as ledger_lib
from tff_bandmf import participation as participation_lib


def count(raw_log: pathlib.Path) -> dict[str, Optional[int]]:
  """Returns the participation that a raw log shows.

  Args:
    raw_log: file of int64 numbers: for each round the index of the round, the
      cohort size and the indices of the clients.

  Returns:
    `min_sep`, the minimum distance of two rounds of one client, or None if no
    client took part twice; `max_participations`, the maximum number of rounds
    of one client; `clients`, the number of clients that took part.
  """
  numbers = np.fromfile(raw_log, np.int64)
  packed, at = [], 0
  while at < len(numbers):
    round_index, size = numbers[at : at + 2].tolist()
    packed.append((numbers[at + 2 : at + 2 + size] << 32) + round_index)
    at += 2 + size
  visits = np.sort(np.concatenate(packed))
  clients, visits = visits >> 32, visits & (2**32 - 1)
  gaps = (visits[1:] - visits[:-1])[clients[1:] == clients[:-1]]
  times = np.bincount(clients)
  return {
    'min_sep': int(gaps.min()) if len(gaps) else None,
    'max_participations': int(times.max()),
    'clients': int(np.count_nonzero(times)),
  }


def simulate(
  sampler: cohorts.CohortSampler, directory: pathlib.Path
) -> dict[str, Any]:
  """Returns participation by the ledger and by the raw log, and durations.

  Args:
    sampler: sampler that selects the cohorts of all rounds.
    directory: folder in which the ledger and the raw log are written.

  Returns:
    `planned`, the participation schema; `observed`, the participation that the
    ledger states; `counted`, the result of `count`; `dropped_share`, the share
    of selected clients that drop out; the durations of selecting a cohort
    (`sample_ms`) and of recording it (`record_ms`), means over the rounds; and
    numbers, sizes and durations of the whole simulation.
  """
  began = time.perf_counter()
  history = cohorts.History.empty(sampler.clients)
  selecting = recording = dropped = 0.0
  slowest = 0.0
  with ledger_lib.Ledger(directory / 'ledger.sqlite') as ledger:
    with open(directory / 'raw.log', 'wb') as raw_log:
      for t in range(sampler.rounds):
        start = time.perf_counter()
        cohort = sampler.sample(t, history)
        selected = time.perf_counter()
        ledger.start_round(t, cohort)
        history.record(t, cohort)
        recorded = time.perf_counter()
        ledger.finish_round(t)
        recording += time.perf_counter() - selected
        selecting += selected - start
        slowest = max(slowest, recorded - start)
        np.array([t, len(cohort), *cohort], np.int64).tofile(raw_log)
        if sampler.availability is not None:
          dropped += sampler.availability.drops_out(t, cohort).sum()
    start = time.perf_counter()
    observed = ledger.observed()
    counted = count(directory / 'raw.log')
    counting = time.perf_counter() - start
  return {
    'rounds': observed.rounds,
    'clients': sampler.clients,
    'cohort_size': sampler.cohort_size,
    'planned': {
      'min_sep': sampler.participation.min_sep,
      'max_participations': sampler.participation.participations(
        sampler.rounds
      ),
    },
    'observed': {name: getattr(observed, name) for name in counted},
    'counted': counted,
    'dropped_share': dropped / sampler.rounds / sampler.cohort_size,
    'sample_ms': 1000 * selecting / sampler.rounds,
    'record_ms': 1000 * recording / sampler.rounds,
    'slowest_round_ms': 1000 * slowest,
    'count_seconds': counting,
    'seconds': time.perf_counter() - began,
    'peak_rss_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    'ledger_mb': os.path.getsize(directory / 'ledger.sqlite') / 2**20,
  }


def agrees(result: dict[str, Any]) -> bool:
  """Returns whether ledger and raw log agree and satisfy the schema."""
  counted, planned = result['counted'], result['planned']
  return (
    result['observed'] == counted
    and counted['max_participations'] <= planned['max_participations']
    and (counted['min_sep'] is None or counted['min_sep'] >= planned['min_sep'])
  )


@click.command(help=__doc__.split('\n')[0])
@click.option(
  '--rounds', default=2000, show_default=True, help='Number of rounds.'
)
@click.option(
  '--clients', default=10**6, show_default=True, help='Number of clients.'
)
@click.option(
  '--cohort-size',
  default=6500,
  show_default=True,
  help='Number of clients selected for a round.',
)
@click.option(
  '--min-sep',
  default=100,
  show_default=True,
  help='Least r2 - r1 for two rounds r1 < r2 of a client.',
)
@click.option(
  '--drop-out',
  default=0.2,
  show_default=True,
  help='Probability that a selected client drops out.',
)
@click.option(
  '--seed', default=0, show_default=True, help='Seed of all random choices.'
)
@click.option(
  '--out',
  metavar='DIR',
  help='Folder of the ledger and the raw log; deleted at the end by default.',
)
@run_stackoverflow.one_line_errors
def main(
  rounds: int,
  clients: int,
  cohort_size: int,
  min_sep: int,
  drop_out: float,
  seed: int,
  out: Optional[str],
) -> None:
  sampler = cohorts.CohortSampler(
    clients,
    cohort_size,
    rounds,
    participation_lib.MinSep(min_sep),
    seed,
    availability=availability.Diurnal(seed, drop_out=drop_out),
  )
  with tempfile.TemporaryDirectory() as temporary:
    directory = pathlib.Path(out or temporary)
    directory.mkdir(parents=True, exist_ok=True)
    result = simulate(sampler, directory)
  click.echo(json.dumps(result))
  sys.exit(0 if agrees(result) else 1)


if __name__ == '__main__':
  main()
