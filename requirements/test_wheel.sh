#!/usr/bin/env bash
# Installs the wheel in an environment of its own and runs its tests there:
# `test_wheel.sh [test files]`, by default all of the core. PYTHON=... chooses the
# Python, WHEEL=... a wheel that is not in dist/. What is installed is the lock of
# the Python, or with WITH='tensorflow numpy<2' the newest that agrees with that,
# or with EXTRA=... the wheel with this extra, by the lines of the README.
# `test_wheel.sh extras` checks the core on Python 3.9 to 3.13, and each extra.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} == extras ]]; then
  while read -r version extra; do
    python=
    # A name on PATH may be a broken shim.
    for each in $(type -aP "python$version") \
        $(compgen -G "$HOME/.pyenv/versions/$version.*/bin/python"); do
      "$each" -c 'import venv' 2>/dev/null && python=$each && break
    done
    echo "Python $version, extra ${extra:-none}: ${python:-is not installed}"
    EXTRA=$extra PYTHON=${python:?} "$0" wheel_check.py
  done <<END
3.9
3.10
3.11
3.12
3.13
3.11 tff,simulations
3.11 optimizer
3.13 optimizer
3.12 flower
END
  exit
fi
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
if [[ -v EXTRA ]]; then
  install "$wheel${EXTRA:+[$EXTRA]}" hypothesis jsonschema pytest
  if [[ $EXTRA == *tff* ]]; then
    read -ra second < <(sed -n 's/^ *pip install --no-deps //p' README.md)
    install --no-deps "${second[@]}"
  fi
elif [[ -e $lock && -z ${WITH:-} ]]; then
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
