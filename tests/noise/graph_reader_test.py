"""Tests of what reads a tape in a graph; tape_release_test has most of them."""

import threading

import numpy as np
import pytest
import tapes
import tensorflow as tf

from tff_bandmf.noise import fingerprint
from tff_bandmf.noise.tape import graph_reader


@pytest.fixture
def tape(tmp_path):
  tape = tapes.make(tmp_path / 'tape')
  yield tape
  tape.close()


def _reader(tape):
  """Returns a graph that reads any round of a tape."""

  @tf.function
  def read(t, total):
    state = {
      'tape_id': tf.constant(tape.tape_id, tf.int64),
      'run': tf.constant(tapes.RUN, tf.int64),
    }
    released, _ = graph_reader.release(tape, total, state, t, 60.0)
    return released

  return read


@pytest.mark.parametrize('size', [1, 15, 16, 17, 128, 129, 40_000])
def test_fingerprint_is_that_of_numpy(size):
  random = np.random.default_rng(size)
  released = random.integers(-(2**31), 2**31, size).astype(np.int32)
  found = graph_reader.fingerprint(tf.constant(released)).numpy()
  assert tuple(found) == fingerprint.fingerprint(released)


@pytest.mark.slow
def test_graph_reads_every_round_anew(tape):
  # Constant paths would be folded: one graph, several rounds.
  read = _reader(tape)
  total = tf.range(tapes.DIMENSION)
  for t in range(5):
    y = read(tf.constant(t, tf.int64), total).numpy() - total.numpy()
    assert np.array_equal(y, tapes.expected()[t])
  with tapes.refused('released another sum'):
    read(tf.constant(4, tf.int64), total + 1)
  path = tapes.noise_file(tape, 5)
  content = path.read_bytes()
  path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
  with tapes.refused('damaged|inflate') as error:
    read(tf.constant(5, tf.int64), total)
  assert 'noise_tape_the_file_is_damaged' in str(error.value)
  path.unlink()
  threading.Timer(
    0.3, lambda: (tape.directory / 'failed').write_text('OSError')
  ).start()
  with tapes.refused('producer ended'):
    read(tf.constant(5, tf.int64), total)


@pytest.mark.slow
def test_marks_of_two_sums_at_once_let_none_through_in_a_graph(tape):
  """Threads release two sums of one round; at most one sum comes out."""
  read = _reader(tape)
  read(tf.constant(0, tf.int64), tf.zeros([tapes.DIMENSION], tf.int32))
  for t in range(1, 30):
    out = []

    def run(total, t=t, out=out):
      try:
        out.append(
          tuple(
            read(
              tf.constant(t, tf.int64), tf.fill([tapes.DIMENSION], total)
            ).numpy()
          )
        )
      except tf.errors.InvalidArgumentError:
        pass

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    assert len(set(out)) <= 1
