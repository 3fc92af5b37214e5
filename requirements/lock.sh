#!/usr/bin/env bash
# Regenerates py39.lock, py310.lock and py311.lock from requirements.in and
# overrides.txt. Needs uv. Pins that still fit are kept; `lock.sh --upgrade`
# takes newer ones.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v uv >/dev/null; then
  echo 'lock.sh: uv is not on PATH; install it with `pip install uv`.' >&2
  exit 1
fi

for version in 3.9 3.10 3.11; do
  # Wheels only: building from source would fetch unpinned build requirements.
  uv pip compile "$@" --quiet --python-version "$version" \
    --python-platform x86_64-manylinux_2_31 --only-binary :all: \
    --override overrides.txt --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
    --output-file "py${version/./}.lock" requirements.in
done
