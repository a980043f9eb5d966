package model

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// stored is a tensor of a file.
type stored struct {
	name  string
	dtype string // F32, BF16, or another whose bytes are given
	shape []int
	data  []float32
	bytes []byte
}

// newLoader gives a loader of files with the given tensors, for a model of a type on a processor.
func newLoader(t *testing.T, d tensor.DType, c *Config, all ...stored) *Loader {
	t.Helper()
	dir := t.TempDir()
	var sources []safetensors.Source
	for _, s := range all {
		data := s.bytes
		for _, v := range s.data {
			bits := math.Float32bits(v)
			switch s.dtype {
			case "BF16":
				data = append(data, byte(bits>>16), byte(bits>>24))
			default:
				data = append(data, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
			}
		}
		sources = append(sources, safetensors.Source{Name: s.name, DType: s.dtype, Shape: s.shape, Write: func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		}})
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := safetensors.Write(f, nil, sources); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := safetensors.OpenModel(dir)
	if err != nil {
		t.Fatal(err)
	}
	device, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	l := &Loader{Config: c, model: &Model{Config: c, DType: d, Device: device, Ranks: 1}, files: nameWeights(files), used: map[string]bool{}, counted: map[string]bool{}, gauge: &gauge{}, copies: 1}
	t.Cleanup(func() {
		l.model.Free()
		if err := device.Close(); err != nil {
			t.Error(err)
		}
		if err := files.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// rowsOfMatrix downloads a matrix.
func (l *Loader) rowsOfMatrix(t *testing.T, m tensor.Matrix) []float32 {
	t.Helper()
	x, err := l.model.Device.Alloc(tensor.Float32, m.Out(), m.In())
	if err != nil {
		t.Fatal(err)
	}
	defer l.model.Device.Free(x)
	ids := make([]int32, m.Out())
	for i := range ids {
		ids[i] = int32(i)
	}
	values := make([]float32, m.Out()*m.In())
	if err := l.model.Device.GatherRows(x, m, ids); err != nil {
		t.Fatal(err)
	}
	if err := l.model.Device.Download(values, x); err != nil {
		t.Fatal(err)
	}
	return values
}

// counting is 1, 2, … in a row of their own kind for every matrix.
func counting(kind, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(kind*1000 + i + 1)
	}
	return v
}

func transpose(v []float32, rows, cols int) []float32 {
	out := make([]float32, 0, len(v))
	for c := range cols {
		for r := range rows {
			out = append(out, v[r*cols+c])
		}
	}
	return out
}

// TestExperts: whatever form the files have experts in, each is found, and packed as rows of one matrix that views reach; what lies between is zero.
func TestExperts(t *testing.T) {
	const experts, width, hidden = 3, 5, 4
	gate := func(e int) []float32 { return counting(10*e, width*hidden) }
	up := func(e int) []float32 { return counting(10*e+1, width*hidden) }
	down := func(e int) []float32 { return counting(10*e+2, hidden*width) }
	var single, fused, turned []stored
	var both, downs, bothTurned, downsTurned []float32
	for e := range experts {
		name := fmt.Sprintf("model.layers.0.mlp.experts.%d.", e)
		single = append(single, stored{name: name + "gate_proj.weight", dtype: "F32", shape: []int{width, hidden}, data: gate(e)}, stored{name: name + "up_proj.weight", dtype: "F32", shape: []int{width, hidden}, data: up(e)},
			stored{name: name + "down_proj.weight", dtype: "F32", shape: []int{hidden, width}, data: down(e)})
		pair := slices.Concat(gate(e), up(e))
		both, downs = append(both, pair...), append(downs, down(e)...)
		bothTurned, downsTurned = append(bothTurned, transpose(pair, 2*width, hidden)...), append(downsTurned, transpose(down(e), hidden, width)...)
	}
	fused = []stored{{name: "model.layers.0.mlp.experts.gate_up_proj", dtype: "F32", shape: []int{experts, 2 * width, hidden}, data: both},
		{name: "model.layers.0.mlp.experts.down_proj", dtype: "F32", shape: []int{experts, hidden, width}, data: downs}}
	turned = []stored{{name: "model.language_model.layers.0.mlp.experts.gate_up_proj", dtype: "F32", shape: []int{experts, hidden, 2 * width}, data: bothTurned},
		{name: "model.language_model.layers.0.mlp.experts.down_proj", dtype: "F32", shape: []int{experts, width, hidden}, data: downsTurned}}
	c := &Config{HiddenSize: hidden, MoE: &MoE{Experts: experts}}
	for _, f := range []struct {
		name   string
		files  []stored
		option ExpertOptions
	}{{"one by one", single, ExpertOptions{}}, {"fused", fused, ExpertOptions{}}, {"transposed", turned, ExpertOptions{Transposed: true}}, {"not transposed after all", fused, ExpertOptions{Transposed: true}}} {
		t.Run(f.name, func(t *testing.T) {
			l := newLoader(t, tensor.Float32, c, f.files...)
			s, err := l.Experts("model.layers.0.mlp.experts", width, f.option)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.checkAllUsed(); err != nil {
				t.Error(err)
			}
			if l.model.Parameters != experts*3*width*hidden {
				t.Errorf("%d parameters", l.model.Parameters)
			}
			for _, m := range []struct {
				name    string
				sources []Source
				want    func(int) []float32
				in      int
			}{{"gate", s.Gate, gate, hidden}, {"up", s.Up, up, hidden}, {"down", s.Down, down, width}} {
				stack, err := l.PackStack(context.Background(), m.sources, extent{0, m.in})
				if err != nil {
					t.Fatal(err)
				}
				all := l.rowsOfMatrix(t, stack.Matrix)
				for e := range experts {
					if got := l.rowsOfMatrix(t, stack.At(e)); !slices.Equal(got, m.want(e)) {
						t.Errorf("%s of expert %d is %v, want %v", m.name, e, got, m.want(e))
					}
					between := all[(e*stack.Stride+stack.Out)*m.in : (e+1)*stack.Stride*m.in]
					if slices.ContainsFunc(between, func(v float32) bool { return v != 0 }) {
						t.Errorf("%s: rows behind expert %d are not zero", m.name, e)
					}
				}
			}
			// A rank's part of the width.
			part, err := l.PackStack(context.Background(), s.Slice(2, 4).Up, extent{0, hidden})
			if err != nil {
				t.Fatal(err)
			}
			if got := l.rowsOfMatrix(t, part.At(2)); !slices.Equal(got, up(2)[2*hidden:4*hidden]) {
				t.Errorf("part of an expert: %v", got)
			}
			columns, err := l.PackStack(context.Background(), s.Down, extent{2, 4})
			if err != nil {
				t.Fatal(err)
			}
			if got := l.rowsOfMatrix(t, columns.At(1)); got[0] != down(1)[2] || got[1] != down(1)[3] || got[2] != down(1)[width+2] {
				t.Errorf("columns of an expert: %v", got)
			}
		})
	}
	t.Run("one is missing", func(t *testing.T) {
		l := newLoader(t, tensor.Float32, c, slices.DeleteFunc(slices.Clone(single), func(s stored) bool { return strings.Contains(s.name, ".1.up_proj") })...)
		if _, err := l.Experts("model.layers.0.mlp.experts", width, ExpertOptions{}); err == nil || !strings.Contains(err.Error(), `tensor "model.layers.0.mlp.experts.1.up_proj.weight" is missing`) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("one too many", func(t *testing.T) {
		l := newLoader(t, tensor.Float32, &Config{HiddenSize: hidden, MoE: &MoE{Experts: experts - 1}}, single...)
		if _, err := l.Experts("model.layers.0.mlp.experts", width, ExpertOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := l.checkAllUsed(); err == nil || !strings.Contains(err.Error(), "model.layers.0.mlp.experts.2.") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("another number", func(t *testing.T) {
		l := newLoader(t, tensor.Float32, &Config{HiddenSize: hidden, MoE: &MoE{Experts: experts + 1}}, turned...)
		if _, err := l.Experts("model.layers.0.mlp.experts", width, ExpertOptions{Transposed: true}); err == nil ||
			!strings.Contains(err.Error(), `tensor "model.language_model.layers.0.mlp.experts.gate_up_proj" has shape [3 4 10], the configuration makes it [4 4 10]`) {
			t.Errorf("error %v", err)
		}
	})
}

func TestSelectedRows(t *testing.T) {
	const rows, in = 6, 3
	l := newLoader(t, tensor.Float32, &Config{}, stored{name: "a.weight", dtype: "BF16", shape: []int{rows, in}, data: counting(0, rows*in)})
	s, err := l.Weight("a", rows, in)
	if err != nil {
		t.Fatal(err)
	}
	m, err := l.Pack(context.Background(), s.Select([]int{4, 0, 5}).Slice(0, 2), extent{0, in})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.rowsOfMatrix(t, m); !slices.Equal(got, []float32{13, 14, 15, 1, 2, 3}) {
		t.Errorf("rows %v", got)
	}
}

// TestSourcesShareMemory: sources of a loader compute their rows in the same memory, but for those that select rows of another.
func TestSourcesShareMemory(t *testing.T) {
	const n, out, in = 3, 4, 6
	l := newLoader(t, tensor.BFloat16, &Config{}, stored{name: "a", dtype: "BF16", shape: []int{n, in, out}, data: counting(0, n*in*out)})
	all, err := l.TransposedMatrices("a", n, out, in)
	if err != nil {
		t.Fatal(err)
	}
	read := func(s Source) []byte {
		c, err := s.read(0, s.Out)
		if err != nil || c.rows != s.Out {
			t.Fatal(c.rows, err)
		}
		return c.data
	}
	first := read(all[0])
	before := slices.Clone(first)
	selected := read(all[0].Select([]int{3, 1}))
	if want := slices.Concat(before[3*2*in:], before[2*in:2*2*in]); !slices.Equal(selected, want) {
		t.Errorf("selected %v, want %v", selected, want)
	}
	kept := slices.Clone(selected)
	if second := read(all[1]); &second[0] != &first[0] || slices.Equal(second, before) {
		t.Error("the second source has memory of its own, or the first one's values")
	}
	if !slices.Equal(selected, kept) || !slices.Equal(read(all[0]), before) {
		t.Error("selected rows were overwritten, or a source gives other ones")
	}
}

// TestVectors: a vector of float32 in a model of bfloat16 is rounded, but where a family wants its bits; one of a model that is float32 as a whole is rounded with it; and one more than a rounded weight is not rounded again.
func TestVectors(t *testing.T) {
	const odd = 0.7071067690849304 // of which bfloat16 has 0.70703125
	for _, c := range []struct {
		name  string
		model tensor.DType
		wide  bool
		dtype string
		load  func(*Loader, string, int) (nn.RMSNorm, error)
		want  float32
	}{
		{"float32 in bfloat16", tensor.BFloat16, false, "F32", (*Loader).Norm, 0.70703125},
		{"precise float32 in bfloat16", tensor.BFloat16, false, "F32", (*Loader).PreciseNorm, odd},
		{"precise float32 as a whole, loaded as bfloat16", tensor.BFloat16, true, "F32", (*Loader).PreciseNorm, 0.70703125},
		{"precise bfloat16", tensor.BFloat16, false, "BF16", (*Loader).PreciseNorm, 0.70703125},
		{"float32 as a whole, loaded as bfloat16", tensor.BFloat16, true, "F32", (*Loader).Norm, 0.70703125},
		{"float32 as a whole", tensor.Float32, true, "F32", (*Loader).Norm, odd},
		{"bfloat16", tensor.BFloat16, false, "BF16", (*Loader).Norm, 0.70703125},
		{"one more, of bfloat16", tensor.BFloat16, false, "BF16", (*Loader).OnePlusNorm, 1.70703125},
		{"one more, of float32 loaded as bfloat16", tensor.BFloat16, true, "F32", (*Loader).OnePlusNorm, 1.70703125},
		{"one more, of float32", tensor.BFloat16, false, "F32", (*Loader).OnePlusNorm, 1 + float32(odd)},
	} {
		t.Run(c.name, func(t *testing.T) {
			value := float32(odd)
			if c.dtype == "BF16" {
				value = safetensors.RoundBFloat16(value)
			}
			l := newLoader(t, c.model, &Config{RMSNormEps: 1}, stored{name: "w", dtype: c.dtype, shape: []int{1}, data: []float32{value}})
			l.wide = c.wide
			n, err := c.load(l, "w", 1)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, 1)
			if err := l.model.Device.Download(got, n.Weight); err != nil {
				t.Fatal(err)
			}
			if got[0] != c.want {
				t.Errorf("%v, want %v", got[0], c.want)
			}
		})
	}
	l := newLoader(t, tensor.Float32, &Config{}, stored{name: "conv", dtype: "F32", shape: []int{3, 1, 2}, data: counting(0, 6)})
	v, err := l.Rows("conv", 3, 2, extent{1, 3})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float32, 4)
	if err := l.model.Device.Download(got, v); err != nil || !slices.Equal(got, []float32{3, 4, 5, 6}) || v.Rows != 2 {
		t.Errorf("rows %v, %v", got, err)
	}
}

// TestFusedRows: of a tensor that has queries, keys and values one below another, a rank packs its own rows of each.
func TestFusedRows(t *testing.T) {
	const heads, keyHeads, dim, hidden = 4, 2, 2, 3
	c := &Config{HiddenSize: hidden, Heads: heads, KVHeads: keyHeads, HeadDim: dim, LayerTypes: []string{FullAttention}}
	rows := (heads + 2*keyHeads) * dim
	all := counting(0, rows*hidden)
	const prefix = "model.layers.0.self_attn."
	l := newLoader(t, tensor.Float32, c, stored{name: prefix + "qkv_proj.weight", dtype: "F32", shape: []int{rows, hidden}, data: all},
		stored{name: prefix + "o_proj.weight", dtype: "F32", shape: []int{hidden, heads * dim}, data: counting(1, hidden*heads*dim)})
	l.model.Rank, l.model.Ranks = 1, 2
	a, err := l.AttentionLayer(context.Background(), 0, TransformerOptions{Fused: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct {
		name     string
		weight   tensor.Matrix
		from, to int
	}{{"q", a.Q.Weight, 4, 8}, {"k", a.K.Weight, 10, 12}, {"v", a.V.Weight, 14, 16}} {
		if got := l.rowsOfMatrix(t, p.weight); !slices.Equal(got, all[p.from*hidden:p.to*hidden]) {
			t.Errorf("%s is %v, want rows %d to %d", p.name, got, p.from, p.to)
		}
	}
	if want := []string{prefix + "q_proj", prefix + "k_proj", prefix + "v_proj"}; !slices.Equal(l.model.Wholes[prefix+"qkv_proj"].Parts, want) {
		t.Errorf("wholes %v", l.model.Wholes)
	}
	if m := l.model.Modules[a.V.Module]; m.Name != prefix+"v_proj" || m.Out != keyHeads*dim || l.model.Parameters != int64(rows*hidden+hidden*heads*dim) {
		t.Errorf("%+v, %d parameters", m, l.model.Parameters)
	}
}

// BenchmarkDequantize is how fast weights are multiplied out, in bytes of the files.
func BenchmarkDequantize(b *testing.B) {
	const out, in = 2048, 2048
	fill := make([]byte, out*in)
	for i := range fill {
		fill[i] = byte(i*7) & 0x77
	}
	scales := make([]float32, out*in/32)
	for i := range scales {
		scales[i] = 0.01
	}
	for _, c := range []struct {
		name   string
		source func() Source
		bytes  int64
	}{
		{"fp8", func() Source { return new(scratch).fp8Rows("w", out, in, [2]int{128, 128}, fill, scales) }, out * in},
		{"int4", func() Source { return new(scratch).packedRows("w", out, in, 4, 128, fill[:out*in/2], scales) }, out * in / 2},
		{"mxfp4", func() Source { return new(scratch).mxfp4Rows("w", out, in, fill[:out*in/2], fill[:out*in/32]) }, out*in/2 + out*in/32},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := c.source()
			b.SetBytes(c.bytes)
			for b.Loop() {
				if _, err := s.read(0, out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
