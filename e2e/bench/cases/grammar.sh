# Masks of JSON schemas at Qwen3's vocabulary of 151,936 tokens, on one thread, beside llguidance: the same instances of the same real schemas, token by
# token. Each schema is compiled once; nothing is known of it before. Both are measured in processor time of the thread. The schemas, which may not be
# shipped, and the vocabulary are found through TINSMITH_TESTDATA; EVERY=1 takes all schemas, not each third.
if [ -z "${TINSMITH_TESTDATA:-}" ]; then
  echo "grammar: left out, because TINSMITH_TESTDATA is not set"
else
  env=.cache/llguidance
  digest=$(sha256sum < e2e/bench/requirements-grammar.txt)
  if [ "$(cat $env/requirements.sha256 2>/dev/null || true)" != "$digest" ]; then
    "${PYTHON:-python3.11}" -m venv $env
    $env/bin/pip install --quiet --disable-pip-version-check --requirement e2e/bench/requirements-grammar.txt >&2
    echo "$digest" > $env/requirements.sha256
  fi
  echo "== llguidance"
  $env/bin/python e2e/bench/masks.py "$TINSMITH_TESTDATA/tokenizers/qwen3" "$TINSMITH_TESTDATA/surfaces/maskbench" \
    "$logs/masks.jsonl" "${EVERY:-3}" | tee "$logs/llguidance.txt"
  TINSMITH_MASKS="$PWD/$logs/masks.jsonl" gobench grammar -bench Masks$ -benchtime 1x ./gateway/internal/schema
  for value in mean:50 p50: p95:150 p99:1000; do
    name=${value%:*} goal=${value#*:}
    ours=$(figure grammar Masks "both-$name-µs") theirs=$(figure llguidance LLGuidance "$name-µs")
    row "mask, schemas that both take, $name" "$ours µs" "llguidance $theirs µs" "$(ratio "$ours" "$theirs")" "${goal:+$goal µs, }not above 1"
    row "  all schemas" "$(figure grammar Masks "$name-µs") µs" "" "" "${goal:+$goal µs}"
  done
  for value in p50:5 p95:50; do
    name=${value%:*} goal=${value#*:}
    ours=$(figure grammar Masks "compile-$name-ms") theirs=$(figure llguidance LLGuidance "compile-$name-ms")
    row "compile and first mask, $name" "$ours ms" "llguidance $theirs ms" "$(ratio "$ours" "$theirs")" "$goal ms"
  done
  row "schemas refused, of $(figure llguidance LLGuidance schemas)" "$(figure grammar Masks refused)" "llguidance $(figure llguidance LLGuidance refused)" "" ""
fi
