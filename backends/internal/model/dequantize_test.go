package model

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// bytesOf reads all rows of a source in pieces of a size.
func bytesOf(t *testing.T, s Source, piece int) []byte {
	t.Helper()
	var all []byte
	for from := 0; from < s.Out; {
		c, err := s.read(from, min(piece, s.Out-from))
		if err != nil {
			t.Fatal(err)
		}
		if c.dtype != "BF16" {
			t.Fatalf("rows of %s", c.dtype)
		}
		all = append(all, c.data...)
		from += c.rows
	}
	return all
}

// TestDequantizedBits: what is unpacked has the bits that the libraries which packed it give (testdata/quantized.py), in pieces of any size.
func TestDequantizedBits(t *testing.T) {
	for _, name := range []string{"fp8", "int4", "int8", "gptq", "gptq-order", "awq"} {
		t.Run(name, func(t *testing.T) {
			from := filepath.Join("testdata", name)
			f, err := os.Open(filepath.Join(from, "model.safetensors.gz"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			z, err := gzip.NewReader(f)
			if err != nil {
				t.Fatal(err)
			}
			model, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), model, 0o600); err != nil {
				t.Fatal(err)
			}
			files, err := safetensors.OpenModel(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer files.Close()
			c, _, err := readConfig(from, nil)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(filepath.Join(from, "dequantized.json"))
			if err != nil {
				t.Fatal(err)
			}
			var sums map[string]string
			if err := json.Unmarshal(raw, &sums); err != nil {
				t.Fatal(err)
			}
			l := &Loader{Config: c, model: &Model{}, files: nameWeights(files), used: map[string]bool{}, counted: map[string]bool{}}
			h, q, k, width := c.HiddenSize, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.IntermediateSize
			sizes := map[string][2]int{"q_proj": {q, h}, "k_proj": {k, h}, "v_proj": {k, h}, "o_proj": {h, q}, "gate_proj": {width, h}, "up_proj": {width, h}, "down_proj": {h, width}}
			if len(sums) != len(sizes) {
				t.Fatalf("%d weights", len(sums))
			}
			for module, want := range sums {
				size := sizes[module[strings.LastIndexByte(module, '.')+1:]]
				s, err := l.Weight(module, size[0], size[1])
				if err != nil {
					t.Fatal(err)
				}
				for _, piece := range []int{1, 50, 160} {
					sum := sha256.Sum256(bytesOf(t, s, piece))
					if hex.EncodeToString(sum[:]) != want {
						t.Errorf("%s in pieces of %d rows has other bits", module, piece)
					}
				}
			}
		})
	}
}

// TestNumbersOfEightAndFourBits has the tables of the formats' definitions.
func TestNumbersOfEightAndFourBits(t *testing.T) {
	for bits, want := range map[int]float32{0: 0, 1: 1.0 / 512, 7: 7.0 / 512, 8: 1.0 / 64, 0x38: 1, 0x39: 1.125, 0x7e: 448, 0xb8: -1, 0xfe: -448} {
		if got := e4m3[bits]; got != want {
			t.Errorf("%#x is %v, want %v", bits, got, want)
		}
	}
	if !math.IsNaN(float64(e4m3[0x7f])) || !math.IsNaN(float64(e4m3[0xff])) || math.Float32bits(e4m3[0x80]) != 1<<31 || math.Float32bits(e2m1[8]) != 1<<31 {
		t.Error("no NaN or no negative zero where one should be")
	}
}

// TestMXFP4 packs by hand.
func TestMXFP4(t *testing.T) {
	const experts, hidden, width = 2, 32, 3 // gate and up have 2·3 rows of 32
	c := &Config{HiddenSize: hidden, MoE: &MoE{Experts: experts}, Quantization: &Quantization{method: mxfp4Method}}
	blocks := make([]byte, experts*2*width*16)
	want := make([]float32, experts*2*width*hidden)
	exponents := make([]byte, experts*2*width)
	for row := range exponents {
		exponents[row] = byte(120 + row)
		for c := range hidden {
			bits := (5*row + 3*c) % 16
			blocks[row*16+c/2] |= byte(bits << (c % 2 * 4))
			want[row*hidden+c] = e2m1[bits] * float32(math.Ldexp(1, row-7))
		}
	}
	const name = "model.layers.0.mlp.experts"
	files := func() []stored {
		return []stored{
			{name: name + ".gate_up_proj_blocks", dtype: "U8", shape: []int{experts, 2 * width, 1, 16}, bytes: slices.Clone(blocks)},
			{name: name + ".gate_up_proj_scales", dtype: "U8", shape: []int{experts, 2 * width, 1}, bytes: slices.Clone(exponents)},
			{name: name + ".down_proj", dtype: "F32", shape: []int{experts, hidden, width}, data: counting(0, experts*hidden*width)},
		}
	}
	l := newLoader(t, tensor.BFloat16, c, files()...)
	s, err := l.Experts(name, width, ExpertOptions{Interleaved: true})
	if err != nil {
		t.Fatal(err)
	}
	for e := range experts {
		for i, sources := range [][]Source{s.Gate, s.Up} {
			m, err := l.Pack(context.Background(), sources[e], extent{0, hidden})
			if err != nil {
				t.Fatal(err)
			}
			got := l.rowsOfMatrix(t, m)
			for r := range width {
				row := 2*width*e + 2*r + i
				if !slices.Equal(got[r*hidden:(r+1)*hidden], want[row*hidden:(row+1)*hidden]) {
					t.Errorf("expert %d, row %d of %d: %v", e, r, i, got[r*hidden:(r+1)*hidden])
				}
			}
		}
	}
	if err := l.checkAllUsed(); err != nil {
		t.Error(err)
	}
	for _, f := range []struct {
		name   string
		change func(all []stored, c *Config)
		want   string
	}{
		{"a scale that is no number", func(all []stored, _ *Config) { all[1].bytes[4] = 255 }, `tensor "` + name + `.gate_up_proj_scales" has 255, which is not a number, as scale 4`},
		{"scales of another type", func(all []stored, _ *Config) { all[1].dtype = "I8" }, `tensor "` + name + `.gate_up_proj_scales" has type I8, it must be U8`},
		{"blocks of another shape", func(all []stored, _ *Config) { all[0].shape = []int{experts, 2 * width, 2, 8} }, `tensor "` + name + `.gate_up_proj_blocks" has shape`},
		{"scales of another shape", func(all []stored, _ *Config) { all[1].shape = []int{experts, 1, 2 * width} }, `tensor "` + name + `.gate_up_proj_scales" has shape`},
		{"not said", func(_ []stored, c *Config) { c.Quantization = nil }, `tensor "` + name + `.gate_up_proj_blocks" is there, but quantization_config does not say mxfp4`},
		{"rows that are no blocks", func(_ []stored, c *Config) { c.HiddenSize = 33 }, "rows of 33 elements, which are not blocks of 32"},
	} {
		t.Run(f.name, func(t *testing.T) {
			all, other := files(), *c
			f.change(all, &other)
			if _, err := newLoader(t, tensor.BFloat16, &other, all...).Experts(name, width, ExpertOptions{}); err == nil || !strings.Contains(err.Error(), f.want) {
				t.Errorf("error %v, want %q", err, f.want)
			}
		})
	}
}

// TestFP8Scales: scales of float32 are multiplied in float32 too, and those of matrices that lie one below another in one tensor are each their own.
func TestFP8Scales(t *testing.T) {
	c := &Config{Quantization: &Quantization{method: fp8Method, block: [2]int{2, 3}}}
	const n, out, in = 2, 3, 4
	data := make([]byte, n*out*in)
	for i := range data {
		data[i] = byte(0x30 + i)
	}
	scales := []float32{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}
	l := newLoader(t, tensor.BFloat16, c, stored{name: "w", dtype: "F8_E4M3", shape: []int{n, out, in}, bytes: data}, stored{name: "w_scale_inv", dtype: "F32", shape: []int{n, 2, 2}, data: scales})
	all, err := l.Matrices("w", n, out, in)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range all {
		m, err := l.Pack(context.Background(), s, extent{1, in})
		if err != nil {
			t.Fatal(err)
		}
		var want []float32
		for r := range out {
			for c := 1; c < in; c++ {
				want = append(want, safetensors.RoundBFloat16(e4m3[data[(i*out+r)*in+c]]*scales[i*4+r/2*2+c/3]))
			}
		}
		if got := l.rowsOfMatrix(t, m); !slices.Equal(got, want) {
			t.Errorf("matrix %d is %v, want %v", i, got, want)
		}
	}
}

// TestSharedQuantizedFiles has files that are not committed: the same model in two forms.
func TestSharedQuantizedFiles(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set")
	}
	root = filepath.Join(root, "families")
	loader := func(dir string) *Loader {
		files, err := safetensors.OpenModel(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { files.Close() })
		c, _, err := readConfig(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		return &Loader{Config: c, model: &Model{}, files: nameWeights(files), used: map[string]bool{}, counted: map[string]bool{}}
	}
	values := func(s Source) []float32 {
		var all []float32
		for from := 0; from < s.Out; {
			c, err := s.read(from, s.Out-from)
			if err != nil {
				t.Fatal(err)
			}
			v, err := safetensors.Tensor{Name: "rows", DType: c.dtype, Data: c.data}.Float32s()
			if err != nil {
				t.Fatal(err)
			}
			all, from = append(all, v...), from+c.rows
		}
		return all
	}
	for _, f := range []struct {
		name, one, other string
		width            int
		a, b             ExpertOptions
	}{
		{"fp8", "fp8-qwen3-moe", "fp8-qwen3-moe/dequantised", 160, ExpertOptions{}, ExpertOptions{}},
		{"mxfp4", "gpt-oss-mxfp4", "gpt-oss", 32, ExpertOptions{Interleaved: true}, ExpertOptions{Interleaved: true, Transposed: true}},
	} {
		t.Run(f.name, func(t *testing.T) {
			one, other := loader(filepath.Join(root, f.one)), loader(filepath.Join(root, f.other))
			if f.name == "mxfp4" { // it has no key of its own for the width of its experts, and other files in another type
				one.Config.MoE.Width, other.Config.MoE.Width = f.width, f.width
			}
			for layer := range one.Config.Layers {
				name := fmt.Sprintf("model.layers.%d.mlp.experts", layer)
				a, err := one.Experts(name, f.width, f.a)
				if err != nil {
					t.Fatal(err)
				}
				b, err := other.Experts(name, f.width, f.b)
				if err != nil {
					t.Fatal(err)
				}
				for i, pair := range [][2][]Source{{a.Gate, b.Gate}, {a.Up, b.Up}, {a.Down, b.Down}} {
					for e := range pair[0] {
						if !slices.Equal(values(pair[0][e]), values(pair[1][e])) {
							t.Errorf("layer %d: matrix %d of expert %d differs", layer, i, e)
						}
					}
				}
			}
		})
	}
}
