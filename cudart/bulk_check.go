package cudart

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// BulkCheck is what CheckBulk found where all bits are equal: how long a product of many rows takes with a weight row by row, and in blocks.
type BulkCheck struct {
	Rows, Blocks time.Duration
}

// bulkCase is a product that CheckBulk computes in all ways.
type bulkCase struct {
	rows, columns, depth int64 // the latter two are multiples of BlockSide
	tail                 int64 // how deep the second inner axis is; its rows have xType
	transposed           bool
	accumulate           bool
	result               Result
	xType                Type
}

func (c bulkCase) String() string {
	s := groupCase{rows: c.rows, columns: c.columns, depth: c.depth, transposed: c.transposed, accumulate: c.accumulate, xType: c.xType, tail: c.tail}.String()
	switch c.result {
	case Add:
		s += ", added to other rows"
	case Narrow:
		s += ", rounded"
	}
	return s
}

// bulkCases have ragged and whole tiles, an output that ends within a tile's columns, clusters whose second block has no rows, and inner axes of fewer and of more tiles than there are places.
func (v *Device) bulkCases() []bulkCase {
	side := v.squareSide()
	return []bulkCase{
		{rows: 130, columns: 320, depth: 512, xType: Float32},
		{rows: 300, columns: 192, depth: 64, accumulate: true, xType: BFloat16},
		{rows: 100, columns: 448, depth: 192, tail: 32, xType: Float32, accumulate: true},
		{rows: 257, columns: 128, depth: 256, tail: 136, xType: BFloat16},
		{rows: 130, columns: 320, depth: 448, transposed: true, accumulate: true, xType: BFloat16},
		{rows: 129, columns: 192, depth: 128, transposed: true, tail: 5, xType: Float32},
		{rows: 256, columns: 576, depth: 64, transposed: true, tail: 72, accumulate: true, xType: BFloat16},
		{rows: 131, columns: 320, depth: 128, tail: 16, result: Add, xType: Float32},
		{rows: 131, columns: 320, depth: 128, result: Narrow, xType: Float32},
		{rows: 200, columns: 128, depth: 192, transposed: true, result: Add, xType: BFloat16},
		{rows: bulkRows * side, columns: bulkColumns * side, depth: 256, xType: Float32},
		{rows: bulkRows * side, columns: bulkColumns * side, depth: 256, transposed: true, accumulate: true, xType: Float32},
	}
}

// CheckBulk computes products of random numbers with weights in blocks and with the same weights row by row, by warps, and compares every bit; then it takes the times of a product of many rows both ways, as Product does it. Its error says what is not
// equal, or what failed: a kernel that faults makes the device useless, so a process that has something to lose lets another one check. The device can use weights in blocks afterwards.
func (v *Device) CheckBulk() (found BulkCheck, err error) {
	if err := v.UseBulk(); err != nil {
		return found, err
	}
	random := rand.New(rand.NewPCG(20261127, 1))
	for _, c := range v.bulkCases() {
		if err := v.checkBulkCase(c, random); err != nil {
			return found, fmt.Errorf("products by bulk copies, %v: %w", c, err)
		}
	}
	for _, c := range []gatedCase{{rows: 130, columns: 192, depth: 192, gate: 32, up: 72, keep: true}, {rows: 257, columns: 320, depth: 64, up: 16}, {rows: 128, columns: 128, depth: 576}} {
		if err := v.checkGatedCase(c, random); err != nil {
			return found, fmt.Errorf("gated products by bulk copies, %+v: %w", c, err)
		}
	}
	const least = 4 * leastBulkDepth
	side := v.squareSide()
	return v.timeBulk(bulkCase{rows: bulkRows * side, columns: bulkColumns * side, depth: max(leastBulkDepth, int64(v.multiprocessors)*least/32/BlockSide*BlockSide), xType: Float32}, random)
}

// operandsOf are random operands on the device, to be freed together.
type operandsOf struct {
	v      *Device
	random *rand.Rand
	taken  []Address
	err    error
}

func (o *operandsOf) free() error {
	err := o.err
	for _, a := range o.taken {
		err = errors.Join(err, o.v.Free(a))
	}
	return err
}

// put gives memory with data in it; after an error it does nothing.
func (o *operandsOf) put(data []byte) Address {
	if o.err != nil {
		return 0
	}
	var a Address
	if a, o.err = o.v.Alloc(len(data)); o.err != nil {
		return 0
	}
	o.taken = append(o.taken, a)
	o.err = o.v.Upload(a, len(data), data, len(data), 1)
	return a
}

// rows gives a matrix of random numbers.
func (o *operandsOf) rows(rows, cols int64, t Type) View {
	x := View{Rows: rows, Cols: cols, Stride: (cols + 7) / 8 * 8}
	x.At = o.put(randomBits(o.random, rows*x.Stride, t))
	return x
}

// weight gives random numbers as a weight row by row, filled up with zeros.
func (o *operandsOf) weight(out, in int64) Weight {
	w := Weight{Out: out, In: in, Pitch: (in + 7) / 8 * 8}
	data := randomBits(o.random, out*w.Pitch, BFloat16)
	for r := range out {
		clear(data[2*(r*w.Pitch+in) : 2*(r+1)*w.Pitch])
	}
	w.At = o.put(data)
	return w
}

// blocks gives a weight that is row by row, as which its rows are contiguous, in blocks.
func (o *operandsOf) blocks(w Weight) Weight {
	b := w
	b.At = o.put(make([]byte, 2*w.Out*w.Pitch))
	if o.err == nil {
		o.err = o.v.PackRows(b, BFloat16Blocks, 0, w.Out, w.At, BFloat16)
	}
	return b
}

// result gives what y is after do, which finds it holding before.
func (o *operandsOf) result(y View, before []byte, do func() error) ([]byte, error) {
	if o.err != nil {
		return nil, o.err
	}
	if err := errors.Join(o.v.Upload(y.At, len(before), before, len(before), 1), do()); err != nil {
		return nil, err
	}
	after := make([]byte, len(before))
	return after, o.v.Download(after, y.At, len(after), len(after), 1)
}

func oriented(transposed bool, columns, depth int64) (out, in int64) {
	if transposed {
		return depth, columns
	}
	return columns, depth
}

func (v *Device) checkBulkCase(c bulkCase, random *rand.Rand) (err error) {
	o := operandsOf{v: v, random: random}
	defer func() { err = errors.Join(err, o.free()) }()
	x, byRows := o.rows(c.rows, c.depth, c.xType), o.weight(oriented(c.transposed, c.columns, c.depth))
	inBlocks := o.blocks(byRows)
	var tail tailRows
	var tailWeight Weight
	if c.tail > 0 {
		tail, tailWeight = tailRows{o.rows(c.rows, c.tail, c.xType), c.xType}, o.weight(oriented(c.transposed, c.columns, c.tail))
	}
	y := View{Rows: c.rows, Cols: c.columns, Stride: c.columns + 2}
	before := randomBits(random, y.Rows*y.Stride, Float32)
	y.At = o.put(before)
	add := o.rows(c.rows, c.columns, Float32)
	rounded := o.rows(c.rows, c.columns+2, BFloat16)
	group := func(w, tail Weight) []RowGroup { return []RowGroup{{To: c.rows, Weight: w, tail: tail}} }
	warps := largestWarpTile(c.transposed)
	want, err := o.result(y, before, func() error {
		err := v.productInTiles(part{y, x, c.xType, group(byRows, Weight{}), tailRows{}, c.columns, c.accumulate, false}, warps)
		if err == nil && c.tail > 0 {
			err = v.productInTiles(part{y, tail.x, tail.xType, group(tailWeight, Weight{}), tailRows{}, c.columns, true, false}, warps)
		}
		if err == nil && c.result == Add {
			err = v.Add(y, add)
		}
		return err
	})
	if err != nil {
		return err
	}
	to, shapes := y, []tile{{kernel: kProductBulk, rows: bulkRows, columns: bulkColumns}, {kernel: kProductBulkWide, rows: bulkRows, columns: wideBulkColumns}}
	if c.result == Narrow {
		to = View{At: rounded.At, Rows: c.rows, Cols: c.columns, Stride: rounded.Stride}
		zero := make([]byte, 2*to.Rows*to.Stride)
		before = zero
		if want, err = o.result(to, zero, func() error { return v.Round(to, BFloat16, y, Float32) }); err != nil {
			return err
		}
	}
	for _, shape := range shapes {
		if c.transposed {
			shape.kernel += kProductBulkTransposed - kProductBulk
		}
		for range 1 + v.multiprocessors/16 { // what depends on time may be right once
			got, err := o.result(to, before, func() error {
				return v.productByBulk(bulkProduct{to, x, add, c.xType, inBlocks, tail, tailWeight, c.result, c.transposed, c.accumulate}, shape)
			})
			if err != nil {
				return err
			}
			if !bytes.Equal(got, want) {
				return fmt.Errorf("with %d columns of a block, %s (%s)", shape.columns, differenceOf(to, got, want), kernelOf(shape.kernel).name)
			}
		}
	}
	if c.result != Store {
		return nil
	}
	for i := range warpShapes {
		shape := warpTile(i, c.transposed)
		shape.kernel = kernelFor(shape.kernel, BFloat16Blocks)
		got, err := o.result(y, before, func() error {
			return v.productInTiles(part{y, x, c.xType, group(inBlocks, tailWeight), tail, c.columns, c.accumulate, false}, shape)
		})
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("by warps, %s (%s)", differenceOf(y, got, want), kernelOf(shape.kernel).name)
		}
	}
	return nil
}

// differenceOf is firstDifference of elements of either size.
func differenceOf(y View, got, want []byte) string {
	if int64(len(got)) == 4*y.Rows*y.Stride {
		return firstDifference(y, got, want)
	}
	return fmt.Sprintf("bytes differ from %d on", func() (i int) {
		for got[i] == want[i] {
			i++
		}
		return i
	}())
}

// gatedCase is a gated product, with tails so deep.
type gatedCase struct {
	rows, columns, depth int64
	gate, up             int64
	keep                 bool
}

func (v *Device) checkGatedCase(c gatedCase, random *rand.Rand) (err error) {
	o := operandsOf{v: v, random: random}
	defer func() { err = errors.Join(err, o.free()) }()
	x := o.rows(c.rows, c.depth, Float32)
	gate, up := o.weight(c.columns, c.depth), o.weight(c.columns, c.depth)
	results := o.rows(3*c.rows, c.columns, BFloat16) // hidden, gate and up
	part := func(i int64) View {
		return View{At: results.At + Address(2*i*c.rows*results.Stride), Rows: c.rows, Cols: c.columns, Stride: results.Stride}
	}
	p := GatedProduct{Hidden: part(0), X: x, XType: Float32, Gate: o.blocks(gate), Up: o.blocks(up)}
	if c.keep {
		p.KeptGate, p.KeptUp = part(1), part(2)
	}
	tailOf := func(depth int64) (t Tail) {
		if depth > 0 {
			t = Tail{o.rows(c.rows, depth, Float32), Float32, []RowGroup{{To: c.rows, Weight: o.weight(c.columns, depth)}}}
		}
		return t
	}
	p.GateTail, p.UpTail = tailOf(c.gate), tailOf(c.up)
	before := make([]byte, 2*results.Rows*results.Stride)
	want, err := o.result(results, before, func() error {
		var sums [2]View
		for i, of := range []struct {
			w    Weight
			tail Tail
		}{{gate, p.GateTail}, {up, p.UpTail}} {
			sums[i] = o.rows(c.rows, c.columns, Float32)
			if o.err != nil {
				return o.err
			}
			if err := v.ProductWithTail(sums[i], x, Float32, []RowGroup{{To: c.rows, Weight: of.w}}, of.tail, BFloat16, false, false); err != nil {
				return err
			}
		}
		if c.keep {
			return v.SwiGLUKeep(p.Hidden, BFloat16, p.KeptGate, p.KeptUp, sums[0], sums[1])
		}
		return v.SwiGLU(p.Hidden, BFloat16, sums[0], sums[1], Float32)
	})
	if err != nil {
		return err
	}
	got, err := o.result(results, before, func() error {
		done, err := v.gatedByBulk(p)
		if err == nil && !done {
			err = errors.New("it was not done")
		}
		return err
	})
	if err == nil && !bytes.Equal(got, want) {
		err = errors.New(differenceOf(results, got, want))
	}
	return err
}

// timeBulk takes the times of a product with a weight row by row and in blocks, its rows rounded in either way.
func (v *Device) timeBulk(c bulkCase, random *rand.Rand) (found BulkCheck, err error) {
	o := operandsOf{v: v, random: random}
	defer func() { err = errors.Join(err, o.free()) }()
	x, w, y := o.rows(c.rows, c.depth, c.xType), o.weight(c.columns, c.depth), o.rows(c.rows, c.columns, Float32)
	b := o.blocks(w)
	if o.err != nil {
		return found, o.err
	}
	for _, way := range []struct {
		w  Weight
		t  Type
		to *time.Duration
	}{{w, BFloat16, &found.Rows}, {b, BFloat16Blocks, &found.Blocks}} {
		if *way.to, err = v.timed(func() error {
			return v.Product(y, x, c.xType, []RowGroup{{To: c.rows, Weight: way.w}}, way.t, false, false)
		}); err != nil {
			return found, err
		}
	}
	return found, nil
}
