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

// DependentCheck is what CheckDependentLaunches found where all bits are equal: how long a series of launches takes as a graph, each after the end of the one before it and overlapping.
type DependentCheck struct {
	Apart, Dependent time.Duration
}

const (
	dependentProducts = 12 // of the series; each needs all that the one before it has written
	dependentRepeats  = 5
)

// dependentSide is the side of the weights, so that a product has a block for most of the multiprocessors.
func (v *Device) dependentSide() int64 { return 16 * int64(v.multiprocessors) }

// CheckDependentLaunches records a series of products as decoding has them, each of which reads all of what the one before it wrote, starts it as a graph in both ways, and compares every bit; then it takes the times. Its error says what
// is not equal, or what failed. The device has dependent launches afterwards, unless there was an error.
func (v *Device) CheckDependentLaunches() (found DependentCheck, err error) {
	random := rand.New(rand.NewPCG(20261129, 1))
	run := func(rows int64) ([]byte, time.Duration, error) {
		s := dependentSeries{operandsOf: operandsOf{v: v, random: random}}
		s.prepare(rows)
		out, took, err := s.run()
		return out, took, errors.Join(err, s.free())
	}
	rows := []int64{1, 8, 40}
	var want [][]byte
	for _, n := range rows {
		random = rand.New(rand.NewPCG(20261129, uint64(n)))
		out, took, err := run(n)
		if err != nil {
			return found, err
		}
		want, found.Apart = append(want, out), found.Apart+took
	}
	if err := v.forgetGraphs(); err != nil {
		return found, err
	}
	if err := v.UseDependentLaunches(); err != nil {
		return found, err
	}
	for i, n := range rows {
		random = rand.New(rand.NewPCG(20261129, uint64(n)))
		out, took, err := run(n)
		if err != nil {
			return found, err
		}
		if !bytes.Equal(out, want[i]) {
			return found, fmt.Errorf("dependent launches, %d rows: the last product's bits are not those of launches one after another", n)
		}
		found.Dependent += took
	}
	return found, nil
}

// dependentSeries is one series with its operands.
type dependentSeries struct {
	operandsOf
	x, y    View
	start   View
	weights [2]Weight
}

func (s *dependentSeries) prepare(rows int64) {
	side := s.v.dependentSide()
	place := func(size float64) View {
		return View{At: s.normalNumbers(rows*side, size, Float32), Rows: rows, Cols: side, Stride: side}
	}
	s.start, s.x, s.y = place(1), place(1), place(1)
	for i := range s.weights { // so large that rows keep their size
		s.weights[i] = Weight{At: s.normalNumbers(side*side, 1/math.Sqrt(float64(side)), BFloat16), Out: side, In: side, Pitch: side}
	}
}

// normalNumbers gives n numbers of a normal distribution.
func (o *operandsOf) normalNumbers(n int64, size float64, t Type) Address {
	data := make([]byte, 0, 4*n)
	for range n {
		u := math.Float32bits(float32(size * o.random.NormFloat64()))
		if t == BFloat16 {
			data = binary.LittleEndian.AppendUint16(data, uint16(u>>16))
		} else {
			data = binary.LittleEndian.AppendUint32(data, u)
		}
	}
	return o.put(data)
}

// pass records the series: products from one place to the other and back.
func (s *dependentSeries) pass() error {
	return s.v.Record(func() error {
		x, y := s.x, s.y
		if err := errors.Join(s.v.Scale(x, 0, Float32), s.v.Add(x, s.start)); err != nil {
			return err
		}
		for i := range dependentProducts {
			m := Multiplication{Y: y, X: x, XType: Float32, Groups: []RowGroup{{To: x.Rows, Weight: s.weights[i%2]}}, Type: BFloat16, Transposed: i%3 == 2, Frozen: true}
			if err := errors.Join(s.v.Products([]Multiplication{m}), s.v.ShareRows(View{}, Float32)); err != nil {
				return err
			}
			x, y = y, x
		}
		return nil
	})
}

// run gives what the series leaves, and how long the fastest of several takes.
func (s *dependentSeries) run() (out []byte, took time.Duration, err error) {
	if s.err != nil {
		return nil, 0, s.err
	}
	for i := range 3 + dependentRepeats { // the first two are launched, or make the graph
		if err := s.v.Synchronize(); err != nil {
			return nil, 0, err
		}
		began := time.Now()
		if err := errors.Join(s.pass(), s.v.Synchronize()); err != nil {
			return nil, 0, err
		}
		if t := time.Since(began); i >= 3 && (took == 0 || t < took) {
			took = t
		}
	}
	if s.v.graphsFailed() {
		return nil, 0, errors.New("dependent launches: a graph could not be made or started, and launches went one by one")
	}
	out = make([]byte, 4*s.x.Rows*s.x.Stride)
	width := int(4 * s.x.Stride)
	return out, took, s.v.Download(out, s.x.At, width, width, int(s.x.Rows)) // an even number of products: it ends where it began
}

// graphsFailed tells whether launches go one by one because graphs cannot be had.
func (v *Device) graphsFailed() bool {
	v.recorder.mu.Lock()
	defer v.recorder.mu.Unlock()
	return v.recorder.off
}

// forgetGraphs gives back all graphs, so that what is recorded makes new ones.
func (v *Device) forgetGraphs() error {
	if err := v.Synchronize(); err != nil {
		return err
	}
	r := &v.recorder
	r.mu.Lock()
	r.forget()
	r.mu.Unlock()
	return v.Synchronize()
}
