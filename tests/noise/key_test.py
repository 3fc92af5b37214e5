"""Tests of the key of the noise."""

import os
import stat

import numpy as np
import pytest

from tff_bandmf import noise


def test_key_is_never_printed():
  key = noise.Key(b'these are thirty-two bytes of it')
  for text in (repr(key), str(key), f'{[key]}'):
    assert 'thirty' not in text and key.secret.hex() not in text


@pytest.mark.parametrize('secret', [b'', b'short', b'x' * 16, b'x' * 33])
def test_key_of_another_length_is_refused_without_showing_it(secret):
  with pytest.raises(ValueError, match=f'={len(secret)}: must be 32') as error:
    noise.Key(secret)
  assert not secret or secret.decode() not in str(error.value)


def test_keys_from_entropy_differ():
  assert noise.Key.from_entropy() != noise.Key.from_entropy()


def test_key_from_seed_is_a_function_of_the_seed():
  assert noise.Key.from_seed(3) == noise.Key.from_seed(np.int64(3))
  keys = [noise.Key.from_seed(seed) for seed in (-1, 0, 1, 2**200)]
  assert len(set(keys)) == len(keys)


@pytest.mark.parametrize('seed', ['7', 7.0, True, None])
def test_seed_that_is_no_integer_is_refused(seed):
  with pytest.raises(TypeError, match='noise_seed'):
    noise.Key.from_seed(seed)


def test_key_file_is_made_once_and_only_for_its_owner(tmp_path):
  path = tmp_path / 'noise.key'
  umask = os.umask(0)
  try:
    key = noise.Key.load_or_create(path)
  finally:
    os.umask(umask)
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert noise.Key.load_or_create(path) == key
  assert path.read_bytes() == key.secret


def test_damaged_key_file_is_refused_and_kept(tmp_path):
  path = tmp_path / 'noise.key'
  path.write_bytes(b'half')
  path.chmod(0o600)
  with pytest.raises(ValueError, match='key file=.*: .* 4;'):
    noise.Key.load_or_create(path)
  assert path.read_bytes() == b'half'


@pytest.mark.parametrize('mode', [0o644, 0o640, 0o602])
def test_key_file_that_others_can_read_is_refused(tmp_path, mode):
  path = tmp_path / 'noise.key'
  key = noise.Key.load_or_create(path)
  path.chmod(mode)
  with pytest.raises(ValueError, match=f'key file=.*: .*{mode:04o}'):
    noise.Key.load_or_create(path)
  path.chmod(0o400)
  assert noise.Key.load_or_create(path) == key


def test_key_file_of_an_old_release_is_refused(tmp_path):
  path = tmp_path / 'noise.key'
  path.write_bytes(bytes(16))
  path.chmod(0o600)
  with pytest.raises(ValueError, match='key file=.*: .* 16;'):
    noise.Key.load_or_create(path)


def test_key_file_is_on_the_disk_in_a_private_folder(tmp_path, monkeypatch):
  synced = []
  sync = os.fsync
  monkeypatch.setattr(
    os, 'fsync', lambda handle: synced.append(handle) or sync(handle)
  )
  umask = os.umask(0)
  try:
    noise.Key.load_or_create(tmp_path / 'private' / 'noise.key')
  finally:
    os.umask(umask)
  assert stat.S_IMODE((tmp_path / 'private').stat().st_mode) == 0o700
  # The file, its folder and the folder that this one is in.
  assert len(synced) == 3


def test_key_file_that_is_a_link_is_refused(tmp_path):
  noise.Key.load_or_create(tmp_path / 'theirs')
  (tmp_path / 'mine').symlink_to(tmp_path / 'theirs')
  with pytest.raises(ValueError, match='key file=.*: .*link'):
    noise.Key.load_or_create(tmp_path / 'mine')


def test_identity_depends_on_key_and_subject():
  key = noise.Key.from_seed(1)
  identities = {
    key.identify(b'a'),
    key.identify(b'b'),
    key.identify(b''),
    noise.Key.from_seed(2).identify(b'a'),
  }
  assert len(identities) == 4
  assert key.identify(b'a') == noise.Key.from_seed(1).identify(b'a')
  assert all(0 <= identity < 2**63 for identity in identities)
