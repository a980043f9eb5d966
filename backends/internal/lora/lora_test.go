package lora_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/philox"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

var modules = []lora.Module{
	{Name: "model.layers.0.self_attn.q_proj", Group: lora.Attention, Out: 6, In: 5},
	{Name: "model.layers.0.mlp.down_proj", Group: lora.MLP, Out: 5, In: 9},
	{Name: "lm_head", Group: lora.Unembed, Out: 11, In: 5},
}

func newDevice(t *testing.T) tensor.Device {
	t.Helper()
	d, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func layout(t *testing.T, rank int, include func(lora.Module) bool) *lora.Layout {
	t.Helper()
	l, err := lora.NewLayout(modules, rank, include)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func all(lora.Module) bool { return true }

func download(t *testing.T, d tensor.Device, x tensor.Tensor) []float32 {
	t.Helper()
	v := make([]float32, x.Rows*x.Cols)
	if err := d.Download(v, x); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestLayout(t *testing.T) {
	l := layout(t, 4, func(m lora.Module) bool { return m.Group != lora.MLP })
	if want := 4*(6+5) + 4*(11+5); l.Size != want || l.Scale(0) != 8 || l.Has(1) || !l.Has(2) {
		t.Errorf("layout %+v, want %d parameters", l, want)
	}
	if got := fmt.Sprint(l.Kinds()); got != "[q_proj lm_head]" {
		t.Error(got)
	}
	for _, rank := range []int{0, -1, 513} {
		if _, err := lora.NewLayout(modules, rank, all); err == nil {
			t.Errorf("rank %d accepted", rank)
		}
	}
	if _, err := lora.NewLayout(modules, 4, func(lora.Module) bool { return false }); err == nil {
		t.Error("an adapter without modules accepted")
	}
}

// The scale of adapters made here is what it has always been, to the bit, at every rank; another one is alpha over the rank.
func TestScale(t *testing.T) {
	for rank := 1; rank <= lora.MaxRank; rank++ {
		l := layout(t, rank, all)
		if want := float32(32) / float32(rank); l.Scale(0) != want || !l.Scaling.Plain() || l.Alpha() != 32 {
			t.Errorf("rank %d: scale %v of alpha %v, want %v", rank, l.Scale(0), l.Alpha(), want)
		}
	}
	l := layout(t, 8, all)
	if s := l.Scaled(lora.Scaling{Alpha: 12}); s.Scale(0) != 1.5 || s.Scaling.Plain() || s.Alpha() != 12 || l.Scale(0) != 4 {
		t.Errorf("alpha 12 gives %v, and %v where it was 32", s.Scale(0), l.Scale(0))
	}
	alphas := map[string]float64{}
	for i, m := range modules {
		alphas[m.Name] = float64(8 * (i + 1))
	}
	s := l.Scaled(lora.Scaling{Alphas: alphas})
	for i := range modules {
		if s.Scale(i) != float32(i+1) || s.Scaling.Plain() || s.Alpha() != 0 {
			t.Errorf("module %d has scale %v, want %d", i, s.Scale(i), i+1)
		}
	}
}

// dirty is a device whose memory holds NaN.
type dirty struct{ tensor.Device }

func (d dirty) AllocUnset(t tensor.DType, rows, cols int) (tensor.Tensor, error) {
	x, err := d.Device.AllocUnset(t, rows, cols)
	if err != nil {
		return x, err
	}
	return x, d.Upload(x, slices.Repeat([]float32{float32(math.NaN())}, rows*cols))
}

// What lies behind parameters is zero whatever the memory held, and Initialize leaves nothing of that in front.
func TestUnsetParameters(t *testing.T) {
	d := dirty{newDevice(t)}
	for _, l := range []*lora.Layout{layout(t, 4, all), layout(t, 512, func(m lora.Module) bool { return m.Name == "lm_head" })} { // 512 · 16 parameters: two whole rows
		w, err := lora.NewWeights(d, l, tensor.Float32)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Free()
		for i, v := range download(t, d, w.Masters.Flat) {
			if math.IsNaN(float64(v)) != (i < l.Size) || i >= l.Size && v != 0 {
				t.Fatalf("value %d of %d parameters is %v", i, l.Size, v)
			}
		}
		if err := w.Initialize(1); err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(download(t, d, w.Masters.Flat), func(v float32) bool { return math.IsNaN(float64(v)) }) {
			t.Error("a fresh adapter holds what was in memory")
		}
	}
}

// A module that no pass of an operation adds to has a gradient of zeros, and one that has been added to keeps it.
func TestSettle(t *testing.T) {
	d := dirty{newDevice(t)}
	l := layout(t, 4, all)
	r := lora.NewReduction(d, l, 1, func() (*lora.Gradient, error) { return lora.NewUnsetGradient(d, l) }, func(g *lora.Gradient) { g.Free() })
	g, err := r.Buffer(0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.Modules {
		if !g.Modules(0)[i].Unset {
			t.Errorf("module %d has been added to before any pass", i)
		}
	}
	touched := &g.Modules(0)[1]
	for _, x := range []tensor.Tensor{touched.A, touched.B} {
		if err := d.Upload(x, slices.Repeat([]float32{3}, x.Rows*x.Cols)); err != nil {
			t.Fatal(err)
		}
	}
	touched.Unset = false
	if err := r.Done(0); err != nil {
		t.Fatal(err)
	}
	total, err := r.Total()
	if err != nil {
		t.Fatal(err)
	}
	defer total.Free()
	for i := range l.Modules {
		want := float32(0)
		if i == 1 {
			want = 3
		}
		for _, x := range []tensor.Tensor{total.A(i), total.B(i)} {
			if slices.ContainsFunc(download(t, d, x), func(v float32) bool { return v != want }) {
				t.Errorf("module %d: gradient %v, want %v", i, download(t, d, x), want)
			}
		}
	}
}

// TestInitialize: A in its bounds and spread out, the same for the same seed whatever else is trained, another for another seed or tensor; B zero.
func TestInitialize(t *testing.T) {
	d := newDevice(t)
	a := func(seed uint64, module int, include func(lora.Module) bool) []float32 {
		w, err := lora.NewWeights(d, layout(t, 8, include), tensor.Float32)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Free()
		if err := w.Initialize(seed); err != nil {
			t.Fatal(err)
		}
		for _, v := range download(t, d, w.Masters.B(module)) {
			if v != 0 {
				t.Fatal("B is not zero")
			}
		}
		return download(t, d, w.Masters.A(module))
	}
	first := a(1, 2, all)
	if !slices.Equal(first, a(1, 2, func(m lora.Module) bool { return m.Group == lora.Unembed })) {
		t.Error("the head's A depends on what else is trained")
	}
	if slices.Equal(first, a(2, 2, all)) || slices.Equal(first[:40], a(1, 0, all)[:40]) {
		t.Error("seeds or tensors share values")
	}
	bound := 1 / math.Sqrt(5)
	var least, most, sum float64
	for _, v := range first {
		least, most, sum = math.Min(least, float64(v)), math.Max(most, float64(v)), sum+float64(v)
	}
	if least < -bound || most >= bound || most < 0.7*bound || least > -0.7*bound || math.Abs(sum/float64(len(first))) > 0.3*bound {
		t.Errorf("values in [%v, %v] with sum %v are not uniform in ±%v", least, most, sum, bound)
	}
}

// Every value is what its place, its tensor's name and the seed say: an adapter that is made again by another version of the engine is the same.
func TestInitializeByDefinition(t *testing.T) {
	const rank, seed = 7, 0x123456789abcdef0
	d := newDevice(t)
	w, err := lora.NewWeights(d, layout(t, rank, all), tensor.Float32)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Free()
	if err := w.Initialize(seed); err != nil {
		t.Fatal(err)
	}
	odd := false // a tensor that ends within a block
	for i, m := range w.Layout().Modules {
		sum := sha256.Sum256([]byte("base_model.model." + m.Name + ".lora_A.weight"))
		hash := binary.LittleEndian.Uint64(sum[:])
		values := download(t, d, w.Masters.A(i))
		odd = odd || len(values)%4 != 0
		for e, got := range values {
			word := philox.Block(seed, [4]uint32{uint32(e / 4), 0, uint32(hash), uint32(hash >> 32)})[e%4]
			if want := float32((float64(word>>8)*0x1p-23 - 1) * (1 / math.Sqrt(float64(m.In)))); got != want {
				t.Fatalf("%s: value %d is %v, want %v", m.Name, e, got, want)
			}
		}
	}
	if !odd {
		t.Error("every tensor ends with a whole block")
	}
}

func TestTensorNames(t *testing.T) {
	for _, c := range []struct {
		module, matrix string
		names          lora.Names
		want           string
	}{
		{"model.layers.3.self_attn.q_proj", "A", lora.PEFT, "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"},
		{"model.layers.3.mlp.up_proj", "B", lora.Tinker, "base_model.model.model.layers.3.mlp.up_proj.lora_B.weight"},
		{"lm_head", "A", lora.PEFT, "base_model.model.lm_head.lora_A.weight"},
		{"lm_head", "B", lora.Tinker, "base_model.model.model.unembed_tokens.lora_B.weight"},
	} {
		got := lora.TensorName(c.module, c.matrix, c.names)
		if got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
		if module, matrix, ok := lora.ParseTensorName(got); !ok || module != c.module || matrix != c.matrix {
			t.Errorf("%s parses as %q %q %v", got, module, matrix, ok)
		}
	}
	if module, _, ok := lora.ParseTensorName("base_model.model.model.lm_head.lora_A.weight"); !ok || module != "lm_head" {
		t.Error("the third name of the head is not read")
	}
	for _, bad := range []string{"", "lm_head.lora_A.weight", "base_model.model.lm_head.lora_C.weight", "base_model.model.lm_head.lora_A", "base_model.model..lora_A.weight", "base_model.model.lm_head.weight"} {
		if module, matrix, ok := lora.ParseTensorName(bad); ok {
			t.Errorf("%q parses as %q %q", bad, module, matrix)
		}
	}
}

func TestGroupOf(t *testing.T) {
	for n := 1; n <= 40; n++ {
		for i := range n {
			g := lora.GroupOf(i, n)
			if i < g*n/lora.Groups || i >= (g+1)*n/lora.Groups {
				t.Fatalf("sequence %d of %d in group %d", i, n, g)
			}
		}
	}
}

// TestReduction counts live buffers and checks the tree by values whose sum depends on the order.
func TestReduction(t *testing.T) {
	d := newDevice(t)
	l := layout(t, 1, func(m lora.Module) bool { return m.Name == "lm_head" })
	for _, n := range []int{1, 2, 3, 5, 8, 19} {
		live, most := 0, 0
		take := func() (*lora.Gradient, error) {
			live++
			most = max(most, live)
			return lora.NewGradient(d, l)
		}
		give := func(g *lora.Gradient) { live--; g.Free() }
		var groups [lora.Groups]float32
		value := func(i int) float32 { return float32(math.Pow(-10, float64(i%9))) + 0.1 }
		r := lora.NewReduction(d, l, n, take, give)
		for i := range n {
			g, err := r.Buffer(i)
			if err != nil {
				t.Fatal(err)
			}
			v := download(t, d, g.A(2))
			v[0] += value(i)
			groups[lora.GroupOf(i, n)] += value(i)
			if err := d.Upload(g.A(2), v); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Total(); err == nil {
				t.Fatal("a total before the end")
			}
			if err := r.Done(i); err != nil {
				t.Fatal(err)
			}
		}
		total, err := r.Total()
		if err != nil {
			t.Fatal(err)
		}
		g := groups
		want := ((g[0] + g[1]) + (g[2] + g[3])) + ((g[4] + g[5]) + (g[6] + g[7]))
		if got := download(t, d, total.A(2))[0]; got != want {
			t.Errorf("%d sequences: %v, want %v", n, got, want)
		}
		give(total)
		if live != 0 || most > 4 {
			t.Errorf("%d sequences: %d buffers left, %d at once", n, live, most)
		}
	}
}

// TestOnto compares what may be joined in a pass with the tree written out, for every operation of up to 20 sequences and every pass over a part of it.
func TestOnto(t *testing.T) {
	d := newDevice(t)
	l := layout(t, 1, func(m lora.Module) bool { return m.Name == "lm_head" })
	for n := 1; n <= 20; n++ {
		groups := make([][]int, lora.Groups)
		for i := range n {
			groups[lora.GroupOf(i, n)] = append(groups[lora.GroupOf(i, n)], i)
		}
		// The groups that are added to another one as they are, by the tree: each level joins what is left side by side.
		onto := map[int]int{}
		nodes := make([][]int, lora.Groups) // groups below a node
		for g, sequences := range groups {
			if len(sequences) > 0 {
				nodes[g] = []int{g}
			}
		}
		for len(nodes) > 1 {
			var next [][]int
			for i := 0; i < len(nodes); i += 2 {
				if len(nodes[i]) == 1 && len(nodes[i+1]) == 1 {
					onto[nodes[i+1][0]] = nodes[i][0]
				}
				next = append(next, slices.Concat(nodes[i], nodes[i+1]))
			}
			nodes = next
		}
		for first := range n {
			for last := first; last < n; last++ {
				r := lora.NewReduction(d, l, n, func() (*lora.Gradient, error) { return lora.NewUnsetGradient(d, l) }, (*lora.Gradient).Free)
				buffers := map[int]*lora.Gradient{}
				for i := first; i <= last; i++ {
					g, err := r.Buffer(i)
					if err != nil {
						t.Fatal(err)
					}
					buffers[lora.GroupOf(i, n)] = g
				}
				inside := func(g int) bool { return groups[g][0] >= first && groups[g][len(groups[g])-1] <= last }
				for i := first; i <= last; i++ {
					var want *lora.Gradient
					g := lora.GroupOf(i, n)
					if left, ok := onto[g]; ok && inside(g) && inside(left) {
						want = buffers[left]
					}
					if got := r.Onto(i, first, last); got != want {
						t.Errorf("%d sequences, a pass of %d to %d: sequence %d joined %v, want %v", n, first, last, i, got != nil, want != nil)
					}
				}
				r.Abandon()
			}
		}
	}
}
