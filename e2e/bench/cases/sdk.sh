# What a client of the Tinker SDK waits for, with the built-in model, and training a small one of random weights: server, SDK and Python's share together.
echo "== sdk"
e2e/demo.sh speed 2> "$logs/sdk.err" | tee "$logs/sdk.log" || { cat "$logs/sdk.err" >&2; exit 1; }
said() { awk -v name="$1" '$1 == name { print $2, $3 }' "$logs/sdk.log"; }
row "SDK, the smallest forward_backward" "$(said smallest-forward_backward)" "" "" "15 ms"
row "SDK, forward_backward + optim_step, 8 × 128 tokens, one after the other" "$(said train-waiting)" "" "" "7,570 tok/s"
row "SDK, the same sent ahead" "$(said train-pipelined)" "" "" ""
row "SDK, hidden size 256, 4 layers, the same one after the other" "$(said train-waiting-also)" "" "" "7,570 tok/s"
row "SDK, the same sent ahead" "$(said train-pipelined-also)" "" "" ""
row "SDK, 16 prompts × 64 sampled tokens" "$(said sample)" "" "" "0.28 s"
row "SDK, the first such" "$(said sample-first)" "" "" ""
