#!/usr/bin/env bash
# Runs the example for Flower in .venv-flower, which has no TensorFlow Federated.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv-flower

if [[ ! -x $VENV/bin/pytest ]]; then
  .venv/bin/python -m venv --clear "$VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
    -e '.[tff]' 'flwr==1.12.*' pytest
fi
exec "$VENV/bin/python" -m pytest -q -p no:cacheprovider --noconftest \
  tests/flower_check.py
