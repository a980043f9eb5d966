package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// FP8 says what becomes of weights that a model's files have in FP8, with a scale for each block.
type FP8 uint8

// The choices. The bits of all results are the same: the files define a model in bfloat16.
const (
	FP8Auto     FP8 = iota // they are kept as they are where the device has kernels for them and the model is of bfloat16
	FP8Kept                // they are kept, or the model is refused
	FP8Expanded            // they are expanded to the model's type when they are loaded
)

// numbers is another form of a source: its rows as the numbers of FP8 that files have, with a scale for each row and run of columns. Rows [32 · i, 32 · (i+1)) have equal scales.
type numbers struct {
	read    reader
	columns int
}

// keepsFP8 tells whether numbers of FP8 are kept. It refuses what was asked for by name and cannot be.
func (l *Loader) keepsFP8(o FP8) (bool, error) {
	q := l.Config.Quantization
	quantized, able := q != nil && q.method == fp8Method, l.model.Device.HasE4M3() && l.model.DType == tensor.BFloat16
	if o != FP8Kept {
		return o == FP8Auto && quantized && able, nil
	}
	switch {
	case !quantized:
		return false, fmt.Errorf("%w: the model's files are not of FP8: quantization_config of %s does not have quant_method %s", ErrFP8, configFile, fp8Method)
	case l.model.DType != tensor.BFloat16:
		return false, fmt.Errorf("%w: they are kept in models of bfloat16 only, this one is loaded as %v", ErrFP8, l.model.DType)
	case !able:
		return false, fmt.Errorf("%w: device %s has no kernels for them yet", ErrFP8, l.model.Device.Name())
	}
	return true, nil
}

// ErrFP8 says that a model was refused because its weights cannot be kept in FP8 (LoadOptions.FP8).
var ErrFP8 = errors.New("weights in FP8")

// fp8Numbers are rows of F8_E4M3 with a scale for each block, nil where they cannot be kept: blocks must hold whole groups of rows of tensor.E4M3Rows, and a scale that is so small that products with it are below the normal
// numbers is for the expansion when weights are loaded, which does not flush them.
func (l *Loader) fp8Numbers(out, in int, block [2]int, data []byte, scales []float32) *numbers {
	small := slices.ContainsFunc(scales, func(s float32) bool { return math.Abs(float64(s)) < tensor.E4M3LeastScale })
	if !l.fp8Kept || small || block[1]%2 != 0 || block[0]%tensor.E4M3Rows != 0 && block[0] < out {
		return nil
	}
	across := (in + block[1] - 1) / block[1]
	return &numbers{columns: block[1], read: func(from, n int) (rowChunk, error) {
		own := make([]float32, 0, n*across)
		for row := from; row < from+n; row++ {
			own = append(own, scales[row/block[0]*across:][:across]...)
		}
		return rowChunk{rows: n, data: data[from*in : (from+n)*in], file: n * in, scales: own}, nil
	}}
}

// stackedNumbers are the numbers of what stacked gives, with so many rows from one source to the next; nil if some source has none.
func stackedNumbers(sources []Source, step int) *numbers {
	for _, s := range sources {
		if s.numbers == nil || s.numbers.columns != sources[0].numbers.columns {
			return nil
		}
	}
	return &numbers{columns: sources[0].numbers.columns, read: func(from, n int) (rowChunk, error) {
		s, row := sources[from/step], from%step
		if row < s.Out {
			return s.numbers.read(row, min(n, s.Out-row))
		}
		return rowChunk{rows: min(n, step-row)}, nil // matrices are zero before they are packed
	}}
}

// scaleColumns is for how many columns a matrix of columns of the source has a scale, if it is kept in FP8; 0 if it is not, as where it begins within a block.
func (s Source) scaleColumns(cols extent) int {
	if s.numbers == nil || cols.from%s.numbers.columns != 0 {
		return 0
	}
	return s.numbers.columns
}

// packNumbers packs columns of rows of a source that is kept in FP8.
func (l *Loader) packNumbers(w tensor.Matrix, from int, s Source, c rowChunk, cols extent) error {
	if c.scales == nil {
		return nil
	}
	scales := c.scales
	if cols.size() != s.In {
		width := s.numbers.columns
		across, first, last := (s.In+width-1)/width, cols.from/width, (cols.to+width-1)/width
		scales = nil
		for row := range c.rows {
			scales = append(scales, c.scales[row*across+first:row*across+last]...)
		}
	}
	err := l.model.Device.PackE4M3(w, from, c.rows, l.columns(s, c, cols, 1), scales)
	switch {
	case errors.Is(err, tensor.ErrNotFinite):
		return fmt.Errorf("tensor %q has a value that is not finite with its scale", s.name)
	case err != nil:
		return fmt.Errorf("tensor %q: %w", s.name, err)
	}
	return nil
}

// expected tells whether the files of a model in FP8 have a module, by any of its names, so, where they are not there: embeddings, heads, routers and gates they do not.
func (q *Quantization) expected(names ...string) bool {
	for _, whole := range []string{strings.TrimSuffix(embeddingName, ".weight"), headName, "mlp.gate", "shared_expert_gate", "in_proj_a", "in_proj_b", "in_proj_ba"} {
		if slices.ContainsFunc(names, func(n string) bool { return n == whole || strings.HasSuffix(n, "."+whole) }) {
			return false
		}
	}
	return !q.keeps(names...)
}
