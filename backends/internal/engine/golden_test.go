package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/goldenfiles"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
)

// goldens are folders with tiny random models and what PyTorch, transformers and PEFT compute on them: those that package model has, and in their place all that TINSMITH_TESTDATA names if it is set.
func goldens(t *testing.T) map[string]string {
	t.Helper()
	dirs := map[string]string{}
	if root := os.Getenv("TINSMITH_TESTDATA"); root != "" {
		for _, name := range []string{"llama", "llama-tied", "qwen2", "qwen3", "qwen3-untied"} {
			dirs[name] = filepath.Join(root, "goldens", "torch", name)
		}
		return dirs
	}
	for _, name := range []string{"llama", "qwen2", "qwen3"} {
		dirs[name] = t.TempDir()
		goldenfiles.Unpack(t, filepath.Join("..", "model", "testdata", name), dirs[name])
	}
	return dirs
}

func openGolden(t *testing.T, dir string) *Engine {
	t.Helper()
	e := open(t)
	if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Config: []byte(`{"dtype": "float32"}`)}, nil); err != nil {
		t.Fatal(err)
	}
	return e
}

// Greedy generation and prompt scores are those of transformers, and with an adapter that PEFT wrote those of PEFT. The tolerance is ten times the distance of their float32 from float64.
func TestGenerationGoldens(t *testing.T) {
	for name, dir := range goldens(t) {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(dir, "generate.json"))
			if err != nil {
				t.Fatal(err)
			}
			var want map[string]struct {
				Greedy []struct {
					Prompt, Tokens []int32
					Logprobs       []float64
				}
				Top5 struct {
					Prompt         []int32
					Tokens         [][]int32
					Logprobs       [][]float64
					PromptLogprobs []*float64 `json:"prompt_logprobs"`
				}
			}
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatal(err)
			}
			e := openGolden(t, dir)
			if _, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "lora", Path: filepath.Join(dir, "lora")}); err != nil {
				t.Fatal(err)
			}
			near := func(what string, got float32, want float64) {
				t.Helper()
				if !(math.Abs(float64(got)-want) <= 1e-4) {
					t.Errorf("%s: %v, want %v", what, got, want)
				}
			}
			for adapter, w := range want {
				id := strings.TrimPrefix(adapter, "base")
				for i, g := range w.Greedy {
					q := ask("q", id, g.Prompt, 1, len(g.Tokens))
					q.Temperature = 0
					got, err := collect(t.Context(), e, q)
					if err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(got.sequences[0].Tokens, g.Tokens) {
						t.Fatalf("%s, prompt %d: %v, want %v", adapter, i, got.sequences[0].Tokens, g.Tokens)
					}
					for k := range g.Tokens {
						near(fmt.Sprint(adapter, " token ", k), got.sequences[0].Logprobs[k], g.Logprobs[k])
					}
				}
				q := ask("q", id, w.Top5.Prompt, 1, 0)
				q.PromptLogprobs, q.TopKPromptLogprobs = true, 5
				got, err := collect(t.Context(), e, q)
				if err != nil {
					t.Fatal(err)
				}
				for i := 1; i < len(w.Top5.Prompt); i++ {
					near(fmt.Sprint(adapter, " prompt ", i), got.prompt.Logprobs[i], *w.Top5.PromptLogprobs[i])
					for k := range 5 {
						if got.prompt.Top.IDs[5*i+k] != w.Top5.Tokens[i][k] {
							t.Errorf("%s: likeliest tokens at %d: %v, want %v", adapter, i, got.prompt.Top.IDs[5*i:5*i+5], w.Top5.Tokens[i])
						}
						near(fmt.Sprint(adapter, " likeliest ", i), got.prompt.Top.Logprobs[5*i+k], w.Top5.Logprobs[i][k])
					}
				}
			}
		})
	}
}

// goldenTensors reads a file of float32, float64 and int64 tensors.
func goldenTensors(t *testing.T, path string) map[string][]float64 {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string][]float64{}
	for _, name := range f.Names() {
		v, _ := f.Tensor(name)
		var values []float64
		switch v.DType {
		case "F32":
			single, err := v.Float32s()
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range single {
				values = append(values, float64(x))
			}
		case "F64":
			for i := 0; i < len(v.Data); i += 8 {
				values = append(values, math.Float64frombits(binary.LittleEndian.Uint64(v.Data[i:])))
			}
		case "I64":
			for i := 0; i < len(v.Data); i += 8 {
				values = append(values, float64(int64(binary.LittleEndian.Uint64(v.Data[i:]))))
			}
		default:
			t.Fatalf("%s: type %s", name, v.DType)
		}
		all[name] = values
	}
	return all
}

// apart is the norm of a - b over the norm of b.
func apart(a []float32, b []float64) float64 {
	var difference, size float64
	for i := range b {
		d := float64(a[i]) - b[i]
		difference, size = difference+d*d, size+b[i]*b[i]
	}
	return math.Sqrt(difference / size)
}

// Fifty steps of two accumulated passes each follow torch's: losses, gradient norms, final weights and moments.
func TestTrainingGoldens(t *testing.T) {
	for name, dir := range goldens(t) {
		t.Run(name, func(t *testing.T) {
			want := goldenTensors(t, filepath.Join(dir, "train.safetensors"))
			var data []plugins.Datum
			for k := range 8 {
				d := plugins.Datum{K: 1}
				for i := range want[fmt.Sprint("tokens.", k)] {
					d.Tokens = append(d.Tokens, int32(want[fmt.Sprint("tokens.", k)][i]))
					d.Targets = append(d.Targets, int32(want[fmt.Sprint("targets.", k)][i]))
					d.Weights = append(d.Weights, float32(want[fmt.Sprint("weights.", k)][i]))
				}
				data = append(data, d)
			}
			e := openGolden(t, dir)
			for run, setting := range map[string]struct {
				adapter string
				zeroB   bool
				adam    plugins.AdamParams
			}{
				"adam":       {"lora", true, plugins.AdamParams{Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}},
				"adamw-clip": {"lora-unembed", false, plugins.AdamParams{Beta1: 0.9, Beta2: 0.95, Eps: 1e-12, WeightDecay: 0.01, GradClipNorm: 1}},
			} {
				path := filepath.Join(dir, setting.adapter)
				if setting.zeroB {
					path = withoutB(t, path)
				}
				if _, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: run, Path: path}); err != nil {
					t.Fatal(err)
				}
				d := &driver{t: t, e: e, adapter: run}
				for step := range 50 {
					for half := range 2 {
						k := (2*step + half) % 4
						got := d.pass(data[2*k : 2*k+2]).Metrics["loss:sum"]
						if exact := want[run+".loss_f64"][2*step+half]; math.Abs(got-exact) > 1e-4*math.Abs(exact) {
							t.Fatalf("%s, step %d: loss %v, want %v", run, step, got, exact)
						}
					}
					setting.adam.LearningRate = want[run+".lr"][step]
					r, err := e.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: run, Position: d.position(), Adam: setting.adam})
					if err != nil {
						t.Fatal(err)
					}
					if norm := want[run+".grad_norm"][step]; math.Abs(r.Metrics["grad_norm"]-norm) > 1e-3*norm {
						t.Fatalf("%s, step %d: gradient norm %v, want %v", run, step, r.Metrics["grad_norm"], norm)
					}
				}
				saved := d.save(plugins.ScopeOptimizer)
				weights, moments := tensorsOf(t, filepath.Join(saved, plugins.AdapterWeightsFile)), tensorsOf(t, filepath.Join(saved, plugins.OptimizerFile))
				compared := 0
				for name, w := range weights {
					exact, ok := want[run+".final."+name]
					if !ok {
						continue // what is committed has some of them
					}
					compared++
					if a := apart(w, exact); a > 1e-4 {
						t.Errorf("%s: final %s is %v apart", run, name, a)
					}
					if a := apart(moments[name+".exp_avg"], want[run+".m."+name]); a > 1e-2 {
						t.Errorf("%s: first moment of %s is %v apart", run, name, a)
					}
					if a := apart(moments[name+".exp_avg_sq"], want[run+".v."+name]); a > 1e-2 {
						t.Errorf("%s: second moment of %s is %v apart", run, name, a)
					}
				}
				if compared == 0 {
					t.Errorf("%s: there are no final weights to compare with", run)
				}
			}
		})
	}
}

// withoutB copies an adapter with B set to zero.
func withoutB(t *testing.T, path string) string {
	t.Helper()
	to := t.TempDir()
	config, err := os.ReadFile(filepath.Join(path, plugins.AdapterConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, plugins.AdapterConfigFile), config, 0o644); err != nil {
		t.Fatal(err)
	}
	in, err := safetensors.Open(filepath.Join(path, plugins.AdapterWeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var sources []safetensors.Source
	for _, name := range in.Names() {
		tensor, _ := in.Tensor(name)
		sources = append(sources, safetensors.Float32Source(name, tensor.Shape, func() ([]float32, error) {
			values, err := tensor.Float32s()
			if strings.Contains(name, "lora_B") {
				clear(values)
			}
			return values, err
		}))
	}
	out, err := os.Create(filepath.Join(to, plugins.AdapterWeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, _, err := safetensors.Write(out, nil, sources); err != nil {
		t.Fatal(err)
	}
	return to
}
