package supervisor

import (
	"slices"
	"strings"
)

// A plugin inherits these variables and nothing else: what finds programs, libraries and models, what steers the Go runtime, the GPU libraries and
// telemetry. Keys and tokens in the gateway's environment stay there.
var (
	inheritedNames    = []string{"PATH", "HOME", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HF_HOME", "GOMAXPROCS", "GODEBUG", "GOMEMLIMIT", "GOGC", "GOTRACEBACK"}
	inheritedPrefixes = []string{"CUDA_", "NCCL_", "OTEL_"}
)

// allowed keeps those of the variables (NAME=value) that a plugin inherits.
func allowed(environment []string) []string {
	var kept []string
	for _, e := range environment {
		name, _, _ := strings.Cut(e, "=")
		if slices.Contains(inheritedNames, name) || slices.ContainsFunc(inheritedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			kept = append(kept, e)
		}
	}
	return kept
}
