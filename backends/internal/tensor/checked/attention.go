package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// pages is kernels' pages and what their checks need.
type pages struct {
	device *device
	tensor.Pages
	heads, headDim int
	freed          bool
}

func (p *pages) Free() {
	if p.freed {
		return
	}
	p.freed = true
	p.device.live--
	p.Pages.Free()
}

func (p *pages) Zero(page int32) error {
	c := p.device.check("zero page")
	c.pages(p.device, p)
	c.page(p, page)
	if c.err != nil {
		return c.err
	}
	return p.Pages.Zero(page)
}

func (p *pages) Copy(dst, src int32) error {
	c := p.device.check("copy page")
	c.pages(p.device, p)
	c.page(p, dst)
	c.page(p, src)
	if c.err != nil || dst == src {
		return c.err
	}
	return p.Pages.Copy(dst, src)
}

func (p *pages) Discard(first, count int32) (bool, error) {
	c := p.device.check("discard pages")
	c.pages(p.device, p)
	if first < 0 || count < 0 || int(first) > p.Count() || int(count) > p.Count()-int(first) {
		c.fail("pages %d + %d of %d", first, count, p.Count())
	}
	if c.err != nil {
		return false, c.err
	}
	return p.Pages.Discard(first, count)
}

func (c *check) page(p *pages, page int32) {
	if page < 0 || int(page) >= p.Count() {
		c.fail("page %d of %d", page, p.Count())
	}
}

// pages gives the pages as this package's; ones of no size if this device cannot use them.
func (c *check) pages(d *device, p tensor.Pages) *pages {
	own, ok := p.(*pages)
	switch {
	case !ok || !d.like(own.device):
		c.fail("the pages are not of a device like this")
	case own.freed:
		c.fail("the pages have been freed")
	}
	if c.err != nil {
		return &noPages
	}
	return own
}

var noPages = pages{heads: 1, headDim: 1}

func (d *device) NewPages(t tensor.DType, layers, count, heads, headDim int) (tensor.Pages, error) {
	c := d.check("new pages")
	if _, ok := tensor.Product(layers, count, heads, 2*tensor.PageSize, headDim); !ok || layers < 1 || count < 1 || heads < 1 || headDim < 1 || count > maxPosition || !validType(t) {
		c.fail("%d layers × %d pages × %d heads of dimension %d in %v: not a size that can be had", layers, count, heads, headDim, t)
	}
	if c.err != nil {
		return nil, c.err
	}
	p, err := d.kernels.NewPages(t, layers, count, heads, headDim)
	if err != nil {
		return nil, err
	}
	d.live++
	return &pages{device: d, Pages: p, heads: heads, headDim: headDim}, nil
}

// sequences checks runs against the rows of the batch and the pages, and gives those that have rows as kernels take them.
func (d *device) sequences(c *check, p *pages, layer, rows int, runs []tensor.AttentionRun, backward bool) []tensor.AttentionRun {
	if c.err != nil {
		return nil
	}
	if layer < 0 || layer >= p.Layers() {
		c.fail("layer %d of %d", layer, p.Layers())
	}
	d.runs = d.runs[:0]
	d.take(rows)
	for i, r := range runs {
		if r.Row < 0 || r.Count < 0 || r.Row > rows || r.Count > rows-r.Row || r.First < 0 || r.First > maxPosition-r.Count {
			c.fail("runs[%d]: rows %d + %d at position %d: there are %d rows", i, r.Row, r.Count, r.First, rows)
			return nil
		}
		if r.Window < 0 || r.Window > tensor.MaxWindow {
			c.fail("runs[%d]: a window of %d: must be 0 to %d", i, r.Window, tensor.MaxWindow)
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
		r.Pages = r.Pages[:need]
		for k, page := range r.Pages {
			if page < 0 || int(page) >= p.Count() {
				c.fail("runs[%d]: pages[%d] is %d of %d", i, k, page, p.Count())
				return nil
			}
		}
		if !backward || r.KeysTo == 0 {
			r.KeysFrom, r.KeysTo = 0, r.Count
		}
		if !backward || r.RowsTo == 0 {
			r.RowsFrom, r.RowsTo = 0, r.Count
		}
		d.runs = append(d.runs, r)
	}
	return d.runs
}

func (d *device) WritePages(p tensor.Pages, layer int, k, v tensor.Tensor, runs []tensor.AttentionRun) error {
	c := d.check("write pages")
	own := c.pages(d, p)
	c.shaped("k", k, k.Rows, own.heads*own.headDim)
	c.shaped("v", v, k.Rows, own.heads*own.headDim)
	sequences := d.sequences(&c, own, layer, k.Rows, runs, false)
	if c.err != nil || len(sequences) == 0 {
		return c.err
	}
	return d.kernels.WritePages(own.Pages, layer, k, v, sequences)
}

// width gives the columns of queries.
func (c *check) width(p *pages, queryHeads int) int {
	if queryHeads < 1 || queryHeads%p.heads != 0 {
		c.fail("%d query heads: must be a multiple of the %d key heads", queryHeads, p.heads)
	}
	width, ok := tensor.Product(queryHeads, p.headDim)
	if !ok {
		c.fail("%d query heads of dimension %d: too many", queryHeads, p.headDim)
	}
	return width
}

// attention checks the arguments of attention, and gives the pages and the runs as kernels take them.
func (d *device) attention(c *check, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int) (*pages, []tensor.AttentionRun) {
	own := c.pages(d, p)
	width := c.width(own, queryHeads)
	d.queries(c, own, q, width)
	c.shaped("o", o, q.Rows, width)
	if lse.Buffer != nil {
		c.shaped("lse", lse, q.Rows, queryHeads)
	}
	return own, d.sequences(c, own, layer, q.Rows, runs, false)
}

func (d *device) Attention(o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	c := d.check("attention")
	own, sequences := d.attention(&c, o, lse, q, p, layer, runs, queryHeads)
	if c.err != nil || len(sequences) == 0 {
		return c.err
	}
	return d.kernels.Attention(o, lse, q, own.Pages, layer, sequences, queryHeads, scale)
}

func (d *device) AttentionBackward(dq, dk, dv, do, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, queryHeads int, scale float32) error {
	c := d.check("attention backward")
	own := c.pages(d, p)
	width, keys := c.width(own, queryHeads), own.heads*own.headDim
	if parts := c.parts(d, own, dk.Cols, keys, queryHeads); parts > 1 {
		keys *= parts
	}
	c.shaped("dq", dq, q.Rows, width)
	c.shaped("dk", dk, q.Rows, keys)
	c.shaped("dv", dv, q.Rows, keys)
	c.shaped("do", do, q.Rows, width)
	c.size("o", o, q.Rows, width)
	d.forProducts(&c, "o", o)
	c.shaped("lse", lse, q.Rows, queryHeads)
	d.queries(&c, own, q, width)
	for i, r := range runs {
		if r.First != 0 {
			c.fail("runs[%d] begins at position %d: must be 0", i, r.First)
		}
		if r.KeysTo != 0 && (r.KeysFrom < 0 || r.KeysFrom >= r.KeysTo || r.KeysTo > r.Count || r.KeysFrom%tensor.PageSize != 0 || r.KeysTo%tensor.PageSize != 0 && r.KeysTo != r.Count) {
			c.fail("runs[%d]: keys %d to %d of %d: must be cut at multiples of %d", i, r.KeysFrom, r.KeysTo, r.Count, tensor.PageSize)
		}
		if r.RowsTo != 0 && (r.RowsFrom < 0 || r.RowsFrom >= r.RowsTo || r.RowsTo > r.Count || r.RowsFrom%tensor.PageSize != 0 || r.RowsTo%tensor.PageSize != 0 && r.RowsTo != r.Count) {
			c.fail("runs[%d]: rows %d to %d of %d: must be cut at multiples of %d", i, r.RowsFrom, r.RowsTo, r.Count, tensor.PageSize)
		}
	}
	sequences := d.sequences(&c, own, layer, q.Rows, runs, true)
	if c.err != nil || len(sequences) == 0 {
		return c.err
	}
	return d.kernels.AttentionBackward(dq, dk, dv, do, o, lse, q, own.Pages, layer, sequences, queryHeads, scale)
}

// parts is how many parts of key heads' gradients so many columns have, 1 if they are no such parts.
func (c *check) parts(d *device, own *pages, cols, keys, queryHeads int) int {
	if c.err != nil || keys == 0 || cols%keys != 0 || !d.kernels.Segmented() || queryHeads%(own.heads*(cols/keys)) != 0 {
		return 1
	}
	return cols / keys
}
