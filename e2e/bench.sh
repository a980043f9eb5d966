#!/bin/bash
# bench.sh PEERS CASE runs the Go benchmarks and ends with a table of their figures. Kernels print their share of the peak and of the read bandwidth that the
# same run measured, so that machines can be compared. PEERS=1 also runs PyTorch + PEFT on the model's shape, in the same run, and prints the ratios.
# CASE takes some of: kernels model engine tokenizer store runs (default: all).
set -euo pipefail
cd "$(dirname "$0")/.."
peers=${1:-} cases=${2:-kernels model engine tokenizer store runs}
[ -z "$peers" ] || [ "$peers" = 1 ] || { echo "bench.sh: PEERS is \"$peers\"; allowed are 1 and nothing" >&2; exit 2; }
for c in $cases; do
  case $c in kernels | model | engine | tokenizer | store | runs) ;; *) echo "bench.sh: unknown CASE \"$c\"; allowed: kernels model engine tokenizer store runs" >&2; exit 2 ;; esac
done

logs=.cache/bench
rm -rf "$logs"; mkdir -p "$logs"
bench() { # NAME ARGUMENTS…
  echo "== $1"
  go test -run '^$' "${@:2}" | tee "$logs/$1.txt"
}
load=$(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null || echo unknown)
echo "machine: $(nproc) processors, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1), load before the run $load"
for c in $cases; do
  case $c in
    kernels) bench kernels -bench . -benchtime 0.2s ./backends/internal/tensor/cpu ;;
    model) # the shape of Qwen3-0.6B, random weights: 512 tokens forward and backward, rank 32 on every linear layer; decoding of one sequence
      bench train -bench 'Qwen3/layers=28/.*/train/recompute=false' -benchtime 3x ./backends/internal/model
      bench decode -bench 'Qwen3/layers=28/.*/decode' -benchtime 32x ./backends/internal/model ;;
    engine) bench engine -bench . -benchtime 2x ./backends/internal/engine ;;
    tokenizer) bench tokenizer -bench . -benchtime 0.5s ./gateway/internal/tokenizer ;;
    store) bench store -bench . -benchtime 0.5s ./gateway/internal/store ;;
    runs) bench runs -bench . -benchtime 0.5s ./gateway/internal/runs ;;
  esac
done
if [ "$peers" = 1 ]; then
  env=.cache/peers
  digest=$(sha256sum e2e/bench/requirements.txt | cut -d ' ' -f 1)
  if [ "$(cat $env/requirements.sha256 2>/dev/null || true)" != "$digest" ]; then
    echo "installing PyTorch, transformers and PEFT into $env (about 3 GB to download)"
    "${PYTHON:-python3.11}" -m venv $env
    $env/bin/pip install --quiet --disable-pip-version-check --requirement e2e/bench/requirements.txt
    echo "$digest" > $env/requirements.sha256
  fi
  echo "== PyTorch + PEFT"
  HF_HUB_OFFLINE=1 $env/bin/python e2e/bench/peers.py | tee "$logs/peers.txt"
fi

printf '\n== figures (load before the run %s; full output in %s)\n' "$load" "$logs"
# A line of Go's is NAME COUNT (VALUE UNIT)…; ns/op is left out where there is a better figure.
cat "$logs"/*.txt | awk '
  /^Benchmark/ {
    sub(/^Benchmark/, "", $1); sub(/-[0-9]+$/, "", $1)
    line = ""; first = $3 " " $4
    for (i = 5; i < NF; i += 2) if ($(i + 1) !~ /^(B\/op|allocs\/op)$/) line = line sprintf("%12s %-9s", $i, $(i + 1))
    printf "%-62s%s\n", $1, line == "" ? sprintf("%22s", first) : line
  }'
if [ "$peers" = 1 ] && [ -e "$logs/train.txt" ]; then
  printf '\n== against PyTorch + PEFT, same shape, same run (tokens/s)\n'
  awk '
    function show(what, key) { if (ours[key] && theirs[key]) printf "%-28s ours %8.2f   PyTorch + PEFT %8.2f   ratio %.2f\n", what, ours[key], theirs[key], ours[key] / theirs[key] }
    FILENAME ~ /peers/ { theirs[$1 " " $2] = $3; next }
    /^Benchmark/ {
      split($1, part, "/"); kind = part[4] == "train" ? "train" : "decode"
      if (kind == "decode" && part[5] !~ /lora=true/) next
      for (i = 3; i < NF; i++) if ($(i + 1) == "tok/s") ours[kind " " part[3]] = $i
    }
    END { show("forward + backward float32", "train float32"); show("forward + backward bfloat16", "train bfloat16"); show("decode float32", "decode float32"); show("decode bfloat16", "decode bfloat16") }
  ' "$logs/peers.txt" "$logs/train.txt" "$logs/decode.txt"
fi
