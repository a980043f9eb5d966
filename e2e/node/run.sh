#!/bin/bash
# run.sh runs the JavaScript clients against bin/tinsmith; its last line is the result. Needs `npm ci` in this folder and `make build`.
set -uo pipefail
cd "$(dirname "$0")"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
node --test --test-reporter=tap | tee "$log" | grep -vE '^ *(---|\.\.\.|duration_ms|type:)'
code=${PIPESTATUS[0]}
count() { sed -n "s/^# $1 //p" "$log" | tail -n 1; }
echo "node clients: $(count pass) passed, $(count fail) failed, $(count skipped) skipped"
exit "$code"
