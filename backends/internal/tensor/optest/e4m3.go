package optest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// e4m3Shape is a matrix in eight bits; rows from a multiple of tensor.MatrixRows on make a view.
type e4m3Shape struct{ out, in, columns, from int }

var e4m3Shapes = []e4m3Shape{
	{256, 256, 128, 0}, {192, 384, 128, 64}, {160, 200, 128, 128}, {33, 77, 64, 0}, {97, 31, 128, 64}, {640, 129, 32, 512}, {1, 1, 2, 0}, {64, 300, 6, 0}, {300, 1000, 128, 0},
	{70, 40, 16, 0},
}

// slowE4M3 are shapes with which every kernel runs, and each way to find scales, on a device that is slow.
var slowE4M3 = []e4m3Shape{{192, 384, 128, 64}, {97, 31, 128, 64}, {70, 40, 16, 0}, {64, 130, 6, 0}}

// e4m3Value is the number that eight bits are.
func e4m3Value(code byte) float32 {
	exponent, fraction := int(code>>3&15), float64(code&7)
	v := math.Ldexp(8+fraction, exponent-10)
	if exponent == 0 {
		v = math.Ldexp(fraction, -9)
	}
	return float32(math.Copysign(v, 1-2*float64(code>>7)))
}

// randomE4M3 fills both kinds of matrix of a shape: the one in eight bits, and the one of bfloat16 that it stands for. Rows are packed in pieces.
func randomE4M3(t *testing.T, d tensor.Device, s e4m3Shape, r *rand.Rand) (eight, plain tensor.Matrix) {
	t.Helper()
	across, blocks := (s.in+s.columns-1)/s.columns, (s.out+tensor.E4M3Rows-1)/tensor.E4M3Rows
	block := make([]float32, blocks*across)
	for i := range block {
		block[i] = float32(math.Ldexp(1+r.Float64(), r.IntN(12)-10)) * float32(1-2*r.IntN(2))
		if r.IntN(4) == 0 {
			block[i] = math.Float32frombits(math.Float32bits(block[i]) &^ 0xffff) // as files of bfloat16 scales have them
		}
	}
	block[0] = tensor.E4M3LeastScale
	codes, scales, values := make([]byte, s.out*s.in), make([]float32, s.out*across), make([]byte, 2*s.out*s.in)
	for row := range s.out {
		copy(scales[row*across:], block[row/tensor.E4M3Rows*across:][:across])
		for c := range s.in {
			code := byte(r.Uint32())
			if code&0x7f == 0x7f {
				code--
			}
			codes[row*s.in+c] = code
			bits := math.Float32bits(e4m3Value(code) * scales[row*across+c/s.columns])
			binary.LittleEndian.PutUint16(values[2*(row*s.in+c):], uint16((bits+0x7fff+bits>>16&1)>>16))
		}
	}
	eight, err := d.NewE4M3Matrix(s.out, s.in, s.columns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(eight.Free)
	if plain, err = d.NewMatrix(tensor.BFloat16, s.out, s.in); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plain.Free)
	for row := 0; row < s.out; {
		n := min(1+r.IntN(70), s.out-row)
		if err := errors.Join(d.PackE4M3(eight, row, n, codes[row*s.in:(row+n)*s.in], scales[row*across:(row+n)*across]), d.PackRows(plain, row, n, "BF16", values[2*row*s.in:2*(row+n)*s.in])); err != nil {
			t.Fatal(err)
		}
		row += n
	}
	if tensor.ScaleColumns(eight) != s.columns || tensor.ScaleColumns(plain) != 0 || eight.DType() != tensor.BFloat16 {
		t.Errorf("scales for %d and %d columns, type %v", tensor.ScaleColumns(eight), tensor.ScaleColumns(plain), eight.DType())
	}
	if s.from > 0 {
		eight, plain = eight.Rows(s.from, s.out), plain.Rows(s.from, s.out)
	}
	return eight, plain
}

// RunE4M3 asks products with matrices in eight bits for the bits of those with the matrices of bfloat16 that they stand for.
func RunE4M3(t *testing.T, d tensor.Device, o Options) {
	r := rand.New(rand.NewPCG(8, 3))
	shapes, counts := e4m3Shapes, []int{1, 2, 3, 5, 8, 11, 13, 20, 24, 25, 61, 130, 513}
	if o.Slow {
		shapes, counts = slowE4M3, []int{1, 25, 61, 130, 513}
	}
	for _, s := range shapes {
		t.Run(fmt.Sprintf("%d×%d by %d from %d", s.out, s.in, s.columns, s.from), func(t *testing.T) {
			eight, plain := randomE4M3(t, d, s, r)
			out := s.out - s.from
			for _, rows := range counts {
				x, dy := randomE4M3Rows(t, d, r, rows, s.in), randomE4M3Rows(t, d, r, rows, out)
				for _, accumulate := range []bool{false, true} {
					for name, f := range map[string]func(w tensor.Matrix, y tensor.Tensor) error{
						"matmul":     func(w tensor.Matrix, y tensor.Tensor) error { return d.MatMul(y, x, w, accumulate) },
						"transposed": func(w tensor.Matrix, y tensor.Tensor) error { return d.MatMulTransposed(y, dy, w, accumulate) },
						"segments": func(w tensor.Matrix, y tensor.Tensor) error {
							if !d.Segmented() || accumulate {
								return d.MatMul(y, x, w, accumulate)
							}
							return d.MatMuls([]tensor.Multiplication{{Y: y, X: x, Groups: []tensor.RowGroup{{To: rows, Matrix: w}}, Segments: halves(s.in)}})
						},
					} {
						cols := out
						if name == "transposed" {
							cols = s.in
						}
						want, got := e4m3Result(t, d, rows, cols, plain, f), e4m3Result(t, d, rows, cols, eight, f)
						if i := differ(got, want); i >= 0 {
							t.Fatalf("%s of %d rows, accumulate %v: element %d is %v, with the matrix of bfloat16 %v", name, rows, accumulate, i, got[i], want[i])
						}
					}
				}
			}
			ids := []int32{0, int32(out - 1), -1, int32(out / 2)}
			gather := func(w tensor.Matrix, y tensor.Tensor) error { return d.GatherRows(y, w, ids) }
			want, got := e4m3Result(t, d, len(ids), s.in, plain, gather), e4m3Result(t, d, len(ids), s.in, eight, gather)
			if i := differ(got, want); i >= 0 {
				t.Errorf("gathered: element %d is %v, with the matrix of bfloat16 %v", i, got[i], want[i])
			}
		})
	}
	t.Run("every number", func(t *testing.T) { everyE4M3(t, d, o) })
	t.Run("copies", func(t *testing.T) { copiedE4M3(t, d, r) })
	for _, s := range []mixture{{40, 2, 5, 96, 144}, {65, 1, 2, 70, 40}, {200, 1, 1, 96, 144}} { // few rows for each expert, more, and many
		t.Run(s.String(), func(t *testing.T) { routedE4M3(t, d, r, s) })
	}
	t.Run("products at once", func(t *testing.T) { jointE4M3(t, d, r) })
	t.Run("refusals", func(t *testing.T) { refusedE4M3(t, d, r) })
}

// halves cuts an inner axis in two at an even element, as products with segments are cut.
func halves(n int) tensor.Segments {
	if n < 4 {
		return tensor.Segments{Count: 1, Ends: [tensor.MaxSegments]int32{int32(n)}}
	}
	return tensor.Segments{Count: 2, Ends: [tensor.MaxSegments]int32{int32(n / 4 * 2), int32(n)}}
}

func randomE4M3Rows(t *testing.T, d tensor.Device, r *rand.Rand, rows, cols int) tensor.Tensor {
	t.Helper()
	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = float32(r.NormFloat64())
	}
	x, err := d.Alloc(tensor.Float32, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Free(x) })
	if err := d.Upload(x, values); err != nil {
		t.Fatal(err)
	}
	return x
}

// e4m3Result is what f writes with a matrix, to what holds numbers.
func e4m3Result(t *testing.T, d tensor.Device, rows, cols int, w tensor.Matrix, f func(w tensor.Matrix, y tensor.Tensor) error) []float32 {
	t.Helper()
	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = float32(i%7) - 3
	}
	y, err := d.Alloc(tensor.Float32, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Free(y)
	if err := errors.Join(d.Upload(y, values), f(w, y), d.Download(values, y)); err != nil {
		t.Fatal(err)
	}
	return values
}

// differ is the first element whose bits differ; -1 if none do.
func differ(got, want []float32) int {
	for i, v := range want {
		if math.Float32bits(got[i]) != math.Float32bits(v) {
			return i
		}
	}
	return -1
}

// everyE4M3 reads each number with scales of all kinds.
func everyE4M3(t *testing.T, d tensor.Device, o Options) {
	m, err := d.NewE4M3Matrix(1, 254, 254)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	var codes []byte
	for i := range 256 {
		if i&0x7f != 0x7f {
			codes = append(codes, byte(i))
		}
	}
	r := rand.New(rand.NewPCG(5, 5))
	scales := []float32{1, -1, 0x1p-117, -0x1.fffffep-117, 0x1p119, 0x1.0101p0, 0x1.00ffp0, 3.1415927}
	more := 200
	if o.Slow {
		more = 10
	}
	for range more {
		scales = append(scales, float32(math.Ldexp(1+r.Float64(), r.IntN(235)-116)))
	}
	for _, scale := range scales {
		fresh, err := d.NewE4M3Matrix(1, 254, 254)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.PackE4M3(fresh, 0, 1, codes, []float32{scale}); err != nil {
			t.Fatal(err)
		}
		got := e4m3Result(t, d, 1, 254, fresh, func(w tensor.Matrix, y tensor.Tensor) error { return d.GatherRows(y, w, []int32{0}) })
		// One row of ones on the diagonal reads the matrix through its products.
		x := make([]float32, 254*254)
		for i := range 254 {
			x[i*254+i] = 1
		}
		ones, err := d.Alloc(tensor.Float32, 254, 254)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Upload(ones, x); err != nil {
			t.Fatal(err)
		}
		products := e4m3Result(t, d, 254, 1, fresh, func(w tensor.Matrix, y tensor.Tensor) error { return d.MatMul(y, ones, w, false) })
		d.Free(ones)
		fresh.Free()
		for i, code := range codes {
			bits := math.Float32bits(e4m3Value(code) * scale)
			want := math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
			if math.Float32bits(got[i]) != math.Float32bits(want) || products[i] != want {
				t.Fatalf("number %#x with scale %v is %v, and %v in a product, want %v", code, scale, got[i], products[i], want)
			}
		}
	}
}

// copiedE4M3 puts a matrix together from views of another one.
func copiedE4M3(t *testing.T, d tensor.Device, r *rand.Rand) {
	s := e4m3Shape{200, 150, 128, 0}
	eight, plain := randomE4M3(t, d, s, r)
	to, err := d.NewE4M3Matrix(s.out, s.in, s.columns)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Free()
	finish, err := d.StartCopies([]tensor.MatrixCopy{{Dst: to, Row: 128, Src: eight.Rows(128, 200)}, {Dst: to, Row: 0, Src: eight.Rows(0, 128)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := finish(); err != nil {
		t.Fatal(err)
	}
	x := randomE4M3Rows(t, d, r, 2, s.in)
	f := func(w tensor.Matrix, y tensor.Tensor) error { return d.MatMul(y, x, w, false) }
	if got, want := e4m3Result(t, d, 2, s.out, to, f), e4m3Result(t, d, 2, s.out, plain, f); differ(got, want) >= 0 {
		t.Error("the copy gives other products")
	}
	if _, err := d.StartCopies([]tensor.MatrixCopy{{Dst: plain, Src: eight}}); err == nil {
		t.Error("numbers of eight bits are copied to a matrix of bfloat16")
	}
}

// jointE4M3 does the products of a stage that read the same rows, with adapters whose products are added in the next one, and one whose groups have matrices of both kinds.
func jointE4M3(t *testing.T, d tensor.Device, r *rand.Rand) {
	const rows, in, rank = 20, 272, 16
	shapes := []e4m3Shape{{128, in, 128, 0}, {64, in, 128, 0}, {64, in, 128, 0}}
	var eight, plain [3]tensor.Matrix
	for i, s := range shapes {
		eight[i], plain[i] = randomE4M3(t, d, s, r)
	}
	_, down := randomE4M3(t, d, e4m3Shape{rank, in, 128, 0}, r)
	_, up := randomE4M3(t, d, e4m3Shape{128, rank, 128, 0}, r)
	x := randomE4M3Rows(t, d, r, rows, in)
	h := randomE4M3Rows(t, d, r, rows, rank)
	results := func(w [3]tensor.Matrix) (all []float32) {
		whole := func(m tensor.Matrix) []tensor.RowGroup { return []tensor.RowGroup{{To: rows, Matrix: m}} }
		var y [4]tensor.Tensor
		for i, cols := range []int{128, 64, 64, 64} {
			y[i] = randomE4M3Rows(t, d, rand.New(rand.NewPCG(1, 1)), rows, cols)
		}
		first := []tensor.Multiplication{{Y: h, X: x, Groups: whole(down)}}
		for i, m := range w {
			first = append(first, tensor.Multiplication{Y: y[i], X: x, Groups: whole(m)})
		}
		mixed := []tensor.RowGroup{{To: 7, Matrix: w[1], Factor: 0.5, Round: tensor.BFloat16}, {From: 7, To: 12, Matrix: plain[2]}, {From: 13, To: rows, Matrix: w[2]}}
		err := d.MatMuls(first, []tensor.Multiplication{{Y: y[0], X: h, Groups: whole(up), Accumulate: true}, {Y: y[3], X: x, Groups: mixed, Accumulate: true}})
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range y {
			values := make([]float32, to.Rows*to.Cols)
			if err := d.Download(values, to); err != nil {
				t.Fatal(err)
			}
			all = append(all, values...)
		}
		return all
	}
	if i := differ(results(eight), results(plain)); i >= 0 {
		t.Errorf("element %d of the results differs", i)
	}
}

// routedE4M3 multiplies with a stack of experts.
func routedE4M3(t *testing.T, d tensor.Device, r *rand.Rand, of mixture) {
	experts, out, tokens, slots := of.experts, of.out, of.tokens, of.slots
	s := e4m3Shape{tensor.StackRows(experts, out), of.in, 128, 0}
	eight, plain := randomE4M3(t, d, s, r)
	words, err := d.Alloc(tensor.Float32, 1, tensor.TableWords(tokens, slots, experts))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Free(words)
	table := tensor.Table{Words: words, Tokens: tokens, Slots: slots, Experts: experts}
	choice, p, logits := randomE4M3Rows(t, d, r, tokens, slots), randomE4M3Rows(t, d, r, tokens, slots), randomE4M3Rows(t, d, r, tokens, experts)
	if err := errors.Join(d.Route(choice, p, logits, true), d.Dispatch(table, choice)); err != nil {
		t.Fatal(err)
	}
	x, dy := randomE4M3Rows(t, d, r, tokens, s.in), randomE4M3Rows(t, d, r, tokens*slots, out)
	for _, transposed := range []bool{false, true} {
		cols := out
		if transposed {
			cols = s.in
		}
		f := func(w tensor.Matrix, y tensor.Tensor) error {
			groups := []tensor.RoutedGroup{{To: tokens, Stack: tensor.NewStack(w, experts, out)}}
			if transposed {
				return d.MatMulRouted(table, tensor.RoutedProduct{Y: y, X: dy, Groups: groups, Transposed: true})
			}
			return d.MatMulRouted(table, tensor.RoutedProduct{Y: y, X: x, Groups: groups, Gathered: true})
		}
		if got, want := e4m3Result(t, d, tokens*slots, cols, eight, f), e4m3Result(t, d, tokens*slots, cols, plain, f); differ(got, want) >= 0 {
			t.Errorf("transposed %v: other products", transposed)
		}
	}
}

// refusedE4M3 is what cannot be packed.
func refusedE4M3(t *testing.T, d tensor.Device, r *rand.Rand) {
	m, err := d.NewE4M3Matrix(64, 4, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	ones := func(n int) []float32 { return slices.Repeat([]float32{1}, n) }
	with := func(n, at int, v float32) []float32 {
		s := ones(n)
		s[at] = v
		return s
	}
	big := []byte{0x7e, 0, 0, 0}
	if err := d.PackE4M3(m, 32, 1, big, []float32{1, 1}); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"a number that is none":         d.PackE4M3(m, 0, 1, []byte{0, 0x7f, 0, 0}, ones(2)),
		"another one":                   d.PackE4M3(m, 0, 1, []byte{0, 0, 0, 0xff}, ones(2)),
		"a number that is too large":    d.PackE4M3(m, 0, 1, big, with(2, 0, 0x1p120)),
		"scales of a panel that differ": d.PackE4M3(m, 0, 2, make([]byte, 8), with(4, 2, 2)),
		"and from those before":         d.PackE4M3(m, 33, 1, make([]byte, 4), with(2, 1, 2)),
		"a scale of zero":               d.PackE4M3(m, 0, 1, make([]byte, 4), with(2, 1, 0)),
		"a scale that is too small":     d.PackE4M3(m, 0, 1, make([]byte, 4), with(2, 1, 0x1p-118)),
		"a scale that is none":          d.PackE4M3(m, 0, 1, make([]byte, 4), with(2, 1, float32(math.NaN()))),
		"an infinite scale":             d.PackE4M3(m, 0, 1, make([]byte, 4), with(2, 0, float32(math.Inf(-1)))),
		"too few scales":                d.PackE4M3(m, 0, 2, make([]byte, 8), ones(2)),
		"too few numbers":               d.PackE4M3(m, 0, 2, make([]byte, 4), ones(4)),
		"rows beyond the matrix":        d.PackE4M3(m, 63, 2, make([]byte, 8), ones(4)),
		"rows of another type":          d.PackRows(m, 0, 1, "BF16", make([]byte, 8)),
		"repacking":                     d.Repack(tensor.MatrixSource{Matrix: m, Src: randomE4M3Rows(t, d, r, 64, 4)}),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := d.PackE4M3(m, 0, 1, []byte{0, 0x7f, 0, 0}, ones(2)); !errors.Is(err, tensor.ErrNotFinite) {
		t.Error(err)
	}
	for _, columns := range []int{-2, 0, 1, 127} {
		if _, err := d.NewE4M3Matrix(64, 64, columns); err == nil {
			t.Errorf("scales for %d columns: no error", columns)
		}
	}
	plain, err := d.NewMatrix(tensor.BFloat16, 32, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Free()
	if err := d.PackE4M3(plain, 0, 1, make([]byte, 2), ones(1)); err == nil {
		t.Error("a matrix of bfloat16 takes numbers of eight bits")
	}
}
