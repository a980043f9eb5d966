package cudart

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
)

// passes are what a decoding step is for the recorder: several launches, lists between them, and a copy at the end. Every one computes with what the one before left.
type passes struct {
	t *testing.T
	v *Device
	x [2]View // places that passes may take for their rows
}

const passColumns = 40

func newPasses(t *testing.T, v *Device) *passes {
	p := &passes{t: t, v: v}
	for i := range p.x {
		p.x[i] = View{At: alloc(t, v, 4*passColumns*8), Rows: 8, Cols: passColumns, Stride: passColumns}
		data := make([]float32, 8*passColumns)
		for j := range data {
			data[j] = float32(j%13) - 6
		}
		if err := v.Upload(p.x[i].At, 4*passColumns, bytesOf(data), 4*passColumns, 8); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// pass is one kind of them.
type pass struct {
	launches int // at least 3 at a time
	rows     int64
	place    int     // of the rows
	fewer    int     // of the launches that work at the other place
	factor   float32 // another argument of a single launch
	list     int32   // what is in the lists
	lists    int     // their length, beyond one element
	between  func(v *Device) error
}

func (p *passes) launch(c pass) error {
	v := p.v
	for i := 0; i < c.launches; i += 3 {
		x := p.x[c.place]
		if i < c.fewer {
			x = p.x[1-c.place]
		}
		x.Rows = c.rows
		list := slices.Repeat([]Element{{Row: c.list % int32(c.rows), Column: int32(i) % passColumns}}, 1+c.lists)
		at, release, err := v.Put(bytesOf(list))
		if err != nil {
			return err
		}
		factor := float32(0.5)
		if i == 0 {
			factor = c.factor
		}
		to := View{At: x.At, Rows: 1, Cols: 3, Stride: passColumns}
		if err := errors.Join(v.Scale(x, factor, BFloat16), v.Add(x, x), v.GatherElements(View{At: to.At, Rows: 1, Cols: 1, Stride: 1}, x, at), release()); err != nil {
			return err
		}
		if c.between != nil && i == 0 {
			if err := c.between(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// result is what both places hold.
func (p *passes) result() []byte {
	p.t.Helper()
	var all []byte
	for _, x := range p.x {
		data := make([]byte, 4*passColumns*8)
		if err := p.v.Download(data, x.At, 4*passColumns, 4*passColumns, 8); err != nil {
			p.t.Fatal(err)
		}
		all = append(all, data...)
	}
	return all
}

// Passes that are recorded leave what they leave launch by launch, whatever changes from one to the next and whatever comes between the launches.
func TestRecordedEqualsLaunched(t *testing.T) {
	plain := pass{launches: 153, rows: 3, factor: 0.25}
	with := func(change func(*pass)) pass {
		c := plain
		change(&c)
		return c
	}
	type step struct {
		pass
		forbidden string // what the driver is not asked for, which tells how the pass is started: launched or as graphs, with how many changes
	}
	const noLaunch, noGraph, noChange = "cuLaunchKernel:1:1", "cuGraphLaunch:1:1", "cuGraphExecKernelNodeSetParams_v2:1:1"
	first := []step{{plain, noGraph}, {plain, noLaunch}, {plain, noChange}}
	between := func(f func(v *Device) error) []step {
		c := with(func(c *pass) { c.between = f })
		return []step{{pass: c}, {pass: c}, {pass: c}}
	}
	for name, steps := range map[string][]step{
		"the same again":               first,
		"what is in lists changes":     append(slices.Clone(first), step{with(func(c *pass) { c.list = 2 }), noLaunch}, step{with(func(c *pass) { c.list = 1 }), noChange}),
		"an argument changes":          append(slices.Clone(first), step{with(func(c *pass) { c.factor = 2 }), "cuGraphExecKernelNodeSetParams_v2:2:1"}, step{plain, noLaunch}, step{plain, noChange}),
		"lists grow":                   append(slices.Clone(first), step{with(func(c *pass) { c.lists = 40 }), noLaunch}, step{plain, noLaunch}),
		"most arguments change":        append(slices.Clone(first), step{with(func(c *pass) { c.place = 1 }), noGraph}, step{with(func(c *pass) { c.place = 1 }), noLaunch}, step{with(func(c *pass) { c.place = 1 }), noChange}),
		"some arguments change":        append(slices.Clone(first), step{with(func(c *pass) { c.fewer = 6 }), noLaunch}),
		"rows change, and change back": append(slices.Clone(first), step{with(func(c *pass) { c.rows = 4 }), noGraph}, step{plain, noLaunch}, step{plain, noChange}, step{with(func(c *pass) { c.rows = 4 }), noLaunch}),
		"few launches":                 {{with(func(c *pass) { c.launches = 6 }), noGraph}, {with(func(c *pass) { c.launches = 6 }), noGraph}, {with(func(c *pass) { c.launches = 6 }), noGraph}},
		"memory is cleared between":    between(func(v *Device) error { a, err := v.Alloc(8); return errors.Join(err, v.Zero(a, 8), v.Free(a)) }),
		"the host waits between":       between(func(v *Device) error { return v.Synchronize() }),
		"a download between": between(func(v *Device) error {
			a, err := v.Alloc(8)
			return errors.Join(err, v.Download(make([]byte, 8), a, 8, 8, 1), v.Free(a))
		}),
		"lists turn the staging memory": between(func(v *Device) error {
			for range 5 {
				if _, _, err := v.Put(make([]byte, stageHalf/2+300)); err != nil {
					return err
				}
			}
			return nil
		}),
		"a list that is larger than it": between(func(v *Device) error {
			_, release, err := v.Put(make([]byte, stageHalf+4))
			return errors.Join(err, release())
		}),
		"recorded in recorded": between(func(v *Device) error {
			return v.Record(func() error { return v.Record(func() error { return nil }) })
		}),
		"another stream between": between(func(v *Device) error {
			a, err := v.Alloc(8)
			if err != nil {
				return err
			}
			join, err := v.Aside(func() error { return v.Copy(a, v, a+4, 4) })
			return errors.Join(err, join(), v.Free(a))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_LATE", "1") // what is not in the stream's order shows
			d := openDriver(t)
			dependent := openDevice(t, d, 0)
			if err := dependent.UseDependentLaunches(); err != nil {
				t.Fatal(err)
			}
			recorded, launched, overlapping := newPasses(t, openDevice(t, d, 0)), newPasses(t, openDevice(t, d, 0)), newPasses(t, dependent)
			for i, s := range steps {
				t.Setenv("FAKE_CUDA_FAIL", s.forbidden)
				if err := recorded.v.Record(func() error { return recorded.launch(s.pass) }); err != nil {
					t.Fatalf("pass %d: %v", i, err)
				}
				t.Setenv("FAKE_CUDA_FAIL", "")
				if err := launched.launch(s.pass); err != nil {
					t.Fatal(err)
				}
				if err := dependent.Record(func() error { return overlapping.launch(s.pass) }); err != nil {
					t.Fatalf("pass %d, dependent: %v", i, err)
				}
				if want := launched.result(); !bytes.Equal(recorded.result(), want) || !bytes.Equal(overlapping.result(), want) {
					t.Fatalf("pass %d: other results than launch by launch", i)
				}
				if recorded.v.recorder.off || dependent.recorder.off {
					t.Fatalf("pass %d: graphs have been given up", i)
				}
			}
		})
	}
}

// logged collects what is logged while a test runs.
func logged(t *testing.T) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	return &out
}

// Whatever of a graph fails, the pass is launched, it is said once, and nothing is left behind.
func TestGraphsFail(t *testing.T) {
	for _, plan := range []string{"cuGraphCreate:1:801", "cuGraphCreate:2:2", "cuGraphAddKernelNode_v2:1:1", "cuGraphAddKernelNode_v2:70:1", "cuGraphInstantiateWithFlags:2:2", "cuGraphLaunch:1:1", "cuGraphLaunch:4:1",
		"cuGraphExecKernelNodeSetParams_v2:1:910", "cuGraphExecKernelNodeSetParams_v2:2:910"} {
		t.Run(plan, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_LATE", "1")
			out := logged(t)
			d := openDriver(t)
			recorded, launched := newPasses(t, openDevice(t, d, 0)), newPasses(t, openDevice(t, d, 0))
			t.Setenv("FAKE_CUDA_FAIL", plan)
			for i, factor := range []float32{0.5, 0.5, 0.5, 0.25, 0.125, 0.5} {
				c := pass{launches: 153, rows: 2, factor: factor}
				if err := errors.Join(recorded.v.Record(func() error { return recorded.launch(c) }), launched.launch(c)); err != nil {
					t.Fatalf("pass %d: %v", i, err)
				}
				if !bytes.Equal(recorded.result(), launched.result()) {
					t.Fatalf("pass %d: other results than launch by launch", i)
				}
			}
			if n := strings.Count(out.String(), "CUDA graphs are not used any more"); n != 1 {
				t.Errorf("it was said %d times:\n%s", n, out)
			}
			if r := &recorded.v.recorder; len(r.known)+len(r.retired) != 0 {
				t.Errorf("%d series are still known, %d graphs kept", len(r.known), len(r.retired))
			}
		})
	}
}

// A launch that fails is an error of what starts it, which names the kernel; the device goes on with what comes then.
func TestRecordedErrors(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	p := newPasses(t, v)
	for _, c := range []struct {
		plan string
		run  func() error
		want string
	}{
		{"cuLaunchKernel:2:719", func() error { return v.Record(func() error { return p.launch(pass{launches: 3, rows: 1}) }) }, "add: CUDA_ERROR_LAUNCH_FAILED"},
		{"cuLaunchKernel:1:719", func() error {
			return v.Record(func() error { return errors.Join(v.Add(p.x[0], p.x[0]), v.Zero(p.x[0].At, 4)) })
		}, "add: CUDA_ERROR_LAUNCH_FAILED"},
		{"cuMemcpyHtoDAsync_v2:1:1", func() error { return v.Record(func() error { return p.launch(pass{launches: 3, rows: 2, list: 1}) }) }, "cuMemcpyHtoD"}, // of a list that has not been there
		{"", func() error {
			return v.Record(func() error { return errors.Join(v.Add(p.x[0], p.x[0]), errors.New("of the caller")) })
		}, "of the caller"},
	} {
		t.Setenv("FAKE_CUDA_FAIL", c.plan)
		err := c.run()
		t.Setenv("FAKE_CUDA_FAIL", "")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.plan, err, c.want)
		}
		if r := &v.recorder; len(r.work) != 0 || r.listsTo != 0 || r.depth != 0 {
			t.Errorf("%s: %d launches are left", c.plan, len(r.work))
		}
		if err := v.Record(func() error { return p.launch(pass{launches: 9, rows: 1}) }); err != nil {
			t.Errorf("after %s: %v", c.plan, err)
		}
	}
}

// Of many series those that came last are remembered, and the graphs of the others are given back when they cannot be running any more.
func TestSeriesAreForgotten(t *testing.T) {
	t.Setenv("FAKE_CUDA_LATE", "1") // a graph that is given back before it has run is an error of the driver that needs no GPU
	v := openDevice(t, openDriver(t), 0)
	x := View{At: alloc(t, v, 4*4), Rows: 1, Cols: 4, Stride: 4}
	series := func(kind int) {
		t.Helper()
		if err := v.Record(func() error {
			for i := range 12 {
				f := v.Add
				if kind>>i&1 != 0 {
					f = v.AddRow
				}
				if err := f(x, x); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for kind := range mostSeries + 20 {
		series(kind)
		series(kind)
		series(0) // it comes again and again
	}
	r := &v.recorder
	if len(r.known) != mostSeries || len(r.retired) != 20 {
		t.Errorf("%d series are known and %d graphs wait, want %d and 20", len(r.known), len(r.retired), mostSeries)
	}
	t.Setenv("FAKE_CUDA_FAIL", "cuLaunchKernel:1:1")
	series(0)
	series(mostSeries + 19)
	t.Setenv("FAKE_CUDA_FAIL", "")
	if err := v.Synchronize(); err != nil || len(r.retired) != 0 {
		t.Errorf("%d graphs wait after the device has done all, error %v", len(r.retired), err)
	}
}

// The memory of graphs stays below its limit, by the estimate for the driver, whatever series come: what there is no room for is launched. Series that have not come for long make room.
func TestGraphMemoryIsBounded(t *testing.T) {
	for version, node := range map[string]int64{"12020": oldNodeBytes, "12080": nodeBytes} {
		t.Run(version, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_LATE", "1")
			t.Setenv("FAKE_CUDA_VERSION", version)
			v := openDevice(t, openDriver(t), 0)
			x := View{At: alloc(t, v, 4*4), Rows: 1, Cols: 4, Stride: 4}
			series := func(launches int) {
				t.Helper()
				if err := v.Record(func() error {
					for range launches {
						if err := v.Add(x, x); err != nil {
							return err
						}
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			started := func(launches int) bool {
				t.Setenv("FAKE_CUDA_FAIL", "cuLaunchKernel:1:1")
				defer t.Setenv("FAKE_CUDA_FAIL", "")
				err := v.Record(func() error {
					for range launches {
						if err := v.Add(x, x); err != nil {
							return err
						}
					}
					return nil
				})
				return err == nil
			}
			limit := 30 * node
			v.LimitGraphs(limit)
			for range 3 {
				for launches := leastSeries; launches < firstSeries; launches++ {
					series(launches)
					if n := v.GraphBytes(); n > limit {
						t.Fatalf("%d bytes of graphs, the limit is %d", n, limit)
					}
				}
			}
			if n := v.GraphBytes(); n != (8+9+10)*node || !started(9) || started(14) {
				t.Errorf("%d bytes of graphs", n)
			}
			for range mostSeries + 2 { // the others do not come any more
				series(14)
				if err := v.Synchronize(); err != nil {
					t.Fatal(err)
				}
			}
			if n := v.GraphBytes(); n > limit || !started(14) {
				t.Errorf("%d bytes of graphs, the limit is %d, and what comes all the time has none", n, limit)
			}
			v.LimitGraphs(0)
			series(12)
			series(12)
			if started(12) {
				t.Error("a graph was made where there may be none")
			}
		})
	}
}

// What one device records is there for another that waits for an event behind it, which any goroutine may set.
func TestRecordedOrder(t *testing.T) {
	t.Setenv("FAKE_CUDA_LATE", "1")
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	d := openDriver(t)
	a, b := openDevice(t, d, 0), openDevice(t, d, 1)
	x, y := alloc(t, a, 4), alloc(t, b, 4)
	view := View{At: x, Rows: 1, Cols: 1, Stride: 1}
	if err := a.Upload(x, 4, []byte{0, 0, 128, 63}, 4, 1); err != nil { // one
		t.Fatal(err)
	}
	e, err := a.NewEvent(false)
	if err != nil {
		t.Fatal(err)
	}
	want := float32(1)
	for range 4 {
		want *= 1 << 10
		if err := a.Record(func() error {
			for range 10 {
				if err := a.Add(view, view); err != nil {
					return err
				}
			}
			var set sync.WaitGroup
			var failed error
			set.Go(func() { failed = errors.Join(e.Record(), e.Order(b)) })
			set.Wait()
			return errors.Join(failed, b.Copy(y, a, x, 4))
		}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if err := b.Download(got, y, 4, 4, 1); err != nil {
			t.Fatal(err)
		}
		if floats(got)[0] != want {
			t.Errorf("%v, want %v", floats(got)[0], want)
		}
	}
	// Events that are set meanwhile, wherever they come to lie, take nothing away from the launches.
	var setting sync.WaitGroup
	setting.Go(func() {
		for range 50 {
			if err := e.Record(); err != nil {
				t.Error(err)
			}
		}
	})
	if err := a.Zero(x, 4); err != nil {
		t.Fatal(err)
	}
	if err := a.Record(func() error {
		for range 300 {
			if err := a.AddRow(view, view); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	setting.Wait()
	if err := e.Free(); err != nil {
		t.Error(err)
	}
	if a.recorder.off {
		t.Error(fmt.Errorf("graphs have been given up"))
	}
}
