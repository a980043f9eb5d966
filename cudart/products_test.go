package cudart

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listedProduct is one of a list: groups of rows, with one row in no group after each, of a list's rows; riding is the rank of an adapter of all rows.
type listedProduct struct {
	rows, columns, depth   int64
	groups                 int64
	riding                 int64
	t, xType               Type
	transposed, accumulate bool
	factor                 float32
	x                      int // products with one number have their rows in common
}

// listCase is a list of products and in how many launches they are, those that round rows left out.
type listCase struct {
	name     string
	list     []listedProduct
	launches int
}

func listCases() []listCase {
	var cases []listCase
	// q, k and v of so many rows, and their adapters' first products: in one launch, or the first ones with what rides in it.
	for i, rows := range []int64{1, 2, 15, 16, 17, 31, 33, 64, 65, 100, 127} {
		depth := []int64{40, 136, 264, 331}[i%4]
		xType := []Type{Float32, BFloat16}[i%2]
		var together, riding []listedProduct
		for k, columns := range []int64{130, 33, 40} {
			p := listedProduct{rows: rows, columns: columns, depth: depth, groups: 1, t: BFloat16, xType: xType, transposed: i%3 == 2, accumulate: k == 1}
			together = append(together, p)
			if k != i%3 { // one of them without an adapter
				p.riding = int64(8 + 16*k)
			}
			riding = append(riding, p)
		}
		for k := range 3 {
			together = append(together, listedProduct{rows: (rows + 1) / 2, columns: int64(8 + 12*k), depth: depth, groups: 1, t: BFloat16, xType: xType, transposed: i%3 == 2, factor: 0.7})
		}
		cases = append(cases, listCase{fmt.Sprintf("%d rows", rows), together, 1}, listCase{fmt.Sprintf("%d rows, riding", rows), riding, 1})
	}
	several := func(groups int64) (list []listedProduct) {
		for k := range int64(3) {
			list = append(list, listedProduct{rows: 3, columns: 72, depth: 8 * (1 + k), groups: groups - k%2*groups/2, t: BFloat16, xType: Float32, accumulate: true, x: int(k)})
		}
		return list
	}
	one := listedProduct{rows: 5, columns: 40, depth: 264, groups: 1, t: BFloat16, xType: Float32}
	with := func(change func(*listedProduct)) listedProduct {
		p := one
		change(&p)
		return p
	}
	return append(cases,
		listCase{"2 adapters", several(2), 1}, listCase{"17 adapters", several(17), 1},
		listCase{"more than a launch has room for", slices.Repeat([]listedProduct{one}, mostProducts+2), 2},
		listCase{"both orientations", []listedProduct{one, with(func(p *listedProduct) { p.transposed = true }), one}, 3},
		listCase{"many rows and columns between", []listedProduct{one, with(func(p *listedProduct) { p.rows, p.columns = 130, 136 }), one, one}, 3},
		listCase{"many rows and few columns between", []listedProduct{one, with(func(p *listedProduct) { p.rows = 130 }), one, one}, 1},
		listCase{"float32 weights between", []listedProduct{one, with(func(p *listedProduct) { p.t = Float32 }), one}, 3},
		listCase{"rows of their own", []listedProduct{one, with(func(p *listedProduct) { p.x = 1 }), with(func(p *listedProduct) { p.x = 2 })}, 1},
		listCase{"a tail beside a factor", []listedProduct{one, with(func(p *listedProduct) { p.riding, p.factor = 8, 0.7 }), one}, 4},
		listCase{"no rows", []listedProduct{one, with(func(p *listedProduct) { p.groups = 0 }), one}, 2},
		listCase{"nothing", nil, 0})
}

// Products in a list have the bits of one launch each, in any order of threads and with copies as early and as late as they may come, and share launches.
func TestProducts(t *testing.T) {
	for n, order := range orders("20261122", "987654321", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			for i, c := range listCases() {
				if n > 0 && (n+i)%2 == 0 { // the first order has all
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					allocations := v.Allocations()
					testList(t, v, c)
					if n := v.Allocations(); n != allocations {
						t.Errorf("%d allocations more", n-allocations)
					}
				})
			}
		})
	}
}

func testList(t *testing.T, v *Device, c listCase) {
	random := rand.New(rand.NewPCG(17, uint64(len(c.list))))
	var taken []Address
	defer func() {
		for _, a := range taken {
			if err := v.Free(a); err != nil {
				t.Error(err)
			}
		}
	}()
	put := func(data []byte) Address {
		t.Helper()
		a, err := v.Alloc(len(data))
		if err == nil {
			taken = append(taken, a)
			err = v.Upload(a, len(data), data, len(data), 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	weight := func(p listedProduct, depth int64) Weight {
		w := Weight{Out: p.columns, In: depth}
		if p.transposed {
			w.Out, w.In = depth, p.columns
		}
		w.Pitch = (w.In + 7) / 8 * 8
		size := int64(4)
		if p.t == BFloat16 {
			size = 2
		}
		data := randomBits(random, w.Out*w.Pitch, p.t)
		for r := range w.Out {
			clear(data[size*(r*w.Pitch+w.In) : size*(r+1)*w.Pitch])
		}
		w.At = put(data)
		return w
	}
	inputs := map[string]View{}
	var list []Multiplication
	var before [][]byte
	for _, p := range c.list {
		rows := (p.rows + 1) * max(p.groups, 1)
		key := fmt.Sprint(p.x, p.xType, rows, p.depth)
		x, ok := inputs[key]
		if !ok {
			x = View{Rows: rows, Cols: p.depth, Stride: (p.depth + 7) / 8 * 8}
			x.At = put(randomBits(random, x.Rows*x.Stride, p.xType))
			inputs[key] = x
		}
		m := Multiplication{X: x, XType: p.xType, Type: p.t, Transposed: p.transposed, Accumulate: p.accumulate, Y: View{Rows: rows, Cols: p.columns, Stride: p.columns + 1}}
		for i := range p.groups {
			from := i * (p.rows + 1)
			m.Groups = append(m.Groups, RowGroup{From: from, To: from + p.rows, Weight: weight(p, p.depth), Factor: p.factor, Round: BFloat16})
		}
		if p.riding > 0 {
			m.Tail = Tail{X: View{Rows: rows, Cols: p.riding, Stride: p.riding}, XType: Float32, Groups: []RowGroup{{To: p.rows, Weight: weight(p, p.riding)}}}
			m.Tail.X.At = put(randomBits(random, rows*p.riding, Float32))
			if v.Rides(m) != (p.factor == 0) {
				t.Errorf("an adapter of all rows rides: %v", !(p.factor == 0))
			}
		}
		data := randomBits(random, m.Y.Rows*m.Y.Stride, Float32)
		m.Y.At = put(data)
		list, before = append(list, m), append(before, data)
	}
	results := func(run func() error) (all [][]byte) {
		t.Helper()
		for i, m := range list {
			if err := v.Upload(m.Y.At, len(before[i]), before[i], len(before[i]), 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := run(); err != nil {
			t.Fatal(err)
		}
		for i, m := range list {
			got := make([]byte, len(before[i]))
			if err := v.Download(got, m.Y.At, len(got), len(got), 1); err != nil {
				t.Fatal(err)
			}
			all = append(all, got)
		}
		return all
	}
	want := results(func() error {
		for _, m := range list {
			if err := errors.Join(v.Product(m.Y, m.X, m.XType, m.Groups, m.Type, m.Transposed, m.Accumulate),
				v.Product(m.Y, m.Tail.X, m.Tail.XType, m.Tail.Groups, m.Type, m.Transposed, true)); err != nil {
				return err
			}
		}
		return nil
	})
	var launched int
	got := results(func() error {
		var err error
		launched = kernelsRun(t, "product_", func() { err = errors.Join(v.Products(list), v.ShareRows(View{}, Float32)) })
		return err
	})
	for i := range list {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("product %d: %s", i, firstDifference(list[i].Y, got[i], want[i]))
		}
	}
	if launched != c.launches {
		t.Errorf("%d launches, want %d", launched, c.launches)
	}
}

// kernelsRun counts the runs of kernels whose name begins so.
func kernelsRun(t *testing.T, name string, run func()) (count int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "count")
	t.Setenv("FAKE_CUDA_COUNT", file)
	run()
	t.Setenv("FAKE_CUDA_COUNT", "")
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(text), " "+name)
}

// Lists that are recorded are graphs like other launches, and give the same bits; what changes in them from pass to pass is seen.
func TestRecordedProducts(t *testing.T) {
	t.Setenv("FAKE_CUDA_LATE", "1")
	v := openDevice(t, openDriver(t), 0)
	random := rand.New(rand.NewPCG(18, 1))
	const rows, columns, depth, passes = 6, 40, 264, 4
	put := func(data []byte) Address {
		a := alloc(t, v, len(data))
		if err := v.Upload(a, len(data), data, len(data), 1); err != nil {
			t.Fatal(err)
		}
		return a
	}
	weight := func() Weight {
		return Weight{At: put(randomBits(random, columns*depth, BFloat16)), Out: columns, In: depth, Pitch: depth}
	}
	var list []Multiplication
	for range 3 {
		list = append(list, Multiplication{Type: BFloat16, XType: BFloat16, Y: View{At: put(make([]byte, 4*rows*columns)), Rows: rows, Cols: columns, Stride: columns},
			X: View{At: put(randomBits(random, rows*depth, BFloat16)), Rows: rows, Cols: depth, Stride: depth}, Groups: []RowGroup{{To: rows, Weight: weight()}}})
	}
	list[1].Groups = []RowGroup{{To: 2, Weight: weight()}, {From: 3, To: rows, Weight: weight()}}
	other := weight()
	for pass := range passes {
		earlier := slices.Clone(list)
		if pass == passes-1 { // what is in the kernel's lists, and an argument
			list[1].Groups = []RowGroup{{To: 2, Weight: other}, list[1].Groups[1]}
			list[2].Groups = []RowGroup{{To: rows, Weight: other}}
		}
		var want [][]byte
		read := func() (all [][]byte) {
			for _, m := range list {
				got := make([]byte, 4*rows*columns)
				if err := errors.Join(v.Download(got, m.Y.At, len(got), len(got), 1), v.Zero(m.Y.At, len(got))); err != nil {
					t.Fatal(err)
				}
				all = append(all, got)
			}
			return all
		}
		for _, m := range list {
			if err := v.Product(m.Y, m.X, m.XType, m.Groups, m.Type, false, false); err != nil {
				t.Fatal(err)
			}
		}
		want = read()
		if err := v.Synchronize(); err != nil {
			t.Fatal(err)
		}
		if pass >= 2 { // a graph from then on
			t.Setenv("FAKE_CUDA_FAIL", "cuLaunchKernel:1:1")
		}
		if err := v.Record(func() error {
			for range firstSeries - 1 {
				if err := v.Products(earlier); err != nil {
					return err
				}
			}
			return v.Products(list)
		}); err != nil {
			t.Fatalf("pass %d: %v", pass, err)
		}
		t.Setenv("FAKE_CUDA_FAIL", "")
		for i, got := range read() {
			if !bytes.Equal(got, want[i]) {
				t.Errorf("pass %d, product %d: other bits than launch by launch", pass, i)
			}
		}
	}
	if err := v.ShareRows(View{}, Float32); err != nil {
		t.Fatal(err)
	}
}

// Where a launch fails, nothing that was taken for rounded rows is left, and the next list is computed; where there is no memory for rounded rows, the bits are the same.
func TestProductsFail(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	one := listedProduct{rows: 5, columns: 40, depth: 264, groups: 1, t: BFloat16, xType: Float32}
	other := one
	other.x = 1
	c := listCase{"", []listedProduct{one, other}, 1}
	testList(t, v, c)
	x := View{At: alloc(t, v, 4*5*264), Rows: 5, Cols: 264, Stride: 264}
	y := View{At: alloc(t, v, 4*5*40), Rows: 5, Cols: 40, Stride: 40}
	second := View{At: alloc(t, v, 4*5*264), Rows: 5, Cols: 264, Stride: 264}
	w := Weight{At: alloc(t, v, 2*40*264), Out: 40, In: 264, Pitch: 264}
	m := Multiplication{Y: y, X: x, XType: Float32, Groups: []RowGroup{{To: 5, Weight: w}}, Type: BFloat16}
	list := []Multiplication{m, m}
	list[1].X, list[1].Y.At = second, alloc(t, v, 4*5*40)
	allocations := v.Allocations()
	for _, plan := range []string{"cuLaunchKernel:1:1", "cuLaunchKernel:2:1", "cuLaunchKernel:3:1"} { // rows are rounded, those of the second product, and the products
		t.Setenv("FAKE_CUDA_FAIL", plan)
		err := v.Products(list)
		t.Setenv("FAKE_CUDA_FAIL", "")
		if err == nil {
			t.Errorf("%s: no error", plan)
		}
		if err := v.ShareRows(View{}, Float32); err != nil {
			t.Error(err)
		}
		if n := v.Allocations(); n != allocations {
			t.Errorf("%s: %d allocations more", plan, n-allocations)
		}
	}
	testList(t, v, c)

	// Without memory for them, the kernels round rows themselves.
	results := map[bool][]byte{}
	for _, short := range []bool{false, true} {
		v := openDevice(t, openDriver(t), 0)
		random := rand.New(rand.NewPCG(19, 1))
		put := func(size int64, t Type) Address {
			data := randomBits(random, size, t)
			a, err := v.Alloc(len(data))
			if err = errors.Join(err, v.Upload(a, len(data), data, len(data), 1)); err != nil {
				panic(err)
			}
			return a
		}
		list := slices.Clone(list)
		for i := range list {
			list[i].X.At, list[i].Y.At = put(5*264, Float32), put(5*40, Float32)
			list[i].Groups = []RowGroup{{To: 5, Weight: Weight{At: put(40*264, BFloat16), Out: 40, In: 264, Pitch: 264}}}
		}
		if short {
			t.Setenv("FAKE_CUDA_MEMORY", "1")
		}
		var err error
		if n, want := kernelsRun(t, "narrow_rows", func() { err = v.Products(list) }), map[bool]int{false: 2}[short]; n != want {
			t.Errorf("short of memory %v: %d launches round rows, want %d", short, n, want)
		}
		t.Setenv("FAKE_CUDA_MEMORY", "")
		for _, m := range list {
			got := make([]byte, 4*5*40)
			err = errors.Join(err, v.Download(got, m.Y.At, len(got), len(got), 1), v.Free(m.Y.At), v.Free(m.X.At), v.Free(m.Groups[0].Weight.At))
			results[short] = append(results[short], got...)
		}
		if err := errors.Join(err, v.ShareRows(View{}, Float32)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(results[false], results[true]) {
		t.Error("other bits without memory for rounded rows")
	}
}

// Products of many rows share launches where they have the columns of an adapter, for warpgroups would not take them: those of gate and up do, of which each alone is 128 blocks.
func TestManyRowsOfAdaptersShareALaunch(t *testing.T) {
	v := &Device{multiprocessors: 132, warpgroups: true}
	var parts []part
	for range 2 {
		m := Multiplication{Y: View{Rows: 4096, Cols: 32, Stride: 32}, X: View{Rows: 4096, Cols: 4096, Stride: 4096}, XType: BFloat16, Type: BFloat16,
			Groups: []RowGroup{{To: 4096, Weight: Weight{Out: 32, In: 4096, Pitch: 4096}, Factor: 2, Round: BFloat16}}}
		p, ok := v.jointPart(&m)
		if !ok {
			t.Fatal("an adapter's product of many rows has a launch of its own")
		}
		if len(parts) > 0 && !v.pays(parts, p, false) {
			t.Error("the second is not joined to the first")
		}
		parts = append(parts, p)
	}
	if shape, _ := v.bfloat16Tile(parts, false); kernelOf(shape.kernel).name != "product_64x32" {
		t.Errorf("both are done by %s", kernelOf(shape.kernel).name)
	}
	for _, columns := range []int64{groupColumns, 4096} {
		m := Multiplication{X: View{Rows: 4096, Cols: 4096, Stride: 4096}, XType: BFloat16, Type: BFloat16, Groups: []RowGroup{{To: 4096, Weight: Weight{Out: columns, In: 4096, Pitch: 4096}}}}
		if _, ok := v.jointPart(&m); ok {
			t.Errorf("%d columns of many rows are for the kernels by warps", columns)
		}
	}
}

// What shares a launch in a layer of Qwen3-8B on an H200, of 132 multiprocessors: numbers of the list's products, launch by launch.
func TestLaunchesOfALayer(t *testing.T) {
	v := &Device{multiprocessors: 132}
	adapters := func(count, rows int64) (groups []RowGroup) {
		for i := range count {
			groups = append(groups, RowGroup{From: i * rows / count, To: (i + 1) * rows / count, Weight: Weight{Out: 32, In: 4096}})
		}
		return groups
	}
	for _, c := range []struct {
		rows, adapters int64
		columns        []int64
		want           string
	}{
		{1, 0, []int64{4096, 1024, 1024}, "[3] product_16x32"},
		{1, 1, []int64{4096, 1024, 1024}, "[6] product_16x32"},
		{16, 16, []int64{4096, 1024, 1024}, "[6] product_16x32"},
		{32, 2, []int64{4096, 1024, 1024}, "[6] product_32x32"},
		{64, 0, []int64{4096, 1024, 1024}, "[3] product_64x96"},
		{64, 17, []int64{4096, 1024, 1024}, "[6] product_64x96"},
		{64, 64, []int64{4096, 1024, 1024}, "[4] product_64x96, [2] product_16x32"},
		{127, 0, []int64{4096, 1024, 1024}, "[3] product_64x96"},
		{1, 1, []int64{12288, 12288}, "[4] product_16x32"},
		{64, 0, []int64{12288, 12288}, "[2] product_64x96"},
		{64, 17, []int64{12288, 12288}, "[2] product_64x96, [2] product_16x32"}, // the adapters' blocks would be the last ones, after two of each multiprocessor
	} {
		var parts []part
		for _, columns := range c.columns {
			parts = append(parts, part{groups: []RowGroup{{To: c.rows, Weight: Weight{Out: columns, In: 4096}}}, columns: columns})
		}
		if c.adapters > 0 {
			for range c.columns {
				parts = append(parts, part{groups: adapters(c.adapters, c.rows), columns: 32})
			}
		}
		var launches []string
		for len(parts) > 0 {
			n := 1
			for n < len(parts) && n < mostProducts && v.pays(parts[:n:n], parts[n], false) {
				n++
			}
			shape, _ := v.bfloat16Tile(parts[:n], false)
			launches, parts = append(launches, fmt.Sprintf("[%d] %s", n, kernelOf(shape.kernel).name)), parts[n:]
		}
		if got := strings.Join(launches, ", "); got != c.want {
			t.Errorf("%d rows of %d adapters, %v columns: %s, want %s", c.rows, c.adapters, c.columns, got, c.want)
		}
	}
}
