package cuda

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
)

// The kernels' page is the interface's.
const (
	_ = uint(tensor.PageSize - cudart.PageKeys)
	_ = uint(cudart.PageKeys - tensor.PageSize)
)

// pages keeps keys and values by rows, [64][headDim] for every head.
type pages struct {
	device *device
	cache  cudart.Cache
	bytes  int
}

func (p *pages) Layers() int { return int(p.cache.Layers) }
func (p *pages) Count() int  { return int(p.cache.Pages) }
func (p *pages) Bytes() int  { return p.bytes }

func (p *pages) Free() {
	if p.cache.At != 0 {
		p.device.release(uintptr(p.cache.At))
		p.cache.At = 0
	}
}

func (p *pages) Zero(page int32) error { return p.copy("zero page", page, -1, page) }

func (p *pages) Copy(dst, src int32) error { return p.copy("copy page", dst, src, dst, src) }

// copy checks the pages that must exist.
func (p *pages) copy(op string, dst, src int32, exist ...int32) error {
	c := p.device.check(op)
	c.cache(p)
	for _, page := range exist {
		if page < 0 || int(page) >= p.Count() {
			c.fail("page %d of %d", page, p.Count())
		}
	}
	if c.err != nil {
		return c.err
	}
	return p.device.failed(op, p.device.v.CopyPage(p.cache, dst, src))
}

func (d *device) NewPages(t tensor.DType, layers, count, heads, headDim int) (tensor.Pages, error) {
	if layers < 1 || count < 1 || heads < 1 || headDim < 1 || headDim > cudart.MaxHeadDim || count > math.MaxInt32 || !validType(t) {
		return nil, fmt.Errorf("cuda: pages: %d layers × %d pages × %d heads of dimension %d (at most %d) in %v: not a size that can be had", layers, count, heads, headDim, cudart.MaxHeadDim, t)
	}
	n, ok := product(layers, count, heads, 2*tensor.PageSize, headDim)
	if !ok {
		return nil, fmt.Errorf("cuda: pages: %d layers × %d pages × %d heads of dimension %d: too large", layers, count, heads, headDim)
	}
	p := &pages{device: d, bytes: n * t.Size(), cache: cudart.Cache{Layers: int64(layers), Pages: int64(count), Heads: int64(heads), Dim: int64(headDim), Type: typeOf(t)}}
	at, err := d.memory("pages", p.bytes)
	if err != nil {
		return nil, err
	}
	p.cache.At = cudart.Address(at)
	return p, nil
}

func (c *checker) cache(p tensor.Pages) *pages {
	own, ok := p.(*pages)
	if !ok {
		c.fail("the pages are a %T, not of this device", p)
		return &pages{cache: cudart.Cache{Heads: 1, Dim: 1}}
	}
	if own.cache.At == 0 {
		c.fail("the pages have been freed")
	}
	return own
}

// sequences checks runs against the rows of the batch and the pages. The result is used before the next call.
func (d *device) sequences(c *checker, p *pages, layer, rows int, runs []tensor.AttentionRun) []cudart.Sequence {
	if layer < 0 || layer >= p.Layers() {
		c.fail("layer %d of %d", layer, p.Layers())
	}
	d.runs = d.runs[:0]
	d.take(max(rows, 0))
	for i, r := range runs {
		if r.Row < 0 || r.Count < 0 || r.Row > rows || r.Count > rows-r.Row || r.First < 0 || r.First > math.MaxInt32-r.Count {
			c.fail("runs[%d]: rows %d + %d at position %d: there are %d rows", i, r.Row, r.Count, r.First, rows)
			return nil
		}
		for k := r.Row; k < r.Row+r.Count; k++ {
			if d.taken[k] {
				c.fail("runs[%d]: row %d is another run's as well", i, k)
				return nil
			}
			d.taken[k] = true
		}
		if r.Count == 0 {
			continue
		}
		need := (r.First + r.Count + tensor.PageSize - 1) / tensor.PageSize
		if len(r.Pages) < need {
			c.fail("runs[%d]: %d pages: positions below %d need %d", i, len(r.Pages), r.First+r.Count, need)
			return nil
		}
		for k, page := range r.Pages[:need] {
			if page < 0 || int(page) >= p.Count() {
				c.fail("runs[%d]: pages[%d] is %d of %d", i, k, page, p.Count())
				return nil
			}
		}
		d.runs = append(d.runs, cudart.Sequence{Row: int64(r.Row), Count: int64(r.Count), First: int64(r.First), Pages: r.Pages[:need], KeysTo: int64(r.Count)})
		if r.KeysTo > 0 {
			last := &d.runs[len(d.runs)-1]
			last.KeysFrom, last.KeysTo = int64(r.KeysFrom), int64(r.KeysTo)
		}
	}
	return d.runs
}

func (d *device) WritePages(p tensor.Pages, layer int, k, v tensor.Tensor, runs []tensor.AttentionRun) error {
	c := d.check("write pages")
	own := c.cache(p)
	width := int(own.cache.Heads * own.cache.Dim)
	vk, vv := c.shaped("k", k, k.Rows, width), c.shaped("v", v, k.Rows, width)
	sequences := d.sequences(c, own, layer, k.Rows, runs)
	if c.err != nil || len(sequences) == 0 {
		return c.err
	}
	return d.failed("write pages", d.v.WritePages(own.cache, int64(layer), vk, vv, sequences))
}

// group gives the query heads per key head.
func (c *checker) group(p *pages, queryHeads int) int64 {
	if queryHeads < 1 || queryHeads%int(p.cache.Heads) != 0 {
		c.fail("%d query heads: must be a multiple of the %d key heads", queryHeads, p.cache.Heads)
	}
	return int64(queryHeads) / p.cache.Heads
}

func (d *device) Attention(o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	c := d.check("attention")
	own := c.cache(p)
	group := c.group(own, queryHeads)
	width, _ := product(queryHeads, int(own.cache.Dim))
	vq, vo := c.shaped("q", q, q.Rows, width), c.shaped("o", o, q.Rows, width)
	var vl cudart.View
	if lse.Buffer != nil {
		vl = c.shaped("lse", lse, q.Rows, queryHeads)
	}
	sequences := d.sequences(c, own, layer, q.Rows, runs)
	if c.err != nil || len(sequences) == 0 {
		return c.err
	}
	return d.failed("attention", d.v.Attention(vo, vl, vq, own.cache, int64(layer), sequences, group, scale))
}

func (d *device) AttentionBackward(dq, dk, dv, do, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	c := d.check("attention backward")
	own := c.cache(p)
	group := c.group(own, queryHeads)
	width, _ := product(queryHeads, int(own.cache.Dim))
	keys := int(own.cache.Heads * own.cache.Dim)
	vdq, vdk, vdv := c.shaped("dq", dq, q.Rows, width), c.shaped("dk", dk, q.Rows, keys), c.shaped("dv", dv, q.Rows, keys)
	vdo, vo, vl, vq := c.shaped("do", do, q.Rows, width), c.shaped("o", o, q.Rows, width), c.shaped("lse", lse, q.Rows, queryHeads), c.shaped("q", q, q.Rows, width)
	sequences := d.sequences(c, own, layer, q.Rows, runs)
	for i, r := range runs {
		if r.First != 0 {
			c.fail("runs[%d] begins at position %d: must be 0", i, r.First)
		}
		if r.KeysTo != 0 && (r.KeysFrom < 0 || r.KeysFrom >= r.KeysTo || r.KeysTo > r.Count || r.KeysFrom%tensor.PageSize != 0 || r.KeysTo%tensor.PageSize != 0 && r.KeysTo != r.Count) {
			c.fail("runs[%d]: keys %d to %d of %d: must be cut at multiples of %d", i, r.KeysFrom, r.KeysTo, r.Count, tensor.PageSize)
		}
	}
	if c.err != nil || len(sequences) == 0 {
		return c.err
	}
	return d.failed("attention backward", d.v.AttentionBackward(vdq, vdk, vdv, vdo, vo, vl, vq, own.cache, int64(layer), sequences, group, scale))
}
