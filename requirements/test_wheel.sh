#!/usr/bin/env bash
# Installs the wheel in an environment of its own and runs its tests there:
# `test_wheel.sh [test files]`, by default all of the core. PYTHON=... chooses the
# Python, WHEEL=... a wheel that is not in dist/. What is installed is the lock of
# the Python, or with WITH='tensorflow numpy<2' the newest that agrees with that.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=$(realpath "${WHEEL:-$(ls dist/*.whl)}")
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
"${PYTHON:-.venv/bin/python}" -m venv "$venv"
lock=requirements/core$("$venv/bin/python" -c \
  'import sys; print("%d%d" % sys.version_info[:2])').lock
install() {
  if command -v uv >/dev/null; then
    uv pip install --quiet --python "$venv/bin/python" "$@"
  else
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
      --no-compile "$@"
  fi
}
if [[ -e $lock && -z ${WITH:-} ]]; then
  install --no-deps --only-binary :all: --require-hashes -r "$lock"
  install --no-deps "$wheel"
else
  read -ra with <<<"${WITH:-}"
  install "$wheel[logs]" hypothesis jsonschema pytest "${with[@]}"
fi

# Not `python -m pytest`, which would import the packages of this folder.
cd tests
if (($# == 0)); then
  set -- accounting audit cli noise optimize participation_test.py \
    choosing_test.py workloads_test.py cohorts ledger plan query run_files \
    report reproduction sensitivity strategies core_run_test.py wheel_check.py
fi
unset PYTHONPATH
PATH=$venv/bin:$PATH pytest -q -p no:cacheprovider --quick "$@"
