// Package optest checks a tensor.Device: every operation against a plain float64 reference, gradients by finite differences, and the promises on order: a row's
// result depends on that row alone, whatever else is in the batch. It knows the interface only, so every device has the same tests.
package optest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Options say what a device promises beyond the interface, or less.
type Options struct {
	// RoundedAttention: with bfloat16 pages the device multiplies bfloat16 values in attention, so queries, probabilities and the gradients that go into products are rounded to them. Results
	// then agree with the reference for rounded inputs to 3e-2 for every element, and to 5e-3 in the root mean square, instead of 1e-5; every promise on equal bits stays.
	RoundedAttention bool
	// ChoicesUnseen: the host does not see what tokens choose, so a choice with experts that there are not is no error: it counts as one of the nearest, and goes nowhere else.
	ChoicesUnseen bool
	// Slow: the device takes long, as kernels on a processor do. Left out is what is many or large where fewer and smaller cases run the same code, every part of it.
	Slow bool
}

// attention is the tolerance of attention over pages of a type.
func (o Options) attention(pages tensor.DType) float64 {
	if o.RoundedAttention && pages == tensor.BFloat16 {
		return 3e-2
	}
	return 1e-5
}

// attentionAverage is the same for the root mean square of the errors.
func (o Options) attentionAverage(pages tensor.DType) float64 { return o.attention(pages) / 6 }

// RunAll runs all checks. The device is left with no memory allocated.
func RunAll(t *testing.T, d tensor.Device, o Options) {
	t.Run("values", func(t *testing.T) {
		for _, c := range cases(o) {
			t.Run(c.name, func(t *testing.T) { c.check(t, d) })
		}
	})
	t.Run("rows to memory", func(t *testing.T) { rowsToMemory(t, d) })
	t.Run("packing", func(t *testing.T) { packing(t, d) })
	t.Run("packing at once", func(t *testing.T) { repacking(t, d) })
	t.Run("matrix copies", func(t *testing.T) { matrixCopies(t, d) })
	t.Run("gradients", func(t *testing.T) { gradients(t, d) })
	t.Run("rows alone", func(t *testing.T) { rowsAlone(t, d) })
	t.Run("groups", func(t *testing.T) { groups(t, d) })
	t.Run("products at once", func(t *testing.T) { matMuls(t, d) })
	t.Run("products of adapters", func(t *testing.T) { adapted(t, d) })
	t.Run("layers with one input", func(t *testing.T) { layers(t, d, layersCases()) })
	if d.Segmented() {
		t.Run("segments", func(t *testing.T) { segmented(t, d, 1, 2, 8) })
		t.Run("segments of logits", func(t *testing.T) { segmentedLogits(t, d) })
		t.Run("parts of key heads", func(t *testing.T) { keyParts(t, d) })
	}
	t.Run("attention cuts", func(t *testing.T) { attentionCuts(t, d, o) })
	t.Run("attention cuts of long sequences", func(t *testing.T) { longCuts(t, d, o) })
	t.Run("page copies", func(t *testing.T) { pageCopies(t, d) })
	t.Run("not finite", func(t *testing.T) { notFinite(t, d) })
	t.Run("refusals", func(t *testing.T) { refusals(t, d) })
	if d.HasRecurrence() {
		t.Run("recurrence", func(t *testing.T) { recurrence(t, d, o) })
	}
	t.Run("experts values", func(t *testing.T) {
		for _, c := range expertCases(mixtures, o) {
			t.Run(c.name, func(t *testing.T) { c.check(t, d) })
		}
	})
	t.Run("experts", func(t *testing.T) { experts(t, d, o) })
	if d.HasE4M3() {
		t.Run("eight bits", func(t *testing.T) { RunE4M3(t, d, o) })
	}
	t.Run("sinks values", func(t *testing.T) {
		for _, c := range sinkCases(o) {
			t.Run(c.name, func(t *testing.T) { c.check(t, d) })
		}
	})
	t.Run("sinks", func(t *testing.T) { sinks(t, d, o) })
	if own, ok := d.(tensor.Drawer); ok {
		t.Run("drawing", func(t *testing.T) { drawing(t, own, d, []int{1, 2, 65, 1500}) })
	}
	if own, ok := d.(tensor.Differentiator); ok {
		t.Run("derivatives of losses", func(t *testing.T) { derivatives(t, own, d) })
	}
	if own, ok := d.(tensor.Fuser); ok {
		t.Run("fused", func(t *testing.T) { fused(t, own, d, fusedRowShapes, headsShapes) })
		t.Run("fused with sinks", func(t *testing.T) { fusedSinks(t, own, d, fusedSinkShapes) })
		t.Run("fused with long sequences", func(t *testing.T) { keptLong(t, own, d) })
		t.Run("fused refusals", func(t *testing.T) { fusedRefusals(t, own, d) })
	}
}

// RunEqual checks that two devices give equal bits in every operation, as devices of one Arithmetic must.
func RunEqual(t *testing.T, a, b tensor.Device) {
	if a.Arithmetic() != b.Arithmetic() {
		t.Fatalf("arithmetic %q and %q: only equal ones promise equal bits", a.Arithmetic(), b.Arithmetic())
	}
	all := slices.Concat(cases(Options{}), expertCases(mixtures, Options{}), sinkCases(Options{}))
	if a.HasRecurrence() {
		all = append(all, recurrenceCases(Options{})...)
	}
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			x, y := c.run(start(t, a)), c.run(start(t, b))
			for i := range x {
				sameBits(t, fmt.Sprintf("output %d", i), x[i], y[i])
			}
		})
	}
	if a.Segmented() { // chains are equal, and RunAll checks how each device adds them: here that other threads add them so too
		t.Run("segments", func(t *testing.T) { segmented(t, b, 2) })
	}
}

// testCase is one operation at one shape: run gives its outputs, want the reference's.
type testCase struct {
	name      string
	run       func(h *bench) [][]float32
	want      func() [][]float64
	tolerance float64 // of the output's root mean square, or of a value itself if that is larger
	average   float64 // of the output's root mean square, for that of the errors; 0: not looked at
}

func cases(o Options) []testCase {
	return slices.Concat(productCases(productShapes), rowCases(rowShapes, ropeShapes), attentionCases(attentionShapes, o),
		longAttentionCases(o), lossCases(lossShapes), optimizerCases(arenaShapes))
}

func (c testCase) check(t *testing.T, d tensor.Device) {
	got, want := c.run(start(t, d)), c.want()
	if len(got) != len(want) {
		t.Fatalf("%d outputs, reference has %d", len(got), len(want))
	}
	for i := range got {
		name := fmt.Sprintf("output %d", i)
		closeTo(t, name, got[i], want[i], c.tolerance)
		if c.average > 0 {
			var errors, values float64
			for k, w := range want[i] {
				errors += (float64(got[i][k]) - w) * (float64(got[i][k]) - w)
				values += w * w
			}
			if !(errors <= c.average*c.average*values) {
				t.Errorf("%s: the root mean square of the errors is %g of the reference's", name, math.Sqrt(errors/values))
			}
		}
	}
}

func closeTo(t *testing.T, name string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, reference has %d", name, len(got), len(want))
	}
	var square float64
	for _, w := range want {
		square += w * w
	}
	scale := math.Sqrt(square / float64(max(len(want), 1)))
	for i, w := range want {
		if diff := math.Abs(float64(got[i]) - w); !(diff <= tolerance*math.Max(scale, math.Abs(w))) {
			t.Fatalf("%s: element %d is %g, reference %g", name, i, got[i], w)
		}
	}
}

func sameBits(t *testing.T, name string, a, b []float32) {
	t.Helper()
	if len(a) != len(b) {
		t.Fatalf("%s: %d and %d values", name, len(a), len(b))
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("%s: element %d is %08x (%g) and %08x (%g)", name, i, math.Float32bits(a[i]), a[i], math.Float32bits(b[i]), b[i])
		}
	}
}

// bench is a device within one test: it frees what the test allocates and ends the test at an error.
type bench struct {
	t *testing.T
	d tensor.Device
}

func start(t *testing.T, d tensor.Device) *bench { return &bench{t, d} }

func (h *bench) ok(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// tensor holds values as rows × cols.
func (h *bench) tensor(rows, cols int, values []float32) tensor.Tensor {
	h.t.Helper()
	x, err := h.d.Alloc(tensor.Float32, rows, cols)
	h.ok(err)
	h.t.Cleanup(func() { h.d.Free(x) })
	h.ok(h.d.Upload(x, values))
	return x
}

// view holds values within a wider tensor whose other elements are NaN, which no operation may read or write.
func (h *bench) view(rows, cols int, values []float32) tensor.Tensor {
	h.t.Helper()
	wide := cols + 7
	all := make([]float32, rows*wide)
	for i := range all {
		all[i] = float32(math.NaN())
	}
	for r := range rows {
		copy(all[r*wide+3:], values[r*cols:(r+1)*cols])
	}
	x := h.tensor(rows, wide, all)
	h.t.Cleanup(func() {
		if x.Buffer.Addr == 0 {
			return
		}
		for i, v := range h.read(x) {
			if c := i % wide; (c < 3 || c >= cols+3) && !math.IsNaN(float64(v)) {
				h.t.Errorf("an element beside the view was written: row %d, column %d", i/wide, c-3)
				return
			}
		}
	})
	return x.Columns(3, 3+cols)
}

func (h *bench) read(x tensor.Tensor) []float32 {
	h.t.Helper()
	v := make([]float32, x.Rows*x.Cols)
	h.ok(h.d.Download(v, x))
	return v
}

func (h *bench) matrix(d tensor.DType, out, in int, values []float32) tensor.Matrix {
	h.t.Helper()
	m, err := h.d.NewMatrix(d, out, in)
	h.ok(err)
	h.t.Cleanup(m.Free)
	h.ok(h.d.PackRows(m, 0, out, "F32", littleEndian(values)))
	return m
}

func littleEndian(values []float32) []byte {
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// normal gives n values that depend on the seed only.
func normal(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

func float64s(v []float32) []float64 {
	w := make([]float64, len(v))
	for i := range v {
		w[i] = float64(v[i])
	}
	return w
}

// rounded gives values as the type stores them.
func rounded(d tensor.DType, v []float32) []float64 {
	w := float64s(v)
	if d == tensor.BFloat16 {
		for i := range v {
			w[i] = float64(bfloat16(v[i]))
		}
	}
	return w
}

// bfloat16 rounds to nearest even by search among the neighbours, not by the usual bit trick, to be a second opinion.
func bfloat16(f float32) float32 {
	down := math.Float32frombits(math.Float32bits(f) &^ 0xffff)
	up := math.Float32frombits(math.Float32bits(f)&^0xffff + 0x10000)
	below, above := math.Abs(float64(f)-float64(down)), math.Abs(float64(up)-float64(f))
	if below < above || (below == above && math.Float32bits(down)&0x10000 == 0) {
		return down
	}
	return up
}
