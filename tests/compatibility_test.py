"""What docs/reference/versioning.md promises: old files are read, z stays.

A literal below changes with a new format, or a new major version, alone.
"""

import json

import numpy as np
import pytest

from tff_bandmf import noise, participation, strategies
from tff_bandmf.noise import generator


@pytest.mark.parametrize(
  'family, parameters, arrays, last_row, digest',
  [
    ('identity', {}, {}, [0, 0, 1], 'fd1c653d5cddaf01'),
    ('lti', {'nu': 0.25}, {}, [0.2109375, 0.375, 1], '63fb306a35808a6a'),
    ('dp-cgd', {'lambda': 0.5}, {}, [0.25, 0.5, 1], '3ac5971c17df2cb0'),
    ('banded-sqrt', {'bands': 3}, {}, [0.375, 0.5, 1], '65e41001a98c0f64'),
    (
      'banded-inverse-fractional',
      {'inverse_bands': 3, 'alpha': 0.25},
      {},
      [0.15625, 0.25, 1],
      '9665682a0743f6bb',
    ),
    (
      'robust-toeplitz',
      {'b0': 1},
      {'coefficients': [1, 0.25]},
      [0, 0.25, 1],
      '625e3b2f4c80e301',
    ),
    (
      'banded',
      {},
      {'rows': [[1, 0], [1, 0.5], [2, 0.5]]},
      [0, 0.5, 2],
      '05279e58aa41f8e8',
    ),
    (
      'blt',
      {},
      {'omega': [0.5], 'theta': [0.75]},
      [0.375, 0.5, 1],
      '4e052f544bfee104',
    ),
  ],
)
def test_strategy_file_of_version_2_is_the_same_strategy(
  tmp_path, family, parameters, arrays, last_row, digest
):
  path = tmp_path / 'strategy.json'
  path.write_text(
    json.dumps(
      {
        'format': 'tff_bandmf.strategy',
        'version': 2,
        'family': family,
        'rounds': 3,
        'parameters': parameters,
        'arrays': arrays,
        'participation': {
          'participation': 'fixed-epoch',
          'min_sep': 2,
          'max_participations': None,
        },
        'optimized': {},
      }
    )
  )
  strategy, schema = strategies.load(path)
  assert schema == participation.FixedEpoch(2)
  np.testing.assert_allclose(strategy.matrix()[2], last_row, rtol=1e-15)
  # Reports name a strategy by it.
  assert strategy.digest().startswith(digest)


def test_noise_of_a_key_is_the_same_noise():
  z = generator.Generator(noise.Key.from_seed(1)).rows(7, 1, 8, 4)
  # Processors round differently.
  np.testing.assert_allclose(
    z[0],
    [0.17808906183, 0.78307753287, 0.58144116203, 1.90490137793],
    rtol=1e-10,
  )
