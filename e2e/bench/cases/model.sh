# The shape of Qwen3-0.6B, random weights: 512 tokens forward and backward with rank 32 on every linear layer, and decoding of one sequence.
gobench train -bench 'Qwen3/layers=28/.*/train/recompute=false' -benchtime 3x ./backends/internal/model
gobench decode -bench 'Qwen3/layers=28/.*/decode' -benchtime 32x ./backends/internal/model
if [ "$peers" = 1 ]; then
  echo "== PyTorch + PEFT"
  HF_HUB_OFFLINE=1 "$(peers_python)" e2e/bench/peers.py | tee "$logs/peers.txt"
fi
theirs() { [ ! -e "$logs/peers.txt" ] || awk -v key="$1 $2" '$1 " " $2 == key { print $3 }' "$logs/peers.txt"; }
for type in float32 bfloat16; do
  ours=$(figure train "layers=28/$type/train" tok/s) other=$(theirs train $type)
  row "forward + backward, 512 tokens, $type" "$ours tok/s" "${other:+$other tok/s PyTorch}" "$(ratio "$ours" "$other")" "1.5"
  ours=$(figure decode "layers=28/$type/decode/lora=true" tok/s) other=$(theirs decode $type)
  row "decode, one sequence, $type" "$ours tok/s" "${other:+$other tok/s PyTorch}" "$(ratio "$ours" "$other")" "1.5"
done
