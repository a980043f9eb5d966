package plugins

import "testing"

func TestSameArithmetic(t *testing.T) {
	for _, c := range []struct {
		name, a, b string
		same       bool
	}{
		{"equal", "cpu-fma-2/bfloat16", "cpu-fma-2/bfloat16", true},
		{"of float32 by its former name", "cpu-amx-1/float32", "cpu-fma-2/float32", true},
		{"of a cut model by its former name", "cpu-fma-2/float32/cut over 2 ranks", "cpu-amx-1/float32/cut over 2 ranks", true},
		{"cut for sampling", "cpu-amx-1/float32, for sampling over 2", "cpu-fma-2/float32, for sampling over 2", true},
		{"of bfloat16, which tiles compute otherwise", "cpu-amx-1/bfloat16", "cpu-fma-2/bfloat16", false},
		{"another type", "cpu-amx-1/float32", "cpu-fma-2/bfloat16", false},
		{"cut otherwise", "cpu-amx-1/float32/cut over 2 ranks", "cpu-fma-2/float32", false},
		{"a longer name", "cpu-amx-1/float32x", "cpu-fma-2/float32x", false},
		{"a later version of it", "cpu-amx-2/float32", "cpu-fma-2/float32", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if SameArithmetic(c.a, c.b) != c.same || SameArithmetic(c.b, c.a) != c.same {
				t.Errorf("%q and %q: want %t", c.a, c.b, c.same)
			}
		})
	}
}
