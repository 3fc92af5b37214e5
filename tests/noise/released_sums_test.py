"""Random calls of the marks of released sums against what they promise."""

import collections

import numpy as np
import pytest

from tff_bandmf.noise import fingerprint, released_sums

_RUN, _ROUNDS = 7, 3


def _sums(rng):
  """Returns one of three sums; two of them differ in one bit."""
  released = np.arange(5, dtype=np.int32)
  which = int(rng.integers(3))
  released[which] ^= 1 << 31 - which if which else 0
  return released


@pytest.mark.parametrize('seed', range(4))
def test_noise_of_a_round_meets_one_sum_in_any_order(tmp_path, seed):
  rng = np.random.default_rng(seed)
  position = released_sums.Position(tmp_path, _RUN)
  marked = collections.defaultdict(set)
  counts = {}
  opened, most, latest = 0, 2, 0
  outcomes = collections.Counter()
  position.open(opened, 0, most, set())
  for attempt in range(1, 150):
    t, clients = int(rng.integers(_ROUNDS)), int(rng.integers(4))
    if opened is not None and rng.random() < 0.5:
      t = opened
    call = rng.choice(['open', 'close', 'check', 'mark', 'forget', 'other'])
    if call == 'open':
      # What the ledger knows of the round, whatever became of the marks.
      known = set(sorted(marked[t])[:1])
      for before, name in known:
        # A power cut lost the mark.
        lost = f'{t:08d}-{before}-{name.decode()}'
        (position.marks / lost).unlink()
        counts.pop(lost, None)
      position.open(t, attempt, clients, known)
      opened, most, latest = t, clients, attempt
    elif call == 'close':
      position.close()
      opened, latest = None, 0
    elif call == 'check':
      updates = int(rng.integers(3))
      allowed = opened == t and updates <= most
      outcomes[call, allowed] += 1
      if allowed:
        position.check(t, updates)
      else:
        with pytest.raises(ValueError, match='round=|updates='):
          position.check(t, updates)
    elif call == 'other':
      foreign = released_sums.Position(tmp_path, _RUN + 1)
      with pytest.raises(ValueError, match='round='):
        foreign.check(t, 0)
    elif call == 'mark':
      released = _sums(rng)
      high, low = fingerprint.fingerprint(released)
      name = f'{high:010d}-{low:010d}'
      sums = {other for _, other in marked[t]} | {name.encode()}
      updates = tuple(rng.integers(9, size=2).tolist())
      counts[f'{t:08d}-{latest}-{name}'] = updates
      outcomes[call, len(sums) == 1] += 1
      if len(sums) == 1:
        position.mark(name, updates, t)
      else:
        with pytest.raises(ValueError, match='released another sum'):
          position.mark(name, updates, t)
      marked[t] = position.released(t)
      assert {other for _, other in marked[t]} == sums
      assert (
        position.updates(t)[latest]
        == max(
          (mark, updates)
          for mark, updates in counts.items()
          if mark.startswith(f'{t:08d}-{latest}-')
        )[1]
      )
    elif rng.random() < 0.3:
      position.forget(t)
      for each in range(t):
        marked.pop(each, None)
      counts = {
        mark: each for mark, each in counts.items() if int(mark[:8]) >= t
      }
    for each in range(_ROUNDS):
      assert {name for _, name in position.released(each)} == {
        name for _, name in marked[each]
      }
  assert len(outcomes) == 4, outcomes
