package plugins

import "strings"

// formerNames are beginnings of ModelInfo.Arithmetic that earlier versions gave to bits which have another name now. Nothing else was ever called so.
var formerNames = map[string]string{
	"cpu-amx-1/float32": "cpu-fma-2/float32", // AMX multiplies bfloat16 weights only
}

// SameArithmetic tells whether two values of ModelInfo.Arithmetic, of which an earlier version may have given either, mean equal bits.
func SameArithmetic(a, b string) bool { return presentArithmetic(a) == presentArithmetic(b) }

// presentArithmetic is what an arithmetic is called now.
func presentArithmetic(name string) string {
	for before, now := range formerNames {
		if rest, ok := strings.CutPrefix(name, before); ok && (rest == "" || rest[0] == '/' || rest[0] == ',') {
			return now + rest
		}
	}
	return name
}
