"""The columns of `metrics.csv` that experiments add."""

# Columns that `metrics.csv` has in addition to the columns of `tff_bandmf.Run`.
COLUMNS = (
  'non_finite',
  'accuracy',
  'accuracy_of_tff',
  'accuracy_with_end_and_unknown',
  'loss',
)
