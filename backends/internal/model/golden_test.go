package model_test

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/goldenfiles"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/optim"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// goldens lists the folders with the outputs of PyTorch, transformers and PEFT for tiny random models (see testdata/README.md): those committed, unpacked, and with TINSMITH_TESTDATA set
// all the others too.
func goldens(t *testing.T) []string {
	t.Helper()
	dirs := []string{unpack(t, "llama"), unpack(t, "qwen2"), unpack(t, "qwen3")}
	if root := os.Getenv("TINSMITH_TESTDATA"); root != "" {
		for _, name := range []string{"llama", "llama-tied", "qwen2", "qwen3", "qwen3-untied", "qwen3-moe", "qwen3-moe-mixed"} {
			dirs = append(dirs, filepath.Join(root, "goldens", "torch", name))
		}
	}
	return dirs
}

// oneGolden, if it is not empty, is the only model of goldensAndOdd and of TestBFloat16Gradients, which then has one loss, for a device that is slow.
var oneGolden string

// families are the folders of testdata/families.py, which have no training runs.
var families = []string{"mistral", "phi3", "longrope", "smollm3", "yarn", "yarn-exact"}

// goldensAndOdd adds folders that have no training runs.
func goldensAndOdd(t *testing.T) []string {
	t.Helper()
	if oneGolden != "" {
		return []string{unpack(t, oneGolden)}
	}
	dirs := append(goldens(t), unpack(t, "odd"))
	for _, name := range families {
		dirs = append(dirs, unpack(t, name))
	}
	return dirs
}

// tinkerModels are folders that have no adapters of PEFT, but for those of models with linear attention.
var tinkerModels = []string{"qwen3-moe-mixed", "gpt-oss", "qwen3-vl", "mistral-window", "phi3-window", "qwen3-window"}

// withTinkerModels adds the folders of models that have no adapters of PEFT.
func withTinkerModels(t *testing.T, dirs []string) []string {
	t.Helper()
	if oneGolden != "" {
		return dirs
	}
	for _, name := range tinkerModels {
		dirs = append(dirs, unpack(t, name))
	}
	return dirs
}

// unpack gives a folder with the decompressed files of testdata/NAME.
func unpack(t *testing.T, name string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), name)
	goldenfiles.Unpack(t, filepath.Join("testdata", name), to)
	return to
}

// golden is an open file of expected values.
type golden struct {
	t *testing.T
	*safetensors.File
}

func open(t *testing.T, path ...string) golden {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return golden{t, f}
}

func (g golden) has(name string) bool { _, ok := g.Tensor(name); return ok }

// rank is that of an adapter's first tensor, which is an A.
func (g golden) rank() int {
	x, _ := g.Tensor(g.Names()[0])
	return x.Shape[len(x.Shape)-2]
}

// names gives the names that a module's matrix has in the file: one, or one for each expert, ascending; none if it is not there.
func (g golden) names(prefix string, m lora.Module, matrix string) []string {
	for _, convention := range []lora.Names{lora.PEFT, lora.Tinker} {
		if name := prefix + lora.TensorName(m.Name, matrix, convention); g.has(name) {
			return []string{name}
		}
	}
	var names []string
	for e := range m.Experts {
		name := prefix + lora.TensorName(m.OfExpert(e), matrix, lora.PEFT)
		if !g.has(name) {
			return nil
		}
		names = append(names, name)
	}
	return names
}

// all are the values of a module's matrix, nil if it is not there.
func (g golden) all(prefix string, m lora.Module, matrix string) []float32 {
	g.t.Helper()
	var values []float32
	for _, name := range g.names(prefix, m, matrix) {
		values = append(values, g.floats(name)...)
	}
	return values
}

// copies is how many of a module's matrix there are.
func (g golden) copies(m lora.Module, matrix string) int {
	names := g.names("", m, matrix)
	if x, _ := g.Tensor(names[0]); len(x.Shape) == 3 {
		return x.Shape[0]
	}
	return len(names)
}

// eachMatrix calls visit for every matrix of parameters.
func eachMatrix(p *lora.Parameters, visit func(m lora.Module, matrix string, x tensor.Tensor)) {
	for i, m := range p.Layout.Modules {
		if p.Layout.Has(i) {
			visit(m, "A", p.A(i))
			visit(m, "B", p.B(i))
		}
	}
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

func (g golden) doubles(name string) []float64 {
	g.t.Helper()
	x, ok := g.Tensor(name)
	if !ok || x.DType != "F64" {
		g.t.Fatalf("no golden %s of float64", name)
	}
	v := make([]float64, len(x.Data)/8)
	for i := range v {
		v[i] = math.Float64frombits(binary.LittleEndian.Uint64(x.Data[8*i:]))
	}
	return v
}

func (g golden) ids(name string) []int32 {
	g.t.Helper()
	x, ok := g.Tensor(name)
	if !ok || x.DType != "I64" {
		g.t.Fatalf("no golden %s of int64", name)
	}
	v := make([]int32, len(x.Data)/8)
	for i := range v {
		v[i] = int32(binary.LittleEndian.Uint64(x.Data[8*i:]))
	}
	return v
}

func TestLogprobsAgreeWithTransformers(t *testing.T) {
	for _, dir := range append(withTinkerModels(t, goldensAndOdd(t)), hybrids(t)...) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			b := newBench(t, dir, tensor.Float32, 2)
			base := open(t, dir, "base.safetensors")
			var all []model.Example
			for _, n := range []string{"0", "1", "2", "3", "4"} {
				e := b.example(nil, base.ids("tokens."+n), base.ids("targets."+n), nil)
				all = append(all, e)
				got := b.train(model.TrainOptions{}, e)[0].Logprobs
				if d := furthest(got, base.doubles("logprobs_f64."+n)); !(d <= 1e-4) {
					t.Errorf("sequence %s: log-probabilities are off by %g", n, d)
				}
			}
			for i, o := range b.train(model.TrainOptions{}, all...) {
				if d := furthest(o.Logprobs, base.doubles("logprobs_f64."+string(rune('0'+i)))); !(d <= 1e-4) {
					t.Errorf("sequence %d of a batch: log-probabilities are off by %g", i, d)
				}
			}
		})
	}
}

// TestFamiliesOfSharedData has models of transformers' classes that are not committed: of families; as they are published, with text_config, names below model.language_model, what is left out beside, and vectors in float32 among weights
// in bfloat16, whose rounding would be seen; and in other layouts of the files.
func TestFamiliesOfSharedData(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set")
	}
	for _, c := range []struct{ name, values string }{ // values: a golden model of the same weights; "" = its own
		{"mistral", ""}, {"phi3", ""}, {"smollm3", ""}, {"qwen3-yarn", ""}, {"qwen3-next", ""}, {"published-qwen3.5", ""}, {"published-qwen3.5-moe", ""},
		{"layout-qwen3.5-moe-split", "qwen3.5-moe"}, {"layout-qwen3-vl-moe", "qwen3-moe"}, {"gpt-oss", ""}, {"gpt-oss-mxfp4", "../../families/gpt-oss"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(root, "families", c.name)
			b := newBench(t, dir, tensor.Float32, 2)
			if c.values != "" {
				dir = filepath.Join(root, "goldens", "torch", c.values)
			}
			base := open(t, dir, "base.safetensors")
			for _, n := range []string{"0", "1", "2", "3", "4"} {
				got := b.train(model.TrainOptions{}, b.example(nil, base.ids("tokens."+n), base.ids("targets."+n), nil))[0].Logprobs
				if d := furthest(got, base.doubles("logprobs_f64."+n)); !(d <= 1e-4) {
					t.Errorf("sequence %s: log-probabilities are off by %g", n, d)
				}
			}
		})
	}
}

// TestBFloat16Weights loads the float32 files as bfloat16, which must give log-probabilities near those of float32 arithmetic on rounded weights.
func TestBFloat16Weights(t *testing.T) {
	for _, dir := range append(withTinkerModels(t, goldensAndOdd(t)), hybrids(t)...) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			b := newBench(t, dir, tensor.BFloat16, 2)
			base := open(t, dir, "base.safetensors")
			for _, n := range []string{"2", "3", "4"} {
				want := base.floats("logprobs_bf16weights." + n)
				got := b.train(model.TrainOptions{}, b.example(nil, base.ids("tokens."+n), base.ids("targets."+n), nil))[0].Logprobs
				if d := relative(got, want); !(d <= 1e-2) {
					t.Errorf("sequence %s: log-probabilities are off by %g of their norm", n, d)
				}
			}
		})
	}
}

var lossSettings = map[string]map[string]float64{"cross_entropy": nil, "importance_sampling": nil, "ppo": nil, "cispo": nil, "dro": {"beta": 0.05}}

// losses gives the examples of a golden adapter for a loss, with one gradient.
func (b *bench) losses(name string, w *lora.Weights, g *lora.Gradient, base, values golden) []model.Example {
	b.t.Helper()
	l, err := loss.New(name, lossSettings[name])
	if err != nil {
		b.t.Fatal(err)
	}
	var all []model.Example
	for _, n := range []string{"0", "1", "2", "3", "4"} {
		e := b.example(w, base.ids("tokens."+n), base.ids("targets."+n), nil)
		e.Loss, e.Gradient = l, g
		e.Inputs = loss.Inputs{Logprobs: values.floats("in.logprobs." + n), Advantages: values.floats("in.advantages." + n)}
		if name == "cross_entropy" {
			e.Inputs = loss.Inputs{Weights: values.floats("in.weights." + n)}
		}
		all = append(all, e)
	}
	return all
}

// adapterGolden is an adapter with what is expected of it.
type adapterGolden struct {
	name, model     string
	adapter, values string // the adapter's file and that with its log-probabilities and gradients
	losses, entry   string // the file with the losses, and where they are in it
	train           string // the training runs
	first, second   string // the adapters that these begin with
}

// tinkerAdapters are adapters in the layout of the Tinker service. TINSMITH_TESTDATA has all their losses and weights.
func tinkerAdapters(t *testing.T) []adapterGolden {
	t.Helper()
	var all []adapterGolden
	add := func(name, model, adapters string) {
		file := filepath.Join(adapters, "tinker", "adapter_model.safetensors")
		all = append(all, adapterGolden{name: name + "/tinker", model: model, adapter: file, values: filepath.Join(adapters, "tinker.safetensors"),
			losses: filepath.Join(adapters, "losses-tinker.json"), train: filepath.Join(adapters, "train-tinker.safetensors"), first: file, second: file})
	}
	for _, dir := range append(withTinkerModels(t, nil), hybrids(t)...) {
		add("committed/"+filepath.Base(dir), dir, dir)
	}
	names := []string{"qwen3-moe", "qwen3-moe-mixed"}
	if len(hybrids(t)) > 0 {
		names = append(names, "qwen3.5", "qwen3.5-moe")
	}
	if root := os.Getenv("TINSMITH_TESTDATA"); root != "" {
		for _, name := range names {
			add(name, filepath.Join(root, "goldens", "torch", name), filepath.Join(root, "families", name))
		}
	}
	return all
}

// sums reads the expected losses.
func (g adapterGolden) sums(t *testing.T) map[string]float64 {
	t.Helper()
	type entries map[string]struct {
		Sum float64 `json:"loss_sum_f64"`
	}
	raw, err := os.ReadFile(g.losses)
	if err != nil {
		t.Fatal(err)
	}
	var own entries
	if g.entry == "" {
		err = json.Unmarshal(raw, &own)
	} else {
		var all map[string]entries
		err = json.Unmarshal(raw, &all)
		own = all[g.entry]
	}
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for name, e := range own {
		sums[name] = e.Sum
	}
	return sums
}

func TestGradientsAgreeWithPEFT(t *testing.T) {
	var adapters []adapterGolden
	for _, dir := range goldensAndOdd(t) {
		for _, adapter := range []string{"lora", "lora-unembed"} {
			adapters = append(adapters, adapterGolden{name: filepath.Base(dir) + "/" + adapter, model: dir, adapter: filepath.Join(dir, adapter, "adapter_model.safetensors"),
				values: filepath.Join(dir, adapter+".safetensors"), losses: filepath.Join(dir, "losses.json"), entry: adapter})
		}
	}
	if oneGolden == "" {
		adapters = append(adapters, tinkerAdapters(t)...)
	}
	gradientsAgree(t, adapters, slices.Collect(maps.Keys(lossSettings)))
}

// gradientsAgree compares losses and gradients of adapters with those expected of them.
func gradientsAgree(t *testing.T, adapters []adapterGolden, losses []string) {
	for _, golden := range adapters {
		t.Run(golden.name, func(t *testing.T) {
			b := newBench(t, golden.model, tensor.Float32, 2)
			base, values := open(t, golden.model, "base.safetensors"), open(t, golden.values)
			w := b.adapter(open(t, golden.adapter))
			sums := golden.sums(t)
			checked := 0
			for _, name := range losses {
				g := b.gradient(w.Layout())
				all := b.losses(name, w, g, base, values)
				var total, size float64
				for i, o := range b.train(model.TrainOptions{}, all...) {
					total += o.Loss
					if d := furthest(o.Logprobs, values.doubles("logprobs_f64."+string(rune('0'+i)))); !(d <= 1e-4) {
						t.Errorf("%s: log-probabilities are off by %g", name, d)
					}
					for j, lp := range o.Logprobs {
						if name == "cross_entropy" {
							size += math.Abs(float64(lp * all[i].Inputs.Weights[j]))
						} else {
							size += math.Abs(float64(all[i].Inputs.Advantages[j]))
						}
					}
				}
				if d := math.Abs(total-sums[name]) / size; !(d <= 1e-5) {
					t.Errorf("%s: loss %v, want %v", name, total, sums[name])
				}
				checked += b.compare(g, values, "grad."+name+".", 1e-4)
			}
			if values.has("nk.targets.2") {
				g := b.gradient(w.Layout())
				e := b.example(w, base.ids("tokens.2"), values.ids("nk.targets.2"), values.floats("nk.weights.2"))
				e.Gradient = g
				o := b.train(model.TrainOptions{}, e)[0]
				if d := relative(o.Logprobs, values.floats("nk.logprobs.2")); !(d <= 1e-5) {
					t.Errorf("several targets: log-probabilities are off by %g", d)
				}
				checked += b.compare(g, values, "grad.nk.", 1e-4)
			}
			if checked == 0 {
				t.Error("no gradient was compared")
			}
		})
	}
}

// compare checks every tensor of a gradient that the goldens have, and tells how many.
func (b *bench) compare(g *lora.Gradient, values golden, prefix string, limit float64) int {
	b.t.Helper()
	n := 0
	eachMatrix(g.Parameters, func(m lora.Module, matrix string, x tensor.Tensor) {
		want := values.all(prefix, m, matrix)
		if want == nil {
			return // not committed
		}
		n++
		if d := relative(b.download(x), want); !(d <= limit) {
			b.t.Errorf("%s%s %s is off by %g of its norm", prefix, m.Name, matrix, d)
		}
	})
	return n
}

// TestFiftySteps repeats PyTorch's training runs: two forward_backward of two sequences each, then a step of AdamW.
func TestFiftySteps(t *testing.T) {
	var adapters []adapterGolden
	for _, dir := range goldens(t) {
		adapters = append(adapters, adapterGolden{name: filepath.Base(dir), model: dir, train: filepath.Join(dir, "train.safetensors"),
			first: filepath.Join(dir, "lora", "adapter_model.safetensors"), second: filepath.Join(dir, "lora-unembed", "adapter_model.safetensors")})
	}
	for _, golden := range append(adapters, tinkerAdapters(t)...) {
		for _, run := range []struct {
			name, adapter string
			fresh         bool // B = 0
			adam          optim.Adam
		}{
			{"adam", golden.first, true, optim.Adam{Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}},
			{"adamw-clip", golden.second, false, optim.Adam{Beta1: 0.9, Beta2: 0.95, Eps: 1e-12, WeightDecay: 0.01, GradClipNorm: 1}},
		} {
			t.Run(golden.name+"/"+run.name, func(t *testing.T) {
				b := newBench(t, golden.model, tensor.Float32, 2)
				values, data := open(t, golden.train), open(t, golden.model, "train.safetensors")
				w := b.adapter(open(t, run.adapter))
				l := w.Layout()
				if run.fresh {
					for i := range b.Modules {
						if !l.Has(i) {
							continue
						}
						if err := b.device.Zero(w.Masters.B(i)); err != nil {
							t.Fatal(err)
						}
					}
					if err := w.Pack(); err != nil {
						t.Fatal(err)
					}
				}
				next := b.weights(l)
				s, nextState := b.state(l), b.state(l)
				losses, norms, rates := values.doubles(run.name+".loss_f64"), values.doubles(run.name+".grad_norm"), values.doubles(run.name+".lr")
				g := b.gradient(l)
				for step := range 50 {
					if err := g.Zero(); err != nil {
						t.Fatal(err)
					}
					for call := range 2 {
						var pair []model.Example
						for i := range 2 {
							n := string(rune('0' + 2*((2*step+call)%4) + i))
							e := b.example(w, data.ids("tokens."+n), data.ids("targets."+n), data.floats("weights."+n))
							e.Gradient = g
							pair = append(pair, e)
						}
						var sum float64
						for _, o := range b.train(model.TrainOptions{}, pair...) {
							sum += o.Loss
						}
						if want := losses[2*step+call]; !(math.Abs(sum-want) <= 1e-4*math.Abs(want)) {
							t.Fatalf("step %d: loss %v, want %v", step, sum, want)
						}
					}
					a := run.adam
					a.LearningRate = rates[step]
					n, err := optim.Step(b.device, optim.Update{Next: next, NextState: nextState, Weights: w, State: s, Gradient: g, Adam: a})
					if err != nil {
						t.Fatal(err)
					}
					if !(math.Abs(n.Gradient-norms[step]) <= 1e-3*norms[step]) {
						t.Errorf("step %d: norm of the gradient %v, want %v", step, n.Gradient, norms[step])
					}
					w, next, s, nextState = next, w, nextState, s
				}
				if s.Step != 50 {
					t.Errorf("%d steps counted", s.Step)
				}
				eachMatrix(w.Masters, func(m lora.Module, matrix string, x tensor.Tensor) {
					want := values.all(run.name+".final.", m, matrix)
					if want == nil {
						return // not committed
					}
					if d := relative(b.download(x), want); !(d <= 1e-4) {
						t.Errorf("final %s %s is off by %g of its norm", m.Name, matrix, d)
					}
				})
			})
		}
	}
}

// TestBFloat16Gradients compares with float64 on weights rounded to bfloat16: ours may be at most 1.5 times as far from it as the bfloat16 arithmetic of PyTorch is.
func TestBFloat16Gradients(t *testing.T) {
	names, losses := []string{"llama", "qwen2", "qwen3"}, []string{"cross_entropy", "importance_sampling"}
	if oneGolden != "" {
		names, losses = []string{oneGolden}, losses[:1]
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			dir := unpack(t, name)
			b := newBench(t, dir, tensor.BFloat16, 2)
			base, values, want := open(t, dir, "base.safetensors"), open(t, dir, "lora.safetensors"), open(t, dir, "bfloat16.safetensors")
			w := b.adapter(open(t, dir, "lora", "adapter_model.safetensors"))
			for _, name := range losses {
				g := b.gradient(w.Layout())
				b.train(model.TrainOptions{}, b.losses(name, w, g, base, values)...)
				torch := want.floats("torch." + name)
				if n := b.compare(g, want, "grad."+name+".", 1.5*float64(torch[1])); n == 0 {
					t.Error("no gradient was compared")
				}
				var got, all []float32
				if err := g.Each(func(tensorName string, x tensor.Tensor) error {
					got, all = append(got, b.download(x)...), append(all, want.floats("grad."+name+"."+tensorName)...)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				d := relative(got, all)
				t.Logf("%s: off by %.2g of its norm, PyTorch's bfloat16 by %.2g", name, d, torch[0])
				if !(d <= 1.5*float64(torch[0])) {
					t.Errorf("%s: off by %g of its norm, PyTorch's bfloat16 by %g", name, d, torch[0])
				}
			}
		})
	}
}
