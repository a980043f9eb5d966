package cudart

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
)

type tailGroup struct{ from, to, rank int64 }

// tailCase is a product with adapters' products after it, whose rows have as many columns as the largest rank.
type tailCase struct {
	name                 string
	rows, columns, depth int64
	adapters             []tailGroup
	riding               int // groups of the launch that they ride in, those without an adapter included; 0: none rides
	warpgroups           bool
}

func tailCases() []tailCase {
	cases := []tailCase{
		{"no adapter", 70, 72, 40, nil, 0, false},
		{"one row of an adapter", 9, 72, 40, []tailGroup{{0, 0, 8}, {0, 1, 8}}, 0, false},
		{"two, of few rows", 16, 72, 40, []tailGroup{{0, 7, 8}, {7, 16, 24}}, 0, false},
		{"all but one row", 130, 72, 264, []tailGroup{{0, 129, 16}}, 2, true},
		{"two, many rows", 270, 136, 264, []tailGroup{{0, 129, 16}, {129, 270, 40}}, 2, true},
		{"out of order, with rows between", 290, 136, 48, []tailGroup{{161, 289, 33}, {1, 129, 8}, {130, 150, 1}}, 5, false},
		{"few of many rows", 270, 136, 264, []tailGroup{{3, 40, 16}, {100, 240, 512}}, 3, true},
		{"a rank that is no multiple of 8 beside a larger one", 260, 136, 256, []tailGroup{{0, 130, 12}, {130, 260, 16}}, 2, true},
		{"a deep product", 135, 72, 1024, []tailGroup{{0, 134, 16}}, 0, false},
	}
	for _, rank := range []int64{1, 5, 16, 31, 64, 100, 512} {
		cases = append(cases, tailCase{fmt.Sprintf("rank %d", rank), 64, 72, 40, []tailGroup{{0, 64, rank}}, 1, false})
	}
	for _, rank := range []int64{3, 32, 72, 200} {
		cases = append(cases, tailCase{fmt.Sprintf("rank %d in warpgroups", rank), 130, 130, 259, []tailGroup{{0, 130, rank}}, 1, true})
	}
	for _, rows := range []int64{1, 63, 65, 129} {
		cases = append(cases, tailCase{fmt.Sprintf("%d rows", rows), rows, 130, 72, []tailGroup{{0, rows, 24}}, 1, false})
	}
	many := tailCase{"17 adapters", 160, 72, 40, nil, 2, false}
	for i := range int64(16) {
		many.adapters = append(many.adapters, tailGroup{2 * i, 2*i + 2, 1 + 3*i})
	}
	many.adapters = append(many.adapters, tailGroup{32, 160, 48})
	return append(cases, many)
}

// What rides has the bits of two launches, whatever lies in columns beyond an adapter's rank, and the values of float64; in any order of threads.
func TestTails(t *testing.T) {
	for n, order := range orders("20261122", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			for i, c := range tailCases() {
				for k, transposed := range []bool{false, true} {
					if n > 0 && (n+i+k)%2 == 0 { // the first order has all
						continue
					}
					t.Run(fmt.Sprintf("%s, transposed %v", c.name, transposed), func(t *testing.T) {
						allocations := v.Allocations()
						testTail(t, v, c, transposed, i%2 == 0)
						if n := v.Allocations(); n != allocations {
							t.Errorf("%d allocations more", n-allocations)
						}
					})
				}
			}
		})
	}
}

func testTail(t *testing.T, v *Device, c tailCase, transposed, accumulate bool) {
	random := rand.New(rand.NewPCG(5, uint64(c.rows*c.depth)))
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
	// Numbers that are bfloat16; value gives element (i, j).
	type numbers struct {
		values []float32
		cols   int64
	}
	value := func(n numbers, i, j int64) float64 { return float64(n.values[i*n.cols+j]) }
	some := func(rows, cols int64) numbers {
		n := numbers{make([]float32, rows*cols), cols}
		for i := range n.values {
			n.values[i] = math.Float32frombits(math.Float32bits(random.Float32()-0.5) &^ 0xffff)
		}
		return n
	}
	weight := func(depth int64) (Weight, numbers) {
		w := Weight{Out: c.columns, In: depth}
		if transposed {
			w.Out, w.In = depth, c.columns
		}
		w.Pitch = (w.In + 7) / 8 * 8
		n, data := some(w.Out, w.In), make([]byte, 2*w.Out*w.Pitch)
		for r := range w.Out {
			for i := range w.In {
				u := math.Float32bits(n.values[r*w.In+i])
				data[2*(r*w.Pitch+i)], data[2*(r*w.Pitch+i)+1] = byte(u>>16), byte(u>>24)
			}
		}
		w.At = put(data)
		return w, n
	}
	rank := int64(0)
	for _, a := range c.adapters {
		rank = max(rank, a.rank)
	}
	x, s, before := some(c.rows, c.depth), some(c.rows, rank), some(c.rows, c.columns)
	w, wValues := weight(c.depth)
	tail := Tail{X: View{Rows: c.rows, Cols: rank, Stride: rank}, XType: Float32}
	var expands []numbers
	used := make([]int64, c.rows)
	for _, a := range c.adapters {
		b, n := weight(a.rank)
		tail.Groups, expands = append(tail.Groups, RowGroup{From: a.from, To: a.to, Weight: b}), append(expands, n)
		for r := a.from; r < a.to; r++ {
			used[r] = a.rank
		}
	}
	for r := range c.rows { // what is no adapter's may be anything
		for i := used[r]; i < rank; i++ {
			s.values[r*rank+i] = float32(math.NaN())
		}
	}
	if rank > 0 {
		tail.X.At = put(bytesOf(s.values))
	}
	input := View{At: put(bytesOf(x.values)), Rows: c.rows, Cols: c.depth, Stride: c.depth}
	y := View{At: put(bytesOf(before.values)), Rows: c.rows, Cols: c.columns, Stride: c.columns}
	groups := []RowGroup{{To: c.rows, Weight: w}}
	result := func(run func() error) []byte {
		t.Helper()
		got, data := make([]byte, 4*len(before.values)), bytesOf(before.values)
		if err := errors.Join(v.Upload(y.At, len(data), data, len(data), 1), run(), v.Download(got, y.At, len(got), len(got), 1)); err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := result(func() error {
		return errors.Join(v.Product(y, input, Float32, groups, BFloat16, transposed, accumulate), v.Product(y, tail.X, Float32, tail.Groups, BFloat16, transposed, true))
	})
	own, _, ride := v.withTails(groups[0], tail, transposed)
	if !ride {
		own = nil
	}
	if len(own) != c.riding {
		t.Errorf("%d groups in one launch, want %d", len(own), c.riding)
	}
	own = slices.Clone(own)
	for i, g := range own {
		if i == 0 && g.From != 0 || i > 0 && g.From != own[i-1].To || i == len(own)-1 && g.To != c.rows {
			t.Errorf("group %d has rows %d to %d", i, g.From, g.To)
		}
	}
	ways := []bool{false}
	if c.warpgroups {
		ways = append(ways, true)
	}
	for _, warpgroups := range ways {
		if err := v.UseWarpgroups(warpgroups); err != nil {
			t.Fatal(err)
		}
		got := result(func() error {
			return v.ProductWithTail(y, input, Float32, groups, tail, BFloat16, transposed, accumulate)
		})
		if !bytes.Equal(got, want) {
			t.Errorf("other bits than of two products (warpgroups: %v)", warpgroups)
		}
	}
	if err := v.UseWarpgroups(false); err != nil {
		t.Fatal(err)
	}
	element := func(n numbers, k, j int64) float64 {
		if transposed {
			return value(n, k, j)
		}
		return value(n, j, k)
	}
	for r := range c.rows {
		for j := range c.columns {
			sum, size := 0.0, 0.0
			add := func(term float64) { sum, size = sum+term, size+math.Abs(term) }
			if accumulate {
				add(value(before, r, j))
			}
			for k := range c.depth {
				add(value(x, r, k) * element(wValues, k, j))
			}
			for i, a := range c.adapters {
				if r >= a.from && r < a.to {
					for k := range a.rank {
						add(value(s, r, k) * element(expands[i], k, j))
					}
				}
			}
			if g := float64(floats(want)[r*c.columns+j]); !(math.Abs(g-sum) <= 1e-5*size) {
				t.Fatalf("element (%d, %d) is %v, want %v", r, j, g, sum)
			}
		}
	}
}

// Adapters of float32, and bases that are finished by a factor or have several weights, are products of their own.
func TestTailsApart(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	random := rand.New(rand.NewPCG(6, 7))
	const rows, columns, depth = 20, 24, 16
	put := func(data []byte) Address {
		a := alloc(t, v, len(data))
		if err := v.Upload(a, len(data), data, len(data), 1); err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, c := range []struct {
		name   string
		t      Type
		groups []RowGroup
	}{
		{"float32", Float32, []RowGroup{{To: rows}}},
		{"a factor", BFloat16, []RowGroup{{To: rows, Factor: 0.7, Round: BFloat16}}},
		{"several weights", BFloat16, []RowGroup{{To: 10}, {From: 10, To: rows}}},
		{"not all rows", BFloat16, []RowGroup{{From: 1, To: rows}}},
		{"none", BFloat16, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			weight := func() Weight {
				return Weight{At: put(randomBits(random, columns*depth, c.t)), Out: columns, In: depth, Pitch: depth}
			}
			for i := range c.groups {
				c.groups[i].Weight = weight()
			}
			x := View{At: put(randomBits(random, rows*depth, Float32)), Rows: rows, Cols: depth, Stride: depth}
			tail := Tail{X: View{At: put(randomBits(random, rows*depth, Float32)), Rows: rows, Cols: depth, Stride: depth}, XType: Float32, Groups: []RowGroup{{To: rows, Weight: weight()}}}
			before := randomBits(random, rows*columns, Float32)
			y := View{At: put(before), Rows: rows, Cols: columns, Stride: columns}
			var got [2][]byte
			for i, run := range []func() error{
				func() error {
					return errors.Join(v.Product(y, x, Float32, c.groups, c.t, false, false), v.Product(y, tail.X, Float32, tail.Groups, c.t, false, true))
				},
				func() error { return v.ProductWithTail(y, x, Float32, c.groups, tail, c.t, false, false) },
			} {
				got[i] = make([]byte, len(before))
				if err := errors.Join(v.Upload(y.At, len(before), before, len(before), 1), run(), v.Download(got[i], y.At, len(before), len(before), 1)); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(got[0], got[1]) {
				t.Error("other bits than of two products")
			}
		})
	}
}

// What cuBLASLt computes has no second inner axis: an adapter's product is one of its own beside it, or rides in the kernels' if that is what is said to be faster.
func TestTailsBesideCuBLASLt(t *testing.T) {
	const rows, columns, depth, rank = 130, 72, 40, 8
	file := filepath.Join(t.TempDir(), "count")
	t.Setenv("FAKE_CUBLASLT_COUNT", file)
	v, l := fakeCuBLASLt(t)
	random := rand.New(rand.NewPCG(8, 9))
	put := func(data []byte) Address {
		a := alloc(t, v, len(data))
		if err := v.Upload(a, len(data), data, len(data), 1); err != nil {
			t.Fatal(err)
		}
		return a
	}
	x := View{At: put(randomBits(random, rows*depth, Float32)), Rows: rows, Cols: depth, Stride: depth}
	y := View{At: put(make([]byte, 4*rows*columns)), Rows: rows, Cols: columns, Stride: columns}
	groups := []RowGroup{{To: rows, Weight: Weight{At: put(randomBits(random, columns*depth, BFloat16)), Out: columns, In: depth, Pitch: depth}}}
	tail := Tail{X: View{At: put(randomBits(random, rows*rank, Float32)), Rows: rows, Cols: rank, Stride: rank}, XType: Float32,
		Groups: []RowGroup{{To: rows, Weight: Weight{At: put(randomBits(random, columns*rank, BFloat16)), Out: columns, In: rank, Pitch: rank}}}}
	result := func() []byte {
		t.Helper()
		got := make([]byte, 4*rows*columns)
		if err := errors.Join(v.ProductWithTail(y, x, Float32, groups, tail, BFloat16, false, false), v.Download(got, y.At, len(got), len(got), 1)); err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := result()
	products := offered(t, v, l, ProductShape{Columns: columns, Depth: depth, Rows: rowsClass(rows)})
	for calls, apart := range []bool{false, true} {
		products[0].Apart = apart
		if err := v.UseCuBLASLt(l, products, false); err != nil {
			t.Fatal(err)
		}
		counted(t, file)
		if !bytes.Equal(result(), want) {
			t.Errorf("apart %v: other bits than in one launch", apart)
		}
		if n := len(counted(t, file)); n != calls {
			t.Errorf("apart %v: the library was given %d products", apart, n)
		}
	}
	if err := v.UseCuBLASLt(nil, nil, false); err != nil {
		t.Fatal(err)
	}
}
