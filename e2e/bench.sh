#!/bin/bash
# bench.sh PEERS CASE measures speed and ends with a table. A case is a file of e2e/bench/cases; CASE takes some of their names (default: all). PEERS=1 also installs
# what others would use instead (PyTorch + PEFT, llama.cpp) into an environment of its own, runs it on the same shapes in the same run, and prints the ratios.
#
# A case file is sourced in a shell of its own, in the repository's root, and uses:
#   gobench NAME ARGUMENTS…          runs Go benchmarks; their output is added to $logs/NAME.txt and is listed at the end
#   figure NAME PATTERN UNIT         prints the value of one metric of the benchmark whose name matches an awk pattern, nothing if there is none; the first if it ran several times
#   most NAME PATTERN UNIT           the same with the largest
#   ratio A B                        prints A / B, nothing if one is missing
#   row WHAT OURS THEIRS RATIO GOAL  adds a line to the table; an empty cell stays empty, and a line without OURS is an error
#   $peers                           1 or nothing; peers_python prints the Python of the peers' environment, which it makes first
# Figures of one table are from one run, because machines differ and are shared: what counts is the ratio to a peer, to the peak of multiply-adds, or to the read
# bandwidth, each measured in that run.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=e2e/bench/cases
known=$(cd $folder && printf '%s ' *.sh | sed 's/\.sh//g')
peers=${1:-} cases=${2:-$known}
[ -z "$peers" ] || [ "$peers" = 1 ] || { echo "bench.sh: PEERS is \"$peers\"; allowed are 1 and nothing" >&2; exit 2; }
for c in $cases; do
  [ -f "$folder/$c.sh" ] || { echo "bench.sh: unknown CASE \"$c\"; allowed: $known" >&2; exit 2; }
done

logs=.cache/bench
rm -rf "$logs"; mkdir -p "$logs"
: > "$logs/table.tsv"

gobench() {
  echo "== $1"
  go test -run '^$' "${@:2}" | tee -a "$logs/$1.txt"
}
figure() {
  awk -v pattern="$2" -v unit="$3" '/^Benchmark/ { sub(/-[0-9]+$/, "", $1); if ($1 ~ pattern) for (i = 3; i < NF; i++) if ($(i + 1) == unit) { print $i; exit } }' "$logs/$1.txt"
}
most() {
  awk -v pattern="$2" -v unit="$3" '/^Benchmark/ { sub(/-[0-9]+$/, "", $1); if ($1 ~ pattern) for (i = 3; i < NF; i++) if ($(i + 1) == unit && $i > largest) largest = $i } END { if (largest) print largest }' "$logs/$1.txt"
}
ratio() {
  [ -z "$1" ] || [ -z "$2" ] || awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'
}
row() {
  [ $# = 5 ] && [ -n "$1" ] && [ -n "$2" ] || { echo "bench.sh: row needs WHAT OURS THEIRS RATIO GOAL, the first two not empty; got: $*" >&2; return 1; }
  local line
  line=$(printf '%s\t' "$@")
  printf '%s\n' "${line%$'\t'}" >> "$logs/table.tsv"
}
peers_python() {
  local env=.cache/peers digest
  digest=$(cat e2e/bench/requirements.txt e2e/bench/requirements-source.txt | sha256sum | cut -d ' ' -f 1)
  if [ "$(cat $env/requirements.sha256 2>/dev/null || true)" != "$digest" ]; then
    echo "installing PyTorch, transformers and PEFT into $env (about 3 GB to download)" >&2
    "${PYTHON:-python3.11}" -m venv $env
    $env/bin/pip install --quiet --disable-pip-version-check --requirement e2e/bench/requirements.txt >&2
    # There are no binaries of this package, and those of others leave out the instructions that older processors lack. Of its output only the count of the build's steps is shown.
    echo "compiling llama.cpp for this processor (some minutes; everything it says is in $env/llama.cpp.log)" >&2
    CMAKE_ARGS="-DLLAVA_BUILD=OFF" CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) \
      $env/bin/pip install --verbose --disable-pip-version-check --no-binary llama-cpp-python --requirement e2e/bench/requirements-source.txt 2>&1 | tee $env/llama.cpp.log |
      awk 'match($0, /^ *\[[0-9]+\/[0-9]+\]/) { printf "\r%s", substr($0, 1, RLENGTH); fflush() } END { print "" }' >&2 || { tail -n 30 $env/llama.cpp.log >&2; return 1; }
    echo "$digest" > $env/requirements.sha256
  fi
  echo "$env/bin/python"
}

load=$(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null || echo unknown)
machine="$(nproc) processors, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1), load before the run $load"
echo "machine: $machine"
[ -z "$peers" ] || peers_python > "$logs/python"
for c in $cases; do
  # shellcheck disable=SC1090
  (. "$folder/$c.sh")
done

printf '\n== every benchmark (full output in %s)\n' "$logs"
# A line of Go's is NAME COUNT (VALUE UNIT)…; ns/op is left out where there is a better figure, and allocations where there are none.
find "$logs" -name '*.txt' | sort | xargs -r cat | awk '
  /^Benchmark/ {
    sub(/^Benchmark/, "", $1); sub(/-[0-9]+$/, "", $1)
    line = ""; first = $3 " " $4
    for (i = 5; i < NF; i += 2) if ($(i + 1) != "B/op" && !($(i + 1) == "allocs/op" && $i == 0)) line = line sprintf("%12s %-10s", $i, $(i + 1))
    printf "%-62s%s\n", $1, line == "" ? sprintf("%22s", first) : line
  }'
printf '\n== table (%s)\n' "$machine"
awk -F '\t' '
  BEGIN { n = 1; split("what\tmeasured\tothers\tratio\tgoal", h, "\t"); for (i = 1; i <= 5; i++) cell[1, i] = h[i] }
  { n++; for (i = 1; i <= 5; i++) cell[n, i] = $i }
  END {
    for (r = 1; r <= n; r++) for (i = 1; i <= 5; i++) if (length(cell[r, i]) > wide[i]) wide[i] = length(cell[r, i])
    for (r = 1; r <= n; r++) { for (i = 1; i <= 5; i++) printf "%-" wide[i] "s%s", cell[r, i], i < 5 ? "  " : "\n" }
  }' "$logs/table.tsv"
