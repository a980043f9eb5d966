package cpu

/*
#include "kernels.h"
*/
import "C"

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// pages keeps keys transposed ([headDim][64], so that vector lanes are keys) and values by rows ([64][headDim]), the rows filled up with zeros to 32 elements.
type pages struct {
	device                                *device
	dtype                                 tensor.DType
	layers, count, heads, headDim, padded int
	addr                                  uintptr
	bytes                                 int
}

func (p *pages) Layers() int { return p.layers }
func (p *pages) Count() int  { return p.count }
func (p *pages) Bytes() int  { return p.bytes }

func (p *pages) Free() {
	if p.addr != 0 {
		p.device.release(p.addr, p.bytes)
		p.addr = 0
	}
}

func (p *pages) Zero(page int32) error {
	c := p.device.check("zero page")
	_, cp := c.cache(p)
	if page < 0 || int(page) >= p.count {
		c.fail("page %d of %d", page, p.count)
	}
	if c.err != nil {
		return c.err
	}
	return failed("zero page", C.op_zero_page(p.device.c, cp, C.int64_t(page)))
}

func (p *pages) Copy(dst, src int32) error {
	c := p.device.check("copy page")
	_, cp := c.cache(p)
	for _, page := range []int32{dst, src} {
		if page < 0 || int(page) >= p.count {
			c.fail("page %d of %d", page, p.count)
		}
	}
	if c.err != nil {
		return c.err
	}
	return failed("copy page", C.op_copy_page(p.device.c, cp, C.int64_t(dst), C.int64_t(src)))
}

func (d *device) NewPages(t tensor.DType, layers, count, heads, headDim int) (tensor.Pages, error) {
	if layers < 1 || count < 1 || heads < 1 || headDim < 1 || headDim > 4096 || count > math.MaxInt32 || !validType(t) {
		return nil, fmt.Errorf("cpu: pages: %d layers × %d pages × %d heads of dimension %d in %v: not a size that can be had", layers, count, heads, headDim, t)
	}
	padded := (headDim + panel - 1) / panel * panel
	n, ok := product(layers, count, heads, tensor.PageSize, headDim+padded)
	if !ok {
		return nil, fmt.Errorf("cpu: pages: %d layers × %d pages × %d heads of dimension %d: too large", layers, count, heads, headDim)
	}
	p := &pages{device: d, dtype: t, layers: layers, count: count, heads: heads, headDim: headDim, padded: padded, bytes: n * t.Size()}
	var err error
	p.addr, err = d.memory("pages", p.bytes)
	return p, err
}

func (c *checker) cache(p tensor.Pages) (*pages, C.cache) {
	own, ok := p.(*pages)
	if !ok {
		c.fail("the pages are a %T, not of this device", p)
		return &pages{heads: 1, headDim: 1}, C.cache{}
	}
	if own.addr == 0 {
		c.fail("the pages have been freed")
	}
	return own, C.cache{addr: C.uintptr_t(own.addr), layers: C.int64_t(own.layers), count: C.int64_t(own.count), heads: C.int64_t(own.heads),
		head_dim: C.int64_t(own.headDim), padded_dim: C.int64_t(own.padded), _type: C.int32_t(own.dtype)}
}

// runs checks sequences against the rows of the batch and the pages, and leaves them in d.sequences and d.pages as C reads them.
func (d *device) runs(c *checker, p *pages, layer, rows int, runs []tensor.AttentionRun) {
	if layer < 0 || layer >= p.layers {
		c.fail("layer %d of %d", layer, p.layers)
	}
	d.sequences, d.pages = d.sequences[:0], d.pages[:0]
	d.take(max(rows, 0))
	for i, r := range runs {
		if r.Row < 0 || r.Count < 0 || r.Row > rows || r.Count > rows-r.Row || r.First < 0 || r.First > math.MaxInt32-r.Count {
			c.fail("runs[%d]: rows %d + %d at position %d: there are %d rows", i, r.Row, r.Count, r.First, rows)
			return
		}
		for k := r.Row; k < r.Row+r.Count; k++ {
			if d.taken[k] {
				c.fail("runs[%d]: row %d is another run's as well", i, k)
				return
			}
			d.taken[k] = true
		}
		if r.Count == 0 {
			continue
		}
		need := (r.First + r.Count + tensor.PageSize - 1) / tensor.PageSize
		if len(r.Pages) < need {
			c.fail("runs[%d]: %d pages: positions below %d need %d", i, len(r.Pages), r.First+r.Count, need)
			return
		}
		d.sequences = append(d.sequences, C.sequence{row: C.int64_t(r.Row), count: C.int64_t(r.Count), first: C.int64_t(r.First), first_page: C.int64_t(len(d.pages)), keys_to: C.int64_t(r.Count)})
		for k, page := range r.Pages[:need] {
			if page < 0 || int(page) >= p.count {
				c.fail("runs[%d]: pages[%d] is %d of %d", i, k, page, p.count)
				return
			}
			d.pages = append(d.pages, page)
		}
	}
}

func (d *device) WritePages(p tensor.Pages, layer int, k, v tensor.Tensor, runs []tensor.AttentionRun) error {
	c := d.check("write pages")
	own, cp := c.cache(p)
	vk := c.shaped("k", k, k.Rows, own.heads*own.headDim)
	vv := c.shaped("v", v, k.Rows, own.heads*own.headDim)
	d.runs(c, own, layer, k.Rows, runs)
	if c.err != nil || len(d.sequences) == 0 {
		return c.err
	}
	return failed("write pages", C.op_write_pages(d.c, cp, C.int64_t(layer), vk, vv, &d.sequences[0], C.int64_t(len(d.sequences)), (*C.int32_t)(&d.pages[0])))
}

func (c *checker) queryHeads(p *pages, queryHeads int) {
	if queryHeads < 1 || queryHeads%p.heads != 0 {
		c.fail("%d query heads: must be a multiple of the %d key heads", queryHeads, p.heads)
	}
}

func (d *device) Attention(o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	c := d.check("attention")
	own, cp := c.cache(p)
	c.queryHeads(own, queryHeads)
	width, _ := product(queryHeads, own.headDim)
	vq, vo := c.shaped("q", q, q.Rows, width), c.shaped("o", o, q.Rows, width)
	var vl C.view
	if lse.Buffer != nil {
		vl = c.shaped("lse", lse, q.Rows, queryHeads)
	}
	d.runs(c, own, layer, q.Rows, runs)
	if c.err != nil || len(d.sequences) == 0 {
		return c.err
	}
	return failed("attention", C.op_attention(d.c, vo, vl, vq, cp, C.int64_t(layer), &d.sequences[0], C.int64_t(len(d.sequences)), (*C.int32_t)(&d.pages[0]),
		C.int64_t(queryHeads), C.float(scale)))
}

func (d *device) AttentionBackward(dq, dk, dv, do, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	c := d.check("attention backward")
	own, cp := c.cache(p)
	c.queryHeads(own, queryHeads)
	width, _ := product(queryHeads, own.headDim)
	keys, _ := product(own.heads, own.headDim)
	vdq, vdk, vdv := c.shaped("dq", dq, q.Rows, width), c.shaped("dk", dk, q.Rows, keys), c.shaped("dv", dv, q.Rows, keys)
	vdo, vo, vl, vq := c.shaped("do", do, q.Rows, width), c.shaped("o", o, q.Rows, width), c.shaped("lse", lse, q.Rows, queryHeads), c.shaped("q", q, q.Rows, width)
	d.runs(c, own, layer, q.Rows, runs)
	for i, r := range runs {
		if r.First != 0 {
			c.fail("runs[%d] begins at position %d: must be 0", i, r.First)
		}
		if r.KeysTo != 0 && (r.KeysFrom < 0 || r.KeysFrom >= r.KeysTo || r.KeysTo > r.Count || r.KeysFrom%tensor.PageSize != 0 || r.KeysTo%tensor.PageSize != 0 && r.KeysTo != r.Count) {
			c.fail("runs[%d]: keys %d to %d of %d: must be cut at multiples of %d", i, r.KeysFrom, r.KeysTo, r.Count, tensor.PageSize)
		}
	}
	i := 0
	for _, r := range runs {
		if r.Count == 0 || c.err != nil {
			continue // left out of d.sequences
		}
		if r.KeysTo > 0 {
			d.sequences[i].keys_from, d.sequences[i].keys_to = C.int64_t(r.KeysFrom), C.int64_t(r.KeysTo)
		}
		i++
	}
	if c.err != nil || len(d.sequences) == 0 {
		return c.err
	}
	return failed("attention backward", C.op_attention_backward(d.c, vdq, vdk, vdv, vdo, vo, vl, vq, cp, C.int64_t(layer), &d.sequences[0], C.int64_t(len(d.sequences)),
		(*C.int32_t)(&d.pages[0]), C.int64_t(queryHeads), C.float(scale)))
}
