"""A key for the rounds of one process and its workers, as a file.

What a round is given, its state and its graph, names the file; only the file
holds the key. It lies in a folder of mode 0700 and is, little-endian, 3 int64:
the two words of the key and ~(word 0 ^ word 1), which a file that is being
wiped does not satisfy.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import tempfile
from typing import Optional, Union

import numpy as np
import tensorflow as tf

from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import private_files

_PREFIX = 'tff_bandmf-key-'
_WORDS = 3


class KeyFile:
  """A key's file, there until `close` or the end of the process.

  Attributes:
    directory: where it is.
  """

  def __init__(
      self,
      key: key_lib.Key,
      name: int,
      parent: Optional[Union[str, os.PathLike]] = None,
  ):
    """Writes the file.

    Args:
      key: what it holds.
      name: what it is called; 63 bits.
      parent: folder for the folder of the file, made with mode 0700 if missing.
        None takes one in memory where possible. Those of killed processes are
        removed from it.
    """
    self._parent = pathlib.Path(parent) if parent else None
    if parent:
      place = pathlib.Path(parent).absolute()
      place.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
      place = private_files.memory()
    for directory in place.glob(f'{_PREFIX}*'):
      _remove_abandoned(directory)
    self.directory = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    self._lock = private_files.lock(self.directory)
    words = key.words()
    private_files.write(
        self.directory / f'{name}.key',
        np.append(words, ~(words[0] ^ words[1])).astype('<i8'))
    self._closed = False
    atexit.register(self.close)

  def close(self) -> None:
    """Removes the file and its folder; may be called twice."""
    if self._closed:
      return
    _remove(self.directory)
    if self._parent is not None:
      # Only if nothing else is in it.
      with contextlib.suppress(OSError):
        self._parent.rmdir()
    if self._lock is not None:
      os.close(self._lock)
    self._closed = True
    atexit.unregister(self.close)


def read(directory: str, name: tf.Tensor) -> tf.Tensor:
  """Returns the words of the key, [2] int64, in a graph of any process.

  Args:
    directory: of the file, absolute.
    name: scalar int64, of the key that the state belongs to.

  Raises:
    tf.errors.NotFoundError: when run; the folder is not seen by this process,
      its `KeyFile` was closed, or the state belongs to another run.
    tf.errors.InvalidArgumentError: when run; the file is damaged.
  """
  path = tf.strings.join([directory, '/', tf.strings.as_string(name), '.key'])
  contents = tf.io.read_file(path)
  # tf.equal: TFF traces into a graph where == compares object identity.
  whole = tf.debugging.Assert(
      tf.equal(tf.strings.length(contents), 8 * _WORDS),
      ['noise key: the file has the wrong size; path:', path])
  with tf.control_dependencies([whole]):
    content = tf.ensure_shape(tf.io.decode_raw(contents, tf.int64), [_WORDS])
  # PRIVACY: a key of zeros is known to everybody. Guard:
  # source_test.test_damaged_key_file_is_refused.
  genuine = tf.debugging.Assert(
      tf.equal(
          content[2],
          tf.bitwise.invert(tf.bitwise.bitwise_xor(content[0], content[1]))),
      ['noise key: the file is damaged; path:', path])
  with tf.control_dependencies([genuine]):
    return tf.identity(content[:2])


def _remove(directory: pathlib.Path) -> None:
  for path in [*directory.glob('*.key'), directory / 'lock']:
    private_files.wipe(path)
  with contextlib.suppress(OSError):
    directory.rmdir()


def _remove_abandoned(directory: pathlib.Path) -> None:
  """Removes a key of this user whose process is gone."""
  with contextlib.suppress(OSError):
    # The key is written under the lock: without one a process may be starting.
    if directory.lstat().st_uid == os.getuid() and any(
        directory.glob('*.key')):
      lock = private_files.lock(directory)
      if lock is not None:
        _remove(directory)
        os.close(lock)
