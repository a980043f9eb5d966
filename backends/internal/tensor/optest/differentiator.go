package optest

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// derivatives checks a device's own derivatives of losses against the formulas in float64.
func derivatives(t *testing.T, d tensor.Differentiator, device tensor.Device) {
	r := rand.New(rand.NewPCG(11, 12))
	const rows, cols, each = 37, 19, 60 // more terms than one block takes
	logits := make([]float32, rows*cols)
	for i := range logits {
		logits[i] = float32(4 * r.NormFloat64())
	}
	logits[5*cols+2] = float32(math.Inf(-1))
	ratios := []float64{0, 0.4, 1, 1.4, 1.7, 3e40, math.Inf(1), math.NaN()}
	var terms []tensor.LossTerm
	var at []tensor.Element
	for i := range rows * each {
		e := tensor.Element{Row: int32(i / each), Column: int32(i % cols)}
		term := tensor.LossTerm{Form: tensor.LossLinear + tensor.LossForm(i%5), Row: e.Row, Weight: float32(r.NormFloat64()), Recorded: float32(-8 * r.Float64()), Low: 0.5, High: 1.5, Beta: 0.3, Datum: int32(i / 5 % len(ratios))}
		switch i % 7 {
		case 0:
			term.Weight = 0
		case 1:
			term.Low, term.High = 0, math.Inf(1)
		case 2:
			term.Recorded = float32(-800 * r.Float64()) // ratios beyond float32, and beyond float64
		case 3:
			term.Recorded, term.Beta = float32(800*r.Float64()), 0
		}
		terms, at = append(terms, term), append(at, e)
	}
	want := func(i int, lp float32) float64 {
		x := terms[i]
		w, difference := float64(x.Weight), float64(lp)-float64(x.Recorded)
		ratio := math.Exp(difference)
		if x.Form == tensor.LossDatum {
			ratio = ratios[x.Datum]
		}
		clipped := math.Min(math.Max(ratio, x.Low), x.High)
		slope := -w
		switch {
		case w == 0 && (x.Form != tensor.LossQuadratic || x.Beta == 0):
			return 0
		case x.Form == tensor.LossRatio:
			slope = -clipped * w
		case x.Form == tensor.LossQuadratic:
			slope = -(w - x.Beta*difference)
		case x.Form != tensor.LossLinear && ratio*w <= clipped*w:
			slope = -ratio * w
		case x.Form != tensor.LossLinear:
			slope = 0
		}
		if math.IsInf(float64(lp), 0) || math.IsNaN(float64(lp)) || math.Abs(slope) > math.MaxFloat32 || math.IsNaN(slope) {
			return 0
		}
		return slope
	}
	t.Run("values", func(t *testing.T) {
		h := start(t, device)
		x, lse, values, slopes := h.view(rows, cols, logits), h.view(rows, 1, make([]float32, rows)), h.view(1, len(terms), make([]float32, len(terms))), h.view(1, len(terms), make([]float32, len(terms)))
		h.ok(device.LogSumExp(lse, x))
		h.ok(device.GatherElements(values, x, at))
		h.ok(d.Differentiate(slopes, values, lse, h.tensor(1, 2*len(ratios), pairs(ratios)), terms))
		sums, lp, got := h.read(lse), h.read(values), h.read(slopes)
		refused := 0
		for i, e := range at {
			if own := logits[int(e.Row)*cols+int(e.Column)] - sums[e.Row]; lp[i] != own {
				t.Fatalf("log-probability %d: %v, want %v", i, lp[i], own)
			}
			w := want(i, lp[i])
			if w == 0 && terms[i].Weight != 0 && terms[i].Form == tensor.LossRatio {
				refused++
			}
			if math.Abs(float64(got[i])-w) > 1e-37+2e-7*math.Abs(w) {
				t.Fatalf("derivative %d of %+v by %v: %v, want %v", i, terms[i], lp[i], got[i], w)
			}
		}
		if refused == 0 {
			t.Error("no case has a ratio that is not finite")
		}
		h.ok(device.GatherElements(values, x, at))
		h.ok(d.Differentiate(tensor.Tensor{}, values, lse, tensor.Tensor{}, terms))
		sameBits(t, "log-probabilities alone", h.read(values), lp)
	})
	t.Run("ratios of data", func(t *testing.T) { ratiosOfData(t, d, device) })
	t.Run("softmax gradient", func(t *testing.T) {
		h := start(t, device)
		const k = 3
		targets, c := make([]int32, rows*k), make([]float32, rows*k)
		for i := range targets {
			targets[i], c[i] = int32(i%(cols+1))-1, float32(r.NormFloat64())
		}
		a, b, lse := h.view(rows, cols, logits), h.view(rows, cols, logits), h.view(rows, 1, make([]float32, rows))
		h.ok(device.LogSumExp(lse, a))
		h.ok(device.SoftmaxGradient(a, lse, targets, c))
		h.ok(d.SoftmaxGradientBy(b, lse, targets, h.tensor(1, len(c), c)))
		sameBits(t, "gradient", h.read(b), h.read(a))
		h.ok(d.SoftmaxGradientBy(b, lse, nil, h.tensor(1, 0, nil)))
		sameBits(t, "without targets", h.read(b), make([]float32, rows*cols))
	})
	t.Run("downloads", func(t *testing.T) {
		h := start(t, device)
		const n = 5000
		a, b := normal(1, n), normal(2, n)
		x := h.tensor(1, n, a)
		one, two := make([]float32, n), make([]float32, 7)
		first, err := d.StartDownload(one, x)
		h.ok(err)
		h.ok(device.Upload(x, b)) // comes after
		sums, err := device.SumSquares(x)
		h.ok(err)
		second, err := d.StartDownload(two, x.Columns(10, 17))
		h.ok(err)
		h.ok(device.Zero(x))
		h.ok(second())
		h.ok(first())
		sameBits(t, "first", one, a)
		sameBits(t, "second", two, b[10:17])
		if sum, err := sums(); err != nil || sum[0] != sumSquares(b, n) {
			t.Errorf("sum of squares %v, %v: want %v", sum, err, sumSquares(b, n))
		}
		third, err := d.StartDownload(nil, x.Columns(0, 0))
		h.ok(err)
		h.ok(third())
	})
	t.Run("refusals", func(t *testing.T) {
		h := start(t, device)
		two, lse := h.tensor(1, 2, make([]float32, 2)), h.tensor(3, 1, make([]float32, 3))
		good := tensor.LossTerm{Form: tensor.LossRatio, High: 1}
		with := func(change func(*tensor.LossTerm)) []tensor.LossTerm {
			all := []tensor.LossTerm{good, good}
			change(&all[1])
			return all
		}
		_, length := d.StartDownload(make([]float32, 3), two)
		_, stride := d.StartDownload(make([]float32, 2), h.tensor(2, 2, make([]float32, 4)).Columns(0, 1))
		for name, err := range map[string]error{
			"length":       length,
			"stride":       stride,
			"terms":        d.Differentiate(two, two, lse, two, with(func(*tensor.LossTerm) {})[:1]),
			"slopes":       d.Differentiate(lse, two, lse, two, with(func(*tensor.LossTerm) {})),
			"row":          d.Differentiate(two, two, lse, two, with(func(x *tensor.LossTerm) { x.Row = 3 })),
			"no row":       d.Differentiate(two, two, lse, two, with(func(x *tensor.LossTerm) { x.Row = -1 })),
			"form":         d.Differentiate(two, two, lse, two, with(func(x *tensor.LossTerm) { x.Form = 0 })),
			"unknown form": d.Differentiate(two, two, lse, two, with(func(x *tensor.LossTerm) { x.Form = tensor.LossDatum + 1 })),
			"datum":        d.Differentiate(two, two, lse, two, with(func(x *tensor.LossTerm) { x.Form, x.Datum = tensor.LossDatum, 1 })),
			"no ratios":    d.Differentiate(two, two, lse, tensor.Tensor{}, with(func(x *tensor.LossTerm) { x.Form = tensor.LossDatum })),
			"half a ratio": d.Differentiate(two, two, lse, lse, with(func(*tensor.LossTerm) {})),
			"ratios":       d.DatumRatios(two, two, nil, []int32{0, 0}),
			"odd":          d.DatumRatios(h.tensor(1, 4, make([]float32, 4)).Columns(1, 3), two, nil, []int32{0}),
			"column":       d.DatumRatios(two, two, []tensor.RatioPosition{{Column: 2}}, []int32{1}),
			"ends":         d.DatumRatios(two, two, []tensor.RatioPosition{{Column: 1}}, []int32{2}),
			"descending":   d.DatumRatios(h.tensor(1, 4, make([]float32, 4)), two, []tensor.RatioPosition{{Column: 1}}, []int32{1, 0}),
			"bounds":       d.Differentiate(two, two, lse, two, with(func(x *tensor.LossTerm) { x.Low = 2 })),
			"beta":         d.Differentiate(two, two, lse, two, with(func(x *tensor.LossTerm) { x.Beta = math.NaN() })),
			"coefficients": d.SoftmaxGradientBy(lse, lse, []int32{0, 0, 0}, two),
			"targets":      d.SoftmaxGradientBy(lse, lse, []int32{0, 0, 1}, lse),
		} {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		h.ok(d.Differentiate(two, two, lse, two, with(func(*tensor.LossTerm) {})))
	})
}

// pairs are the bits of numbers in float64, each in the place of two elements.
func pairs(values []float64) []float32 {
	var to []float32
	for _, v := range values {
		bits := math.Float64bits(v)
		to = append(to, math.Float32frombits(uint32(bits)), math.Float32frombits(uint32(bits>>32)))
	}
	return to
}

// ratiosOfData checks a device's own ratios against sums in float64 in the same order.
func ratiosOfData(t *testing.T, d tensor.Differentiator, device tensor.Device) {
	h := start(t, device)
	r := rand.New(rand.NewPCG(13, 14))
	var positions []tensor.RatioPosition
	var ends []int32
	lp := normal(15, 900)
	for i, n := range []int{0, 1, 5, 256, 0, 257, 700, 3} {
		for range n {
			p := tensor.RatioPosition{Column: int32(r.IntN(len(lp))), Recorded: float32(r.NormFloat64())}
			if i == 7 {
				p.Recorded = -2000 // a ratio beyond float64
			}
			positions = append(positions, p)
		}
		ends = append(ends, int32(len(positions)))
	}
	got := h.tensor(1, 2*len(ends), make([]float32, 2*len(ends)))
	h.ok(d.DatumRatios(got, h.view(1, len(lp), lp), positions, ends))
	values := h.read(got)
	from := int32(0)
	for i, to := range ends {
		var sum float64
		for _, p := range positions[from:to] {
			sum += float64(lp[p.Column]) - float64(p.Recorded)
		}
		want := math.Exp(sum / float64(max(to-from, 1)))
		ratio := math.Float64frombits(uint64(math.Float32bits(values[2*i])) | uint64(math.Float32bits(values[2*i+1]))<<32)
		if ratio != want && !(math.Abs(ratio-want) <= 1e-15*want) {
			t.Errorf("datum %d with %d positions: ratio %v, want %v", i, to-from, ratio, want)
		}
		from = to
	}
	h.ok(d.DatumRatios(h.tensor(1, 0, nil), h.tensor(1, 0, nil), nil, nil))
}
