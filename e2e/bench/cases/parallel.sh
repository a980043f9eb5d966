# 16 sequences of 512 tokens in the shape of Qwen3-0.6B, forward, backward and a step: two devices of one thread each against one device with two threads, turn about. A fourteenth of the model is measured, 2 of its
# 28 layers with a fourteenth of its vocabulary, so that each part has its share of the work; PART=1 measures the whole, which takes about an hour.
part=${PART:-14}
model="1/$part of Qwen3-0.6B"
[ "$part" != 1 ] || model="Qwen3-0.6B"
gobench parallel -timeout 3h -bench "Placements/part=$part/" -benchtime 3x ./backends/internal/engine
reached() { # PLACEMENT METRIC
  figure parallel "Placements/part=$part/" "$1-$2"
}
row "training on one device of two threads, $model" "$(reached single tok/s) tok/s, $(reached single cpu-s) s of processor" "" "" ""
for goal in dataparallel:0.95 tensorparallel:0.85; do
  plugin=${goal%:*}
  row "  $plugin, two devices of one thread" "$(reached "$plugin" tok/s) tok/s, $(reached "$plugin" cpu-s) s of processor" "" "$(reached "$plugin" ratio) × one device" "${goal#*:} ×"
done
