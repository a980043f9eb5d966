package cuda

import (
	"fmt"

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

func (p *pages) Free() { p.device.release(uintptr(p.cache.At)) }

func (p *pages) Zero(page int32) error { return p.copy("zero page", page, -1) }

func (p *pages) Copy(dst, src int32) error { return p.copy("copy page", dst, src) }

// Discard does nothing: what the driver has allocated goes back as a whole.
func (p *pages) Discard(int32, int32) (bool, error) { return false, nil }

func (p *pages) copy(op string, dst, src int32) error {
	return p.device.failed(op, p.device.v.CopyPage(p.cache, dst, src))
}

func (d *device) NewPages(t tensor.DType, layers, count, heads, headDim int) (tensor.Pages, error) {
	if err := d.v.Supports(cudart.Cache{Dim: int64(headDim), Type: typeOf(t)}); err != nil {
		return nil, fmt.Errorf("cuda: pages of %v for heads of dimension %d: %w", t, headDim, err)
	}
	bytes := layers * count * heads * 2 * tensor.PageSize * headDim * t.Size()
	at, err := d.memory("pages", bytes)
	if err != nil {
		return nil, err
	}
	return &pages{device: d, bytes: bytes, cache: cudart.Cache{At: cudart.Address(at), Layers: int64(layers), Pages: int64(count), Heads: int64(heads), Dim: int64(headDim), Type: typeOf(t)}}, nil
}

// sequences gives runs as kernels take them. The result is used before the next call.
func (d *device) sequences(runs []tensor.AttentionRun) []cudart.Sequence {
	d.runs = d.runs[:0]
	for _, r := range runs {
		d.runs = append(d.runs, cudart.Sequence{Row: int64(r.Row), Count: int64(r.Count), First: int64(r.First), Pages: r.Pages, KeysFrom: int64(r.KeysFrom), KeysTo: int64(r.KeysTo),
			RowsFrom: int64(r.RowsFrom), RowsTo: int64(r.RowsTo), Window: int64(r.Window)})
	}
	return d.runs
}

func (d *device) WritePages(p tensor.Pages, layer int, k, v tensor.Tensor, runs []tensor.AttentionRun) error {
	return d.failed("write pages", d.v.WritePages(p.(*pages).cache, int64(layer), view(k), view(v), d.sequences(runs)))
}

func (d *device) Attention(o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	return d.failed("attention", d.attention(cudart.View{}, o, lse, q, p.(*pages).cache, layer, runs, queryHeads, scale))
}

func (d *device) attention(kept cudart.View, o, lse, q tensor.Tensor, cache cudart.Cache, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	var vl cudart.View
	if lse.Buffer != nil {
		vl = view(lse)
	}
	return d.v.Attention(kept, view(o), vl, view(q), typeOf(q.DType), cache, int64(layer), d.sequences(runs), int64(queryHeads)/cache.Heads, scale)
}

func (d *device) AttentionBackward(dq, dk, dv, do, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	cache := p.(*pages).cache
	return d.failed("attention backward", d.v.AttentionBackward(view(dq), view(dk), view(dv), view(do), view(o), typeOf(o.DType), view(lse), view(q), typeOf(q.DType), cache, int64(layer), d.sequences(runs),
		int64(queryHeads)/cache.Heads, scale))
}
