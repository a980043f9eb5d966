package cudart

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Attention with tensor cores and its gradient have the same bits wherever rows of queries and of the output's gradient lie: where many columns can be brought at once and where they cannot, of query groups that are narrower
// and wider than what threads bring in a step, and of head dimensions that are filled up.
func TestAttentionOfRowsAnywhere(t *testing.T) {
	for _, order := range []string{"0", "20261125"} {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			for _, c := range []struct{ dim, group int64 }{{64, 1}, {128, 3}, {72, 5}, {64, 9}, {128, 20}} {
				for _, lengths := range [][]int64{{1, 19, 2}, {1, 1}} { // the second are a decoding step's
					if order != "0" && c.group != 3 {
						continue
					}
					t.Run(fmt.Sprintf("dimension %d, groups of %d, lengths %v", c.dim, c.group, lengths), func(t *testing.T) {
						same := func() *rand.Rand { return rand.New(rand.NewPCG(uint64(c.dim), uint64(c.group))) }
						together := attentionAt(t, v, same(), c.dim, c.group, lengths, 0, 0)
						for _, place := range [][2]int64{{1, 0}, {0, 2}, {0, 4}} {
							apart := attentionAt(t, v, same(), c.dim, c.group, lengths, place[0], place[1])
							for name, want := range together {
								if !bytes.Equal(apart[name], want) {
									t.Errorf("%s of rows %d elements further, %d longer: other bits", name, place[0], place[1])
								}
							}
						}
					})
				}
			}
		})
	}
}

// attentionAt gives what attention writes of random rows that begin so many elements further than memory does, and are so much longer than they must be.
func attentionAt(t *testing.T, v *Device, r *rand.Rand, dim, group int64, lengths []int64, further, longer int64) map[string][]byte {
	t.Helper()
	const heads = 2
	var taken []Address
	defer func() {
		for _, a := range taken {
			if err := v.Free(a); err != nil {
				t.Error(err)
			}
		}
	}()
	ok := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	memory := func(elements, size int64) Address {
		a, err := v.Alloc(int(elements * size))
		ok(err)
		taken = append(taken, a)
		return a
	}
	var sequences []Sequence
	var rows, pages int64
	for _, n := range lengths {
		s := Sequence{Row: rows, Count: n, KeysTo: n, RowsTo: n}
		for k := int64(0); k < n; k += PageKeys {
			s.Pages = append(s.Pages, int32(pages))
			pages++
		}
		rows += n
		sequences = append(sequences, s)
	}
	// Rows of float32; those that are read lie anywhere, between elements that are no number.
	place := func(cols int64, read bool) View {
		x := View{Rows: rows, Cols: cols, Stride: cols}
		first := int64(0)
		if read {
			x.Stride, first = cols+longer, further
		}
		all := make([]float32, first+rows*x.Stride)
		for i := range all {
			all[i] = float32(math.NaN())
		}
		for row := range rows {
			for c := range cols {
				all[first+row*x.Stride+c] = float32(r.NormFloat64())
			}
		}
		at := memory(int64(len(all)), 4)
		ok(v.Upload(at, 4*len(all), bytesOf(all), 4*len(all), 1))
		x.At = at + Address(4*first)
		return x
	}
	c := Cache{At: memory(pages*2*heads*PageKeys*dim, 2), Layers: 1, Pages: pages, Heads: heads, Dim: dim, Type: BFloat16}
	for p := range pages {
		ok(v.CopyPage(c, int32(p), -1))
	}
	width := heads * group * dim
	ok(v.WritePages(c, 0, place(heads*dim, false), place(heads*dim, false), sequences))
	q, dout := place(width, true), place(width, true)
	rounded := View{At: memory(further+rows*q.Stride, 2) + Address(2*further), Rows: rows, Cols: width, Stride: q.Stride}
	ok(v.Round(rounded, BFloat16, q, Float32))
	all := map[string][]byte{}
	for name, of := range map[string]struct {
		q  View
		as Type
	}{"float32": {q, Float32}, "bfloat16": {rounded, BFloat16}} {
		view := func(cols int64) View { return View{At: memory(rows*cols, 4), Rows: rows, Cols: cols, Stride: cols} }
		o, lse, dq, dk, dv := view(width), view(heads*group), view(width), view(heads*dim), view(heads*dim)
		const scale = 0.3
		ok(v.Attention(View{}, o, lse, of.q, of.as, c, 0, sequences, group, scale),
			v.AttentionBackward(dq, dk, dv, dout, o, Float32, lse, of.q, of.as, c, 0, sequences, group, scale))
		for what, x := range map[string]View{"output": o, "log-sum-exp": lse, "dq": dq, "dk": dk, "dv": dv} {
			b := make([]byte, 4*rows*x.Cols)
			ok(v.Download(b, x.At, len(b), len(b), 1))
			all[what+" with queries in "+name] = b
		}
	}
	return all
}

// The pages that most rows see come first, whichever sequences they are of, and each comes once.
func TestLongestPagesFirst(t *testing.T) {
	type page struct {
		sequence, item int
		rows           int64
	}
	for _, c := range []struct {
		name      string
		sequences []Sequence
		want      []page
	}{
		{"one sequence", []Sequence{{Count: 150, KeysTo: 150, RowsTo: 150}}, []page{{0, 0, 150}, {0, 1, 86}, {0, 2, 22}}},
		{"two of them", []Sequence{{Count: 100, KeysTo: 100, RowsTo: 100}, {Row: 100, Count: 190, KeysTo: 190, RowsTo: 190}},
			[]page{{1, 0, 190}, {1, 1, 126}, {0, 0, 100}, {1, 2, 62}, {0, 1, 36}}},
		{"a window", []Sequence{{Count: 300, KeysTo: 300, RowsTo: 300, Window: 65}}, []page{{0, 0, 128}, {0, 1, 128}, {0, 2, 128}, {0, 3, 108}, {0, 4, 44}}},
		{"ranges of keys and rows", []Sequence{{Count: 300, KeysFrom: 64, KeysTo: 256, RowsFrom: 128, RowsTo: 256}}, []page{{0, 1, 128}, {0, 2, 128}, {0, 3, 64}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := lists(c.sequences)
			l.cut(1, pagesOf, rowsSeeing)
			var got []page
			for _, tile := range l.tiles {
				got = append(got, page{int(tile.sequence), int(tile.item), rowsSeeing(l.sequences[tile.sequence], int64(tile.item))})
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Few rows alone have the bits that they have among all of a sequence, whichever of the two places their pages take turns in, also where a later key of their page has values that are not finite.
func TestAttentionOfFewRows(t *testing.T) {
	const rows, heads, group, scale = 330, 2, 2, 0.3
	for _, order := range orders("20261125", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			ok := func(errs ...error) {
				t.Helper()
				for _, err := range errs {
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			for i, dim := range []int64{64, 128, 64, 128} {
				infinite := []int64{100, 100, 300, 300}[i] // in a page of either place
				r := rand.New(rand.NewPCG(uint64(dim), 3))
				place := func(cols, column int64) View {
					all := make([]float32, rows*cols)
					for i := range all {
						all[i] = float32(r.NormFloat64())
					}
					if column >= 0 {
						all[infinite*cols+column] = float32(math.Inf(1))
					}
					x := View{At: alloc(t, v, 4*len(all)), Rows: rows, Cols: cols, Stride: cols}
					ok(v.Upload(x.At, 4*len(all), bytesOf(all), 4*len(all), 1))
					return x
				}
				pages := []int32{4, 0, 5, 1, 3, 2}
				c := Cache{Layers: 1, Pages: int64(len(pages)), Heads: heads, Dim: dim, Type: BFloat16}
				c.At = alloc(t, v, int(c.Bytes()))
				for p := range pages {
					ok(v.CopyPage(c, int32(p), -1))
				}
				whole := []Sequence{{Count: rows, Pages: pages}}
				q, o, lse := place(heads*group*dim, -1), place(heads*group*dim, -1), place(heads*group, -1)
				ok(v.WritePages(c, 0, place(heads*dim, -1), place(heads*dim, 3), whole), v.Attention(View{}, o, lse, q, Float32, c, 0, whole, group, scale))
				want, sums := readRows(t, v, o), readRows(t, v, lse)
				for _, at := range []int64{0, 63, 64, 90, 97, 128, 191, 200, 254, 256, 290} {
					for _, n := range []int64{1, 3} {
						if at+n > infinite {
							continue
						}
						one := []Sequence{{Count: n, First: at, Pages: pages[:(at+n+PageKeys-1)/PageKeys]}}
						own := q
						own.At, own.Rows = q.At+Address(4*at*q.Stride), n
						alone, sum := View{At: o.At, Rows: n, Cols: q.Cols, Stride: q.Cols}, View{At: lse.At, Rows: n, Cols: lse.Cols, Stride: lse.Cols}
						ok(v.Attention(View{}, alone, sum, own, Float32, c, 0, one, group, scale))
						if !bytes.Equal(bytesOf(readRows(t, v, alone)), bytesOf(want[at*q.Cols:(at+n)*q.Cols])) || !bytes.Equal(bytesOf(readRows(t, v, sum)), bytesOf(sums[at*lse.Cols:(at+n)*lse.Cols])) {
							t.Errorf("dimension %d: %d rows from %d on have other bits alone", dim, n, at)
						}
					}
				}
			}
		})
	}
}
