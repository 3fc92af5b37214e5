"""Where z comes from: a choice of generators, one interface.

| name      | generator                         | for                          |
|-----------|-----------------------------------|------------------------------|
| `philox`  | Philox 4x32-10; not cryptographic | all placements               |
| `aes-ctr` | AES-128 in counter mode           | the tape; graphs have no AES |

Either is a pure function of (key, row of z, coordinate), so z is the same
however rows and coordinates are cut into pieces.
"""

from __future__ import annotations

import abc
import functools
from typing import Callable

import numpy as np
import scipy.special
import tensorflow as tf
from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms, modes

from tff_bandmf import errors
from tff_bandmf.noise import key as key_lib
from tff_bandmf.noise import normal

PHILOX = 'philox'
AES_CTR = 'aes-ctr'

CPU = '/CPU:0'

# Coordinates that come from one block of AES.
_AES_GROUP = 2


class Generator(abc.ABC):
  """Iid standard normals of one key."""

  def rows(
      self,
      first: int,
      rows: int,
      start: int,
      count: int,
      device: str = CPU,
  ) -> tf.Tensor:
    """Returns z[first : first + rows, start : start + count].

    Of Philox, GPUs round z in another way than the CPU; of AES they do not.

    Args:
      first: row of z, 0 or more.
      rows: how many rows.
      start: first coordinate, a multiple of 4.
      count: how many coordinates.
      device: of TensorFlow, where z is to be.

    Returns:
      [rows, count] float32, unit standard deviation.

    Raises:
      ValueError: `start` is off the grid of the generators.
    """
    if start % normal.GROUP:
      raise ValueError(f'start={start}: must be a multiple of {normal.GROUP}')
    with tf.device(device):
      return self._rows(first, rows, start, count, device)

  @abc.abstractmethod
  def _rows(
      self, first: int, rows: int, start: int, count: int, device: str
  ) -> tf.Tensor:
    """Does the work of `rows`."""


class Philox(Generator):
  """TensorFlow's Philox; see `normal.standard_normal`."""

  def __init__(self, key: key_lib.Key):
    self._words = tf.constant(key.words())

  def _rows(
      self, first: int, rows: int, start: int, count: int, device: str
  ) -> tf.Tensor:
    return _philox_rows(rows, count, device)(
        self._words, tf.constant(first, tf.int64),
        tf.constant(start, tf.int64))


class AesCtr(Generator):
  """AES-128 in counter mode, normals by the inverse of their CDF.

    w = 64 bits of AES(key, row * 2^64 + coordinate // 2)
    z = +-Phi^-1((w // 2 + 1/2) 2^-64), the sign from the last bit of w

  The counter never repeats under one key, so no z is used twice. Phi^-1 is
  computed in float64 and rounded once, to float32; |z| is at most 9.2. Who
  tells z from independent normals of this resolution breaks AES. No protection
  against floating-point attacks.
  """

  def __init__(self, key: key_lib.Key):
    self._cipher = algorithms.AES(key.secret)

  def _rows(
      self, first: int, rows: int, start: int, count: int, device: str
  ) -> tf.Tensor:
    z = np.empty((rows, count), np.float32)
    zeros = bytes(8 * count)
    for r in range(rows):
      # PRIVACY: rows and coordinates share no counter, so none shares z. Guard:
      # generators_test.test_rows_and_coordinates_never_share_noise.
      counter = (first + r << 64) + start // _AES_GROUP
      encryptor = ciphers.Cipher(
          self._cipher, modes.CTR(counter.to_bytes(16, 'big'))).encryptor()
      words = np.frombuffer(encryptor.update(zeros), '<u8')
      z[r] = _normals(words)
    return tf.constant(z)


def of(name: str, key: key_lib.Key) -> Generator:
  """Returns the generator of this name.

  Raises:
    ValueError: there is none.
  """
  if name not in _GENERATORS:
    raise ValueError(
        errors.invalid(
            'generator', name, 'is not known',
            f'use {" or ".join(_GENERATORS)}'))
  return _GENERATORS[name](key)


_GENERATORS = {PHILOX: Philox, AES_CTR: AesCtr}


# Traced here and for one shape: TensorFlow warns of functions that are traced
# for many when they are called.
@functools.cache
def _philox_rows(
    rows: int, count: int, device: str
) -> Callable[..., tf.Tensor]:
  """Returns the function of (words, first row, first coordinate)."""

  @tf.function(autograph=False)
  def draw(words, first, start):
    with tf.device(device):
      return tf.stack([
          normal.standard_normal(words, first + r, start, count)
          for r in range(rows)
      ])

  return draw.get_concrete_function(
      tf.TensorSpec([2], tf.int64), tf.TensorSpec([], tf.int64),
      tf.TensorSpec([], tf.int64))


def _normals(words: np.ndarray) -> np.ndarray:
  """Returns the normals, float64, of independent 64-bit words."""
  # Of the half below zero, where small probabilities are exact.
  tail = (words >> np.uint64(1)).astype(np.float64)
  tail += 0.5
  tail *= 2.0**-64
  z = scipy.special.ndtri(tail, out=tail)
  z *= 1.0 - 2.0 * (words & np.uint64(1))
  return z
