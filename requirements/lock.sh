#!/usr/bin/env bash
# Regenerates the locks: py*.lock of the whole environment from requirements.in
# and overrides.txt, core*.lock of the core on newer Pythons from core.in. Needs
# uv. Pins that still fit are kept; `lock.sh --upgrade` takes newer ones.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v uv >/dev/null; then
  echo 'lock.sh: uv is not on PATH; install it with `pip install uv`.' >&2
  exit 1
fi

# Wheels only: building from source would fetch unpinned build requirements.
compile() {
  uv pip compile --quiet --python-platform x86_64-manylinux_2_31 \
    --only-binary :all: --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header "$@"
}

for version in 3.9 3.10 3.11; do
  compile "$@" --python-version "$version" --override overrides.txt \
    --output-file "py${version/./}.lock" requirements.in
done
for version in 3.12 3.13; do
  compile "$@" --python-version "$version" \
    --output-file "core${version/./}.lock" core.in
done
