package cudart

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// GroupAttentionCheck is what CheckGroupAttention found where all bits are equal: how long attention of many rows and its gradient take by warps, and by warpgroups.
type GroupAttentionCheck struct {
	Forward, Backward AttentionTimes
}

// AttentionTimes are of the same work in both ways.
type AttentionTimes struct {
	Warps, Groups time.Duration
}

// attentionCase is attention that CheckGroupAttention computes in both ways.
type attentionCase struct {
	dim, heads, group int64
	sequences         []Sequence // without pages, and without rows where they begin
	qType             Type
	kept              bool  // the result is rounded to bfloat16
	infinite          int64 // a position whose value is not finite in every sequence, unless that is 0
	forward           bool  // it has no gradient: sequences do not begin at 0
}

func (c attentionCase) String() string {
	s := fmt.Sprintf("dimension %d, %d heads in groups of %d,", c.dim, c.heads*c.group, c.group)
	for _, x := range c.sequences {
		s += fmt.Sprintf(" rows %d to %d", x.First, x.First+x.Count)
		if x.Window > 0 {
			s += fmt.Sprintf(" with a window of %d", x.Window)
		}
	}
	return s
}

// whole is a sequence from position 0 on.
func whole(count, window int64) Sequence {
	return Sequence{Count: count, KeysTo: count, RowsTo: count, Window: window}
}

// attentionCases have tiles of one item and of all, of one warpgroup and of both, pages that only some items of a tile see, heads that are filled up, groups that no tile is a multiple of, restarts of the softmax, windows, and rows for all
// multiprocessors at once.
func (v *Device) attentionCases() []attentionCase {
	many := 32 * int64(v.multiprocessors)
	return []attentionCase{
		{dim: 64, heads: 1, group: 1, sequences: []Sequence{whole(1, 0), whole(64, 0), whole(65, 0), whole(129, 0), whole(2, 0)}, qType: BFloat16},
		{dim: 128, heads: 2, group: 3, sequences: []Sequence{whole(19, 0), whole(1, 0), whole(75, 0)}, qType: Float32},
		{dim: 72, heads: 1, group: 5, sequences: []Sequence{whole(50, 0), whole(13, 0)}, qType: Float32, infinite: 20},
		{dim: 64, heads: 1, group: 2, sequences: []Sequence{whole(150, 0)}, qType: BFloat16, kept: true, infinite: 100},
		{dim: 128, heads: 1, group: 1, sequences: []Sequence{whole(300, 70), whole(200, 0), whole(140, 1)}, qType: BFloat16},
		{dim: 64, heads: 1, group: 1, sequences: []Sequence{{First: 2030, Count: 90}, {First: 100, Count: 70, Window: 64}, {First: 63, Count: 1}}, qType: BFloat16, forward: true},
		{dim: 64, heads: 1, group: 2, sequences: []Sequence{{Count: 300, KeysFrom: 64, KeysTo: 192, RowsTo: 300}, {Count: 190, KeysTo: 190, RowsFrom: 64, RowsTo: 190}, {Count: 200, KeysFrom: 64, KeysTo: 128, RowsFrom: 128, RowsTo: 200}},
			qType: BFloat16},
		{dim: 128, heads: 2, group: 2, sequences: []Sequence{whole(many, 0)}, qType: BFloat16},
		{dim: 64, heads: 2, group: 4, sequences: []Sequence{whole(many, 0), whole(many/2, 0)}, qType: BFloat16, kept: true},
	}
}

// CheckGroupAttention computes attention of random numbers and its gradient by warpgroups and by warps and compares every bit; then it takes the times of both. Its error says what is not equal, or what failed: a kernel that faults makes
// the device useless, so a process that has something to lose lets another one check. What Attention uses is as before then.
func (v *Device) CheckGroupAttention() (found GroupAttentionCheck, err error) {
	before := v.groupAttention
	if err := v.UseGroupAttention(true); err != nil {
		return found, err
	}
	defer func() { v.groupAttention = before }()
	random := rand.New(rand.NewPCG(20261128, 1))
	for _, c := range v.attentionCases() {
		if err := v.checkAttentionCase(c, random); err != nil {
			return found, fmt.Errorf("attention by warpgroups, %v: %w", c, err)
		}
	}
	many := 32 * int64(v.multiprocessors)
	return v.timeAttention(attentionCase{dim: 128, heads: max(1, int64(v.multiprocessors)/16), group: 4, sequences: []Sequence{whole(many, 0)}, qType: BFloat16}, random)
}

// attentionOperands are what a case reads and writes, on the device.
type attentionOperands struct {
	operandsOf
	c         attentionCase
	cache     Cache
	sequences []Sequence
	q, dout   View
	results   map[string]View // of float32, but "kept"
}

const checkedScale = 0.2

// normal gives numbers of a normal distribution.
func (o *attentionOperands) normal(rows, cols int64, change func(row, col int64, x float32) float32) View {
	data := make([]byte, 0, 4*rows*cols)
	for row := range rows {
		for col := range cols {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(change(row, col, float32(o.random.NormFloat64()))))
		}
	}
	return View{At: o.put(data), Rows: rows, Cols: cols, Stride: cols}
}

// attentionOperandsOf lays rows, and pages with keys and values at all positions, out for a case.
func (v *Device) attentionOperandsOf(c attentionCase, random *rand.Rand) *attentionOperands {
	o := &attentionOperands{operandsOf: operandsOf{v: v, random: random}, c: c, results: map[string]View{}}
	var rows, positions int64
	var pages int32
	same := func(_, _ int64, x float32) float32 { return x }
	for _, s := range c.sequences {
		s.Row, rows = rows, rows+s.Count
		positions += s.First + s.Count
		for k := int64(0); k < s.First+s.Count; k += PageKeys {
			s.Pages = append(s.Pages, pages)
			pages++
		}
		o.sequences = append(o.sequences, s)
	}
	for _, s := range o.sequences { // in no order
		random.Shuffle(len(s.Pages), func(i, j int) { s.Pages[i], s.Pages[j] = s.Pages[j], s.Pages[i] })
	}
	o.cache = Cache{Layers: 1, Pages: int64(pages), Heads: c.heads, Dim: c.dim, Type: BFloat16}
	o.cache.At = o.put(make([]byte, o.cache.Bytes()))
	// All positions, whichever rows there are for some.
	fill := make([]Sequence, 0, len(o.sequences))
	at := int64(0)
	infinite := map[int64]bool{}
	for _, s := range o.sequences {
		if c.infinite > 0 && c.infinite < s.Count {
			infinite[at+c.infinite] = true
		}
		fill = append(fill, Sequence{Row: at, Count: s.First + s.Count, Pages: s.Pages})
		at += s.First + s.Count
	}
	keys := o.normal(positions, c.heads*c.dim, same)
	values := o.normal(positions, c.heads*c.dim, func(row, col int64, x float32) float32 {
		if infinite[row] && col == 3 {
			return float32(math.Inf(1))
		}
		return x
	})
	width := c.heads * c.group * c.dim
	o.q, o.dout = o.normal(rows, width, same), o.normal(rows, width, same)
	if c.qType == BFloat16 {
		rounded := View{At: o.put(make([]byte, 2*rows*width)), Rows: rows, Cols: width, Stride: width}
		if o.err == nil {
			o.err = v.Round(rounded, BFloat16, o.q, Float32)
		}
		o.q = rounded
	}
	for name, cols := range map[string]int64{"output": width, "log-sum-exp": c.heads * c.group, "dq": width, "dk": c.heads * c.dim, "dv": c.heads * c.dim} {
		o.results[name] = View{At: o.put(make([]byte, 4*rows*cols)), Rows: rows, Cols: cols, Stride: cols}
	}
	if c.kept {
		o.results["kept"] = View{At: o.put(make([]byte, 2*rows*width)), Rows: rows, Cols: width, Stride: width}
	}
	if o.err == nil {
		o.err = v.WritePages(o.cache, 0, keys, values, fill)
	}
	return o
}

func (o *attentionOperands) forward() error {
	return o.v.Attention(o.results["kept"], o.results["output"], o.results["log-sum-exp"], o.q, o.c.qType, o.cache, 0, o.sequences, o.c.group, checkedScale)
}

func (o *attentionOperands) backward() error {
	out, outType := o.results["output"], Float32
	if o.c.kept {
		out, outType = o.results["kept"], BFloat16
	}
	return o.v.AttentionBackward(o.results["dq"], o.results["dk"], o.results["dv"], o.dout, out, outType, o.results["log-sum-exp"], o.q, o.c.qType, o.cache, 0, o.sequences, o.c.group, checkedScale)
}

// bytes gives all results, after do, which finds each byte of them holding the same.
func (o *attentionOperands) bytes(do func() error) (map[string][]byte, error) {
	all := map[string][]byte{}
	for name, x := range o.results {
		size := 4
		if name == "kept" {
			size = 2
		}
		all[name] = bytes.Repeat([]byte{0x3c}, size*int(x.Rows*x.Stride))
		if err := o.v.Upload(x.At, len(all[name]), all[name], len(all[name]), 1); err != nil {
			return nil, err
		}
	}
	if err := do(); err != nil {
		return nil, err
	}
	if o.c.kept {
		delete(all, "output") // it is undefined
	}
	for name, b := range all {
		if err := o.v.Download(b, o.results[name].At, len(b), len(b), 1); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (v *Device) checkAttentionCase(c attentionCase, random *rand.Rand) (err error) {
	o := v.attentionOperandsOf(c, random)
	defer func() { err = errors.Join(err, o.free()) }()
	if o.err != nil {
		return o.err
	}
	run := func(groups bool) (map[string][]byte, error) {
		v.groupAttention = groups
		return o.bytes(func() error {
			err := o.forward()
			if err == nil && !c.forward {
				err = o.backward()
			}
			return err
		})
	}
	want, err := run(false)
	if err != nil {
		return err
	}
	for range 1 + v.multiprocessors/16 { // what depends on time may be right once
		got, err := run(true)
		if err != nil {
			return err
		}
		for _, name := range []string{"output", "kept", "log-sum-exp", "dv", "dk", "dq"} {
			if !bytes.Equal(got[name], want[name]) {
				return fmt.Errorf("%s: %s", name, differenceOf(o.results[name], got[name], want[name]))
			}
		}
	}
	return nil
}

// timeAttention takes the times of a case in both ways.
func (v *Device) timeAttention(c attentionCase, random *rand.Rand) (found GroupAttentionCheck, err error) {
	o := v.attentionOperandsOf(c, random)
	defer func() { err = errors.Join(err, o.free()) }()
	if o.err != nil {
		return found, o.err
	}
	for _, way := range []struct {
		groups            bool
		forward, backward *time.Duration
	}{{false, &found.Forward.Warps, &found.Backward.Warps}, {true, &found.Forward.Groups, &found.Backward.Groups}} {
		v.groupAttention = way.groups
		if *way.forward, err = v.timed(o.forward); err != nil {
			return found, err
		}
		if *way.backward, err = v.timed(o.backward); err != nil {
			return found, err
		}
	}
	return found, nil
}
