#!/usr/bin/env bash
# Installs the wheel in dist/ and what it requires, by pip alone, and runs the
# tests of what needs no TensorFlow Federated. PYTHON=... chooses the Python.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
"${PYTHON:-.venv/bin/python}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  dist/*.whl hypothesis pytest

# Not `python -m pytest`, which would import the packages of this folder.
cd tests
TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3} PATH=$venv/bin:$PATH \
  pytest -q -p no:cacheprovider \
  cli/cli_test.py participation_test.py report/report_test.py \
  strategies/strategies_test.py wheel_check.py
