"""Runs of three rounds with eight clients, for tests."""

import collections
import contextlib
import itertools
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_bandmf
from tff_bandmf import (
  _files,
  participation,
  run,
  strategies,
)
from tff_bandmf import ledger as ledger_lib
from tff_bandmf.run_files import folder, run_json

ROUNDS = 3


TYPE = tff.to_type((np.float32, (3,)))


SECRET = bytes(range(32))


def small_plan(**changes):
  return tff_bandmf.Plan(
    **{
      'rounds': ROUNDS,
      'clients_per_round': 2,
      'cohorts': participation.MinSep(2),
      'delta': 1e-5,
      'l2_norm_clip': 1.0,
      'noise_multiplier': 0.5,
      'mechanism': strategies.BandedToeplitz(ROUNDS, [1.0, 0.5]),
      **changes,
    }
  )


def update_of(client, t):
  """Returns the update of a client in round t, always the same."""
  return np.full(3, 0.1 * client + 0.01 * t, np.float32)


State = collections.namedtuple('State', ['sum', 'aggregator'])


class Process:
  """A process with an own state, which is the sum of all releases."""

  def __init__(self, factory):
    self._process = factory.create(TYPE)

  def initialize(self):
    return State(np.zeros(3), self._process.initialize())

  def next(self, state, data):
    output = self._process.next(state.aggregator, data)
    return State(state.sum + output.result, output.state)


def train(directory, plan=None, data=update_of, seen=None):
  """Trains in an own loop; returns the last state.

  Args:
    directory: folder of the run.
    plan: plan of the run; None for `small_plan()`.
    data: function from client and round to the update.
    seen: list to which (round, sum of the releases) is appended; None for none.
  """
  with run.Run(directory, plan or small_plan(), keep_key=True) as mine:
    process = Process(mine.aggregator)
    state = mine.restore(process.initialize)
    for opened in mine.rounds(clients=8):
      values = [data(client, opened.index) for client in opened.cohort]
      state = process.next(state, values)
      if seen is not None:
        seen.append((opened.index, state.sum))
      state = opened.finish(state)
    mine.record(total=float(state.sum.sum()))
  return state


def train_without_tff(directory, data=update_of, plan=None):
  with run.Run(directory, plan or small_plan(), keep_key=True) as mine:
    total = mine.restore(lambda: np.zeros(3))
    for opened in mine.rounds(clients=8):
      updates = (data(client, opened.index) for client in opened.cohort)
      total = total + opened.release(updates, np.zeros(3, np.float32))
      opened.finish(total)
  return total


def with_key(directory):
  """Gives a run the key `SECRET`, so that runs can be compared."""
  directory.mkdir()
  _files.load_or_create_secret(
    directory / f'{run_json.NOISE_KEY}{run_json.NEW_KEY}',
    32,
    'key',
    lambda _: SECRET,
  )
  folder.bind(directory, begun=False)
  return directory


class Killed(BaseException):
  pass


@contextlib.contextmanager
def counting(left, end=-1):
  """Counts durable writes, and raises `Killed` before one of them.

  Args:
    left: iterator that counts the writes, shared by several programs.
    end: count of the write before which the program ends; -1 for none. A
      program that goes on nevertheless, as in `finally`, writes nothing.
  """

  def counting(function):
    @contextlib.contextmanager
    def step(*args, **kwargs):
      # Writes of the tape's thread do not count.
      mine = threading.current_thread() is threading.main_thread()
      if mine and next(left) >= end >= 0:
        raise Killed
      with function(*args, **kwargs) as made:
        yield made

    return step

  with contextlib.ExitStack() as stack:
    for owner, name in (_files, 'replacing'), (ledger_lib.Ledger, '_write'):
      stack.enter_context(
        mock.patch.object(owner, name, counting(getattr(owner, name)))
      )
    yield


@contextlib.contextmanager
def killed_at(write):
  """Ends the program before a durable write, as kill -9 would.

  Only the files and locks are closed, as by the system.
  """

  def die(self):
    self._noise_adder.close()
    self._stack.close()

  with contextlib.ExitStack() as stack:
    stack.enter_context(counting(itertools.count(), write))
    stack.enter_context(mock.patch.object(run.Run, 'close', die))
    stack.enter_context(pytest.raises(Killed))
    yield
    # The program had fewer writes.
    raise Killed


def left_after_release(directory, data=update_of):
  """Runs a program that is killed after the release of round 0."""
  with killed_at(-1):
    with run.Run(directory, small_plan()) as mine:
      process = Process(mine.aggregator)
      state = mine.restore(process.initialize)
      for opened in mine.rounds(clients=8):
        process.next(state, [data(client, 0) for client in opened.cohort])
        raise Killed


def came(mine, process, state, ids):
  with mine.round(cohort=ids) as opened:
    values = [np.ones(3, np.float32)] * len(opened.cohort)
    return opened, opened.finish(process.next(state, values))
