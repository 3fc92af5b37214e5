#!/usr/bin/env bash
# Builds .venv: the lock of the Python found, and this package (editable).
# Does nothing when .venv is current. PYTHON=/path/to/python chooses the Python.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly SELF=requirements/make_env.sh
readonly VENV=.venv
readonly STAMP=$VENV/current  # First to go, last to come: it means finished.

# Prints 'VERSION PATH' of a Python that fits. Every candidate is run, because
# a name on PATH may be a broken shim. Links are followed, as those in .venv
# are deleted before the path is used.
probe() {
  "$1" - 2>/dev/null <<'END'
import ensurepip, os, sqlite3, ssl, sys, venv
version = sys.version_info[:2]
if not (3, 9) <= version <= (3, 11):
  sys.exit(1)
print('%d.%d %s' % (version + (os.path.realpath(sys.executable),)))
END
}

find_python() {
  if [[ -n ${PYTHON:-} ]]; then
    probe "$PYTHON"
    return
  fi
  probe "$VENV/bin/python" && return  # Keeps what an earlier PYTHON= chose.
  local name candidate
  for name in python3.11 python3.10 python3.9 python3 python; do
    while read -r candidate; do
      probe "$candidate" && return
    done < <(type -aP "$name")
  done
  return 1
}

if [[ $(uname -sm) != 'Linux x86_64' ]]; then
  echo 'make env: the locks are for Linux on x86-64 only.' >&2
  exit 1
fi
if ! found=$(find_python); then
  cat >&2 <<END
make env: ${PYTHON:+PYTHON=$PYTHON does not fit; }a working Python 3.9, 3.10 \
or 3.11 with its venv module is needed. Install 3.11:
  Debian, Ubuntu:  apt install python3.11 python3.11-venv
  with uv:         uv python install 3.11
  with conda:      conda create --name py311 python=3.11; conda activate py311
  elsewhere:       make env PYTHON=/path/to/python3.11
END
  exit 1
fi
read -r version python <<<"$found"
lock=requirements/py${version/./}.lock

# Two builds at once wait for each other.
exec 9<"$SELF"
flock 9

key=$({ echo "$PWD $found"; cat "$SELF" "$lock" setup.py; } | sha256sum)
if [[ -e $STAMP && $(<"$STAMP") == "$key" ]] &&
    [[ $(probe "$VENV/bin/python") == "$found" ]]; then
  exit
fi

echo "make env: building $VENV with Python $version ($python)" >&2
rm -f "$STAMP"
rm -rf "$VENV"
"$python" -m venv "$VENV"
# Not compiled: Python compiles what it imports, all of it takes a minute.
if command -v uv >/dev/null; then
  install=(uv pip install --python "$VENV/bin/python")
else
  install=("$VENV/bin/python" -m pip install --disable-pip-version-check
           --no-compile)
fi
"${install[@]}" --no-deps --only-binary :all: --require-hashes -r "$lock"
"${install[@]}" --no-deps --no-build-isolation -e .
echo "$key" >"$STAMP"
