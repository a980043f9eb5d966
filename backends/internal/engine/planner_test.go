package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/plugins"
)

var writePlans = flag.Bool("write-plans", false, "write the plans of testdata/plans anew")

// planningEngine is an engine that has no goroutine: nothing is loaded.
func planningEngine(plugin string) *Engine {
	return &Engine{options: Options{Plugin: plugin, Registry: architectures.All()}}
}

// planOf gives the plan of a model for a request.
func planOf(t *testing.T, dir string, req plugins.PlanRequest) plugins.Plan {
	t.Helper()
	req.ModelDir = dir
	p, err := planningEngine(pluginSingle).PlanMemory(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPlannedForPublishedModels: plans of published shapes that are too large for any machine that tests run on, from their config.json alone.
func TestPlannedForPublishedModels(t *testing.T) {
	gpus := plugins.PlanRequest{Device: "cuda", Devices: 8, Memory: 80 << 30}
	for _, c := range []struct {
		shape      string
		request    plugins.PlanRequest
		parameters int64 // of an adapter, for each unit of rank, as the official service counts them; 0 = it has no such model
		least      int64 // bytes of weights
		most       int64
	}{
		{"qwen3-32b", gpus, 0, 65_000_000_000, 66_000_000_000},
		{"qwen3-235b-a22b", gpus, 56_598_528 + 3_176_448 + 156_032, 470_000_000_000, 471_000_000_000},
		{"qwen3.5-27b", gpus, 4_325_376 + 2_965_504 + 253_440, 53_000_000_000, 54_500_000_000},
		{"qwen3.5-397b-a17b", plugins.PlanRequest{Device: "cuda", Devices: 8, Memory: 141 << 30}, 96_030_720 + 2_841_600 + 252_416, 792_000_000_000, 794_000_000_000},
		{"gpt-oss-20b", gpus, 6_842_880 + 497_664 + 203_968, 41_500_000_000, 42_500_000_000},
		{"gpt-oss-120b", plugins.PlanRequest{Device: "cuda", Devices: 8, Memory: 141 << 30}, 40_124_160 + 746_496 + 203_968, 233_000_000_000, 235_000_000_000},
	} {
		t.Run(c.shape, func(t *testing.T) {
			dir := filepath.Join("testdata", "plans", c.shape)
			if _, err := planningEngine(pluginSingle).PlanMemory(t.Context(), plugins.PlanRequest{ModelDir: dir}); err != nil && strings.Contains(err.Error(), "is not supported") {
				t.Skipf("there is no such architecture yet: %v", err)
			}
			p := planOf(t, dir, c.request)
			if c.parameters != 0 && p.Adapter.Parameters != referenceRank*c.parameters {
				t.Errorf("an adapter has %d parameters, want %d", p.Adapter.Parameters, referenceRank*c.parameters)
			}
			if w := p.Model.WeightBytes; w < c.least || w > c.most {
				t.Errorf("the weights take %d bytes", w)
			}
			got, err := json.MarshalIndent(p, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			path := filepath.Join(dir, "plan.json")
			if *writePlans {
				if err := os.WriteFile(path, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the plan is another than %s has (-write-plans writes it):\n%s", path, got)
			}
		})
	}
}

// TestPlannedForHostileModels: sizes that a configuration claims are refused, or planned with without memory or time in their proportion.
func TestPlannedForHostileModels(t *testing.T) {
	dense := map[string]any{"architectures": []string{"Qwen3ForCausalLM"}, "num_hidden_layers": 1, "hidden_size": 2, "intermediate_size": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 2, "max_position_embeddings": 16}
	experts := map[string]any{"architectures": []string{"Qwen3MoeForCausalLM"}, "num_experts": 4096, "num_experts_per_tok": 64, "moe_intermediate_size": 1}
	recurrent := map[string]any{"architectures": []string{"Qwen3_5ForCausalLM"}, "linear_num_key_heads": 4096, "linear_num_value_heads": 4096, "linear_key_head_dim": 256, "linear_value_head_dim": 256, "linear_conv_kernel_dim": 4, "head_dim": 8}
	for _, c := range []struct {
		name    string
		changes []map[string]any
		request plugins.PlanRequest
		want    string // of the error; "" = there is a plan, which fits nothing or does
	}{
		{"largest", []map[string]any{{"num_hidden_layers": 1 << 10, "hidden_size": 1 << 18, "intermediate_size": 1 << 20, "num_attention_heads": 1 << 12, "num_key_value_heads": 1 << 12, "head_dim": 1 << 12, "vocab_size": 1 << 24}}, plugins.PlanRequest{}, "parameters"},
		{"more than the largest", []map[string]any{{"num_hidden_layers": 1 << 11}}, plugins.PlanRequest{}, "num_hidden_layers"},
		{"largest experts", []map[string]any{experts, {"num_hidden_layers": 1 << 10, "hidden_size": 1 << 18, "moe_intermediate_size": 1 << 20}}, plugins.PlanRequest{}, "parameters"},
		{"many small experts", []map[string]any{experts, {"num_hidden_layers": 1 << 8, "max_position_embeddings": 1}}, plugins.PlanRequest{Devices: 2}, ""},
		{"large states", []map[string]any{recurrent, {"hidden_size": 2, "num_hidden_layers": 1 << 10}}, plugins.PlanRequest{}, ""},
		{"long positions", []map[string]any{{"max_position_embeddings": 1 << 24}}, plugins.PlanRequest{}, "context"},
		{"long positions, of which some are asked for", []map[string]any{{"max_position_embeddings": 1 << 24}}, plugins.PlanRequest{Context: 1 << 20, Devices: 1}, ""},
		{"large heads", []map[string]any{{"num_hidden_layers": 1 << 10, "num_attention_heads": 1 << 12, "num_key_value_heads": 1 << 12, "head_dim": 1 << 10, "max_position_embeddings": 1 << 20}}, plugins.PlanRequest{}, "out of device memory"},
		{"much memory", nil, plugins.PlanRequest{Memory: 1 << 47}, "memory"},
		{"many devices", nil, plugins.PlanRequest{Devices: 65}, "devices"},
		{"large rank", nil, plugins.PlanRequest{Rank: 1 << 30}, "rank"},
		{"long context", nil, plugins.PlanRequest{Context: 1 << 30}, "context"},
		{"context beyond the model's", nil, plugins.PlanRequest{Context: 1 << 19}, "context"},
		{"another device", nil, plugins.PlanRequest{Device: "tpu"}, "device"},
		{"another type", nil, plugins.PlanRequest{DType: "int8"}, "dtype"},
		{"GPUs of unknown memory", nil, plugins.PlanRequest{Device: "cuda"}, "memory"},
		{"another setting", nil, plugins.PlanRequest{Config: []byte(`{"thread": 1}`)}, "thread"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := family{config: maps.Clone(dense)}
			for _, change := range c.changes {
				maps.Copy(f.config, change)
			}
			if c.request.Memory == 0 && c.request.Device == "" {
				c.request.Memory = 64 << 30
			}
			if c.request.Devices == 0 {
				c.request.Devices = 8
			}
			c.request.ModelDir = f.writeConfig(t)
			p, err := planningEngine(pluginSingle).PlanMemory(t.Context(), c.request)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want one about %s", err, c.want)
			}
			for _, q := range p.Placements {
				for _, d := range q.Devices {
					if min(d.WeightBytes, d.SamplerBytes, d.CacheBytes, d.LeftBytes) < 0 {
						t.Errorf("%s: %+v", q.Name, d)
					}
				}
			}
		})
	}
}

// TestPlannedAdvice: what does not fit is said, and what would.
func TestPlannedAdvice(t *testing.T) {
	f := families(4, 256, 8192, 4096)[0]
	dir := f.write(t)
	for _, c := range []struct {
		name    string
		request plugins.PlanRequest
		fits    string
		want    []string
	}{
		{"fits", plugins.PlanRequest{Memory: 1 << 30}, plugins.FitsTraining, nil},
		{"a longer datum", plugins.PlanRequest{Memory: 200 << 20}, plugins.FitsTraining, []string{"A datum of 4096 tokens does not train here"}},
		{"a smaller rank", plugins.PlanRequest{Memory: 400 << 20, Rank: 512}, plugins.FitsSampling, []string{"no adapter of rank 512 can be trained. With --rank 64 one can.", "For rank 512 the model does not fit. It would with about"}},
		{"more memory", plugins.PlanRequest{Memory: 10 << 20}, plugins.FitsNothing, []string{"The model does not fit. It would with about", "With --dtype bfloat16"}},
		{"a shorter context", plugins.PlanRequest{Memory: 60 << 20, Context: 4096, Rank: 1}, plugins.FitsNothing, []string{"With a context of at most"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := planOf(t, dir, c.request)
			text := strings.Join(p.Advice, " ")
			if p.Placements[0].Fits != c.fits || len(c.want) == 0 && text != "" {
				t.Errorf("it is good for %s (%s): %s", p.Placements[0].Fits, p.Placements[0].Reason, text)
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("%q does not have %q", text, want)
				}
			}
		})
	}
	t.Run("more devices", func(t *testing.T) {
		p := planOf(t, filepath.Join("testdata", "plans", "qwen3-32b"), plugins.PlanRequest{Device: "cuda", Devices: 1, Memory: 40 << 30})
		if text := strings.Join(p.Advice, " "); !strings.Contains(text, "or on 4 devices with as much each (tensorparallel 4)") || !strings.Contains(text, "FP8") {
			t.Error(text)
		}
	})
}

// TestPlannedAsConfigured: a section's own placement is planned first.
func TestPlannedAsConfigured(t *testing.T) {
	f := families(2, 64, 512, 1024)[0]
	p, err := planningEngine(pluginTensorParallel).PlanMemory(t.Context(), plugins.PlanRequest{ModelDir: f.write(t), Memory: 1 << 30, Config: []byte(`{"plugin": "tensorparallel", "devices": ["cpu", "cpu"], "sample_devices": ["cpu"], "max_batch": 3}`)})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, q := range p.Placements {
		names = append(names, q.Name)
	}
	if q := p.Placements[0]; q.Name != "as configured" || q.Fits != plugins.FitsTraining || q.Sequences != 3 || q.Plugin != pluginTensorParallel || p.Machine.Devices != 3 {
		t.Errorf("%v, %+v", names, q)
	}
	if !slices.Contains(names, "tensorparallel 3") {
		t.Errorf("%v", names)
	}
}

// TestPlannedFromWhatIsThere: headers, index and config.json say the same.
func TestPlannedFromWhatIsThere(t *testing.T) {
	for _, f := range families(4, 64, 512, 1024) {
		t.Run(f.name, func(t *testing.T) {
			request := plugins.PlanRequest{Memory: 1 << 30, Devices: 2}
			want := planOf(t, f.write(t), request)
			if want.Model.Source != "the headers of the weights' files" {
				t.Errorf("the source is %q", want.Model.Source)
			}
			for source, dir := range map[string]string{"config.json and the weights' index": f.writeIndex(t, ""), "config.json alone": f.writeConfig(t)} {
				got := planOf(t, dir, request)
				if got.Model.Source != source {
					t.Errorf("the source is %q, want %q", got.Model.Source, source)
				}
				got.Model.Source = want.Model.Source
				if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); a != b {
					t.Errorf("by %s:\n%s\nwant\n%s", source, a, b)
				}
			}
			missing := "model.layers.1.self_attn.o_proj.weight"
			if f.name == "recurrent" {
				missing = "model.layers.1.linear_attn.A_log"
			}
			if _, err := planningEngine(pluginSingle).PlanMemory(t.Context(), plugins.PlanRequest{ModelDir: f.writeIndex(t, missing)}); err == nil || !strings.Contains(err.Error(), missing) {
				t.Errorf("an index without %s: %v", missing, err)
			}
		})
	}
}

// TestPlannedTypes: what is not there has the type that config.json says, or that is asked for; quantized weights are bfloat16 in memory.
func TestPlannedTypes(t *testing.T) {
	weights := func(f family, request plugins.PlanRequest) int64 {
		request.Memory = 1 << 30
		p := planOf(t, f.writeConfig(t), request)
		return p.Model.WeightBytes
	}
	f := families(2, 64, 512, 1024)[0]
	wide := weights(f, plugins.PlanRequest{})
	if narrow := weights(f, plugins.PlanRequest{DType: "bfloat16"}); narrow >= wide*2/3 || 2*narrow <= wide { // vectors and the table of positions stay float32
		t.Errorf("%d bytes in float32, %d in bfloat16", wide, narrow)
	}
	f.config["torch_dtype"] = "bfloat16"
	plain := weights(f, plugins.PlanRequest{})
	f.config["quantization_config"] = map[string]any{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": []int{128, 128}}
	if expanded := weights(f, plugins.PlanRequest{Config: []byte(`{"weights": "bf16"}`)}); expanded != plain || plain >= wide {
		t.Errorf("%d bytes in float32, %d in bfloat16, %d expanded from FP8", wide, plain, expanded)
	}
	if kept, named := weights(f, plugins.PlanRequest{}), weights(f, plugins.PlanRequest{Config: []byte(`{"weights": "fp8"}`)}); kept >= plain || kept != named {
		t.Errorf("%d bytes in bfloat16, %d in FP8, %d where that is asked for", plain, kept, named)
	}
	if gpu := weights(f, plugins.PlanRequest{Device: "cuda"}); gpu >= plain*3/4 {
		t.Errorf("%d bytes in bfloat16, %d on a GPU, which keeps them in FP8 too", plain, gpu)
	}
}

// TestPlannedIsWhatTheServerPlans: the plan that is made before has the figures of the one that is made when the model is loaded, under every placement.
func TestPlannedIsWhatTheServerPlans(t *testing.T) {
	for _, f := range families(4, 64, 512, 1024) {
		dir := f.write(t)
		before := planOf(t, dir, plugins.PlanRequest{Config: []byte(`{"memory_mib": 200, "max_batch": 8}`), Device: "cpu", Devices: 2})
		for _, p := range before.Placements {
			t.Run(f.name+" "+p.Name, func(t *testing.T) {
				section := map[string]any{"memory_mib": 200, "max_batch": 8, "threads": 1}
				var keys map[string]any
				if err := json.Unmarshal(p.Config, &keys); err != nil {
					t.Fatal(err)
				}
				for k, v := range keys {
					section[k] = v
				}
				raw, err := json.Marshal(section)
				if err != nil {
					t.Fatal(err)
				}
				o := testOptions()
				o.Plugin = p.Plugin
				e := New(o)
				t.Cleanup(func() {
					if err := e.Close(); err != nil {
						t.Error(err)
					}
				})
				_, err = e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "random", Config: raw, Scratch: t.TempDir()}, nil)
				if err != nil {
					var own *plugins.Error
					if p.Fits != plugins.FitsNothing || !errors.As(err, &own) || !strings.Contains(own.Message, p.Reason) {
						t.Errorf("the server says %v, the plan %q", err, p.Reason)
					}
					return
				}
				hook(t, e, func() {
					q := &e.loaded.plan
					d := q.devices[0]
					got := plugins.PlannedDevice{Name: "cpu", LimitBytes: d.limit, WeightBytes: d.weights, SamplerBytes: d.sampling, CacheBytes: d.cache, OtherBytes: d.recorded + d.exchange, LeftBytes: d.rest()}
					if len(p.Devices) != 1 || got != p.Devices[0] {
						t.Errorf("the server has %+v, the plan %+v", got, p.Devices)
					}
					if q.positions != p.CacheTokens || q.context != p.Context || q.batchTokens != p.BatchTokens || q.training != p.TrainingBytes || q.adapters != p.AdapterBytes {
						t.Errorf("the server has %+v, the plan %+v", q, p)
					}
				})
			})
		}
	}
}
