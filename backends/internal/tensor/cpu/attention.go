package cpu

/*
#include "kernels.h"
*/
import "C"

import (
	"fmt"

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
func (p *pages) Free()       { release(p.addr, p.bytes) }

func (p *pages) Zero(page int32) error {
	return failed("zero page", C.op_zero_page(p.device.c, cache(p), C.int64_t(page)))
}

func (p *pages) Copy(dst, src int32) error {
	return failed("copy page", C.op_copy_page(p.device.c, cache(p), C.int64_t(dst), C.int64_t(src)))
}

// Discard gives the system its memory back, but for what shares one of its own pages with neighbours.
func (p *pages) Discard(first, count int32) (bool, error) {
	return C.op_discard_pages(p.device.c, cache(p), C.int64_t(first), C.int64_t(count)) == 0, nil
}

// maxHeadDim bounds what the kernels keep on their stack.
const maxHeadDim = 4096

func (d *device) NewPages(t tensor.DType, layers, count, heads, headDim int) (tensor.Pages, error) {
	if headDim > maxHeadDim {
		return nil, fmt.Errorf("cpu: pages: heads of dimension %d: at most %d", headDim, maxHeadDim)
	}
	padded := (headDim + panel - 1) / panel * panel
	n, ok := tensor.Product(layers, count, heads, tensor.PageSize, headDim+padded)
	if !ok {
		return nil, fmt.Errorf("cpu: pages: %d layers × %d pages × %d heads of dimension %d: too large", layers, count, heads, headDim)
	}
	addr, err := memory("pages", n*t.Size(), true)
	if err != nil {
		return nil, err
	}
	return &pages{device: d, dtype: t, layers: layers, count: count, heads: heads, headDim: headDim, padded: padded, addr: addr, bytes: n * t.Size()}, nil
}

// cache is pages of this package as C takes them.
func cache(p tensor.Pages) C.cache {
	own := p.(*pages)
	return C.cache{addr: C.uintptr_t(own.addr), layers: C.int64_t(own.layers), count: C.int64_t(own.count), heads: C.int64_t(own.heads),
		head_dim: C.int64_t(own.headDim), padded_dim: C.int64_t(own.padded), _type: C.int32_t(own.dtype)}
}

// runs leaves sequences in d.sequences and d.pages as C reads them.
func (d *device) runs(runs []tensor.AttentionRun) (sequences *C.sequence, n C.int64_t, pages *C.int32_t) {
	d.sequences, d.pages = d.sequences[:0], d.pages[:0]
	for _, r := range runs {
		d.sequences = append(d.sequences, C.sequence{row: C.int64_t(r.Row), count: C.int64_t(r.Count), first: C.int64_t(r.First), first_page: C.int64_t(len(d.pages)),
			keys_from: C.int64_t(r.KeysFrom), keys_to: C.int64_t(r.KeysTo), rows_from: C.int64_t(r.RowsFrom), rows_to: C.int64_t(r.RowsTo), window: C.int64_t(r.Window)})
		d.pages = append(d.pages, r.Pages...)
	}
	return &d.sequences[0], C.int64_t(len(d.sequences)), (*C.int32_t)(&d.pages[0])
}

func (d *device) WritePages(p tensor.Pages, layer int, k, v tensor.Tensor, runs []tensor.AttentionRun) error {
	sequences, n, numbers := d.runs(runs)
	return failed("write pages", C.op_write_pages(d.c, cache(p), C.int64_t(layer), view(k), view(v), sequences, n, numbers))
}

func (d *device) Attention(o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	sequences, n, numbers := d.runs(runs)
	var vl C.view
	if lse.Buffer != nil {
		vl = view(lse)
	}
	return failed("attention", C.op_attention(d.c, view(o), vl, view(q), cache(p), C.int64_t(layer), sequences, n, numbers, C.int64_t(queryHeads), C.float(scale)))
}

func (d *device) AttentionBackward(dq, dk, dv, do, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	sequences, n, numbers := d.runs(runs)
	return failed("attention backward", C.op_attention_backward(d.c, view(dq), view(dk), view(dv), view(do), view(o), view(lse), view(q), cache(p), C.int64_t(layer),
		sequences, n, numbers, C.int64_t(queryHeads), C.float(scale)))
}
