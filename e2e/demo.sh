#!/bin/bash
# demo.sh starts a server with the built-in model on a free port and lets e2e/demo/demo.py train it there, or, if the argument begins with "cycles",
# e2e/demo/cycles.py show its clock cycles, or with "speed" (make bench CASE=sdk) e2e/demo/speed.py time what a client waits for, training with a small model of random weights too. The rest of the argument are options of that program (`make demo CASE="--rl-steps 20"`, `make demo CASE="cycles --steps 50"`). With TINKER_BASE_URL set it uses that server instead.
set -euo pipefail
cd "$(dirname "$0")/.."
read -ra options <<< "${1:-}"
program=demo.py
case ${options[0]:-} in cycles | speed)
  program=${options[0]}.py
  options=("${options[@]:1}") ;;
esac

# The demo needs neither PyTorch nor the packages of the tests: a small environment of its own, made again when its list changes.
env=.cache/demo
digest=$(sha256sum e2e/demo/requirements.txt | cut -d ' ' -f 1)
if [ "$(cat $env/requirements.sha256 2>/dev/null || true)" != "$digest" ]; then
  echo "installing the Tinker SDK and openai-python into $env (about 60 MB to download)"
  python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "demo.sh: the Tinker SDK needs Python 3.11 or newer (set PYTHON to name it)" >&2; exit 1; }
  "$python" -m venv $env
  $env/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement e2e/demo/requirements.txt
  echo "$digest" > $env/requirements.sha256
fi

if [ -z "${TINKER_BASE_URL:-}" ]; then
  scratch=$(mktemp -d)
  cat > "$scratch/config.yaml" <<CONFIG
listen: 127.0.0.1:0
data_dir: $scratch/data
models:
  - name: tinsmith/tiny-chat
    path: $PWD/configs/models/tiny-chat
    backend: {plugin: single, device: cpu, dtype: float32}
CONFIG
  if [ $program = speed.py ]; then
    $env/bin/python e2e/demo/randommodel.py "$scratch/random"
    cat >> "$scratch/config.yaml" <<CONFIG
  - name: random-256
    path: $scratch/random
    backend: {plugin: single, device: cpu, dtype: float32}
CONFIG
    options+=(--also random-256)
  fi
  bin/tinsmith serve --config "$scratch/config.yaml" > "$scratch/log" 2>&1 &
  server=$!
  trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -rf "$scratch"' EXIT
  for _ in $(seq 600); do
    kill -0 $server 2>/dev/null && ! grep -q '^ready' "$scratch/log" || break
    sleep 0.1
  done
  grep -q '^ready' "$scratch/log" || { echo "demo.sh: the server did not become ready:" >&2; cat "$scratch/log" >&2; exit 1; }
  TINKER_BASE_URL=$(cat "$scratch/data/address")
fi
export TINKER_BASE_URL TINKER_API_KEY=${TINKER_API_KEY:-tml-local} TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1
$env/bin/python "e2e/demo/$program" "${options[@]}"
