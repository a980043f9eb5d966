package cudart

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// LibraryProduct is a shape in which CheckCuBLASLt found the kernels' bits, by this algorithm.
type LibraryProduct struct {
	ProductShape
	Algorithm        LibraryAlgorithm
	Kernels, Library time.Duration // of one product
	// Riding and Separate are the time of one with an adapter's product of rank CheckedRank: by kernels, which do both in one launch (ProductWithTail), and by the library with a launch of kernels for the adapter's behind it.
	Riding, Separate time.Duration
	// Apart is for UseCuBLASLt: the library also does those products in which an adapter's would ride if kernels did them.
	Apart bool
}

// CheckedRank is the rank of the adapter in LibraryProduct.
const CheckedRank = 32

// LeftOut is a shape that stays with the kernels.
type LeftOut struct {
	ProductShape
	Reason string
	None   bool // the library has no algorithm that may be used; else it has, and none of those tried works and has the kernels' bits
}

// LibraryCheck is what CheckCuBLASLt found: each shape is in one of the lists.
type LibraryCheck struct {
	Version     string // of the library
	Products    []LibraryProduct
	LeftOut     []LeftOut
	Accumulates string // why products that go on from what y holds stay with the kernels; empty: they need not
}

const (
	// mostChecked bounds the elements of y in a check; more columns are checked with fewer rows.
	mostChecked = 1 << 26
	// mostOffers is how many algorithms are tried for a shape at most, and mostFurther how many beside the first of each are for shapes in which none is right, all together: it is done while a server starts.
	mostOffers, mostFurther = 8, 64
)

// checkRows are ragged numbers of rows, few and many. Product takes the algorithm of a shape for them unless there are too many columns for so many elements in all.
func (s ProductShape) checkRows(elements int64) []int64 {
	few := int64(leastLibraryRows + 3)
	for _, class := range rowsClasses {
		if class < s.Rows {
			few = class + 1
		}
	}
	return []int64{min(few, max(leastLibraryRows+3, elements/s.Columns)), max(leastLibraryRows+5, min(s.Rows-3, elements/s.Columns))}
}

// shapesOf lists the products with weights, each an Out and an In, in both orientations and for the given classes of rows.
func shapesOf(weights [][2]int64, classes []int64) (shapes []ProductShape) {
	known := map[ProductShape]bool{}
	for _, w := range weights {
		for _, s := range []ProductShape{{Columns: w[0], Depth: w[1]}, {Columns: w[1], Depth: w[0], Transposed: true}} {
			for _, s.Rows = range classes {
				if s.fits() && !known[s] {
					known[s] = true
					shapes = append(shapes, s)
				}
			}
		}
	}
	return shapes
}

// CheckCuBLASLt computes products of random numbers by the library and by the kernels that the device uses, compares every bit and takes the times, for weights that are each an Out and an In. A shape in which the library
// differs, or fails, with the first algorithms that it offers is left out; its reason says what is not equal. The error says what failed for all: as with CheckWarpgroups a process that has something to lose lets another
// one check. What Product uses is as before then.
func (v *Device) CheckCuBLASLt(l *CuBLASLt, weights [][2]int64) (LibraryCheck, error) {
	c := libraryCheck{device: v, library: l, random: rand.New(rand.NewPCG(20261122, 2)), elements: mostChecked, further: mostFurther}
	return c.check(shapesOf(weights, rowsClasses))
}

type libraryCheck struct {
	device      *Device
	library     *CuBLASLt
	random      *rand.Rand
	elements    int64  // mostChecked
	further     int    // what is left of mostFurther
	accumulates string // see LibraryCheck
}

func (c *libraryCheck) check(shapes []ProductShape) (LibraryCheck, error) {
	v, found := c.device, LibraryCheck{Version: c.library.Version()}
	before := v.library
	v.library = nil
	defer func() { v.library = before }()
	for _, s := range shapes {
		p, left, err := c.compare(s)
		switch {
		case err != nil:
			return found, fmt.Errorf("products by cuBLASLt, %v: %w", s, err)
		case left != nil:
			found.LeftOut = append(found.LeftOut, *left)
		default:
			found.Products = append(found.Products, p)
		}
	}
	found.Accumulates = c.accumulates
	return found, nil
}

// otherBits is the error of an algorithm whose bits are not those of the kernels.
type otherBits string

func (e otherBits) Error() string { return string(e) }

// bearable says whether an error is of one algorithm or shape, and others can be tried on the device.
func (c *libraryCheck) bearable(err error) bool {
	var bits otherBits
	var failed *cublasltError
	return (errors.As(err, &bits) || errors.As(err, &failed)) && c.device.Synchronize() == nil
}

// filled gives memory with random numbers; they repeat after a number that is no multiple of a row's.
func (c *libraryCheck) filled(elements int64, t Type) (Address, error) {
	v := c.device
	size := 4
	if t == BFloat16 {
		size = 2
	}
	at, err := v.Alloc(int(elements) * size)
	if err != nil {
		return 0, err
	}
	block := randomBits(c.random, min(elements, 1<<18+8), t)
	if err := v.Upload(at, len(block), block, len(block), 1); err != nil {
		return 0, errors.Join(err, v.Free(at))
	}
	for have := len(block); have < int(elements)*size; {
		n := min(have, int(elements)*size-have)
		if err := v.Copy(at+Address(have), v, at, n); err != nil {
			return 0, errors.Join(err, v.Free(at))
		}
		have += n
	}
	return at, nil
}

// compare finds the first algorithm by which the library's products of a shape have the kernels' bits; left, if not nil, is why there is none.
func (c *libraryCheck) compare(s ProductShape) (p LibraryProduct, left *LeftOut, err error) {
	v := c.device
	p.ProductShape = s
	if err := v.UseCuBLASLt(c.library, []LibraryProduct{p}, true); err != nil {
		return p, nil, err
	}
	defer func() { err = errors.Join(err, v.leaveLibrary()) }()
	offers, err := v.library.offers(v, s, mostOffers)
	if err != nil && c.bearable(err) {
		return p, &LeftOut{ProductShape: s, Reason: err.Error()}, nil
	}
	if err != nil {
		return p, nil, err
	}
	if len(offers) == 0 {
		return p, &LeftOut{ProductShape: s, Reason: "there is no algorithm that sums each element in one piece", None: true}, nil
	}
	o, err := c.operands(s)
	defer func() { err = errors.Join(err, o.free(v)) }()
	if err != nil {
		return p, nil, err
	}
	var first error
	tried := 0
	for _, p.Algorithm = range offers[:min(len(offers), 1+c.further)] {
		tried++
		v.library.choose(s, p.Algorithm)
		err := c.try(&p, o)
		if err == nil {
			return p, nil, nil
		}
		if !c.bearable(err) {
			return p, nil, err
		}
		if first == nil {
			first = err
		}
	}
	c.further -= tried - 1
	left = &LeftOut{ProductShape: s, Reason: first.Error()}
	if tried > 1 {
		left.Reason += fmt.Sprintf("; none of %d algorithms is right", tried)
	}
	return p, left, nil
}

// libraryOperands are those of products in a check, with as many rows as there are in any: saved is what y holds before each, and tail the rows of an adapter's product, with its weight.
type libraryOperands struct {
	x, y, tail View
	saved      Address
	w, adapter Weight
	taken      []Address
}

// operands gives random numbers to multiply. They are to be freed also if there is an error.
func (c *libraryCheck) operands(s ProductShape) (o libraryOperands, err error) {
	memory := func(elements int64, t Type) (a Address) {
		if err == nil {
			if a, err = c.filled(elements, t); err == nil {
				o.taken = append(o.taken, a)
			}
		}
		return a
	}
	o.w, o.adapter = Weight{Out: s.Columns, In: s.Depth, Pitch: s.Depth}, Weight{Out: s.Columns, In: CheckedRank, Pitch: CheckedRank}
	if s.Transposed {
		o.w, o.adapter = Weight{Out: s.Depth, In: s.Columns, Pitch: s.Columns}, Weight{Out: CheckedRank, In: s.Columns, Pitch: s.Columns}
	}
	o.tail = View{Cols: CheckedRank, Stride: CheckedRank}
	o.x = View{Cols: s.Depth, Stride: s.Depth + 8}
	o.y = View{Cols: s.Columns, Stride: s.Columns + 4}
	most := slices.Max(s.checkRows(c.elements))
	o.w.At, o.x.At, o.y.At, o.saved = memory(o.w.Out*o.w.Pitch, BFloat16), memory(most*o.x.Stride, BFloat16), memory(most*o.y.Stride, Float32), memory(most*o.y.Stride, Float32)
	o.adapter.At, o.tail.At = memory(o.adapter.Out*o.adapter.Pitch, BFloat16), memory(most*o.tail.Stride, BFloat16)
	return o, err
}

func (o *libraryOperands) free(v *Device) (err error) {
	for _, a := range o.taken {
		err = errors.Join(err, v.Free(a))
	}
	return err
}

// product computes one by the library, or by the kernels. The algorithm is that of the shape for any number of rows.
func (c *libraryCheck) product(s ProductShape, o libraryOperands, rows int64, library, accumulate bool) error {
	v := c.device
	o.x.Rows, o.y.Rows = rows, rows
	g := RowGroup{To: rows, Weight: o.w}
	if library {
		done, err := v.multiply(o.y, o.x, BFloat16, g, s, accumulate)
		if err == nil && !done {
			err = ErrOutOfMemory
		}
		return err
	}
	used := v.library
	v.library = nil
	defer func() { v.library = used }()
	return v.Product(o.y, o.x, BFloat16, []RowGroup{g}, BFloat16, s.Transposed, accumulate)
}

// riding computes a product with an adapter's: by kernels in one launch, or the first by the library.
func (c *libraryCheck) riding(s ProductShape, o libraryOperands, rows int64, library bool) error {
	v := c.device
	o.x.Rows, o.y.Rows, o.tail.Rows = rows, rows, rows
	tail := Tail{X: o.tail, XType: BFloat16, Groups: []RowGroup{{To: rows, Weight: o.adapter}}}
	used := v.library
	v.library = nil
	defer func() { v.library = used }()
	if !library {
		return v.ProductWithTail(o.y, o.x, BFloat16, []RowGroup{{To: rows, Weight: o.w}}, tail, BFloat16, s.Transposed, false)
	}
	v.library = used
	if err := c.product(s, o, rows, true, false); err != nil {
		return err
	}
	v.library = nil
	return v.Product(o.y, tail.X, tail.XType, tail.Groups, BFloat16, s.Transposed, true)
}

// try compares products by the algorithm that is chosen for a shape, from zero and, as long as that gave equal bits for every shape, from what y holds, and takes the times.
func (c *libraryCheck) try(p *LibraryProduct, o libraryOperands) (err error) {
	accumulates, rows := c.accumulates, slices.Compact(p.checkRows(c.elements))
	for _, n := range rows {
		if err := c.compareBits(p.ProductShape, o, n, &accumulates); err != nil {
			return err
		}
	}
	many := rows[len(rows)-1]
	for _, timed := range []struct {
		to      *time.Duration
		product func() error
	}{
		{&p.Kernels, func() error { return c.product(p.ProductShape, o, many, false, false) }},
		{&p.Library, func() error { return c.product(p.ProductShape, o, many, true, false) }},
		{&p.Riding, func() error { return c.riding(p.ProductShape, o, many, false) }},
		{&p.Separate, func() error { return c.riding(p.ProductShape, o, many, true) }},
	} {
		if *timed.to, err = c.device.timed(timed.product); err != nil {
			return err
		}
	}
	c.accumulates = accumulates // what an algorithm that is not used does is of no interest
	return nil
}

// compareBits compares products of so many rows, each from what was saved.
func (c *libraryCheck) compareBits(s ProductShape, o libraryOperands, rows int64, accumulates *string) error {
	v, length := c.device, int(4*rows*o.y.Stride)
	want, got := make([]byte, length), make([]byte, length)
	result := func(to []byte, library, accumulate bool) error {
		if err := v.Copy(o.y.At, v, o.saved, length); err != nil {
			return err
		}
		if err := c.product(s, o, rows, library, accumulate); err != nil {
			return err
		}
		return v.Download(to, o.y.At, length, length, 1)
	}
	for _, accumulate := range []bool{false, true} {
		if accumulate && *accumulates != "" {
			continue
		}
		if err := result(want, false, accumulate); err != nil {
			return err
		}
		for range 2 { // what depends on time may be right once
			if err := result(got, true, accumulate); err != nil {
				return err
			}
			if bytes.Equal(got, want) {
				continue
			}
			differs := firstDifference(o.y, got, want)
			if !accumulate {
				return otherBits(differs)
			}
			*accumulates = fmt.Sprintf("%v, accumulated: %s", s, differs)
			break
		}
	}
	return nil
}

// firstDifference names the first element in which two results differ.
func firstDifference(y View, got, want []byte) string {
	i := 0
	for got[i] == want[i] {
		i++
	}
	at := int64(i / 4)
	return fmt.Sprintf("element (%d, %d) is %#08x and not %#08x", at/y.Stride, at%y.Stride, binary.LittleEndian.Uint32(got[4*at:]), binary.LittleEndian.Uint32(want[4*at:]))
}

// timed gives how long one of several equal operations takes, the best of three times. One that takes long is not repeated as often.
func (v *Device) timed(operation func() error) (time.Duration, error) {
	several := func(n int) (time.Duration, error) {
		if err := v.Synchronize(); err != nil {
			return 0, err
		}
		begin := time.Now()
		for range n {
			if err := operation(); err != nil {
				return 0, err
			}
		}
		err := v.Synchronize()
		return time.Since(begin) / time.Duration(n), err
	}
	const long = 2 * time.Millisecond
	best, err := several(1)
	for range 3 {
		if err != nil || best > long {
			break
		}
		var took time.Duration
		if took, err = several(8); took < best {
			best = took
		}
	}
	return best, err
}
