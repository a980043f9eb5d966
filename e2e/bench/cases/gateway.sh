# The gateway alone: operations of 1 KiB from submission to the completed future with a backend that does nothing, inside the process and over HTTP (the
# server in a process of its own, whose processor time it is; its clients share the processors), and what 2,000 held polls and 10,000 waiting samples take.
gobench gateway -bench SubmitToCompleted -benchtime 2s ./gateway/internal/ordeal
for way in core http; do
  row "submit to completed, $way, one client" "$(figure gateway "SubmitToCompleted/$way/clients=1$" p50-sync-ms) ms + the disk's sync of $(figure gateway "SubmitToCompleted/$way/clients=1$" sync-ms) ms" "" "" "1 ms"
  row "submit to completed, $way, 64 clients" "$(figure gateway "SubmitToCompleted/$way/clients=64$" ops/s) /s, $(figure gateway "SubmitToCompleted/$way/clients=64$" cpu-µs/op) µs of processor time each" "" "" "20,000 /s"
done
echo "== crowd"
go test -run 'TestCrowd$' -count=1 -v ./gateway/internal/ordeal | tee "$logs/crowd.log" | grep -E 'crowd_test|^(ok|FAIL)'
row "2,000 held polls" "$(sed -n 's/.*held polls: \([0-9.]*\) of a core, \([0-9]* MiB\)/\1 of a core, \2/p' "$logs/crowd.log")" "" "" "half a core, 500 MB"
row "10,000 samples waiting" "$(sed -n 's/.*samples accepted, \([0-9]* goroutines at most\).*, \([0-9]* MiB\)/\1, \2/p' "$logs/crowd.log")" "" "" "no goroutine each"
echo "== step"
go test ./gateway/internal/ordeal -run 'TestReinforcementStep$' -count=1 -v -step | tee "$logs/step.log" | grep -E 'step_test|^(ok|FAIL)'
row "one step of 2,048 samples, all polled at once" "$(sed -n 's/.*a step of [0-9]* samples: \(.* MiB\); it took.*/\1/p' "$logs/step.log")" "" "" "half a core, 500 MB"
