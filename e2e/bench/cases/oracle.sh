# Not speed but agreement: the same requests to our engine (plugin single, float32) and to the plugin transformers, for the golden models. The largest difference of
# log-probabilities, of a tensor's gradient against its norm, and of log-probabilities after a step of the optimizer. It needs the tests' environment (.venv), or another
# Python with torch and transformers in TINSMITH_TRANSFORMERS_PYTHON.
python=${TINSMITH_TRANSFORMERS_PYTHON:-$PWD/.venv/bin/python}
if ! "$python" -I -c 'import torch, transformers, safetensors' 2>/dev/null; then
  echo "oracle: left out, because $python has no torch, transformers and safetensors: e2e/python.sh installs them"
else
  TINSMITH_TRANSFORMERS_PYTHON=$python gobench oracle -bench Oracle$ -benchtime 1x ./backends/internal/transformers
  for model in $(awk '/^BenchmarkOracle/ { sub(/-[0-9]+$/, "", $1); sub(/.*\//, "", $1); print $1 }' "$logs/oracle.txt" | sort -u); do
    row "$model, log-probabilities" "$(figure oracle "/$model\$" logprobs)" "transformers" "" "not above 1e-4"
    row "  gradients" "$(figure oracle "/$model\$" gradients)" "transformers" "" "not above 1e-4"
    row "  log-probabilities after a step" "$(figure oracle "/$model\$" stepped)" "transformers" "" "not above 1e-3"
  done
fi
