#!/usr/bin/env bash
# Runs the accounting tests with the dp-accounting after the one that TFF pins,
# in .venv-next, without TensorFlow.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv-next

if [[ ! -x $VENV/bin/pytest ]]; then
  .venv/bin/python -m venv --clear "$VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
    dp-accounting==0.6.0 'numpy<2' 'scipy<2' hypothesis pytest
fi
exec "$VENV/bin/python" -m pytest -q -p no:cacheprovider \
  tests/accounting/gaussian_test.py \
  tests/accounting/cyclic_poisson_test.py tests/accounting/balls_in_bins_test.py \
  tests/accounting/b_min_sep_test.py
