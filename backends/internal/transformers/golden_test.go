package transformers

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/simple"
)

// golden is an open file of expected values.
type golden struct {
	t *testing.T
	*safetensors.File
}

func openGolden(t *testing.T, path ...string) golden {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return golden{t, f}
}

func (g golden) floats(name string) []float32 {
	g.t.Helper()
	x, ok := g.Tensor(name)
	if !ok {
		g.t.Fatalf("no golden %s", name)
	}
	v, err := x.Float32s()
	if err != nil {
		g.t.Fatal(err)
	}
	return v
}

// numbers gives a golden of float64 or int64.
func (g golden) numbers(name string) []float64 {
	g.t.Helper()
	x, ok := g.Tensor(name)
	if !ok || (x.DType != "F64" && x.DType != "I64") {
		g.t.Fatalf("no golden %s of float64 or int64", name)
	}
	v := make([]float64, len(x.Data)/8)
	for i := range v {
		bits := binary.LittleEndian.Uint64(x.Data[8*i:])
		if v[i] = math.Float64frombits(bits); x.DType == "I64" {
			v[i] = float64(int64(bits))
		}
	}
	return v
}

func (g golden) ids(name string) (ids []int32) {
	g.t.Helper()
	for _, x := range g.numbers(name) {
		ids = append(ids, int32(x))
	}
	return ids
}

func furthest(got []float32, want []float64) float64 {
	most := 0.0
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - w); !(d <= most) {
			most = d
		}
	}
	return most
}

// relative is the norm of the difference over the norm of what is wanted.
func relative(got []float64, want []float32) float64 {
	difference, norm := 0.0, 0.0
	for i, w := range want {
		difference += (got[i] - float64(w)) * (got[i] - float64(w))
		norm += float64(w) * float64(w)
	}
	if norm == 0 {
		return math.Sqrt(difference)
	}
	return math.Sqrt(difference / norm)
}

// goldenModel is a model with the values of transformers and PEFT for it.
type goldenModel struct {
	name    string
	dir     func() string // of the model
	base    string        // file of the base model's values
	values  string        // file of the adapter's values
	adapter string        // its folder
	sums    string        // file of its losses
	key     string        // of that file, "" if it has the losses at its top
}

func goldenModels(t *testing.T) []goldenModel {
	var all []goldenModel
	for _, name := range []string{"llama", "qwen2", "qwen3"} {
		dir := goldenDir(t, name)
		for _, adapter := range []string{"lora", "lora-unembed"} {
			all = append(all, goldenModel{
				name: name, dir: func() string { return dir }, base: filepath.Join(dir, "values", "base.safetensors"),
				values: filepath.Join(dir, "values", adapter+".safetensors"), adapter: filepath.Join(dir, adapter), sums: filepath.Join(dir, "losses.json"), key: adapter,
			})
		}
	}
	for _, name := range []string{"gpt-oss", "qwen3-moe-mixed"} {
		dir := goldenDir(t, name)
		all = append(all, goldenModel{
			name: "committed-" + name, dir: func() string { return dir }, base: filepath.Join(dir, "values", "base.safetensors"),
			values: filepath.Join(dir, "values", "tinker.safetensors"), adapter: filepath.Join(dir, "tinker"), sums: filepath.Join(dir, "losses-tinker.json"),
		})
	}
	if root := os.Getenv("TINSMITH_TESTDATA"); root != "" {
		for _, name := range []string{"qwen3-moe", "qwen3-moe-mixed", "qwen3.5", "qwen3.5-moe"} {
			of, at := filepath.Join(root, "families", name), filepath.Join(root, "goldens", "torch", name)
			all = append(all, goldenModel{
				name: name, base: filepath.Join(at, "base.safetensors"), values: filepath.Join(of, "tinker.safetensors"), adapter: filepath.Join(of, "tinker"), sums: filepath.Join(of, "losses-tinker.json"),
				dir: func() string {
					to := t.TempDir()
					for _, f := range []string{"config.json", "model.safetensors"} {
						if err := os.Symlink(filepath.Join(at, f), filepath.Join(to, f)); err != nil {
							t.Fatal(err)
						}
					}
					return to
				},
			})
		}
	} else {
		t.Log("mixtures and gated delta rules are compared with TINSMITH_TESTDATA only")
	}
	return all
}

// adapter reads an adapter's file into weights.
func (g goldenModel) weights(t *testing.T, m simple.Model) (simple.Weights, []string) {
	t.Helper()
	f := openGolden(t, g.adapter, "adapter_model.safetensors")
	raw, err := os.ReadFile(filepath.Join(g.adapter, "adapter_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Rank  int     `json:"r"`
		Alpha float64 `json:"lora_alpha"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	modules := m.Modules()
	name := func(i int, half string) string {
		path := modules[i].Path
		if _, ok := f.Tensor("base_model.model." + path + "." + half + ".weight"); !ok && modules[i].Group == simple.Unembed {
			path = "model.unembed_tokens"
		}
		return "base_model.model." + path + "." + half + ".weight"
	}
	l := simple.NewLayout(modules, c.Rank, func(i int) bool { _, ok := f.Tensor(name(i, "lora_A")); return ok })
	l.Alpha = c.Alpha
	w := simple.NewWeights(l)
	names := make([]string, len(l.Tensors))
	for i, x := range l.Tensors {
		names[i] = name(x.Module, x.Half)
		copy(w.Of(x), f.floats(names[i]))
	}
	if len(names) != len(f.Names()) {
		t.Fatalf("%d of the file's %d tensors belong to a module: %v", len(names), len(f.Names()), f.Names())
	}
	return w, names
}

// TestGoldens compares log-probabilities, losses and gradients with those of transformers and PEFT: 1e-4, as the engine's.
func TestGoldens(t *testing.T) {
	python(t)
	for _, g := range goldenModels(t) {
		t.Run(g.name+"/"+g.key, func(t *testing.T) {
			l := sharedWorker(t, "golden-"+g.name, g.dir, nil)
			b, info := l.backend(t)
			m := b.model
			base, values := openGolden(t, g.base), openGolden(t, g.values)
			for _, n := range []string{"0", "1", "2", "3", "4"} {
				d := plugins.Datum{Tokens: base.ids("tokens." + n), Targets: base.ids("targets." + n), K: 1}
				d.Weights = make([]float32, len(d.Tokens))
				_, lps, _, err := simple.Loss(t.Context(), m, nil, &d, "cross_entropy", nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				if off := furthest(lps, base.numbers("logprobs_f64."+n)); !(off <= 1e-4) {
					t.Errorf("%s, base, sequence %s: log-probabilities are off by %g", info.Architecture, n, off)
				}
			}
			raw, err := os.ReadFile(g.sums)
			if err != nil {
				t.Fatal(err)
			}
			type sums map[string]struct {
				Sum float64 `json:"loss_sum_f64"`
			}
			var want sums
			if g.key != "" {
				var all map[string]sums
				err = json.Unmarshal(raw, &all)
				want = all[g.key]
			} else {
				err = json.Unmarshal(raw, &want)
			}
			if err != nil {
				t.Fatal(err)
			}
			w, names := g.weights(t, m)
			checked := 0
			for loss, settings := range map[string]map[string]float64{"cross_entropy": nil, "importance_sampling": nil, "ppo": nil, "cispo": nil, "dro": {"beta": 0.05}} {
				config, err := plugins.ResolveLossConfig(loss, settings)
				if err != nil {
					t.Fatal(err)
				}
				grad, total, size := make([]float64, w.Layout.Total), 0.0, 0.0
				for _, n := range []string{"0", "1", "2", "3", "4"} {
					d := plugins.Datum{Tokens: base.ids("tokens." + n), Targets: base.ids("targets." + n), K: 1}
					if loss == "cross_entropy" {
						d.Weights = values.floats("in.weights." + n)
					} else {
						d.Logprobs, d.Advantages = values.floats("in.logprobs."+n), values.floats("in.advantages."+n)
					}
					sum, lps, terms, err := simple.Loss(t.Context(), m, &w, &d, loss, config, grad)
					if err != nil {
						t.Fatal(err)
					}
					total += sum
					for _, x := range terms {
						size += math.Abs(float64(x))
					}
					if off := furthest(lps, values.numbers("logprobs_f64."+n)); !(off <= 1e-4) {
						t.Errorf("%s, sequence %s: log-probabilities are off by %g", loss, n, off)
					}
				}
				if off := math.Abs(total-want[loss].Sum) / size; !(off <= 1e-5) {
					t.Errorf("%s: loss %v, want %v", loss, total, want[loss].Sum)
				}
				for i, x := range w.Layout.Tensors {
					name := "grad." + loss + "." + names[i]
					if _, ok := values.Tensor(name); !ok {
						continue // not committed
					}
					checked++
					if off := relative(grad[x.Offset:][:x.Size()], values.floats(name)); !(off <= 1e-4) {
						t.Errorf("%s is off by %g of its norm", name, off)
					}
				}
			}
			if checked == 0 {
				t.Errorf("no gradient was compared: %s", strings.Join(values.Names(), " "))
			}
		})
	}
}

// TestForeignGradients compares gradients of families that no other backend has with differences of the loss along random directions.
func TestForeignGradients(t *testing.T) {
	for _, family := range []string{"gemma2", "glm4", "mixtral", "gpt_neox", "gpt_oss"} {
		t.Run(family, func(t *testing.T) {
			l := sharedWorker(t, "foreign-"+family, func() string { return foreignDir(t, family) }, nil)
			b, info := l.backend(t)
			w := simple.NewWeights(simple.NewLayout(b.model.Modules(), 2, func(int) bool { return true }))
			for _, x := range w.Layout.Tensors {
				for i := range w.Of(x) {
					w.Of(x)[i] = float32(0.2 * math.Sin(float64(7*x.Offset+3*i+1)))
				}
			}
			d := plugins.Datum{K: 1}
			for i := range 40 {
				d.Tokens = append(d.Tokens, int32((i*i*7+3*i+5)%info.VocabSize))
				d.Targets = append(d.Targets, int32((i*i*5+i+2)%info.VocabSize))
				d.Weights = append(d.Weights, float32(i%3)/2)
			}
			loss := func(w *simple.Weights, grad []float64) float64 {
				t.Helper()
				total, _, _, err := simple.Loss(t.Context(), b.model, w, &d, "cross_entropy", nil, grad)
				if err != nil {
					t.Fatal(err)
				}
				return total
			}
			grad := make([]float64, w.Layout.Total)
			loss(&w, grad)
			groups := map[simple.Group]bool{}
			for n, x := range w.Layout.Tensors {
				module := b.model.Modules()[x.Module]
				groups[module.Group] = true
				norm, direction := 0.0, make([]float64, x.Size())
				for i := range direction {
					direction[i] = grad[x.Offset+i] // where the slope is steepest, so that rounding shows least
					norm += direction[i] * direction[i]
				}
				if norm = math.Sqrt(norm); !(norm > 1e-4) {
					t.Errorf("%s.%s: the gradient's norm is %g", module.Path, x.Half, norm)
					continue
				}
				step := min(2e-3, 0.05/norm) // so far that the loss changes by more than rounding, and by little
				at := func(sign float64) float64 {
					moved := simple.NewWeights(w.Layout)
					copy(moved.Values, w.Values)
					for i, v := range direction {
						moved.Of(x)[i] += float32(sign * step * v / norm)
					}
					total := loss(&moved, nil)
					b.model.Forget(&moved)
					return total
				}
				got := 0.0
				for range 5 { // on the way of a step another expert may be chosen, or a gate be cut off: of a right gradient a smaller step then says more
					if got = (at(1) - at(-1)) / (2 * step); math.Abs(got-norm) <= 2e-2*norm+2e-2 {
						break
					}
					step /= 2
				}
				if math.Abs(got-norm) > 2e-2*norm+2e-2 {
					t.Errorf("tensor %d, %s.%s: differences say %g, the gradient %g", n, module.Path, x.Half, got, norm)
				}
			}
			if len(groups) != 3 {
				t.Errorf("modules of %v only", groups)
			}
		})
	}
}
