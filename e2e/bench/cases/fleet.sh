# A backend on another machine, over loopback with TLS, beside one that the gateway starts: a call, and an adapter saved to the gateway's disk and loaded from it. What a move takes is the difference of the two.
gobench fleet -bench Backend -benchtime 3s ./gateway/internal/attach
of() { figure fleet "Backend/$1\$" "$2"; }
rate() { awk -v mb="$(of remote/save MB)" -v far="$(of "remote/$1" ms)" -v near="$(of "local/$1" ms)" 'BEGIN { if (mb && far > near) printf "%.0f MB/s", mb * 1000 / (far - near); else print "not above the noise" }'; }
row "a call, remote and local" "$(of remote/call µs) µs" "$(of local/call µs) µs" "$(ratio "$(of remote/call µs)" "$(of local/call µs)")" ""
for way in save load; do
  row "$way of an adapter of $(of remote/save MB) MB, remote and local" "$(of "remote/$way" ms) ms" "$(of "local/$way" ms) ms" "$(ratio "$(of "remote/$way" ms)" "$(of "local/$way" ms)")" ""
  row "its move alone, $way" "$(rate "$way")" "" "" ""
done
# Two backends of one model with a thread each beside one with two: 16 runs that train at once. In turns, several times, and of each the best: the machine is shared.
for _ in 1 2 3; do gobench pool -bench 'Pool' -benchtime 3x ./gateway/internal/ordeal; done
rows=$(most pool 'Pool/backends=2$' tokens/s) whole=$(most pool 'Pool/backends=1$' tokens/s)
row "16 runs in two backends of one thread, and in one of two" "$rows tokens/s" "$whole tokens/s" "$(ratio "$rows" "$whole")" "≥ 0.95"
