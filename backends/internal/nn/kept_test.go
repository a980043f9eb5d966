package nn_test

import (
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// TestKept counts the bytes that a layer of Qwen3-8B's shape keeps for its backward pass, for each token.
func TestKept(t *testing.T) {
	const hidden, width, heads, keyHeads, headDim, rank, tokens = 4096, 12288, 32, 8, 128, 32, 64
	const float, half = 4, 2
	for name, c := range map[string]struct {
		device tensor.Device
		dtype  tensor.DType
		want   int64
	}{
		"bfloat16 on a device of its own memory": {dry.Remote{}, tensor.BFloat16, float*(hidden+heads+7*rank) + half*(heads+keyHeads)*headDim + half*2*heads*headDim + half*2*width},
		"float32 on a device of its own memory":  {dry.Remote{}, tensor.Float32, float * (hidden + heads + 7*rank + (heads+keyHeads)*headDim + 2*heads*headDim + 2*width)},
		"bfloat16 in the processor's memory":     {dry.Device{}, tensor.BFloat16, float * (hidden + heads + 7*rank + (heads+keyHeads)*headDim + 2*heads*headDim + 2*width)},
	} {
		t.Run(name, func(t *testing.T) {
			module := 0
			var modules []nn.LoRA
			matrix := func(out, in int) tensor.Matrix {
				m, err := c.device.NewMatrix(c.dtype, out, in)
				if err != nil {
					t.Fatal(err)
				}
				return m
			}
			row := func(cols int) tensor.Tensor {
				x, err := c.device.Alloc(tensor.Float32, 1, cols)
				if err != nil {
					t.Fatal(err)
				}
				return x
			}
			linear := func(out, in int) nn.Linear {
				modules = append(modules, nn.LoRA{A: matrix(rank, in), B: matrix(out, rank), Scale: 1})
				module++
				return nn.Linear{Weight: matrix(out, in), Module: module - 1}
			}
			norm := func(cols int) *nn.RMSNorm { return &nn.RMSNorm{Weight: row(cols), Eps: 1e-6} }
			layer := nn.TransformerLayer{
				InputNorm: *norm(hidden), MixerNorm: *norm(hidden),
				Mixer: &nn.Attention{Q: linear(heads*headDim, hidden), K: linear(keyHeads*headDim, hidden), V: linear(keyHeads*headDim, hidden), O: linear(hidden, heads*headDim),
					QNorm: norm(headDim), KNorm: norm(headDim), Heads: heads, KVHeads: keyHeads, HeadDim: headDim, Rope: row(headDim)},
				MLP: &nn.MLP{Gate: linear(width, hidden), Up: linear(width, hidden), Down: linear(hidden, width)},
			}
			pages, err := c.device.NewPages(c.dtype, 1, 1, keyHeads, headDim)
			if err != nil {
				t.Fatal(err)
			}
			p := nn.Pass{Device: c.device, Temp: nn.NewArena(c.device), Keep: nn.NewArena(c.device), Keeps: true, Pages: pages, Positions: make([]int32, tokens),
				Segments: []nn.Segment{{To: tokens, Modules: modules}}, Runs: []tensor.AttentionRun{{Count: tokens, Pages: []int32{0}}}}
			x, err := c.device.Alloc(tensor.Float32, tokens, hidden)
			if err != nil {
				t.Fatal(err)
			}
			if err := layer.Forward(&p, x, x, layer.NewActivations()); err != nil {
				t.Fatal(err)
			}
			if got := p.Keep.Peak() / tokens; got != c.want {
				t.Errorf("%d bytes for each token, want %d", got, c.want)
			}
		})
	}
}
