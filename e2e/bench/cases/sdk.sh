# What a client of the Tinker SDK waits for, with the built-in model, and training a small one of random weights: server, SDK and Python's share together.
echo "== sdk"
e2e/demo.sh speed 2> "$logs/sdk.err" | tee "$logs/sdk.log" || { cat "$logs/sdk.err" >&2; exit 1; }
said() { awk -v name="$1" '$1 == name { print $2, $3 }' "$logs/sdk.log"; }
row "SDK, the smallest forward_backward" "$(said smallest-forward_backward)" "" "" "15 ms"
row "SDK, forward_backward + optim_step, 8 × 128 tokens, one after the other" "$(said train-waiting)" "" "" "7,570 tok/s"
row "SDK, the same sent ahead" "$(said train-pipelined)" "" "" ""
alone= other=
if [ "$peers" = 1 ]; then
  echo "== PyTorch + PEFT"
  random=$(mktemp -d)
  python3 e2e/demo/randommodel.py "$random/model"
  HF_HUB_OFFLINE=1 "$(peers_python)" e2e/bench/pytorch_small.py "$random/model" | tee "$logs/sdk-peers.txt"
  rm -rf "$random"
  alone=$(awk '$2 == "train-small" { print $4 }' "$logs/sdk-peers.txt") other="PyTorch, no server: $alone tok/s"
fi
against_torch() { ratio "$(said "$1" | cut -d ' ' -f 1)" "$alone"; }
row "SDK, hidden size 256, 4 layers, the same one after the other" "$(said train-waiting-also)" "$other" "$(against_torch train-waiting-also)" "7,570 tok/s on Zen 5"
row "SDK, the same sent ahead" "$(said train-pipelined-also)" "$other" "$(against_torch train-pipelined-also)" ""
row "SDK, 16 prompts × 64 sampled tokens" "$(said sample)" "" "" "0.28 s"
row "SDK, the first such" "$(said sample-first)" "" "" ""
