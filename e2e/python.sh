#!/bin/bash
# python.sh makes what the Python tests run in, below the repository root, once per version of its inputs:
#   .venv                      the packages of e2e/requirements.txt
#   .cache/sdk/VERSION         older Tinker SDKs, each alone: put one first on PYTHONPATH to use it in place of the newest
#   .cache/cookbook/VERSION    the Tinker cookbooks, likewise
#   .cache/clients             other clients of the server: the packages of e2e/clients/requirements.txt, likewise
#   .cache/verifiers           verifiers: the packages of e2e/verifiers/requirements.txt, likewise
#   .cache/postgres            the programs of a PostgreSQL server, for e2e/postgres.sh
# PYTHON names the interpreter (3.11; default python3.11).
set -euo pipefail
cd "$(dirname "$0")/.."

sdks="0.3.0 0.9.0 0.16.1 0.20.0 0.23.4 0.24.1 0.25.0 0.30.4 0.35.0"
cookbooks="0.5.8 0.6.1"

digest=$(sha256sum e2e/requirements.txt | cut -d ' ' -f 1)
stamp=.venv/requirements.sha256
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$digest" ]; then
  python=${PYTHON:-python3.11}
  command -v "$python" >/dev/null || { echo "python.sh: $python is not installed; the tests need Python 3.11 (set PYTHON to name it)" >&2; exit 1; }
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "python.sh: $python is not Python 3.11" >&2; exit 1; }
  echo "installing $(grep -c '^[a-zA-Z]' e2e/requirements.txt) Python packages into .venv: about 3 GB to download (torch with the libraries that it loads), 5 GB on disk"
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  # The list is complete, so nothing is resolved; `pip check` says whether it still is. The large ones go one by one, so that
  # the disk never holds more than one of them twice. Triton (1 GB) is left out: only compiled and quantised models on a GPU load it.
  install=".venv/bin/pip install --quiet --disable-pip-version-check --no-deps"
  large='^(torch|nvidia-)'
  grep -E "$large" e2e/requirements.txt | while read -r package; do $install "$package"; done
  $install --requirement <(grep -Ev "$large" e2e/requirements.txt)
  checked=$(.venv/bin/pip check || true) # it always says something
  missing=$(echo "${checked:-pip check failed}" | grep -v -e '^torch .* requires triton, which is not installed.$' -e '^No broken requirements found.$' || true)
  [ -z "$missing" ] || { echo "python.sh: $missing" >&2; exit 1; }
  echo "$digest" > "$stamp"
fi

# alone PACKAGE VERSION FOLDER installs one package without its dependencies. The folder appears only when it is complete.
alone() {
  [ ! -d "$3" ] || return 0
  echo "installing $1 $2 into $3 (under 2 MB)"
  rm -rf "$3.part"
  .venv/bin/pip install --quiet --disable-pip-version-check --no-deps --target "$3.part" "$1==$2"
  mv "$3.part" "$3"
}
mkdir -p .cache/sdk .cache/cookbook
for v in $sdks; do alone tinker "$v" ".cache/sdk/$v"; done
for v in $cookbooks; do alone tinker-cookbook "$v" ".cache/cookbook/$v"; done

# layer NAME installs the packages of e2e/NAME/requirements.txt into .cache/NAME. The lists are complete with .venv, so nothing is resolved here either.
layer() {
  local folder=.cache/$1 list=e2e/$1/requirements.txt digest
  digest=$(cat e2e/requirements.txt "$list" | sha256sum | cut -d ' ' -f 1)
  [ "$(cat "$folder/requirements.sha256" 2>/dev/null || true)" != "$digest" ] || return 0
  echo "installing $(grep -c '^[a-zA-Z]' "$list") packages into $folder ($2)"
  rm -rf "$folder" "$folder.part"
  .venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile --target "$folder.part" --requirement "$list"
  echo "$digest" > "$folder.part/requirements.sha256"
  mv "$folder.part" "$folder"
}
layer clients "about 90 MB to download, 360 MB on disk"
layer verifiers "about 8 MB to download, 32 MB on disk"
[ "$(uname -m)" != x86_64 ] || layer postgres "about 11 MB to download, 40 MB on disk" # there is none for others
