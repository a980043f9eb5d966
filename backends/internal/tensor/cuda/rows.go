package cuda

import (
	"errors"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

func (d *device) Round(dst, src tensor.Tensor) error {
	return d.failed("round", d.v.Round(view(dst), typeOf(dst.DType), view(src), typeOf(src.DType)))
}

func (d *device) Add(dst, src tensor.Tensor) error {
	return d.failed("add", d.v.Add(view(dst), view(src)))
}

func (d *device) Scale(dst tensor.Tensor, factor float32, as tensor.DType) error {
	return d.failed("scale", d.v.Scale(view(dst), factor, typeOf(as)))
}

func (d *device) AddRow(dst, row tensor.Tensor) error {
	return d.failed("add row", d.v.AddRow(view(dst), view(row)))
}

func (d *device) Zero(dst tensor.Tensor) error {
	v := view(dst)
	if v.Stride == v.Cols || v.Rows == 1 {
		return d.failed("zero", d.v.Zero(v.At, dst.Rows*dst.Cols*dst.DType.Size()))
	}
	return d.failed("zero", d.v.Clear(v, typeOf(dst.DType)))
}

func (d *device) RMSNorm(y, x, weight tensor.Tensor, eps float32) error {
	return d.failed("rms norm", d.v.RMSNorm(view(y), typeOf(y.DType), view(x), cudart.View{}, view(weight).At, eps))
}

func (d *device) RMSNormBackward(dx, dy, x, weight tensor.Tensor, eps float32, accumulate bool) error {
	return d.failed("rms norm backward", d.v.RMSNormBackward(view(dx), view(dy), view(x), view(weight).At, eps, accumulate))
}

func (d *device) Rope(x tensor.Tensor, positions []int32, table tensor.Tensor, heads int, inverse bool) error {
	return d.withList("rope", func(at []cudart.Address) error { return d.v.Rope(view(x), at[0], view(table), int64(heads), inverse) }, bytesOf(positions))
}

func (d *device) SwiGLU(y, gate, up tensor.Tensor) error {
	return d.failed("swiglu", d.v.SwiGLU(view(y), typeOf(y.DType), view(gate), view(up), typeOf(gate.DType)))
}

func (d *device) SwiGLUBackward(dgate, dup, dy, gate, up tensor.Tensor) error {
	return d.failed("swiglu backward", d.v.SwiGLUBackward(view(dgate), view(dup), view(dy), view(gate), view(up), typeOf(gate.DType)))
}

// LogSumExps implements tensor.Device, for which there are no segments here: see Segmented.
func (d *device) LogSumExps(_, _ tensor.Tensor, _ tensor.Segments) error {
	return errors.New("cuda: there are no segments")
}

func (d *device) LogSumExp(lse, logits tensor.Tensor) error {
	return d.failed("log-sum-exp", d.v.LogSumExp(view(lse), view(logits)))
}

func (d *device) Softmax(p, logits, lse tensor.Tensor) error {
	return d.failed("softmax", d.v.Softmax(view(p), view(logits), view(lse)))
}

func (d *device) SoftmaxGradient(logits, lse tensor.Tensor, targets []int32, coefficients []float32) error {
	return d.withList("softmax gradient", func(at []cudart.Address) error {
		return d.v.SoftmaxGradient(view(logits), view(lse), at[0], at[1], int64(len(targets)/logits.Rows))
	}, bytesOf(targets), bytesOf(coefficients))
}

func (d *device) SumSquares(xs ...tensor.Tensor) (func() ([]float64, error), error) {
	views := make([]cudart.View, len(xs))
	for i, x := range xs {
		views[i] = view(x)
	}
	const op = "sum of squares"
	sums, err := d.v.SumSquares(views)
	if err != nil {
		return nil, d.failed(op, err)
	}
	return func() ([]float64, error) {
		values, err := sums.Wait()
		return values, d.failed(op, err)
	}, nil
}

func (d *device) AdamW(updates ...tensor.AdamWUpdate) (func() ([]tensor.AdamWSums, error), error) {
	d.updates, d.norms = d.updates[:0], d.norms[:0]
	pieces, wanted := make([][]float64, len(updates)), false // the list of updates is the caller's
	for i := range updates {
		u := &updates[i]
		d.updates = append(d.updates, cudart.AdamWJob{
			NewP: view(u.NewP), NewM: view(u.NewM), NewV: view(u.NewV), P: view(u.P), M: view(u.M), V: view(u.V), G: view(u.G),
			Beta1: float32(u.Beta1), Rest1: float32(1 - u.Beta1), Beta2: float32(u.Beta2), Rest2: float32(1 - u.Beta2),
			Decay: float32(1 - float64(u.LearningRate*u.WeightDecay)), Eps: float32(u.Eps),
			MinusRate: float32(-u.LearningRate / (1 - math.Pow(u.Beta1, float64(u.Step)))),
			Root:      float32(math.Sqrt(1 - math.Pow(u.Beta2, float64(u.Step)))),
		})
		d.norms = append(d.norms, u.MaxNorm)
		pieces[i] = u.Pieces
		wanted = wanted || u.Pieces != nil
	}
	const op = "adamw"
	pending, err := d.v.AdamW(d.updates, d.norms, wanted)
	if err != nil {
		return nil, d.failed(op, err)
	}
	return func() ([]tensor.AdamWSums, error) {
		values, found, err := pending.Wait()
		if err != nil {
			return nil, d.failed(op, err)
		}
		n := len(pieces)
		sums := make([]tensor.AdamWSums, n)
		for i := range sums {
			sums[i] = tensor.AdamWSums{G: values[i], NewP: values[n+i], NewM: values[2*n+i], NewV: values[3*n+i]}
			if wanted {
				copy(pieces[i], found[i])
			}
		}
		return sums, nil
	}, nil
}
