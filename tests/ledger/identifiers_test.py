"""Tests of the identifiers of clients in a ledger, and of their key."""

import hashlib
import pathlib
import sqlite3

import numpy as np
import pytest
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms, modes

from tff_bandmf import ledger as ledger_lib
from tff_bandmf.ledger import identifiers


@pytest.fixture
def ledger(place):
  with ledger_lib.Ledger(**place) as ledger:
    yield ledger


def test_integers_of_numpy_are_integers(ledger):
  ledger.start_round(np.int64(2), np.array([1, 2]))
  ledger.start_round(np.int64(4), np.array([1]))
  ledger.finish_round(np.int32(2))
  assert ledger.cohort(np.int64(2)).tolist() == [1, 2]
  assert ledger.observed().finished == 1
  assert ledger.history(3, np.int64(4)).count.tolist() == [0, 1, 1]
  for round_index in (2.0, '2', None):
    with pytest.raises(TypeError):
      ledger.start_round(round_index, np.array([5]))


def test_index_comes_back_from_its_identifier():
  made = identifiers.Identifiers(bytes(range(16)))
  indices = np.concatenate(
    [np.arange(70_000), 2 ** np.arange(63), 2**63 - 1 - np.arange(9)]
  )
  found = made.hashes(indices)
  assert found.dtype == np.int64
  np.testing.assert_array_equal(made.indices(found), indices)
  # The same one by one, in lists and in ranges.
  assert made.hashes(indices[:9].tolist()).tolist() == found[:9].tolist()
  assert made.hashes(range(9)).tolist() == found[:9].tolist()
  several = np.array([3, np.int32(1)], object)
  assert made.hashes(several).tolist() == found[[3, 1]].tolist()
  assert made.hashes(np.array(['a', 'b']))[1] == made.hashes([np.str_('b')])[0]
  for wrong in [-1], [2**63], np.array([-1]), np.array([2**63], np.uint64):
    with pytest.raises(ValueError, match='client='):
      made.hashes(wrong)


@pytest.mark.parametrize('container', [list, lambda c: np.array(c, object)])
@pytest.mark.parametrize('cohort', [['1', 1], [2, 'a', 'b'], [np.str_('1'), 1]])
def test_names_of_two_kinds_are_refused(ledger, container, cohort):
  """'1' and 1 are one person and were two clients, in one cohort even."""
  for use in (
    lambda names: ledger.start_round(0, names),
    lambda names: ledger.past(names, 0),
    lambda names: ledger.same_cohort(0, names),
  ):
    with pytest.raises(TypeError, match='clients=.* and .* others: must be'):
      use(container(cohort))
  assert ledger.attempts(0) == []


def test_ledger_keeps_the_kind_of_its_names(tmp_path):
  """Indices, then the same in strings, were other clients."""
  by_index, by_string = [0, 1], np.array(['0', '1'], object)
  for i, (one, other) in enumerate(
    [(by_index, by_string), (by_string, by_index)]
  ):
    path = tmp_path / f'{i}.sqlite'
    with ledger_lib.Ledger(path) as ledger:
      ledger.start_round(0, [])
      ledger.start_round(1, one)
    with ledger_lib.Ledger(path) as ledger:
      for t in 1, 2:
        with pytest.raises(ValueError, match='clients=.*differ in kind'):
          ledger.start_round(t, other)
      ledger.start_round(2, [])
      ledger.start_round(3, one)
      assert [ledger.cohort_size(t) for t in range(5)] == [0, 2, 0, 2, 0]


def test_identifiers_of_indices_are_the_network_with_aes():
  """The equations of the module, one client at a time."""
  made = identifiers.Identifiers(b'sixteen bytes ok')
  key = hashlib.blake2b(
    key=made.secret, digest_size=16, person=b'bandmf index'
  ).digest()
  aes = ciphers.Cipher(algorithms.AES(key), modes.ECB()).encryptor()

  def expected(index):
    x, y = divmod(index, 2**32)
    for i in range(10):
      block = aes.update(
        y.to_bytes(4, 'little') + i.to_bytes(4, 'little') + bytes(8)
      )
      x, y = y, x ^ int.from_bytes(block[:4], 'little')
    found = x * 2**32 + y
    return found - 2**64 * (found >= 2**63)

  for index in 0, 1, 2**32, 2**63 - 1, 123456789012345:
    assert made.hashes([index]).tolist() == [expected(index)]


def test_identifiers_of_neighbours_look_random():
  """Bits of 20,000 indices; false-alarm rate below 1e-9 for a key at random."""
  count = 20_000
  one, other = (
    identifiers.Identifiers(secret).hashes(np.arange(count)).view(np.uint64)
    for secret in (bytes(16), bytes(15) + b'1')
  )
  for values in one, one ^ other, one[1:] ^ one[:-1]:
    bits = (values[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    deviation = (bits.sum(0) - len(values) / 2) / np.sqrt(len(values) / 4)
    assert np.abs(deviation).max() < 7


def test_clients_can_be_strings(ledger):
  ledger.start_round(0, ['anna', '7'])
  ledger.start_round(3, np.array(['7', 'emil']))
  population = ['emil', 'otto', '7', 'anna', '7']
  past = ledger.past(population, 4)
  assert past.count.tolist() == [1, 0, 2, 1, 2]
  assert past.last_round[[0, 2, 3, 4]].tolist() == [3, 3, 0, 3]
  assert ledger.past(population, 3).count.tolist() == [0, 0, 1, 1, 1]
  # The string is not the index.
  assert ledger.past([7], 4).count.tolist() == [0]
  assert ledger.cohort(3, population).tolist() == ['7', 'emil']
  assert ledger.observed().last_client == -1
  # Nobody of a population of indices is known to have taken part.
  with pytest.raises(ValueError, match='not among the 10 indices'):
    ledger.history(10, 4)
  with pytest.raises(ValueError, match='not in the given population'):
    ledger.cohort(3)


def test_identifiers_are_keyed_hashes_and_the_key_is_a_secret_file(tmp_path):
  with ledger_lib.Ledger(tmp_path / 'ledger.sqlite') as ledger:
    ledger.start_round(0, ['anna-of-nowhere'])
  key_file = tmp_path / 'private' / 'ledger.key'
  assert key_file.stat().st_mode & 0o777 == 0o600
  assert key_file.parent.stat().st_mode & 0o777 == 0o700
  assert list(key_file.parent.iterdir()) == [key_file]
  key = key_file.read_bytes()
  assert len(key) == 16
  expected = hashlib.blake2b(
    b'$anna-of-nowhere', key=key, digest_size=8, person=b'bandmf client'
  )
  connection = sqlite3.connect(tmp_path / 'ledger.sqlite')
  (recorded,) = connection.execute(
    'SELECT cohort FROM bandmf_rounds'
  ).fetchone()
  connection.close()
  assert recorded == expected.digest()
  for path in tmp_path.glob('ledger.sqlite*'):
    assert b'anna' not in path.read_bytes()
    assert key not in path.read_bytes()


def test_keys_of_two_ledgers_differ(tmp_path):
  keys = set()
  for name in 'ab':
    with ledger_lib.Ledger(
      tmp_path / f'{name}.sqlite', key_file=tmp_path / f'{name}.key'
    ) as ledger:
      ledger.start_round(0, [1])
    keys.add((tmp_path / f'{name}.key').read_bytes())
  assert len(keys) == 2


def _key_file(place, tmp_path):
  return pathlib.Path(
    place.get('key_file', tmp_path / 'private' / 'ledger.key')
  )


def _refuses_everybody(place, message):
  with ledger_lib.Ledger(**place) as ledger:
    for action in (
      lambda: ledger.start_round(1, [1]),
      lambda: ledger.history(5, 1),
      lambda: ledger.past(['a'], 1),
    ):
      with pytest.raises(ValueError, match=message):
        action()
    # What is counted needs no key.
    assert ledger.observed().rounds == 1


def test_ledger_without_its_key_lets_nobody_in(place, tmp_path):
  with ledger_lib.Ledger(**place) as ledger:
    ledger.start_round(0, [1])
  _key_file(place, tmp_path).unlink()
  _refuses_everybody(place, 'ledger key=.* is gone')
  assert not _key_file(place, tmp_path).exists()


def test_ledger_with_another_key_lets_nobody_in(place, tmp_path):
  with ledger_lib.Ledger(**place) as ledger:
    ledger.start_round(0, [1])
  _key_file(place, tmp_path).write_bytes(bytes(16))
  _refuses_everybody(place, 'ledger key=.* is not the key of this ledger')
  _key_file(place, tmp_path).write_bytes(bytes(15))
  _refuses_everybody(place, 'must be 16 bytes')


def test_server_needs_a_key_file(place):
  if 'key_file' not in place:
    place = dict(url=f'sqlite:///{place["url"]}')
    with ledger_lib.Ledger(**place) as ledger:
      ledger.start_round(0, [1])  # Next to the file, as for a path.
    return
  with ledger_lib.Ledger(place['url']) as ledger:
    with pytest.raises(ValueError, match='key_file=None'):
      ledger.start_round(0, [1])
    assert ledger.observed().rounds == 0
