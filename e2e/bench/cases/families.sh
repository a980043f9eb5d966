# Models with experts and with linear attention, random weights in published shapes: Qwen3.5-0.8B, and Qwen3-30B-A3B cut to 4 layers (8 GB of files below .cache/bench-families, kept for the next run).
# With PEERS=1 beside transformers + PEFT on the same files, and decoding in bfloat16 beside llama.cpp, which has no adapter there.
# It needs the tests' environment (.venv), or another Python with torch, transformers and peft in TINSMITH_TRANSFORMERS_PYTHON.
python=${TINSMITH_TRANSFORMERS_PYTHON:-$PWD/.venv/bin/python} models=$PWD/.cache/bench-families
if ! "$python" -I -c 'import torch, transformers, peft' 2>/dev/null; then
  echo "families: left out, because $python has no torch, transformers and peft: e2e/python.sh installs them"
else
  if [ ! -e "$models/complete" ]; then
    rm -rf "$models"; "$python" e2e/bench/families.py write "$models/models"; touch "$models/complete"
  fi
  TINSMITH_BENCH_FAMILIES=$models/models gobench families -timeout 60m -bench 'Families$' -benchtime 2x ./backends/internal/engine
  if [ "$peers" = 1 ]; then
    echo "== transformers + PEFT"
    HF_HUB_OFFLINE=1 "$python" e2e/bench/families.py run "$models/models" | tee "$logs/families-peers.txt"
    echo "== llama.cpp"
    "$(peers_python)" e2e/bench/llamacpp_families.py "$models/models" | tee "$logs/families-llamacpp.txt" || echo "families: llama.cpp failed"
  fi
  for model in Qwen3.5-0.8B Qwen3-30B-A3B-4-layers; do
    for type in bfloat16 float32; do
      for kind in train-512 train-2048 decode-1 decode-8; do
        ours=$(figure families "$model/$type/$kind\$" tok/s) theirs=$([ ! -e "$logs/families-peers.txt" ] || awk -v key="$model $type $kind" '$1 " " $2 " " $3 == key && $4 > 0 { print $4 }' "$logs/families-peers.txt")
        row "$model, $type, $kind" "$ours tok/s" "${theirs:+transformers $theirs tok/s}" "$(ratio "$ours" "$theirs")" "$(case $kind in train*) echo 3 ;; esac)"
        theirs=$([ ! -e "$logs/families-llamacpp.txt" ] || awk -v key="$model $type $kind" '$1 " " $2 " " $3 == key { print $4 }' "$logs/families-llamacpp.txt")
        [ -z "$theirs" ] || row "  beside llama.cpp without an adapter" "$ours tok/s" "llama.cpp $theirs tok/s" "$(ratio "$ours" "$theirs")" ""
        case $kind in decode*) row "  share of the read bandwidth" "$(figure families "$model/$type/$kind\$" %read) %" "" "" "75 %" ;; esac
        moved=$(figure families "$model/$type/$kind\$" %moved)
        [ -z "$moved" ] || row "  with the states that it reads and writes" "$moved %" "" "" ""
      done
    done
  done
fi
