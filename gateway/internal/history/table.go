package history

import (
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

// Head says what a table is, so that nobody needs its blocks to list it. The zero value is the head of a table without rows.
type Head struct {
	Taken  int64  // rows that were given to Append, those that only added to the one before too
	Came   int64  // rows that there would be if none had been thinned out
	Stride int64  // one row in so many is kept; 0 and 1 = all
	Rows   int64  // in the blocks
	Blocks int64  // that there are, with the numbers from 0; all but the last are full
	Newest []Last // of every name, in the order in which they came
	State  []byte // of whoever makes the rows, written with them

	at map[string]int // places of names in Newest, once somebody has asked
}

// Last is the newest value of a series.
type Last struct {
	Name   string
	Step   int64
	Time   int64
	Number float64
}

// Merge brings what came for a step that has a row already into that row.
type Merge func(into *Row, row Row)

// Replace has the newer value of a name in place of the older one.
func Replace(into *Row, row Row) {
	for _, v := range row.Values {
		into.set(v.Name, v.Number)
	}
	into.Time = max(into.Time, row.Time)
}

// Thinned tells how many rows stand behind each that is kept: 1 = it alone.
func (h *Head) Thinned() int64 { return max(h.Stride, 1) }

// LastStep is the newest step of the table; the lowest number there is before the first.
func (h *Head) LastStep() int64 {
	last := int64(noStep)
	for _, l := range h.Newest {
		last = max(last, l.Step)
	}
	return last
}

const noStep = -1 << 63

// find is the place of a name in Newest; -1 if it is not there.
func (h *Head) find(name string) int {
	if h.at == nil {
		h.at = make(map[string]int, len(h.Newest))
	}
	for i := len(h.at); i < len(h.Newest); i++ {
		h.at[h.Newest[i].Name] = i
	}
	if at, ok := h.at[name]; ok {
		return at
	}
	return -1
}

// Append adds rows of ascending steps, the first no lower than LastStep, behind the others. tail is the last block, nil if there is none; it changes. What is given back are the blocks that
// have to be written, the first with the number first. Names beyond MaxNames are passed over, and counted.
func (h *Head) Append(tail *Block, rows []Row, merge Merge) (first int64, changed []*Block, passedOver int) {
	h.Taken += int64(len(rows))
	if tail != nil && h.Blocks > 0 {
		first, changed = h.Blocks-1, []*Block{tail}
	} else {
		first = h.Blocks
	}
	newest := h.LastStep()
	for _, r := range rows {
		merged := r
		same := h.Came > 0 && r.Step == newest
		newest = max(newest, r.Step)
		kept := len(changed) > 0 && changed[len(changed)-1].Len() > 0 && last(changed[len(changed)-1].Steps) == r.Step
		if same && kept {
			b := changed[len(changed)-1]
			merged = b.Row(b.Len() - 1)
			merge(&merged, r)
		}
		passedOver += h.note(&merged)
		switch {
		case same && kept:
			b := changed[len(changed)-1]
			for _, v := range merged.Values {
				b.put(b.Len()-1, v)
			}
			b.Times[b.Len()-1] = merged.Time
			continue
		case same: // it was thinned out
			continue
		}
		h.Came++
		if (h.Came-1)%h.Thinned() != 0 {
			continue
		}
		if len(changed) == 0 || changed[len(changed)-1].Len() >= BlockRows {
			changed = append(changed, &Block{})
			h.Blocks++
		}
		changed[len(changed)-1].push(merged)
		h.Rows++
	}
	return first, changed, passedOver
}

func last[T any](list []T) T { return list[len(list)-1] }

// note brings a row's values into Newest, and drops those whose names are one too many.
func (h *Head) note(r *Row) (passedOver int) {
	r.Values = slices.DeleteFunc(slices.Clone(r.Values), func(v Value) bool {
		at := h.find(v.Name)
		if at < 0 && len(h.Newest) >= MaxNames {
			passedOver++
			return true
		}
		now := Last{v.Name, r.Step, r.Time, given(v.Number)}
		switch {
		case at < 0:
			h.Newest = append(h.Newest, now)
		case h.Newest[at].Step <= r.Step:
			h.Newest[at] = now
		}
		return false
	})
	return passedOver
}

// Full tells whether the table has more than it may, and must be thinned.
func (h *Head) Full() bool {
	return h.Rows > MaxRows || h.Rows > 2 && h.Values() > MaxValues
}

// Thin drops every second row until the table has no more than it may. blocks are all of it, those that are returned take their place.
func (h *Head) Thin(blocks []*Block) []*Block {
	var rows []Row
	for _, b := range blocks {
		for i := range b.Len() {
			rows = append(rows, b.Row(i))
		}
	}
	h.Rows = int64(len(rows))
	for h.Full() {
		h.Stride = 2 * h.Thinned()
		kept := rows[:0]
		for i := 0; i < len(rows); i += 2 {
			kept = append(kept, rows[i])
		}
		rows = kept
		h.Rows = int64(len(rows))
	}
	return h.lay(rows)
}

// lay makes the blocks of all rows.
func (h *Head) lay(rows []Row) []*Block {
	var out []*Block
	for some := range slices.Chunk(rows, BlockRows) {
		b := &Block{}
		for _, r := range some {
			b.push(r)
		}
		out = append(out, b)
	}
	h.Rows, h.Blocks = int64(len(rows)), int64(len(out))
	return out
}

// Amend brings rows of any steps into a table whose blocks are all given, and gives those that take their place. A step that is not there is added in its place, unless rows were thinned out: then nobody
// knows whether it had been there, and it is passed over.
func (h *Head) Amend(blocks []*Block, rows []Row, merge Merge) (out []*Block, passedOver int) {
	h.Taken += int64(len(rows))
	var all []Row
	for _, b := range blocks {
		for i := range b.Len() {
			all = append(all, b.Row(i))
		}
	}
	newest := h.LastStep()
	for _, r := range rows {
		at, found := slices.BinarySearchFunc(all, r.Step, func(x Row, step int64) int { return compare(x.Step, step) })
		dropped := h.note(&r)
		passedOver += dropped
		switch {
		case found:
			merge(&all[at], r)
		case r.Step > newest:
			if h.Came++; (h.Came-1)%h.Thinned() == 0 {
				all = append(all, r)
			}
		case h.Thinned() == 1:
			h.Came++
			all = slices.Insert(all, at, r)
		default:
			passedOver += len(r.Values)
		}
		newest = max(newest, r.Step)
	}
	return h.lay(all), passedOver
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Values is about how many values the table keeps: as many as it has rows, of every name.
func (h *Head) Values() int64 { return h.Rows * int64(len(h.Newest)) }

// Encode writes the head.
func (h *Head) Encode() []byte {
	e := pack.Encoder{B: append(make([]byte, 0, 64+32*len(h.Newest)+len(h.State)), formHead)}
	for _, n := range []int64{h.Taken, h.Came, h.Stride, h.Rows, h.Blocks} {
		e.Int(n)
	}
	e.Uint(uint64(len(h.Newest)))
	for _, l := range h.Newest {
		e.Text(l.Name)
		e.Int(l.Step)
		e.Int(l.Time)
		e.Float(l.Number)
	}
	e.Bytes(h.State)
	return e.B
}

// DecodeHead reads a head. The bytes may be any.
func DecodeHead(from []byte) (*Head, error) {
	d := pack.NewDecoder(from)
	if d.Byte() != formHead {
		return nil, fmt.Errorf("read the head of series: its form is not known")
	}
	h := &Head{Taken: d.Int(), Came: d.Int(), Stride: d.Int(), Rows: d.Int(), Blocks: d.Int()}
	names := d.Count()
	if names > MaxNames {
		return nil, fmt.Errorf("read the head of series: it has %d names, at most %d are possible", names, MaxNames)
	}
	for range names {
		h.Newest = append(h.Newest, Last{d.Text(), d.Int(), d.Int(), given(d.Float())})
	}
	h.State = slices.Clone(d.Bytes())
	if err := d.End(); err != nil {
		return nil, fmt.Errorf("read the head of series: %w", err)
	}
	if h.Taken < 0 || h.Came < 0 || h.Stride < 0 || h.Rows < 0 || h.Blocks < 0 || h.Blocks > h.Rows || h.Rows > 2*MaxRows {
		return nil, fmt.Errorf("read the head of series: it counts %d rows in %d blocks", h.Rows, h.Blocks)
	}
	return h, nil
}
