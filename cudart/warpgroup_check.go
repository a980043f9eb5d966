package cudart

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// groupCase is a product that CheckWarpgroups computes in both ways, with several groups of rows where there are several weights.
type groupCase struct {
	rows, columns, depth   int64
	weights                int64 // groups of rows, with one row in no group after each
	transposed, accumulate bool
	xType                  Type
	factor                 float32
	tail                   int64 // how deep the second inner axis is, of all groups but the second; its rows have xType
}

func (c groupCase) String() string {
	s := fmt.Sprintf("%d rows, %d columns, %d deep", c.rows, c.columns, c.depth)
	if c.weights > 1 {
		s += fmt.Sprintf(", %d groups", c.weights)
	}
	if c.transposed {
		s += ", transposed"
	}
	if c.accumulate {
		s += ", accumulated"
	}
	if c.xType == BFloat16 {
		s += ", of bfloat16"
	}
	if c.tail > 0 {
		s += fmt.Sprintf(", then %d deep", c.tail)
	}
	return s
}

// squareSide is how many tiles the side of a square of them has, of which each multiprocessor gets two.
func (v *Device) squareSide() int64 {
	return int64(math.Ceil(math.Sqrt(float64(2 * v.multiprocessors))))
}

// groupCases have ragged and whole tiles, an inner axis of one tile and of more than are in flight, and a product for all multiprocessors at once.
func (v *Device) groupCases() []groupCase {
	side := v.squareSide()
	return []groupCase{
		{rows: 130, columns: 260, depth: 328, weights: 1, xType: Float32},
		{rows: 128, columns: 130, depth: 323, weights: 1, accumulate: true, xType: Float32},
		{rows: 150, columns: 131, depth: 40, weights: 1, xType: BFloat16, accumulate: true},
		{rows: 64, columns: 72, depth: 131, weights: 3, xType: Float32, factor: 0.7},
		{rows: 130, columns: 260, depth: 328, weights: 1, transposed: true, accumulate: true, xType: BFloat16},
		{rows: 140, columns: 133, depth: 203, weights: 1, transposed: true, xType: Float32},
		{rows: 70, columns: 72, depth: 56, weights: 2, transposed: true, accumulate: true, xType: Float32, factor: 0.7},
		{rows: groupRows * side, columns: groupColumns * side, depth: 256, weights: 1, xType: Float32},
		{rows: groupRows * side, columns: groupColumns * side, depth: 256, weights: 1, transposed: true, accumulate: true, xType: Float32},
		{rows: 130, columns: 260, depth: 264, weights: 3, xType: Float32, tail: 32},
		{rows: 129, columns: 131, depth: 70, weights: 1, transposed: true, accumulate: true, xType: Float32, tail: 5},
		{rows: 67, columns: 136, depth: 128, weights: 2, transposed: true, xType: BFloat16, tail: 136},
		{rows: 65, columns: 129, depth: 40, weights: 1, accumulate: true, xType: BFloat16, tail: 64},
	}
}

// CheckWarpgroups computes products of random numbers by warpgroups and by warps and compares every bit. Its error says what is not equal, or what failed: a kernel that faults makes the device useless, so a process that
// has something to lose lets another one check. What Product uses is as before then.
func (v *Device) CheckWarpgroups() error {
	before := v.warpgroups
	if err := v.UseWarpgroups(true); err != nil {
		return err
	}
	v.warpgroups = before
	random := rand.New(rand.NewPCG(20261122, 1))
	for _, c := range v.groupCases() {
		shapes := []tile{{kernel: kProductGroup, rows: groupRows, columns: groupColumns}, {kernel: kProductGroupWide, rows: groupRows, columns: wideGroupColumns}}
		if c.tail > 0 {
			shapes = append(shapes, largestWarpTile(c.transposed))
		}
		if err := v.checkGroupCase(c, random, shapes); err != nil {
			return fmt.Errorf("products by warpgroups, %v: %w", c, err)
		}
	}
	return nil
}

// randomBits gives numbers of either sign between 2⁻⁶ and 2², as float32 or bfloat16; rare ones are zero, small or large.
func randomBits(random *rand.Rand, n int64, t Type) []byte {
	b := make([]byte, 0, n*4)
	for range n {
		u := random.Uint32()
		exponent := 121 + u>>23&7
		switch u >> 26 & 63 {
		case 0:
			exponent = 0 // denormal numbers of float32 are zero
		case 1:
			exponent = 100
		case 2:
			exponent = 140
		}
		u = u&0x807fffff | exponent<<23
		if exponent == 0 {
			u &= 0x80000000
		}
		if t == BFloat16 {
			b = append(b, byte(u>>16), byte(u>>24))
		} else {
			b = append(b, byte(u), byte(u>>8), byte(u>>16), byte(u>>24))
		}
	}
	return b
}

// checkGroupCase compares products in tiles with those in the largest for warps, of which a tail is a launch of its own.
func (v *Device) checkGroupCase(c groupCase, random *rand.Rand, shapes []tile) (err error) {
	var taken []Address
	defer func() {
		for _, a := range taken {
			err = errors.Join(err, v.Free(a))
		}
	}()
	put := func(data []byte) (Address, error) {
		a, err := v.Alloc(len(data))
		if err != nil {
			return 0, err
		}
		taken = append(taken, a)
		return a, v.Upload(a, len(data), data, len(data), 1)
	}
	y := View{Rows: (c.rows + 1) * c.weights, Cols: c.columns, Stride: c.columns + 1}
	x := View{Rows: y.Rows, Cols: c.depth, Stride: (c.depth + 7) / 8 * 8}
	before := randomBits(random, y.Rows*y.Stride, Float32)
	if y.At, err = put(before); err != nil {
		return err
	}
	if x.At, err = put(randomBits(random, x.Rows*x.Stride, c.xType)); err != nil {
		return err
	}
	second := tailRows{View{Rows: y.Rows, Cols: c.tail, Stride: (c.tail + 7) / 8 * 8}, c.xType}
	if c.tail > 0 {
		if second.x.At, err = put(randomBits(random, y.Rows*second.x.Stride, c.xType)); err != nil {
			return err
		}
	}
	weightOf := func(depth int64) (Weight, error) {
		w := Weight{Out: c.columns, In: depth}
		if c.transposed {
			w.Out, w.In = depth, c.columns
		}
		w.Pitch = (w.In + 7) / 8 * 8
		data := randomBits(random, w.Out*w.Pitch, BFloat16)
		for r := range w.Out {
			clear(data[2*(r*w.Pitch+w.In) : 2*(r+1)*w.Pitch])
		}
		w.At, err = put(data)
		return w, err
	}
	var groups, tails []RowGroup
	for i := range c.weights {
		g := RowGroup{From: i * (c.rows + 1), To: i*(c.rows+1) + c.rows, Factor: c.factor, Round: BFloat16}
		if g.Weight, err = weightOf(c.depth); err != nil {
			return err
		}
		if c.tail > 0 && i != 1 {
			if g.tail, err = weightOf(c.tail); err != nil {
				return err
			}
			tails = append(tails, RowGroup{From: g.From, To: g.To, Weight: g.tail})
		}
		groups = append(groups, g)
	}
	// run gives what a kernel makes of y; apart, the second inner axis is a launch of its own.
	run := func(shape tile, apart bool) ([]byte, error) {
		err := v.Upload(y.At, len(before), before, len(before), 1)
		switch {
		case err != nil:
		case apart:
			whole := slices.Clone(groups)
			for i := range whole {
				whole[i].tail = Weight{}
			}
			err = v.productInTiles(part{y, x, c.xType, whole, tailRows{}, c.columns, c.accumulate, false}, shape)
			if err == nil && len(tails) > 0 {
				err = v.productInTiles(part{y, second.x, second.xType, tails, tailRows{}, c.columns, true, false}, shape)
			}
		case shape.kernel < kWarpgroup:
			err = v.productInTiles(part{y, x, c.xType, groups, second, c.columns, c.accumulate, false}, shape)
		default:
			err = v.productByWarpgroups(y, x, c.xType, groups, second, shape, c.columns, c.transposed, c.accumulate)
		}
		if err != nil {
			return nil, err
		}
		after := make([]byte, len(before))
		return after, v.Download(after, y.At, len(after), len(after), 1)
	}
	want, err := run(largestWarpTile(c.transposed), true)
	if err != nil {
		return err
	}
	for _, shape := range shapes {
		for range 1 + v.multiprocessors/16 { // what depends on time may be right once
			got, err := run(shape, false)
			if err != nil {
				return err
			}
			if bytes.Equal(got, want) {
				continue
			}
			return fmt.Errorf("with %d columns of a block, %s (%s)", shape.columns, firstDifference(y, got, want), kernelOf(shape.kernel).name)
		}
	}
	return nil
}
