package engine

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/goldenfiles"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// A model's arithmetic is named by what computes it: where a run of a float32 model may go on with the same bits, its name is the same.
func TestArithmeticIsThatOfTheWeights(t *testing.T) {
	on := func(t *testing.T, isa, dtype string) *Engine {
		o := testOptions()
		o.OpenDevice = func(c Config) (tensor.Device, error) { return cpu.New(cpu.Options{Threads: c.Threads, ISA: isa}) }
		return placeWith(t, placement{plugin: "single", section: `{"threads": 1, "dtype": "` + dtype + `"}`}, o)
	}
	want := map[string]string{"avx2": "cpu-fma-2", "avx512": "cpu-fma-2", "avx512bf16": "cpu-fma-2", "amx": "cpu-fma-2", "sse2": "cpu-sse2-2", "neon": "cpu-neon-2"}
	for _, isa := range cpu.ISAs() {
		t.Run(isa, func(t *testing.T) {
			for _, dtype := range []string{"float32", "bfloat16"} {
				arithmetic := want[isa]
				if isa == "amx" && dtype == "bfloat16" {
					arithmetic = "cpu-amx-1"
				}
				if got := on(t, isa, dtype).loaded.info.Arithmetic; got != arithmetic+"/"+dtype {
					t.Errorf("%s is computed by %s, wanted %s", dtype, got, arithmetic)
				}
			}
		})
	}
	t.Run("with tiles and without", func(t *testing.T) {
		if !slices.Contains(cpu.ISAs(), "amx") {
			t.Skip("this processor has no AMX; with -tags emulate_avx512 its tiles are computed by vectors")
		}
		equalHistories(t, live(t, on(t, "amx", "float32")), live(t, on(t, "avx2", "float32")))
	})
}

// TestArithmeticOfLongContexts: a model that turns positions by other factors in a long context computes something else there.
func TestArithmeticOfLongContexts(t *testing.T) {
	dir := t.TempDir()
	goldenfiles.Unpack(t, filepath.Join("..", "model", "testdata", "longrope"), dir)
	for section, want := range map[string]string{`{"max_context_length": 16}`: "/float32/short_factor", `{"max_context_length": 17}`: "/float32/long_factor", `{}`: "/float32/long_factor"} {
		e := open(t)
		info, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Config: []byte(section)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(info.Arithmetic, want) {
			t.Errorf("%s: the arithmetic is %s, wanted one that ends with %s", section, info.Arithmetic, want)
		}
	}
}
