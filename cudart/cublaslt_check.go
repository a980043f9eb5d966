package cudart

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// LibraryProduct is what CheckCuBLASLt found for one shape.
type LibraryProduct struct {
	ProductShape
	Kernels, Library time.Duration // of one product
}

// LibraryCheck is what CheckCuBLASLt found. Shapes that the library has no algorithm for are not among its products.
type LibraryCheck struct {
	Products    []LibraryProduct
	Accumulates string // why products that go on from what y holds stay with the kernels; empty: they need not
}

// mostChecked bounds the elements of y in a check; more columns are checked with fewer rows.
const mostChecked = 1 << 26

// checkRows are ragged numbers of rows for which Product takes the algorithm of a shape: many and few.
func (s ProductShape) checkRows() []int64 {
	few := int64(leastLibraryRows + 3)
	for _, class := range rowsClasses {
		if class < s.Rows {
			few = class + 1
		}
	}
	return []int64{max(leastLibraryRows+5, min(s.Rows-3, mostChecked/s.Columns)), min(few, max(leastLibraryRows+3, mostChecked/s.Columns))}
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

// raggedWeights are checked on every device: an inner axis of whole groups of 16 and of half a one more, columns that fill no tile.
var raggedWeights = [][2]int64{{136, 72}, {72, 328}}

// CheckCuBLASLt computes products of random numbers by the library and by the kernels that the device uses, compares every bit and takes the times, for weights that are each an Out and an In. Its error says what
// is not equal, or what failed: as with CheckWarpgroups a process that has something to lose lets another one check. What Product uses is as before then.
func (v *Device) CheckCuBLASLt(l *CuBLASLt, weights [][2]int64) (LibraryCheck, error) {
	var found LibraryCheck
	c := libraryCheck{device: v, library: l, random: rand.New(rand.NewPCG(20261122, 2)), accumulates: &found.Accumulates}
	before := v.library
	v.library = nil
	defer func() { v.library = before }()
	for _, s := range shapesOf(raggedWeights, rowsClasses[:1]) {
		if _, _, err := c.compare(s, false); err != nil {
			return found, fmt.Errorf("products by cuBLASLt, %v: %w", s, err)
		}
	}
	for _, s := range shapesOf(weights, rowsClasses) {
		p, ok, err := c.compare(s, true)
		if err != nil {
			return found, fmt.Errorf("products by cuBLASLt, %v: %w", s, err)
		}
		if ok {
			found.Products = append(found.Products, p)
		}
	}
	return found, nil
}

type libraryCheck struct {
	device      *Device
	library     *CuBLASLt
	random      *rand.Rand
	accumulates *string
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

// compare computes products of one shape in both ways, from zero and, as long as that gave equal bits, from what y holds, and takes the times; false if the library has no algorithm for it.
func (c *libraryCheck) compare(s ProductShape, timed bool) (_ LibraryProduct, ok bool, err error) {
	v, p := c.device, LibraryProduct{ProductShape: s}
	if err := v.UseCuBLASLt(c.library, []ProductShape{s}, true); err != nil {
		return p, false, err
	}
	defer func() { err = errors.Join(err, v.leaveLibrary()) }()
	var none *cublasltError
	if _, err := v.library.plan(v, s); errors.As(err, &none) && none.code == notSupported {
		return p, false, nil
	} else if err != nil {
		return p, false, err
	}
	var taken []Address
	defer func() {
		for _, a := range taken {
			err = errors.Join(err, v.Free(a))
		}
	}()
	memory := func(elements int64, t Type) (a Address) {
		if err == nil {
			if a, err = c.filled(elements, t); err == nil {
				taken = append(taken, a)
			}
		}
		return a
	}
	w := Weight{Out: s.Columns, In: s.Depth, Pitch: s.Depth}
	if s.Transposed {
		w = Weight{Out: s.Depth, In: s.Columns, Pitch: s.Columns}
	}
	rows := s.checkRows()
	x := View{Cols: s.Depth, Stride: s.Depth + 8}
	y := View{Cols: s.Columns, Stride: s.Columns + 4}
	w.At, x.At, y.At = memory(w.Out*w.Pitch, BFloat16), memory(rows[0]*x.Stride, BFloat16), memory(rows[0]*y.Stride, Float32)
	if err != nil {
		return p, false, err
	}
	product := func(library, accumulate bool) error {
		groups := []RowGroup{{To: y.Rows, Weight: w}}
		if library {
			done, err := v.productByLibrary(y, x, BFloat16, groups, s.Transposed, accumulate)
			if err == nil && !done {
				err = errors.New("the library refused it")
			}
			return err
		}
		used := v.library
		v.library = nil
		defer func() { v.library = used }()
		return v.Product(y, x, BFloat16, groups, BFloat16, s.Transposed, accumulate)
	}
	for _, x.Rows = range rows {
		y.Rows = x.Rows
		if err := c.compareBits(s, y, product); err != nil {
			return p, false, err
		}
	}
	if !timed {
		return p, true, nil
	}
	x.Rows, y.Rows = rows[0], rows[0]
	if p.Kernels, err = c.time(func() error { return product(false, false) }); err != nil {
		return p, false, err
	}
	p.Library, err = c.time(func() error { return product(true, false) })
	return p, err == nil, err
}

// compareBits compares what product makes of y in both ways.
func (c *libraryCheck) compareBits(s ProductShape, y View, product func(library, accumulate bool) error) error {
	v := c.device
	before := make([]byte, 4*y.Rows*y.Stride)
	if err := v.Download(before, y.At, len(before), len(before), 1); err != nil {
		return err
	}
	result := func(library, accumulate bool) ([]byte, error) {
		if err := v.Upload(y.At, len(before), before, len(before), 1); err != nil {
			return nil, err
		}
		if err := product(library, accumulate); err != nil {
			return nil, err
		}
		after := make([]byte, len(before))
		return after, v.Download(after, y.At, len(after), len(after), 1)
	}
	for _, accumulate := range []bool{false, true} {
		if accumulate && *c.accumulates != "" {
			continue
		}
		want, err := result(false, accumulate)
		if err != nil {
			return err
		}
		for range 2 { // what depends on time may be right once
			got, err := result(true, accumulate)
			if err != nil {
				return err
			}
			if bytes.Equal(got, want) {
				continue
			}
			differs := firstDifference(y, got, want)
			if !accumulate {
				return errors.New(differs)
			}
			*c.accumulates = fmt.Sprintf("%v, accumulated: %s", s, differs)
			break
		}
	}
	return v.Upload(y.At, len(before), before, len(before), 1)
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

// time gives how long one of several equal operations takes, the best of three times. One that takes long is not repeated as often.
func (c *libraryCheck) time(operation func() error) (time.Duration, error) {
	several := func(n int) (time.Duration, error) {
		if err := c.device.Synchronize(); err != nil {
			return 0, err
		}
		begin := time.Now()
		for range n {
			if err := operation(); err != nil {
				return 0, err
			}
		}
		err := c.device.Synchronize()
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
