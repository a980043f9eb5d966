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

// OuterGroupCheck is what CheckOuterGroups found where all is as it should be: how long the gradients of adapters take by chains over rows and by groups of them, and the largest error of both against float64, as a share of the sum of the
// products' magnitudes.
type OuterGroupCheck struct {
	Chains, Groups           time.Duration
	ChainsError, GroupsError float64
}

// outerTolerance is the largest error that outer products may have, of what OuterGroupCheck says.
const outerTolerance = 1e-6

// outerGroupCase is an outer product of sequences' rows.
type outerGroupCase struct {
	narrow, wide int64
	turned       bool
	lengths      []int // of sequences
	first        bool
	apart        int // sequences at the end that are a chain of their own
	longer       int64
}

func (c outerGroupCase) String() string {
	return fmt.Sprintf("%d × %d, sequences of %v rows, %d apart", c.narrow, c.wide, c.lengths, c.apart)
}

func (c *outerGroupCase) positions() (all []int32) {
	for _, n := range c.lengths {
		for p := range n {
			all = append(all, int32(p))
		}
	}
	return all
}

// outerGroupCases have ranks and widths that tiles are no multiples of, sequences of one row, of one group and of more, rows that cannot be copied in fours, and a large product.
func (v *Device) outerGroupCases() []outerGroupCase {
	return []outerGroupCase{
		{narrow: 8, wide: 130, lengths: []int{1, 16, 17, 2}, first: true},
		{narrow: 33, wide: 261, turned: true, lengths: []int{31, 5, 64}, longer: 3},
		{narrow: 16, wide: 300, lengths: []int{40, 70, 9, 33}, apart: 2, longer: 4},
		{narrow: 64, wide: 128, turned: true, lengths: []int{100}, first: true},
		{narrow: 1, wide: 40, lengths: []int{3, 3, 3, 200}, apart: 1},
		{narrow: 32, wide: 128 * int64(v.multiprocessors), lengths: []int{1024, 500}, first: true},
	}
}

// CheckOuterGroups computes outer products of random numbers by groups of rows: those of one cut and of another must have the same bits, and be near to float64; then it takes the time of many and that of OuterProducts. The device can use
// OuterGroups afterwards.
func (v *Device) CheckOuterGroups() (found OuterGroupCheck, err error) {
	if err := v.UseOuterGroups(); err != nil {
		return found, err
	}
	random := rand.New(rand.NewPCG(20261129, 1))
	for _, c := range v.outerGroupCases() {
		if err := v.checkOuterGroupCase(c, random, &found); err != nil {
			return found, fmt.Errorf("outer products by groups of rows, %v: %w", c, err)
		}
	}
	// As a layer's, with as many tiles as are at work at once.
	c := outerGroupCase{narrow: 32, wide: 128 * int64(v.multiprocessors), lengths: []int{32 * v.multiprocessors}, first: true}
	o := operandsOf{v: v, random: random}
	defer func() { err = errors.Join(err, o.free()) }()
	jobs := []OuterGroupJob{o.outerGroupJob(c), o.outerGroupJob(c)}
	if o.err != nil {
		return found, o.err
	}
	if found.Groups, err = v.timed(func() error { return v.OuterGroups(jobs) }); err != nil {
		return found, err
	}
	found.Chains, err = v.timed(func() error { return v.OuterProducts([]OuterProduct{jobs[0].OuterProduct, jobs[1].OuterProduct}) })
	return found, err
}

// outerGroupJob gives a case's operands.
func (o *operandsOf) outerGroupJob(c outerGroupCase) OuterGroupJob {
	positions := c.positions()
	rows := int64(len(positions))
	normal := func(rows, cols int64) View {
		x := View{Rows: rows, Cols: cols, Stride: cols + c.longer}
		data := make([]byte, 0, 4*rows*x.Stride)
		for range rows * x.Stride {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(o.random.NormFloat64())))
		}
		x.At = o.put(data)
		return x
	}
	p, q := c.narrow, c.wide
	if c.turned {
		p, q = q, p
	}
	j := OuterGroupJob{OuterProduct{G: normal(p, q), A: normal(rows, p), B: normal(rows, q), First: c.first}, positions}
	for _, n := range c.lengths[len(c.lengths)-c.apart:] {
		j.Apart += int64(n)
	}
	return j
}

func (v *Device) floats(x View) ([]float32, error) {
	b := make([]byte, 4*x.Rows*x.Stride)
	if err := v.Download(b, x.At, len(b), len(b), 1); err != nil {
		return nil, err
	}
	all := make([]float32, len(b)/4)
	for i := range all {
		all[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return all, nil
}

// errorOf gives the largest error of a job's result got, which began with before, as a share of the sum of magnitudes. It looks at some elements of each row.
func (j *OuterGroupJob) errorOf(got, before, a, b []float32) (worst float64) {
	step := max(1, j.G.Rows*j.G.Cols/4096)
	for e := int64(0); e < j.G.Rows*j.G.Cols; e += step {
		p, q := e/j.G.Cols, e%j.G.Cols
		sum, size := 0.0, 0.0
		if !j.First {
			sum = float64(before[p*j.G.Stride+q])
			size = math.Abs(sum)
		}
		for m := range j.A.Rows {
			x := float64(a[m*j.A.Stride+p]) * float64(b[m*j.B.Stride+q])
			sum, size = sum+x, size+math.Abs(x)
		}
		if share := math.Abs(float64(got[p*j.G.Stride+q])-sum) / size; !(share <= worst) {
			worst = share
		}
	}
	return worst
}

func (v *Device) checkOuterGroupCase(c outerGroupCase, random *rand.Rand, found *OuterGroupCheck) (err error) {
	o := operandsOf{v: v, random: random}
	defer func() { err = errors.Join(err, o.free()) }()
	j := o.outerGroupJob(c)
	if o.err != nil {
		return o.err
	}
	before := make([]byte, 4*j.G.Rows*j.G.Stride)
	if err := v.Download(before, j.G.At, len(before), len(before), 1); err != nil {
		return err
	}
	start, err := v.floats(j.G)
	if err != nil {
		return err
	}
	a, err := v.floats(j.A)
	if err != nil {
		return err
	}
	b, err := v.floats(j.B)
	if err != nil {
		return err
	}
	want, err := o.result(j.G, before, func() error { return v.OuterGroups([]OuterGroupJob{j}) })
	if err != nil {
		return err
	}
	got, err := v.floats(j.G)
	if err != nil {
		return err
	}
	share := j.errorOf(got, start, a, b)
	if found.GroupsError = max(found.GroupsError, share); !(share <= outerTolerance) {
		return fmt.Errorf("an element is further from float64 than %g of the sum of magnitudes: %g", outerTolerance, share)
	}
	if _, err := o.result(j.G, before, func() error { return v.OuterProducts([]OuterProduct{j.OuterProduct}) }); err != nil {
		return err
	}
	if got, err = v.floats(j.G); err != nil {
		return err
	}
	found.ChainsError = max(found.ChainsError, j.errorOf(got, start, a, b))
	for range 2 + v.multiprocessors/16 {
		// Cut anywhere between groups, each part a launch.
		cut, err := o.result(j.G, before, func() error {
			for from := int64(0); from < j.A.Rows; {
				to := j.A.Rows - j.Apart
				if from == to || from > to {
					to = j.A.Rows
				} else if at := from + 1 + random.Int64N(to-from); at < to {
					for at > from && j.Positions[at]%outerGroupRows != 0 {
						at--
					}
					if at > from {
						to = at
					}
				}
				part := j
				part.A.At, part.B.At = j.A.At+Address(4*from*j.A.Stride), j.B.At+Address(4*from*j.B.Stride)
				part.A.Rows, part.B.Rows, part.First, part.Positions, part.Apart = to-from, to-from, j.First && from == 0, j.Positions[from:to], 0
				if j.Apart > 0 && from >= j.A.Rows-j.Apart {
					part.Apart = to - from
				}
				if err := v.OuterGroups([]OuterGroupJob{part}); err != nil {
					return err
				}
				from = to
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !bytes.Equal(cut, want) {
			return fmt.Errorf("cut into parts, %s", firstDifference(j.G, cut, want))
		}
	}
	return nil
}
