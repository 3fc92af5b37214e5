"""Kills runs in any round, each way of driving them, and begins again.

  make kills          # ARGS='--kills=200 --way=train'

Every run is one of `tff_bandmf.Run` in a process of its own, with the key of an
undisturbed run. It is killed (SIGKILL) once or several times in a row, at any
instant, or in the first, a middle or the last round. Then it is begun again,
and ends with the model, the cohorts and the claim of the undisturbed run. Where
clients come by themselves, a killed round is burnt, and the run ends with a
report and keeps its claim. One JSON line a way comes out; the exit status is 1
if a run ended otherwise. `run_interrupted_test` dies at each durable write.
"""

import functools
import itertools
import json
import pathlib
import random
import signal
import sys
import tempfile
import time

import click
import numpy as np
import small_training
import tensorflow_federated as tff

import tff_bandmf
from simulations import kill_test
from tff_bandmf import _files, verify
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.run_files import folder, run_json
from tff_bandmf.tff import runtime

_ROUNDS = 6
_SECRET = bytes(range(32))


def _dataset(client, t):
  return small_training.batches(
    small_training.CLIENTS, client, 3, seed=0, round_index=t
  )


def _process(run):
  return tff.learning.algorithms.build_unweighted_fed_avg(
    small_training.functional_model(
      small_training.MODEL, small_training.LENGTH
    ),
    tff.learning.optimizers.build_sgdm(0.5),
    tff.learning.optimizers.build_sgdm(1.0, 0.9),
    model_aggregator=run.aggregator,
  )


def _rounds(run):
  process = _process(run)
  state = run.restore(process.initialize)
  for opened in run.rounds(clients=9):
    data = [_dataset(client, opened.index) for client in opened.cohort.tolist()]
    state = opened.finish(process.next(state, data).state)


def _train(run):
  for _ in run.train(_process(run), _dataset, clients=9):
    pass


def _train_model(run):
  run.train_model(_process(run), _dataset, clients=9)


def _release(run):
  total = run.restore(lambda: np.zeros(3))
  for opened in run.rounds(clients=9):
    updates = (np.full(3, 0.1 * client) for client in opened.cohort)
    total = total + opened.release(updates, np.zeros(3, np.float32))
    opened.finish(total)


def _round(run):
  total = run.restore(lambda: np.zeros(3))
  while run.rounds_left:
    # Others come at every start.
    with run.round(cohort=np.random.permutation(9)[:6]) as opened:
      updates = (np.full(3, 0.1 * client) for client in opened.cohort)
      total = total + opened.release(updates, np.zeros(3, np.float32))
      opened.finish(total)


_WAYS = {
  'release': _release,
  'round': _round,
  'rounds': _rounds,
  'train': _train,
  'train_model': _train_model,
}


def _work(way, directory):
  """Runs, or goes on, and writes the report."""
  if not (directory / run_json.RUN_FILE).exists():
    _files.load_or_create_secret(
      directory / f'{run_json.NOISE_KEY}{run_json.NEW_KEY}',
      32,
      'key',
      lambda _: _SECRET,
    )
    folder.bind(directory, begun=False)
  plan = small_training.plan(_ROUNDS)
  with (
    runtime.local_runtime(concurrency=1, program=way == 'train_model'),
    tff_bandmf.Run(directory, plan, keep_key=True) as run,
  ):
    _WAYS[way](run)
    run.record()
    run.report()


def _ended(directory, way):
  """Returns the model, the cohorts and the claim of a run that ended."""
  report = json.loads((directory / 'report.json').read_text())
  if way == 'round':
    verify.verify(directory)
    return report['completed'], report['violated']
  path = directory / run_json.CHECKPOINTS / f'{_ROUNDS:08d}.npz'
  with np.load(path) as content:
    # What comes after the model names this start of the tape.
    model = [
      content[f'arr_{i}'].tobytes()
      for i in range(min(len(content.files), len(small_training.SPECS)))
    ]
  with ledger_lib.Ledger(directory / run_json.LEDGER_FILE) as ledger:
    cohorts = [ledger.cohort(t).tolist() for t in range(_ROUNDS)]
    observed = ledger.observed()
  return model, cohorts, observed.finished, report['epsilon']


def _kill(way, directory, kills, instants):
  """Returns how many runs of a way were killed, and which ended otherwise."""

  def start(name):
    return kill_test.start(
      functools.partial(_work, way, directory / name), directory / f'{name}.log'
    )

  status, seconds = kill_test.finish(start('whole'))
  if status:
    raise RuntimeError((directory / 'whole.log').read_text())
  expected = _ended(directory / 'whole', way)
  killed, failed = 0, []
  for i in itertools.count():
    if killed >= kills:
      break
    name = f'killed{i}'
    status = signal.SIGKILL
    while status == signal.SIGKILL:
      child = start(name)
      t = instants.choice([None, 0, _ROUNDS // 2, _ROUNDS - 1])
      if instants.random() > 0.7:
        status, _ = kill_test.finish(child)
      elif t is None:
        status, _ = kill_test.finish(child, instants.uniform(0, seconds))
      else:
        # The write of a checkpoint follows within a few milliseconds.
        after = instants.choice([0.0, 0.003, instants.uniform(0, 0.1)])
        moment = kill_test.in_round(directory / name, t)
        status, _ = kill_test.finish(child, after, moment)
      killed += status == signal.SIGKILL
    if status or _ended(directory / name, way) != expected:
      failed.append(name)
  return {'way': way, 'kills': killed, 'seconds': seconds, 'failed': failed}


@click.command(help=__doc__.split('\n')[0])
@click.option('--kills', default=50, show_default=True)
@click.option('--way', type=click.Choice(sorted(_WAYS)))
@click.option('--seed', type=int)
def main(kills, way, seed):
  seed = int(time.time()) if seed is None else seed
  failed = False
  for name in [way] if way else _WAYS:
    with tempfile.TemporaryDirectory() as directory:
      found = _kill(name, pathlib.Path(directory), kills, random.Random(seed))
    click.echo(json.dumps({**found, 'seed': seed}))
    failed |= bool(found['failed'])
  sys.exit(failed)


if __name__ == '__main__':
  main()
