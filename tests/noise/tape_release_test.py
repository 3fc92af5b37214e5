"""Tests of what a round takes from a tape, and of what it is refused."""

import shutil
import threading
import time

import numpy as np
import pytest
import tapes

from tff_bandmf import noise
from tff_bandmf.noise import fingerprint
from tff_bandmf.noise.tape import file as tape_file

pytestmark = pytest.mark.usefixtures('each_reader')


@pytest.fixture
def tape(tmp_path):
  tape = tapes.make(tmp_path / 'tape')
  yield tape
  tape.close()


def _damaged():
  # Of the frame, or of what zlib checks.
  return tapes.refused('damaged|inflate')


def test_noise_is_added_to_the_sum(tape):
  total = np.arange(tapes.DIMENSION) * 1000 - 7
  for t in range(3):
    assert np.array_equal(
      tapes.release(tape, t, total), total + tapes.expected()[t]
    )


def test_round_releases_one_sum(tape):
  # No path has numbers of seven digits by chance.
  total = 10**6 + np.arange(tapes.DIMENSION)
  released = tapes.release(tape, 3, total)
  for other in (total + 1, 0 * total, np.eye(1, tapes.DIMENSION)[0] + total):
    with tapes.refused('released another sum') as error:
      tapes.release(tape, 3, other)
    # Nothing of what was not released is there.
    assert len(tapes.marks(tape)) <= 2
    for number in released[:3]:
      assert str(number) not in str(error.value)
  # The same again, as TFF repeats calls.
  assert np.array_equal(tapes.release(tape, 3, total), released)
  assert np.any(tapes.release(tape, 4, 0 * total))


def test_sum_that_was_marked_meanwhile_is_refused_and_so_is_the_other(
  tape, monkeypatch, each_reader
):
  # Two processes find no mark, write theirs, and see that of the other.
  mark = each_reader._Folder.mark
  total = np.arange(tapes.DIMENSION)

  def mark_both(self, owner):
    if isinstance(owner, str):
      mark(self, f'{owner[:-10]}0000000001')
    else:
      import tensorflow as tf

      mark(self, tf.strings.regex_replace(owner, r'-\d+$', '-0000000001'))
    return mark(self, owner)

  with monkeypatch.context() as patch:
    patch.setattr(each_reader._Folder, 'mark', mark_both)
    with tapes.refused('released another sum'):
      tapes.release(tape, 0, total)
  with tapes.refused('released another sum'):
    tapes.release(tape, 0, total)


def test_mark_holds_only_the_fingerprint_of_the_release(tape):
  total = np.arange(tapes.DIMENSION)
  released = tapes.release(tape, 0, total)
  high, low = fingerprint.fingerprint(released)
  tapes.wait_until(lambda: tapes.marks(tape)[0] != '00000000.reached'
                   or len(tapes.marks(tape)) == 2)  # fmt: skip
  (name,) = (each for each in tapes.marks(tape) if '-' in each)
  assert name == f'00000000-{tapes.RUN}-{high:010d}-{low:010d}.reached'
  assert (tape.directory / name).read_bytes() == b''


def test_fingerprints_differ_where_releases_do():
  random = np.random.default_rng(3)
  released = random.integers(-1000, 1000, 100).astype(np.int32)
  variants = [released, released[::-1], np.append(released, np.int32(0))]
  for i in range(100):
    changed = released.copy()
    changed.view(np.uint32)[i] ^= 1 << (i % 32)
    variants.append(changed)
  found = {fingerprint.fingerprint(each) for each in variants}
  assert len(found) == len(variants)
  for high, low in found:
    assert 0 <= high < 2**32 and 0 <= low < 2**32


def test_round_of_one_run_is_refused_to_another(tape):
  first = tapes.release(tape, 0, run=7)
  for run in (0, 8, 77, 2**62):
    with tapes.refused('used by another run'):
      tapes.release(tape, 0, run=run)
  assert np.array_equal(tapes.release(tape, 0, run=7), first)
  # What another run takes is not there for the first.
  tapes.release(tape, 1, run=2**63 - 1)
  with tapes.refused('used by another run'):
    tapes.release(tape, 1, run=7)
  with tapes.refused('already used'):
    tapes.release(tape, 0, run=7)
  tapes.wait_until(lambda: len(tapes.marks(tape)) == 1)
  assert tapes.marks(tape)[0].startswith(f'00000001-{2**63 - 1}-')


def test_rounds_before_the_start_are_not_there(tmp_path):
  tape = tapes.make(tmp_path / 'tape', start_round=3)
  for t in (2, -1):
    with tapes.refused('already used'):
      tapes.release(tape, t)
  assert np.any(tapes.release(tape, 3))
  tape.close()


def test_round_may_be_skipped(tape):
  tapes.release(tape, 0)
  assert np.any(tapes.release(tape, 5))
  with tapes.refused('already used'):
    tapes.release(tape, 4)


def test_highest_mark_counts_whatever_the_order(tape):
  for t in (0, 1, 2):
    tapes.release(tape, t)
  # A call that TFF repeats may come late and leave an old mark.
  (tape.directory / '00000001.reached').touch()
  with tapes.refused('already used'):
    tapes.release(tape, 1)
  assert np.any(tapes.release(tape, 2))
  tapes.wait_until(lambda: not (tape.directory / '00000001.reached').exists())
  assert all(name.startswith('00000002') for name in tapes.marks(tape))


@pytest.mark.slow
@pytest.mark.parametrize('bit', [0, 7])
@pytest.mark.deep(but=('numpy', 'graph-0'))
def test_damaged_file_is_refused(tape, bit):
  path = tapes.noise_file(tape, 0)
  content = path.read_bytes()
  for place in range(len(content)):
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    path.write_bytes(changed)
    with _damaged():
      tapes.release(tape, 0)
  path.write_bytes(content)
  assert np.any(tapes.release(tape, 0))


@pytest.fixture(scope='module')
def large(tmp_path_factory):
  """A tape whose files have several blocks."""
  tape = tapes.make(
    tmp_path_factory.mktemp('large') / 'tape', tapes.strategy(2, 2),
    dimension=50_000)  # fmt: skip
  yield tape
  tape.close()


# Bytes of words, of sectors of disks, and of pages.
@pytest.mark.parametrize('size', [4, 512, 4096, 65_540])
def test_swapped_words_sectors_and_blocks_are_refused(large, size):
  path = tapes.noise_file(large, 0)
  content = path.read_bytes()
  first, second = (
    (10, 10 + size) if size > 2**16 else (8 * size + 15, 10 * size + 15)
  )
  changed = bytearray(content)
  one, other = slice(first, first + size), slice(second, second + size)
  changed[one], changed[other] = changed[other], changed[one]
  assert changed != content and sorted(changed) == sorted(content)
  path.write_bytes(changed)
  try:
    with _damaged():
      tapes.release(large, 0)
  finally:
    path.write_bytes(content)


@pytest.mark.slow
def test_swapped_words_are_refused_wherever_they_are(large):
  path = tapes.noise_file(large, 1)
  content = path.read_bytes()
  random = np.random.default_rng(4)
  try:
    for _ in range(50):
      words = np.frombuffer(content[15:65_535], '<i4').copy()
      i, j = random.choice(np.arange(12, len(words)), 2, replace=False)
      if words[i] == words[j]:
        continue
      words[i], words[j] = words[j], words[i]
      path.write_bytes(content[:15] + words.tobytes() + content[65_535:])
      with _damaged():
        tapes.release(large, 1)
  finally:
    path.write_bytes(content)
  assert np.any(tapes.release(large, 1))


def test_last_block_that_does_not_end_is_refused(large):
  # zlib compares no checksum then; bytes that are not noise must not hide it.
  path = tapes.noise_file(large, 1)
  content = path.read_bytes()
  positions, _ = tape_file.frame(50_000)
  changed = bytearray(content)
  assert changed[positions[-5]] == 1
  changed[positions[-5]] = 0
  changed[100] ^= 1
  path.write_bytes(changed)
  try:
    with tapes.refused('damaged'):
      tapes.release(large, 1)
  finally:
    path.write_bytes(content)


@pytest.mark.parametrize('size', [0, 10, 63, 64, 64 + 4 * tapes.DIMENSION])
def test_truncated_file_is_refused(tape, size):
  path = tapes.noise_file(tape, 0)
  path.write_bytes(path.read_bytes()[:size])
  with tapes.refused('wrong size'):
    tapes.release(tape, 0)


def test_longer_file_is_refused(tape):
  path = tapes.noise_file(tape, 0)
  path.write_bytes(path.read_bytes() + bytes(4))
  with tapes.refused('wrong size'):
    tapes.release(tape, 0)


def test_file_of_an_old_release_is_refused(tape):
  path = tapes.noise_file(tape, 0)
  content = np.zeros(8 + tapes.DIMENSION // 2, '<i8')
  content[:5] = tape_file.MAGIC, 2, tape.tape_id, 0, tapes.DIMENSION
  path.write_bytes(content.tobytes())
  with tapes.refused('another version of tff_bandmf'):
    tapes.release(tape, 0)


def test_wiped_file_is_refused_not_read_as_zero_noise(tape):
  path = tapes.noise_file(tape, 0)
  path.write_bytes(bytes(len(path.read_bytes())))
  with _damaged():
    tapes.release(tape, 0)


@pytest.mark.parametrize('wiped', [1, 12, 64, 100, 180])
def test_file_that_is_being_wiped_is_refused(tape, wiped):
  path = tapes.noise_file(tape, 0)
  content = path.read_bytes()
  path.write_bytes(bytes(wiped) + content[wiped:])
  with _damaged():
    tapes.release(tape, 0)


def test_file_of_another_round_is_refused(tape):
  shutil.copy(tapes.noise_file(tape, 1), tapes.noise_file(tape, 0))
  with tapes.refused('another tape, shard or round'):
    tapes.release(tape, 0)


def test_file_of_another_tape_is_refused(tape):
  with tapes.refused('another tape, shard or round'):
    tapes.release(tape, 0, tape_id=tape.tape_id ^ 1)


@pytest.mark.parametrize('change', [
  {'key': noise.Key.from_seed(6)}, {'z_steps': tapes.Z_STEPS + 1}])  # fmt: skip
def test_file_of_other_noise_is_refused(tape, tmp_path, change):
  other = tapes.make(tmp_path / 'other', **change)
  shutil.copy(tapes.noise_file(other, 0), tapes.noise_file(tape, 0))
  other.close()
  with tapes.refused('another tape, shard or round'):
    tapes.release(tape, 0)


def test_round_renamed_to_another_is_refused(tape):
  tapes.noise_file(tape, 0)
  tapes.noise_file(tape, 7).rename(tape.directory / '00000000.noise')
  with tapes.refused('another tape, shard or round'):
    tapes.release(tape, 0)
  # Read again from the start, as a round that was used would be.
  tapes.release(tape, 5)
  shutil.copy(tapes.noise_file(tape, 5), tape.directory / '00000006.noise')
  with tapes.refused('another tape, shard or round'):
    tapes.release(tape, 6)


def test_noise_of_another_deviation_is_refused_and_not_marked(tmp_path):
  c = tapes.strategy(2, 2)
  tape = tapes.make(tmp_path / 'tape', c, dimension=50_000)
  path = tapes.noise_file(tape, 0)
  y = tapes.expected(c, 50_000)[0] * 9 // 10
  path.write_bytes(b''.join(tape_file.contents(tape.tape_id, 0, 0, y)))
  with tapes.refused('sample deviation'):
    tapes.release(tape, 0)
  assert tapes.marks(tape) == ['00000000.reached']
  tape.close()


def test_refused_round_is_not_marked(tape):
  with tapes.refused('another tape, shard or round'):
    tapes.release(tape, 3, tape_id=1)
  assert np.any(tapes.release(tape, 0))


@pytest.mark.slow
def test_missing_file_fails_after_the_timeout(tape):
  tapes.noise_file(tape, 0).unlink()
  began = time.monotonic()
  with tapes.refused('fell behind'):
    tapes.release(tape, 0, timeout=0.3)
  assert time.monotonic() - began >= 0.3


def test_clock_that_somebody_sets_does_not_end_the_wait(tape, monkeypatch):
  path = tapes.noise_file(tape, 0)
  away = path.with_name('away')
  path.rename(away)
  jumps = iter(range(0, 10**9, 10**6))
  monkeypatch.setattr(time, 'time', lambda: next(jumps))
  threading.Timer(0.3, away.rename, [path]).start()
  assert np.any(tapes.release(tape, 0, timeout=60.0))


def test_round_past_the_last_fails(tape):
  with tapes.refused('fell behind'):
    tapes.release(tape, tapes.ROUNDS, timeout=0.1)


def test_reader_waits_for_a_producer_that_is_behind(tape):
  path = tapes.noise_file(tape, 0)
  away = path.with_name('away')
  path.rename(away)
  threading.Timer(0.5, away.rename, [path]).start()
  assert np.any(tapes.release(tape, 0))
