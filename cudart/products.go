package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"math"
	"slices"
)

// With few rows the time of a product is that of reading its weights, and of one with a small weight that of its chain, of as many instructions as the inner axis has groups of 16, however few of the multiprocessors have a
// block. So products that do not depend on each other share a launch: their blocks run beside each other. The bits are those of a launch each, because a block does what it would do in one of its own.

// Multiplication is the arguments of Device.ProductWithTail; without groups, Tail is none.
type Multiplication struct {
	Y, X                   View
	XType                  Type
	Groups                 []RowGroup
	Tail                   Tail
	Type                   Type // of the weights
	Transposed, Accumulate bool
	// Frozen says that nothing in the stream writes the weights of Groups: of few rows they may be asked for before launches before this one have ended
	// (UseDependentLaunches). A Tail's are not meant.
	Frozen bool
}

// mostProducts is how many a launch has room for.
const mostProducts = C.MOST_PRODUCTS

// launchReads is what a launch takes beside its blocks, as so many elements of bfloat16 that a multiprocessor could read from the second-level cache meanwhile: 2 µs at 100 GB/s. These are estimates: neither has been measured
// on a device.
const launchReads = 100_000

// Rides says whether ProductWithTail would do some of the tail's products in the launch of m's own.
func (v *Device) Rides(m Multiplication) bool {
	if m.Type != BFloat16 && m.Type != BFloat16Blocks || len(m.Groups) != 1 || m.Groups[0].Factor != 0 {
		return false
	}
	if s, library := v.libraryShape(m.Y, m.Groups, m.Transposed, m.Accumulate); library && m.Type == BFloat16 && v.library.apart[s] { // it has no second inner axis
		return false
	}
	if _, bulk := v.bulkTile(m.Y, m.X, m.Groups, m.Transposed); bulk && m.Type == BFloat16Blocks { // whose kernels take no groups of rows
		return v.bulkRides(m.Groups[0], m.Tail, m.Transposed)
	}
	_, _, ride := v.withTails(m.Groups[0], m.Tail, m.Transposed)
	return ride
}

// Products does ProductWithTail of each of list, bit for bit; none may read or write what another writes. Those with weights of bfloat16, or in eight bits, of which no group has both many rows and many columns share
// launches where that pays, neighbours in the list only. Rows that products read one after another are shared among them, as ShareRows says it, also with a call of Products after this one: ShareRows ends that, and must before the rows are written.
func (v *Device) Products(list []Multiplication) (err error) {
	j := jointLaunch{device: v, parts: v.parts[:0], own: v.ownRows[:0]}
	defer func() {
		err = errors.Join(err, j.free())
		v.parts, v.ownRows = j.parts[:0], j.own[:0]
	}()
	for i := range list {
		m := &list[i]
		if p, ok := v.jointPart(m); ok {
			if err := j.add(p, m.Type, m.Transposed); err != nil {
				return err
			}
			continue
		}
		if err := j.start(); err != nil { // its rows may be those that are shared until now
			return err
		}
		if err := v.shareRows(m.X, m.XType); err != nil {
			return err
		}
		if err := v.ProductWithTail(m.Y, m.X, m.XType, m.Groups, m.Tail, m.Type, m.Transposed, m.Accumulate); err != nil {
			return err
		}
	}
	return j.start()
}

// shareRows is ShareRows of rows that may be shared already.
func (v *Device) shareRows(x View, xType Type) error {
	if v.rows.x == x && v.rows.xType == xType {
		return nil
	}
	return v.ShareRows(x, xType)
}

// jointPart gives a product as a part of a launch; false if it is to have one of its own: it is not for the kernels by warps, or for them in more launches than one.
func (v *Device) jointPart(m *Multiplication) (p part, ok bool) {
	p = part{y: m.Y, x: m.X, xType: m.XType, groups: m.Groups, columns: widest(m.Groups, m.Transposed), accumulate: m.Accumulate, frozen: m.Frozen}
	rows := int64(0)
	for i := range m.Groups {
		g := &m.Groups[i]
		n := g.To - g.From
		if g.depth(m.Transposed) > math.MaxInt32 {
			return part{}, false
		}
		rows = max(rows, n)
	}
	if rows >= groupRows { // of an adapter they are for the kernels by warps all the same: blocks of one product leave a multiprocessor to wait for one chain, those of several wait beside each other
		if _, library := v.libraryShape(m.Y, m.Groups, m.Transposed, m.Accumulate); library || p.columns >= groupColumns {
			return part{}, false
		}
	}
	if m.Type == Float32 || rows == 0 || p.columns == 0 {
		return part{}, false
	}
	if len(m.Tail.Groups) == 0 {
		return p, true
	}
	if len(m.Groups) != 1 || m.Groups[0].Factor != 0 {
		return part{}, false
	}
	groups, rest, ride := v.withTails(m.Groups[0], m.Tail, m.Transposed)
	if !ride || len(rest) > 0 {
		return part{}, false
	}
	p.groups, p.tail = slices.Clone(groups), tailRows{m.Tail.X, m.Tail.XType}
	return p, true
}

// jointLaunch is a launch of several products that is being collected.
type jointLaunch struct {
	device     *Device
	parts      []part
	of         Type // of their weights
	transposed bool
	own        []roundedRows // that the parts read
}

// roundedRows are rows of float32, and the same as bfloat16.
type roundedRows struct{ of, to View }

// add adds a product, whose rows are rounded if that pays. What was collected before is launched if it has no room for another, or takes less time without it.
func (j *jointLaunch) add(p part, of Type, transposed bool) error {
	v := j.device
	if len(j.parts) > 0 && (len(j.parts) == mostProducts || of != j.of || transposed != j.transposed || !v.pays(j.parts, p, transposed)) {
		if err := j.start(); err != nil {
			return err
		}
	}
	if len(j.parts) == 0 { // only then does nothing that was collected read what was shared before
		if err := v.shareRows(p.x, p.xType); err != nil {
			return err
		}
	}
	x, xType, err := v.sharedRounded(p.x, p.xType)
	if err != nil {
		return err
	}
	if at := slices.IndexFunc(j.own, func(r roundedRows) bool { return r.of == x }); at >= 0 && xType == Float32 {
		p.x, p.xType = j.own[at].to, BFloat16
	} else if p.x, p.xType, err = v.roundedForWarps(x, xType, p.groups, transposed); err != nil {
		return err
	} else if p.xType != xType {
		j.own = append(j.own, roundedRows{x, p.x})
	}
	j.parts, j.of, j.transposed = append(j.parts, p), of, transposed
	return nil
}

// start launches what was collected.
func (j *jointLaunch) start() error {
	if len(j.parts) == 0 {
		return nil
	}
	err := j.device.productsInTiles(j.parts, j.device.fewRowsTile(j.parts, j.of, j.transposed))
	j.parts = j.parts[:0]
	return errors.Join(err, j.free())
}

// free gives rounded rows back; whatever gets them next comes later in the stream.
func (j *jointLaunch) free() (err error) {
	for _, rows := range slices.Backward(j.own) { // scratch memory is a stack
		err = errors.Join(err, j.device.giveRounded(rows.to))
	}
	j.own = j.own[:0]
	return err
}

// pays says whether parts and another product take less time in one launch than in two.
func (v *Device) pays(parts []part, p part, transposed bool) bool {
	together := v.reads(append(parts, p), transposed)
	return together <= v.reads(parts, transposed)+v.reads([]part{p}, transposed)+launchReads
}

// reads is how many elements the multiprocessor with the most blocks reads.
func (v *Device) reads(parts []part, transposed bool) int64 {
	depth := int64(0)
	for _, p := range parts {
		for i := range p.groups {
			depth = max(depth, p.groups[i].depth(transposed))
		}
	}
	_, rows := v.bfloat16Tile(parts, transposed)
	return rows * depth
}
