#!/bin/bash
# test.sh standard|all runs every test of the project against what `make build` made and ends with a table: the last line of each runner, what was skipped
# and why. It goes on after a failure, so that one run shows all of them, and fails if anything failed.
#   standard  Tinker SDK 0.38 in full and 0.3, 0.16 and 0.24 in the calls that they have, three recipes, 10,000 inputs per fuzz target
#   all       every SDK version, every recipe, 300,000 inputs per fuzz target
set -uo pipefail
cd "$(dirname "$0")/.."
level=${1:-}
case $level in
  standard) fuzz=10000; sdks="0.3.0 0.16.1 0.24.1" ;;
  all) fuzz=300000; sdks="0.3.0 0.9.0 0.16.1 0.20.0 0.23.4 0.24.1 0.25.0 0.30.4 0.35.0" ;;
  *) echo "usage: e2e/test.sh standard|all" >&2; exit 2 ;;
esac
export E2E_LEVEL=$level
started=$SECONDS
logs=.cache/test-logs
rm -rf "$logs"; mkdir -p "$logs"
summary=$logs/summary.txt failed=0

# step NAME COMMAND… runs one runner. Its output is shown, kept in a file, and its last line comes back in the table.
step() {
  local name=$1 log="$logs/${1// /-}.log" begun=$SECONDS code=0
  shift
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$log"
  code=${PIPESTATUS[0]}
  local last took=$((SECONDS - begun)) word=ok
  last=$(grep -v '^[[:space:]]*$' "$log" | tail -n 1)
  [ "$code" = 0 ] || { word=FAILED; failed=1; }
  printf '%-7s %4d s  %-22s %s\n' "$word" "$took" "$name" "${last:0:140}" >> "$summary"
}

# What runs beside has a process group of its own, so that all of it ends when this is interrupted.
trap 'for job in $(jobs -p); do kill -- "-$job" 2>/dev/null; done' EXIT
grouped() { [ "$BASHPID" != "$$" ] || set -m; }

# beside FIRST SECOND runs two functions that run steps, at once, where one of them waits more than it computes. What the second one says is shown when the first one has ended.
beside() {
  grouped
  (summary=$logs/summary-$2.txt failed=0; $2; exit $failed) > "$logs/$2.out" 2>&1 < /dev/null &
  local second=$!
  set +m
  $1
  collect "$second" "$2"
}

# collect PROCESS NAME waits for what runs beside this, and shows what it said.
collect() {
  wait "$1" || failed=1
  cat "$logs/$2.out"
  cat "$logs/summary-$2.txt" >> "$summary"
}

# aside FUNCTION runs steps beside all that comes next, with the time that it leaves: for what only computes, and takes no harm from having to wait. Tests that watch how long something takes do not notice.
aside() {
  grouped
  (renice -n 19 "$BASHPID" > /dev/null; summary=$logs/summary-$1.txt failed=0; $1; exit $failed) > "$logs/$1.out" 2>&1 < /dev/null &
  set +m
}

# go test says why a test was skipped only with -v; failures and packages are what is shown of that.
gotest() {
  local log="$logs/go-verbose-$1.txt"
  shift
  go test -v -timeout 50m "$@" > "$log" 2>&1
  local code=$?
  grep -E '^(ok|FAIL|panic:|---? FAIL)|^[[:space:]]*--- FAIL|DATA RACE' "$log"
  if [ $code != 0 ]; then echo "-- what failed tests said, from $log:"; gofailures "$log"; echo "-- its end:"; tail -n 60 "$log"; fi
  echo "$(grep -cE '^[[:space:]]*--- PASS' "$log") tests passed, $(grep -cE '^[[:space:]]*--- FAIL' "$log") failed, $(grep -cE '^[[:space:]]*--- SKIP' "$log") skipped, $(grep -c '^ok' "$log") packages"
  return $code
}
# gofailures LOG shows what the failed tests wrote: at most 200 lines of each.
gofailures() {
  awk '
    FNR == NR { if (/^ *--- FAIL: /) failed[$3] = 1; next }
    /^=== (RUN|NAME|CONT|PAUSE)/ || /^ *--- (PASS|FAIL|SKIP): / { test = $3; next }
    test in failed && said[test]++ < 200 { if (said[test] == 1) print "-- " test ":"; print }
  ' "$1" "$1" | head -n 600
}
# A test's messages stand below its own "=== RUN" or "=== NAME" line; its verdict may come much later.
goskips() {
  cat "$logs"/go-verbose-*.txt 2>/dev/null | awk '
    /^=== (RUN|NAME|CONT)/ { test = $3 }
    match($0, /\.go:[0-9]+: /) { said[test] = substr($0, RSTART + RLENGTH) }
    /^ *--- SKIP: / { print (said[$3] == "" ? "no reason given by " $3 : said[$3]) }
  ' | sort | uniq -c | sort -rn | sed 's/^ */go: /'
}
pyskips() { grep -hE '^SKIPPED \[' "$logs"/*.log 2>/dev/null | sed -E 's/^SKIPPED \[([0-9]+)\] [^:]*(:[0-9]+)?: /python: \1 /' | sort | uniq; }

# Each package's targets are one program, built once. What they find stays in the clone: the Go tool's own folder grows with every clone's finds, all of which a run begins with.
fuzzall() {
  local count=0 package targets target found=$PWD/.cache/fuzz program=$PWD/.cache/fuzz.test
  while IFS= read -r package; do
    go test -c -fuzz . -o "$program" "./$package" || { echo "$package cannot be built for fuzzing"; return 1; }
    targets=$(git grep -h -o -E '^func Fuzz[A-Za-z0-9_]+' -- "$package/*_test.go" ":!$package/*/*")
    for target in ${targets//func /}; do
      echo "$package $target"
      # So many inputs rather than seconds: at the end of its time the fuzzing engine now and then reports "context deadline exceeded" as a failure. Without
      # -parallel it starts a worker per core; minimising is left to the person who investigates. An input that hangs its target ends with the limit.
      (cd "$package" && timeout 1200 "$program" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "${fuzz}x" -test.fuzzminimizetime 0x \
        -test.fuzzcachedir "$found/$package") > "$logs/fuzz.txt" 2>&1 || { cat "$logs/fuzz.txt"; echo "$package $target failed"; return 1; }
      count=$((count + 1))
    done
  done < <(git grep -l -E '^func Fuzz[A-Za-z0-9_]+\(f ' -- '*_test.go' | xargs -n 1 dirname | sort -u)
  rm -f "$program"
  echo "$count fuzz targets, $fuzz inputs each"
}

# Packages where goroutines share state; the race detector makes the arithmetic of the others too slow to be worth it. Tests run in the order of the packages: the longest are first, so that none of them runs alone at the end.
concurrent=$(go list ./backends/internal/engine ./gateway/internal/ordeal 2>/dev/null;
  go list ./gateway/... ./plugins/... | grep -vE '/(tokenizer|chat/jinja|schema|schema/ecma|schema/jsonvalue|toolgrammar|answer|grammar|ordeal|manifests)$')
others=$(go list ./e2e/... ./... | grep -vxF "$concurrent")
# Of these, tests of programs; the rest only computes.
programs=$(grep -E '/e2e/|/backends/[a-z]+$|/backends/internal/(transformers|devicebench|programtest)$' <<< "$others")
arithmetic=$(grep -vxF "$programs" <<< "$others")
# The CUDA kernels on the processor and the plans of memory are long sums on one goroutine a device, and what becomes of a damaged database is tried on one goroutine, hundreds of times: in the shorter run they go without it.
sums='TrainingShare|ContextIsWhatTrains|LongestDatum|ModelDoesNotFit|OnCUDA|Planned|Recommended|SeveralGPUs|OfGPUs|^TestDamages$|^TestPowerCuts$'
# What has cases for PostgreSQL runs beside a server, all of it.
on_postgres='^Test(Backup|DatabaseAway|FrozenPostgres|GoingOver|Identity|PagesOfPostgres|Partition|Postgres|SeriesOnPostgres|Standby|StandbyAfterAPause|StandbyOnBrokenNetwork|Takeover)$'
without=$on_postgres
[ "$level" = all ] || without="$on_postgres|$sums"
race() { step "go, race detector" gotest race -race "-skip=$without" $concurrent; }
postgres() { step "go, PostgreSQL" e2e/postgres.sh "$BASH" -c "$(declare -f gotest gofailures); logs=$logs; gotest postgres -race -run '$on_postgres' ./gateway/internal/store ./gateway/internal/runs ./gateway/internal/ordeal"; }
# The gateways that wait for each other, and what they keep in a bucket, with a server of MinIO's beside PostgreSQL.
objects() { step "go, MinIO" e2e/minio.sh e2e/postgres.sh "$BASH" -c "$(declare -f gotest gofailures); logs=$logs; gotest minio -race -run '^Test(DatabaseAway|GoingOver|Partition|Standby|StandbyAfterAPause|StandbyOnBrokenNetwork|Folders|Cache|ManyAtOnce|Away)$' ./gateway/internal/bucket ./gateway/internal/ordeal"; }
environment() { step "python environment" e2e/python.sh; }
long_sums() { step "go, CUDA and damages" gotest sums -run "$sums" ./backends/internal/engine ./gateway/internal/store; }
# The kernels' text for avx512 and AMX, and the ways that only another maker's processor takes, over instructions that nearly every one has: a test that needs a certain processor is seldom run.
emulated() {
  grep -qw avx2 /proc/cpuinfo || return 0
  step "go, avx512 emulated" gotest emulated -tags emulate_avx512 ./backends/internal/tensor/cpu
}
computed() {
  beside long_sums emulated # either is for the most part one goroutine
  step "go, grammars in a crowd" gotest crowd -race -run '^TestCrowd$' ./plugins/grammar # all that they share; the rest is arithmetic
  step "go, arithmetic" gotest arithmetic $arithmetic
  step "fuzzing" fuzzall
}
aside computed
computed=$!
beside race environment # which waits for the network and the disk; none of these packages need it
programs() { step "go, programs" gotest programs $programs; }
beside programs postgres # which for the most part waits
[ "$level" != all ] || objects

py() { local path=$1; shift; PYTHONPATH="$path" .venv/bin/python -m pytest -c e2e/pytest.ini --rootdir e2e "$@"; }
# LiteLLM, inspect-ai and lm-eval take long to be imported and to begin.
clients="e2e/clients/test_agent_tools.py e2e/clients/test_instructor.py e2e/clients/test_langchain.py e2e/clients/test_pydantic_ai.py"
if [ "$level" = all ]; then clients=e2e/clients; fi
# Clients wait for answers, so two rows of them run side by side, of about the same length.
newest_clients() {
  step "tinker sdk 0.38.0" py "" e2e/tinker
  for folder in openai anthropic reference; do step "$folder" py "" "e2e/$folder"; done
}
other_clients() {
  step "recipes" py "" e2e/recipes
  for v in $sdks; do step "tinker sdk $v" py ".cache/sdk/$v" -m version e2e/tinker; done
  step "python clients" py .cache/clients $clients
  step "verifiers" py .cache/verifiers e2e/verifiers
  npm_ci() { echo "installing the Node packages of e2e/node/package-lock.json"; npm --prefix e2e/node ci --no-audit --no-fund; }
  step "node packages" npm_ci
  step "node clients" npm --prefix e2e/node test
}
beside newest_clients other_clients
collect "$computed" computed

printf '\n== skipped\n'
{ goskips; pyskips; } | tee "$logs/skips.txt"
[ -s "$logs/skips.txt" ] || echo "nothing"
printf '\n== result of e2e/test.sh %s, %d s; full output in %s\n' "$level" "$((SECONDS - started))" "$logs"
cat "$summary"
exit $failed
