# The shape of Qwen3-0.6B with random weights, rank 32 on every linear layer and the head: 512 tokens forward and backward and forward alone, decoding of one sequence and of
# eight, and 16 adapters in one batch against one.
q='Qwen3/layers=28/.*'
gobench train -timeout 30m -bench "$q/train/recompute=false" -benchtime 3x ./backends/internal/model
gobench forward -timeout 30m -bench "$q/forward" -benchtime 3x ./backends/internal/model
gobench decode -timeout 30m -bench "$q/decode" -benchtime 32x ./backends/internal/model
gobench adapters -timeout 30m -bench "$q/adapters" -benchtime 3x ./backends/internal/model
if [ "$peers" = 1 ]; then
  echo "== PyTorch + PEFT"
  HF_HUB_OFFLINE=1 "$(peers_python)" e2e/bench/peers.py | tee "$logs/peers.txt"
fi
theirs() { # KIND DTYPE: tokens per second
  [ ! -e "$logs/peers.txt" ] || awk -v key="torch $1 $2" '$1 " " $2 " " $3 == key { print $4 }' "$logs/peers.txt"
}
against() { # WHAT OURS KIND DTYPE GOAL: a row with our tokens per second and the peer's
  local torch
  torch=$(theirs "$3" "$4")
  row "$1" "$2 tok/s" "${torch:+PyTorch $torch tok/s}" "$(ratio "$2" "$torch")" "$5"
}
for type in float32 bfloat16; do
  against "forward + backward, 512 tokens, $type" "$(figure train "layers=28/$type/train" tok/s)" train $type "1.5"
  row "  share of the peak" "$(figure train "layers=28/$type/train" %peak) %" "" "" "$([ $type = float32 ] && echo '60 %' || echo '50 %')"
  against "forward, 512 tokens, $type" "$(figure forward "layers=28/$type/forward" tok/s)" forward $type "over 1"
  row "  share of the peak" "$(figure forward "layers=28/$type/forward" %peak) %" "" "" "60 %"
  one=$(figure decode "layers=28/$type/decode/sequences=1/lora=true" tok/s) eight=$(figure decode "layers=28/$type/decode/sequences=8" tok/s)
  against "decode, 1 sequence, $type" "$one" decode $type "over 1"
  row "  share of the read bandwidth" "$(figure decode "layers=28/$type/decode/sequences=1/lora=true" %read) %" "" "" "80 %"
  row "decode, 8 sequences, $type" "$eight tok/s" "" "$(ratio "$eight" "$one") × one" "5 ×"
  for kind in train decode; do
    row "16 adapters of ranks 8 to 64 in one batch, $kind, $type" "$(figure adapters "layers=28/$type/adapters/$kind" other-cpu-s/op) s of processor" "" \
      "$(figure adapters "layers=28/$type/adapters/$kind" ratio) × one adapter" "1.05 ×"
  done
done
