package cudart

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// asked gives what kernels have asked for before they waited, as the file of FAKE_CUDA_EARLY has it, by kernel; bytes that were asked for twice are an error.
func asked(t *testing.T, path string) (all map[string]map[Address]int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	all = map[string]map[Address]int{}
	for line := range strings.Lines(string(data)) {
		var kernel string
		var at Address
		var bytes int
		if _, err := fmt.Sscan(line, &kernel, &at, &bytes); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if all[kernel] == nil {
			all[kernel] = map[Address]int{}
		}
		if all[kernel][at] != 0 {
			t.Errorf("%s asks for what is at %d twice", kernel, at)
		}
		all[kernel][at] = bytes
	}
	return all
}

// Products of few rows ask for the first tiles of a frozen weight, of all of its columns, each byte once: never for one that is not frozen, a tail's, or
// those of several groups.
func TestFrozenWeightsAreAskedFor(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	if err := v.UseBulk(); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(7, 8))
	for _, c := range []struct {
		name             string
		rows, out, depth int64
		of               Type
		clusters         bool
		kernel           string
		places           int64 // of the kernel, for tiles of 64 places of the inner axis
	}{
		{name: "by warps", rows: 3, out: 80, depth: 1024, of: BFloat16, kernel: "product_16x32", places: 12},
		{name: "by warps, a short inner axis", rows: 33, out: 96, depth: 72, of: BFloat16, kernel: "product_64x96", places: 5},
		{name: "in blocks", rows: 20, out: 128, depth: 1024, of: BFloat16Blocks, kernel: "product_blocks_32x32", places: 10},
		{name: "in blocks, a short inner axis", rows: 20, out: 192, depth: 256, of: BFloat16Blocks, kernel: "product_blocks_64x96", places: 5},
		{name: "by clusters", rows: 20, out: 192, depth: 1024, of: BFloat16Blocks, clusters: true, kernel: "product_cluster_32x32", places: 7},
		{name: "by clusters, wide", rows: 64, out: 512, depth: 512, of: BFloat16Blocks, clusters: true, kernel: "product_cluster_64x64", places: 5},
		{name: "in eight bits", rows: 3, out: 80, depth: 1024, of: E4M3, kernel: "product_e4m3_16x32", places: 12},
		{name: "in eight bits, a short inner axis", rows: 3, out: 70, depth: 72, of: E4M3, kernel: "product_e4m3_16x32", places: 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := operandsOf{v: v, random: random}
			defer func() {
				if err := o.free(); err != nil {
					t.Error(err)
				}
			}()
			if err := v.UseClusters(c.clusters); err != nil {
				t.Fatal(err)
			}
			w := Weight{Out: c.out, In: c.depth, Pitch: 128}
			rowBytes, size := (c.depth+15)/16*16, int64(1) // of numbers in eight bits
			if c.of == E4M3 {
				groups := (c.out + E4M3Rows - 1) / E4M3Rows
				w.At = o.put(make([]byte, groups*E4M3GroupBytes(c.depth, 128)))
			} else {
				w = o.weight(c.out, c.depth)
				rowBytes, size = 2*w.Pitch, 2
				if c.of == BFloat16Blocks {
					w = o.blocks(w)
				}
			}
			x, y, s := o.rows(c.rows, c.depth, BFloat16), o.rows(c.rows, c.out, Float32), o.rows(c.rows, 8, Float32)
			tail := Tail{X: s, XType: Float32, Groups: []RowGroup{{To: c.rows, Weight: o.weight(c.out, 8)}}}
			if o.err != nil {
				t.Fatal(o.err)
			}
			if c.of == E4M3 {
				tail = Tail{}
			}
			run := func(change func(m *Multiplication)) map[string]map[Address]int {
				path := t.TempDir() + "/early"
				t.Setenv("FAKE_CUDA_EARLY", path)
				m := Multiplication{Y: y, X: x, XType: BFloat16, Groups: []RowGroup{{To: c.rows, Weight: w}}, Tail: tail, Type: c.of, Frozen: true}
				change(&m)
				if err := v.Products([]Multiplication{m}); err != nil {
					t.Fatal(err)
				}
				if err := v.ShareRows(View{}, Float32); err != nil {
					t.Fatal(err)
				}
				if err := v.Synchronize(); err != nil {
					t.Fatal(err)
				}
				return asked(t, path)
			}
			got := run(func(*Multiplication) {})
			if len(got) != 1 || len(got[c.kernel]) == 0 {
				t.Fatalf("asked for by %v, want %s", got, c.kernel)
			}
			want := map[Address]bool{} // by chunks of 16 bytes
			along := min(rowBytes, c.places*64*size)
			for r := range c.out {
				for b := int64(0); b < along; b += 16 {
					at := w.At + Address(r*rowBytes+b)
					switch c.of {
					case BFloat16Blocks: // the chunk of the row in any order
						at = w.At + Address(((r/64)*(c.depth/64)+b/128)*8192+r%64*128+b%128)
					case E4M3:
						at = w.At + Address(r/E4M3Rows)*Address(E4M3GroupBytes(c.depth, 128)) + Address(r%E4M3Rows*rowBytes+b)
					}
					want[at] = true
				}
			}
			for at, bytes := range got[c.kernel] {
				for b := range bytes / 16 {
					chunk := at + Address(16*b)
					if !want[chunk] {
						t.Fatalf("asked for %d bytes at %d of the weight, of which those at %d are asked for already or not to be", bytes, at-w.At, chunk-w.At)
					}
					delete(want, chunk)
				}
			}
			if len(want) > 0 {
				t.Errorf("%d bytes are not asked for", 16*len(want))
			}
			for name, change := range map[string]func(m *Multiplication){
				"not frozen": func(m *Multiplication) { m.Frozen = false },
				"groups": func(m *Multiplication) {
					m.Tail, m.Groups = Tail{}, []RowGroup{{To: 1, Weight: w}, {From: 1, To: c.rows, Weight: w}}
				},
			} {
				if got := run(change); len(got) > 0 {
					t.Errorf("%s: asked for %v", name, got)
				}
			}
		})
	}
}
