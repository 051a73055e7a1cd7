#!/usr/bin/env bash
# mypy on the package as it installs: the checkout's layout is not the import layout.
set -euo pipefail
bin=$1
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/checkout"
(cd "$root" && git ls-files -z -co --exclude-standard | tar --null -T - -cf - 2>/dev/null || true) | tar -xf - -C "$work/checkout"
"$bin/python" -m pip install -qq --no-deps --no-build-isolation --target "$work/site" "$work/checkout"
cd "$work/site"
MYPYPATH="$work/site" "$bin/mypy" --config-file "$root/pyproject.toml" --cache-dir "$root/.mypy_cache" -p ablate
