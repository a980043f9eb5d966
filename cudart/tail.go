package cudart

import (
	"cmp"
	"slices"
)

// The products of adapters ride in the base weight's: a block that has finished the base weight's inner axis goes on with the same sums over a second, short one, of the rank. What is saved is a launch that reads and
// writes all of y, 8 bytes for each element. The bits are those of two launches, because an element's chain goes on from what the first has stored, which is a float32 as the sum is.

// Tail is a second product that is added to a first one: rows of X (float32 or bfloat16) with the weights of Groups, which have the type of the first one's, or BFloat16 where that is BFloat16Blocks.
type Tail struct {
	X      View
	XType  Type
	Groups []RowGroup
}

// tailRows are the rows of the second inner axis, of groups that have one.
type tailRows struct {
	x     View
	xType Type
}

// leastRide is how many times an adapter's rows must be contained in the base weight's inner axis at most, for them to have blocks of their own. An adapter's first rows begin a tile, so a tile of rows is computed more than
// without adapters: 2 · groupRows · depth operations for each column, at about 600e12 a second. Riding saves 8 bytes for each of the rows and columns, at about 3e12 a second. So it pays from about
// 0.16 · depth rows on: 650 for 4,096 deep. These are estimates: neither speed has been measured on a device.
const leastRide = 6

// rides says whether n rows of an adapter ride in a product of so many rows that is so deep. An adapter that has all rows costs no tile, however few they are. Few rows of several adapters would read the base weight once for each
// of them, and have one launch of their own for all instead.
func rides(n, rows, depth int64) bool { return n == rows || n >= groupRows && n*leastRide >= depth }

// ProductWithTail is Product(y, x, xType, groups, t, transposed, accumulate) and then Product(y, tail.X, tail.XType, tail.Groups, t, transposed, true), bit for bit; where it pays, both in one launch. tail.X may not be written
// by the first.
func (v *Device) ProductWithTail(y, x View, xType Type, groups []RowGroup, tail Tail, t Type, transposed, accumulate bool) error {
	var rows tailRows
	if v.Rides(Multiplication{Y: y, X: x, XType: xType, Groups: groups, Tail: tail, Type: t, Transposed: transposed, Accumulate: accumulate}) {
		rows = tailRows{tail.X, tail.XType}
		groups, tail.Groups, _ = v.withTails(groups[0], tail, transposed)
	}
	if err := v.product(y, x, xType, groups, rows, t, transposed, accumulate); err != nil {
		return err
	}
	if t == BFloat16Blocks {
		t = BFloat16
	}
	return v.Product(y, tail.X, tail.XType, tail.Groups, t, transposed, true)
}

// withTails cuts the base weight's rows into those of adapters that ride, if any do, and what lies between; rest are the other adapters. Both are the device's until the next call.
func (v *Device) withTails(base RowGroup, tail Tail, transposed bool) (groups, rest []RowGroup, ride bool) {
	groups, rest = v.riding[:0], v.separate[:0]
	for _, g := range tail.Groups {
		if g.From >= g.To {
			continue
		}
		r := depthOf(g.Weight, transposed)
		inside := g.From >= base.From && g.To <= base.To && outputsOf(g.Weight, transposed) == outputsOf(base.Weight, transposed)
		whole := r == tail.X.Cols || r%8 == 0 // no other columns of X in its last 16 bytes
		if inside && whole && r > 0 && g.Factor == 0 && rides(g.To-g.From, base.To-base.From, base.depth(transposed)) {
			groups = append(groups, RowGroup{From: g.From, To: g.To, Weight: base.Weight, tail: g.Weight})
		} else {
			rest = append(rest, g)
		}
	}
	ride = len(groups) > 0
	byRows := func(a, b RowGroup) int { return cmp.Compare(a.From, b.From) }
	slices.SortFunc(groups, byRows)
	at := base.From
	for _, g := range groups { // what lies between; the range is that of before
		if at < g.From {
			groups = append(groups, RowGroup{From: at, To: g.From, Weight: base.Weight})
		}
		at = g.To
	}
	if at < base.To {
		groups = append(groups, RowGroup{From: at, To: base.To, Weight: base.Weight})
	}
	slices.SortFunc(groups, byRows) // blocks beside each other read rows beside each other
	v.riding, v.separate = groups, rest
	return groups, rest, ride
}

func outputsOf(w Weight, transposed bool) int64 { return depthOf(w, !transposed) }
