#!/usr/bin/env bash
# Tests the strategy for Flower in .venv-flower, with the newest Flower that
# setup.py takes and the core. PYTHON=... chooses the Python, at least 3.11. The
# argument `mutants` runs tests/mutants.py there.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv-flower PYTHON=${PYTHON:-python3}

version() {
  "$1" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null || true
}
if [[ $(version "$VENV/bin/python") != "$(version "$PYTHON")" || ! -x $VENV/bin/pytest ]]; then
  "$PYTHON" -m venv --clear "$VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
    -e '.[flower,tensorboard]' 'flwr[simulation]' jsonschema pytest scikit-learn
fi
export PYTHONPATH=$PWD
"$VENV/bin/python" -c 'import flwr, sys; print("Python", *sys.version_info[:2], "Flower", flwr.__version__)'
if [[ ${1:-} == mutants ]]; then
  PYTEST_ADDOPTS=--noconftest exec "$VENV/bin/python" tests/mutants.py flower_test
fi
exec "$VENV/bin/python" -m pytest -q -p no:cacheprovider --noconftest \
  tests/flower_test.py "$@"
