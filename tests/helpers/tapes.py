"""A small tape, its noise and its readers, for tests of tapes."""

import sys
import time
import types

import numpy as np
import pytest

from tff_bandmf import noise, strategies
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import reader
from tff_bandmf.noise.tape import writer as tape_lib

DIMENSION = 30
ROUNDS = 40
KEY = noise.Key.from_seed(5)
Z_STEPS = 1000.0
RUN = 7


def strategy(bands=7, rounds=ROUNDS):
  return strategies.BandedToeplitz(
    rounds, 0.8 ** np.arange(bands) / (1 + np.arange(bands))
  )


def make(directory, c=None, **kwargs):
  """Returns the tape of a strategy in a folder.

  Args:
    directory: folder of the tape.
    c: strategy; None for `strategy()`.
    **kwargs: changed arguments of `Stream` and `Tape`.
  """
  noise_of = {
    'recursion': (c or strategy()).recursion(),
    'z_steps': Z_STEPS,
    'dimension': DIMENSION,
    'key': KEY,
  }
  for name in (*noise_of, 'memory', 'coordinates', 'backend'):
    if name in kwargs:
      noise_of[name] = kwargs.pop(name)
  return tape_lib.Tape(directory, stream.Stream(**noise_of), **kwargs)


def release(tape, t, total=None, tape_id=None, timeout=60.0, run=RUN):
  """Returns the release of a round, `total` plus y.

  Args:
    tape: tape to read.
    t: index of the round.
    total: sum to which the noise is added; None for zeros.
    tape_id: tape id that the reader expects; None for the right one.
    timeout: seconds to wait for the noise.
    run: id of the run.
  """
  dimension = sum(shard.size for shard in tape.shards)
  total = np.array(np.zeros(dimension) if total is None else total, np.int32)
  seen = types.SimpleNamespace(
    shards=tape.shards,
    tape_id=tape.tape_id if tape_id is None else tape_id,
    dimension=dimension,
    z_steps=tape.z_steps,
    recursion=tape.recursion,
  )
  reader.release(seen, total, round_index=t, run=run, timeout_seconds=timeout)
  return total


def release_in_a_graph(
  tape, t, total=None, tape_id=None, timeout=60.0, run=RUN
):
  """Returns the result of `release`, computed in TensorFlow's graph."""
  import tensorflow as tf

  from tff_bandmf.noise.tape import graph_reader

  dimension = sum(shard.size for shard in tape.shards)
  total = np.zeros(dimension) if total is None else total
  released, _ = graph_reader.release(
    tape,
    tf.constant(total, tf.int32),
    {
      'tape_id': tf.constant(
        tape.tape_id if tape_id is None else tape_id, tf.int64
      ),
      'run': tf.constant(run, tf.int64),
    },
    tf.constant(t, tf.int64),
    timeout,
  )
  return released.numpy()


def expected(c=None, dimension=DIMENSION, key=KEY):
  """Returns y of all rounds, [n, d] int32, without a tape."""
  made = stream.Stream((c or strategy()).recursion(), Z_STEPS, dimension, key)
  return np.stack([y.copy() for y in made.rows() if y is not None])


def wait_until(condition):
  deadline = time.monotonic() + 120
  while not condition():
    assert time.monotonic() < deadline, 'timed out'
    time.sleep(0.005)


def noise_file(tape, t):
  """Returns the noise file of a round; waits until the file exists."""
  path = tape.directory / f'{t:08d}.noise'
  wait_until(path.exists)
  return path


def marks(tape):
  return sorted(path.name for path in tape.directory.glob('*.reached'))


def refusals():
  """Returns the types of a reader's errors, in NumPy and in a graph."""
  if 'tensorflow' not in sys.modules:
    return (ValueError,)
  errors = sys.modules['tensorflow'].errors
  return ValueError, errors.InvalidArgumentError, errors.DataLossError


def refused(match):
  return pytest.raises(refusals(), match=match)
