# The engine on a model of 41 million parameters: decoding and clock cycles of several runs; the price of many tenants. Then what its users wait for: 64 streams of the built-in model, with a grammar too, a key beside another one's crowd, a stream beside long sequences in training, the publication of a
# version, an adapter's return from disk, and the first samples after the start.
gobench engine -bench "Decode|Train" -benchtime 2x ./backends/internal/engine
gobench streams -bench "Streams$|Publication$|ReturnFromDisk$|FirstSamples$" -benchtime 3x ./backends/internal/engine
gobench grammars -bench "Grammars$" -benchtime 5x ./backends/internal/engine
gobench tenants -bench "Tenants$" -benchtime 2x ./backends/internal/engine
gobench neighbour -bench "Neighbour$" -benchtime 300x ./backends/internal/engine
gobench gap -bench "StreamGap$" -benchtime 1x ./backends/internal/engine
unit() { local v; v=$(figure "${4:-streams}" "$1" "$2"); [ -z "$v" ] || printf '%s %s' "$v" "${3:-$2}"; }
for way in plain greedy temperature_0.7 top-p_0.9 "top-k_50,_penalties" top-5_logprobs; do
  row "64 streams, tiny-chat, ${way//_/ }: time outside kernels" "$(unit "Streams/$way" %-outside %)" "" "" "20 %"
done
row "64 streams, tiny-chat: processor time per token, no transport" "$(unit Streams/plain processor-µs/token µs)" "" "" ""
row "the same over gRPC, both ends" "$(unit 'Streams/over_gRPC$' processor-µs/token µs)" "" "" ""
row "the same where the answer is read as a whole" "$(unit 'Streams/over_gRPC,_read' processor-µs/token µs)" "" "" ""
row "64 streams, tiny-chat: allocations per token" "$(unit Streams/plain allocs/token " ")" "" "" "0"
for way in plain greedy top-p_0.9; do
  row "64 streams, tiny-chat, ${way//_/ }: time under a grammar against without" "$(unit "Grammars/$way" ×-time × grammars)" "" "" "1.10 ×"
  row "the same, processor time" "$(unit "Grammars/$way" ×-processor × grammars)" "" "" ""
done
row "a stream beside training on 8,192 tokens: p99 gap" "$(unit StreamGap p99-ms ms gap)" "" "" "500 ms"
for crowd in long_answers long_prompts; do
  row "4 tokens beside 4,000 sequences of another key, ${crowd/_/ }: p95" "$(unit "Neighbour/$crowd" p95-ms ms neighbour)" "" "" "3 × $(unit "Neighbour/$crowd" quiet-p95-ms ms neighbour) + $(unit "Neighbour/$crowd" full-step-ms ms neighbour)"
done
row "32 tenants against 1 with the same tokens, Qwen3-0.6B's shape (2 layers): engine time per token" "$(unit Tenants ratio × tenants)" "" "" "1.05 ×"
row "publication after optim_step" "$(unit Publication ms)" "" "" "1 ms"
row "publication after optim_step: copied" "$(unit Publication copied-B/op B)" "" "" "0 B"
row "adapter of 28 million parameters back from disk, to a token" "$(unit ReturnFromDisk sample-ms ms)" "" "" "1,000 ms"
row "the same, to a step" "$(unit ReturnFromDisk train-ms ms)" "" "" ""
row "16 prompts × 64 tokens, tiny-chat, right after the start" "$(unit FirstSamples first-ms ms)" "" "" ""
row "the same again" "$(unit FirstSamples second-ms ms)" "" "" ""
