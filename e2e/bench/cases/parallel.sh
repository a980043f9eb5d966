# 16 sequences of 512 tokens in the shape of Qwen3-0.6B, forward, backward and a step: two devices of one thread each against one device with two threads.
gobench parallel -timeout 60m -bench 'Placements/layers=28/' -benchtime 1x ./backends/internal/engine
one=$(figure parallel 'Placements/layers=28/single$' tokens/s)
row "training on one device of two threads" "$one tok/s" "" "" ""
for goal in dataparallel:0.95 tensorparallel:0.85; do
  plugin=${goal%:*}
  two=$(figure parallel "Placements/layers=28/$plugin\$" tokens/s)
  row "  $plugin, two of one thread" "$two tok/s" "" "$(ratio "$two" "$one") × one device" "${goal#*:} ×"
done
