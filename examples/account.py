"""Computes the noise for an epsilon, and the epsilon of a participation.

Shows accounting alone: strategies, a guarantee, and the guarantee that holds if
clients took part more often than planned. Neither TensorFlow nor TensorFlow
Federated is imported. The program prints

  identity: noise 3.12 clips, rmse 98.71
  banded-sqrt: noise 5.38 clips, rmse 11.09
  planned, 5 rounds at least 400 apart: epsilon 4.0000
  as it was, 8 rounds at least 250 apart: epsilon 5.8896
"""

import sys

from tff_bandmf import accounting, participation, sensitivity, strategies

ROUNDS, DELTA = 2000, 1e-8


def main():
  planned = participation.MinSep(400)
  for strategy in (
    strategies.Identity(ROUNDS),  # DP-FedAvg: independent noise
    strategies.BandedSqrt(ROUNDS, 400),
  ):
    guarantee = accounting.calibrate(
      strategy, planned, epsilon=4.0, delta=DELTA
    )
    mean_error, _ = strategy.errors()
    print(
      f'{strategy.family}: noise {guarantee.z_stddev_per_clip:.2f} clips, '
      f'rmse {guarantee.z_stddev_per_clip * mean_error**0.5:.2f}'
    )

  # The noise is still that of the last strategy and the plan, but clients took
  # part more often.
  was = participation.MinSep(250)
  largest = sensitivity.sensitivity(strategy, was).value
  seen = accounting.Guarantee(
    strategy, was, guarantee.z_stddev_per_clip / largest
  )
  for name, schema, epsilon in (
    ('planned', planned, guarantee.epsilon(DELTA)),
    ('as it was', was, seen.epsilon(DELTA)),
  ):
    print(
      f'{name}, {schema.participations(ROUNDS)} rounds at least '
      f'{schema.min_sep} apart: epsilon {epsilon:.4f}'
    )
  assert 'tensorflow' not in sys.modules


if __name__ == '__main__':
  main()
