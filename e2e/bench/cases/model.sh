# The shape of Qwen3-0.6B with random weights, rank 32 on every linear layer and the head: 512 tokens forward and backward and forward alone, decoding of one sequence and of
# eight, and 16 adapters in one batch against one. With PEERS=1 we and the others take turns, ROUNDS times (2), and the best round of each counts: what else the machine does meets all of them.
q='Qwen3/layers=28/.*'
rounds=${ROUNDS:-$([ "$peers" = 1 ] && echo 2 || echo 1)}
for ((round = 1; round <= rounds; round++)); do
  gobench train -timeout 30m -bench "$q/train/recompute=false" -benchtime 3x ./backends/internal/model
  gobench forward -timeout 30m -bench "$q/forward" -benchtime 3x ./backends/internal/model
  gobench decode -timeout 30m -bench "$q/decode" -benchtime 32x ./backends/internal/model
  if [ "$peers" = 1 ]; then
    echo "== PyTorch + PEFT"
    HF_HUB_OFFLINE=1 "$(peers_python)" e2e/bench/pytorch.py | tee -a "$logs/peers.txt"
    echo "== llama.cpp"
    "$(peers_python)" e2e/bench/llamacpp.py | tee -a "$logs/peers.txt"
  fi
done
gobench adapters -timeout 30m -bench "$q/adapters" -benchtime 3x ./backends/internal/model
theirs() { # ENGINE KIND DTYPE: tokens per second
  [ ! -e "$logs/peers.txt" ] || awk -v key="$1 $2 $3" '$1 " " $2 " " $3 == key && $4 > best { best = $4 } END { if (best) print best }' "$logs/peers.txt"
}
against() { # WHAT OURS ENGINE NAME KIND DTYPE GOAL: a row with our tokens per second and the peer's, none without a peer's
  local other
  other=$(theirs "$3" "$5" "$6")
  [ -z "$other" ] || row "$1" "$2 tok/s" "$4 $other tok/s" "$(ratio "$2" "$other")" "$7"
}
# llama.cpp trains no adapters in this precision and puts none on this model's output head: its rows are with an adapter on every layer, and without any.
for type in float32 bfloat16; do
  train=$(most train "layers=28/$type/train" tok/s) forward=$(most forward "layers=28/$type/forward" tok/s)
  row "forward + backward, 512 tokens, $type" "$train tok/s" "" "" ""
  row "  share of the peak" "$(most train "layers=28/$type/train" %peak) %" "" "" "$([ $type = float32 ] && echo '60 %' || echo '50 %')"
  row "  allocations per token" "$(figure train "layers=28/$type/train" allocs/token)" "" "" "0"
  against "  beside PyTorch + PEFT" "$train" torch PyTorch train $type "1.5"
  row "forward, 512 tokens, the last one's logits, $type" "$forward tok/s" "" "" ""
  row "  share of the peak" "$(most forward "layers=28/$type/forward" %peak) %" "" "" "60 %"
  against "  beside PyTorch + PEFT" "$forward" torch PyTorch forward $type "over 1"
  against "  beside llama.cpp with an adapter" "$forward" llama.cpp llama.cpp forward-lora $type "over 1"
  against "  beside llama.cpp without" "$forward" llama.cpp llama.cpp forward $type "over 1"
  bare=$(most decode "layers=28/$type/decode/sequences=1/lora=false" tok/s)
  one=$(most decode "layers=28/$type/decode/sequences=1/lora=true" tok/s) eight=$(most decode "layers=28/$type/decode/sequences=8" tok/s)
  row "decode, 1 sequence, $type" "$one tok/s" "" "" ""
  row "  share of the read bandwidth" "$(most decode "layers=28/$type/decode/sequences=1/lora=true" %read) %" "" "" "80 %"
  against "  beside PyTorch + PEFT" "$one" torch PyTorch decode $type "over 1"
  against "  beside llama.cpp with an adapter" "$one" llama.cpp llama.cpp decode-lora $type "over 1"
  against "  both without an adapter" "$bare" llama.cpp llama.cpp decode $type "over 1"
  row "decode, 8 sequences, $type" "$eight tok/s" "" "$(ratio "$eight" "$one") × one" "5 ×"
  against "  beside PyTorch + PEFT" "$eight" torch PyTorch decode8 $type ""
  against "  beside llama.cpp with an adapter" "$eight" llama.cpp llama.cpp decode8-lora $type ""
  for kind in train decode; do
    row "16 adapters of ranks 8 to 64 in one batch, $kind, $type" "$(figure adapters "layers=28/$type/adapters/$kind" other-cpu-s/op) s of processor" "" \
      "$(figure adapters "layers=28/$type/adapters/$kind" ratio) × one adapter" "1.05 ×"
  done
done
