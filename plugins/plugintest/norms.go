package plugintest

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

// checkNorms compares the norms of an adapter by kind of module, which a step has told, with that of all of it.
func (s *suite) checkNorms(r *run, metrics map[string]float64) {
	s.Helper()
	if len(r.modules) == 0 {
		s.Errorf("the adapter's configuration names no modules")
	}
	squares := 0.0
	for _, kind := range r.modules {
		v, ok := metrics[plugins.AdapterNormOf(kind)]
		if !ok || !(v >= 0) || math.IsInf(v, 0) {
			s.Errorf("the norm of the modules %s is %v (present: %t)", kind, v, ok)
		}
		squares += v * v
	}
	for name := range metrics {
		if kind, of := strings.CutPrefix(name, plugins.AdapterNormOf("")); of && !slices.Contains(r.modules, kind) {
			s.Errorf("metric %s: the adapter has LoRA on %v", name, r.modules)
		}
	}
	s.near("the norm by kinds of modules", math.Sqrt(squares), metrics["adapter_norm"])
}

// checkSavedNorms compares norms with the weights that the adapter has now, as it keeps them: PEFT's form has what experts share once for each.
func (s *suite) checkSavedNorms(r *run, metrics map[string]float64) {
	s.Helper()
	raw, err := os.ReadFile(filepath.Join(r.save(plugins.ScopeWeights, ""), plugins.AdapterWeightsFile))
	if err != nil || len(raw) < 8 {
		s.Fatalf("read the saved adapter: %d bytes, %v", len(raw), err)
	}
	size := binary.LittleEndian.Uint64(raw)
	if size > uint64(len(raw)-8) {
		s.Fatalf("the saved adapter has %d bytes, its header %d", len(raw), size)
	}
	header, data := raw[8:8+size], raw[8+size:]
	var tensors map[string]json.RawMessage
	if err := json.Unmarshal(header, &tensors); err != nil {
		s.Fatalf("read the saved adapter: %v", err)
	}
	squares, all := map[string]float64{}, 0.0
	for name, description := range tensors {
		if name == "__metadata__" {
			continue
		}
		var t struct {
			DType   string   `json:"dtype"`
			Offsets [2]int64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(description, &t); err != nil || t.DType != "F32" {
			s.Fatalf("tensor %s of the saved adapter is %s: %v", name, description, err)
		}
		path := strings.Split(name, ".")
		kind := path[len(path)-3] // ….q_proj.lora_A.weight
		for bytes := data[t.Offsets[0]:t.Offsets[1]]; len(bytes) > 0; bytes = bytes[4:] {
			x := float64(math.Float32frombits(binary.LittleEndian.Uint32(bytes)))
			squares[kind] += x * x
			all += x * x
		}
	}
	s.near("the norm of the saved adapter", math.Sqrt(all), metrics["adapter_norm"])
	for kind, squares := range squares {
		s.near("the norm of the saved modules "+kind, math.Sqrt(squares), metrics[plugins.AdapterNormOf(kind)])
	}
}

func (s *suite) near(what string, got, want float64) {
	s.Helper()
	if !(math.Abs(got-want) <= 1e-9*math.Abs(want)) {
		s.Errorf("%s is %v, want %v", what, got, want)
	}
}
