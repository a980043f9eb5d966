package engine

import (
	"errors"
	"math"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/sample"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// deviceDraws are the lists of draws on a device, used again in every step.
type deviceDraws struct {
	draws     []tensor.Draw
	changes   []tensor.Adjustment
	penalties []sample.Penalty
	results   []float32 // of every row: log-sum-exp, token, its logit, and the log-sum-exp of what a constraint leaves
	masked    []int32   // rows with a mask
}

// drawer gives the device if it is to draw tokens itself. Of a model that is cut it takes whole rows from all ranks first, which processors do not gain by: their logits are in Go's memory as fast.
func (p *samplingRank) drawer(d *drawing) tensor.Drawer {
	if !d.whole && !p.model.Remote() || d.width > tensor.MaxColumns {
		return nil
	}
	on, _ := p.model.Device.(tensor.Drawer)
	return on
}

// drawThere is draw on the device: what comes back is a token and two numbers per row, in one copy, and the host waits for nothing else, but for rows whose likeliest tokens were asked for. Of a model that is cut rank 0 has them.
func (p *samplingRank) drawThere(on tensor.Drawer, logits tensor.Tensor, d *drawing, drawn []token) error {
	n, st := len(d.rows), &p.there
	if err := p.adjustThere(on, logits, d); err != nil {
		return err
	}
	if err := p.scale(logits, d, func(*sample.Settings) bool { return true }); err != nil {
		return err
	}
	const numbers = 4
	results, err := p.workspace.Scratch(n, numbers)
	if err != nil {
		return err
	}
	lse := results.Columns(0, 1)
	if err := p.model.LogSumExp(p.workspace, lse, logits); err != nil {
		return err
	}
	if logits, err = p.model.WholeLogits(p.workspace, logits); err != nil {
		return err
	}
	st.results = slices.Grow(st.results[:0], numbers*n)[:numbers*n]
	if p.rank > 0 { // it waits for its own device, whose failure would else be found by another one's, or by nobody
		return p.model.Device.Download(st.results[:n], lse)
	}
	// Tokens that may not be drawn count in the log-probabilities of others all the same, and may be among the likeliest.
	if err := p.likeliest(logits, d); err != nil {
		return err
	}
	st.draws, st.changes = st.draws[:0], st.changes[:0]
	greedy := true
	for i := range n {
		s, q := d.chunks[d.rows[i].chunk].sequence, d.request(i)
		one := tensor.Draw{U: sample.Uniform(q.Seed, s.index, len(s.tokens)), TopP: q.settings.TopP, MinP: q.settings.MinP, TopK: int64(max(0, q.settings.TopK))}
		if q.settings.Temperature == 0 {
			one.TopK = 1
		}
		greedy = greedy && one.TopK == 1
		st.draws = append(st.draws, one)
		if s.generated() < q.MinTokens && s.constrained.state == nil {
			for _, t := range q.StopTokens {
				st.changes = append(st.changes, tensor.Adjustment{Row: int32(i), Column: t, Divisor: 1, More: float32(math.Inf(-1))})
			}
		}
	}
	if err := on.AdjustElements(logits, st.changes); err != nil {
		return err
	}
	base := lse // of the probabilities
	var masks masks
	if d.constrained {
		if masks, err = p.mask(on, logits, lse, results.Columns(3, 4), d); err != nil {
			return err
		}
		base = results.Columns(3, 4)
	}
	probs := logits
	if !greedy {
		if probs, err = p.workspace.Scratch(n, logits.Cols); err != nil {
			return err
		}
		if err := p.model.Device.Softmax(probs, logits, base); err != nil {
			return err
		}
	}
	if err := on.DrawTokens(results.Columns(1, 3), logits, probs, st.draws); err != nil {
		return err
	}
	if err := p.model.Device.Download(st.results, results); err != nil {
		return err
	}
	for i, r := range d.rows {
		t, of := &drawn[r.chunk], st.results[numbers*i:numbers*(i+1)]
		of[2] = d.logprob(of[2], of[0])
		t.id, t.logprob = int32(of[1]), of[2]
		if t.err == nil {
			t.err = checkLogprobs(of[2:3])
		}
		if m := masks.at(i); m != nil {
			t.left = m.of(of[3], of[0])
			if t.err == nil {
				t.err = m.err
			}
		}
		own := d.request(i).TopKSampledLogprobs
		if own == 0 {
			continue
		}
		at, row := i*d.k, d.logits[i*d.width:(i+1)*d.width]
		t.top = plugins.TopLogprobs{K: own, IDs: d.targets[at : at+own : at+own], Logprobs: d.values[at : at+own : at+own]}
		for j, id := range t.top.IDs {
			t.top.Logprobs[j] = d.logprob(row[id], of[0])
		}
		if t.err == nil {
			t.err = checkLogprobs(t.top.Logprobs)
		}
	}
	return nil
}

// mask takes the columns away that constraints forbid, and gives the log-sum-exps of what is left of each row: of the others what they are anyhow. Tokens are drawn by probabilities of what is left.
func (p *samplingRank) mask(on tensor.Drawer, logits, lse, left tensor.Tensor, d *drawing) (masks, error) {
	m := p.masking.of(d.rows, p.there.masked)
	p.there.masked = m.rows
	if err := on.MaskColumns(logits, m.rows, m.bits); err != nil {
		return m, err
	}
	if err := p.model.Device.Round(left, lse); err != nil { // a copy
		return m, err
	}
	return m, m.spans(func(from, to int) error {
		return p.model.Device.LogSumExp(left.Slice(from, to), logits.Slice(from, to))
	})
}

// maskHere is mask for rows in Go memory, with the same results: the masked rows are beside d's own, and in d.probs the probabilities are those of what is left. Only rank 0 calls it, with whole rows.
func (p *samplingRank) maskHere(d *drawing) error {
	m := p.masking.of(d.rows, p.there.masked)
	p.there.masked, d.masks = m.rows, m
	d.left = slices.Clone(d.sums)
	host := p.host(maskedLogits, len(d.rows)*d.width)
	for i, r := range m.rows {
		row := host[int(r)*d.width : (int(r)+1)*d.width]
		copy(row, d.logits[int(r)*d.width:])
		sample.Mask(row, m.mask(i))
	}
	return m.spans(func(from, to int) error {
		mark := p.workspace.MarkScratch()
		masked, err := p.workspace.Scratch(to-from, d.width)
		if err != nil {
			return err
		}
		sums, err := p.workspace.Scratch(to-from, 1)
		if err != nil {
			return err
		}
		device := p.model.Device
		if err := errors.Join(device.Upload(masked, host[from*d.width:to*d.width]), device.LogSumExp(sums, masked), device.Download(d.left[from:to], sums)); err != nil {
			return err
		}
		if d.probs != nil {
			probs, err := p.workspace.Scratch(to-from, d.width)
			if err != nil {
				return err
			}
			if err := errors.Join(device.Softmax(probs, masked, sums), device.Download(d.probs[from*d.width:to*d.width], probs)); err != nil {
				return err
			}
		}
		return p.workspace.ReleaseScratch(mark)
	})
}

// likeliest finds the likeliest tokens of the rows for which they were asked, in Go memory. Their log-probabilities are left to be filled in.
func (p *samplingRank) likeliest(logits tensor.Tensor, d *drawing) error {
	if d.k == 1 {
		return nil
	}
	d.logits = p.host(plainLogits, len(d.rows)*d.width)
	for i := 0; i < len(d.rows); {
		end := i
		for end < len(d.rows) && d.request(end).TopKSampledLogprobs > 0 {
			end++
		}
		if end > i {
			if err := p.model.Device.Download(d.logits[i*d.width:end*d.width], logits.Slice(i, end)); err != nil {
				return err
			}
		}
		i = end + 1
	}
	p.hold(d, len(d.rows)*d.k)
	p.drawing = *d
	p.crew.run(len(d.rows), p.topRows)
	p.drawing = drawing{} // nothing is kept alive by it
	return nil
}

// topRow finds the likeliest tokens of row i.
func (p *sampler) topRow(thread, i int) {
	d := &p.drawing
	if k := d.request(i).TopKSampledLogprobs; k > 0 {
		copy(d.targets[i*d.k:], sample.Top(&p.scratch[thread], d.logits[i*d.width:(i+1)*d.width], k))
	}
}

// adjustThere applies penalties, then bias, as sample.Settings.Adjust does, to the rank's part of the vocabulary.
func (p *samplingRank) adjustThere(on tensor.Drawer, logits tensor.Tensor, d *drawing) error {
	from, to := p.model.Vocabulary()
	own := func(token int32) bool { return int(token) >= from && int(token) < to }
	st := &p.there
	st.changes = st.changes[:0]
	for i := range d.rows {
		s := d.chunks[d.rows[i].chunk].sequence
		st.penalties = s.request.settings.Penalties(st.penalties[:0], s.history)
		for _, c := range st.penalties {
			if own(c.Token) {
				st.changes = append(st.changes, tensor.Adjustment{Row: int32(i), Column: c.Token - int32(from), Divisor: c.Divisor, Less: c.Less})
			}
		}
	}
	if err := on.AdjustElements(logits, st.changes); err != nil {
		return err
	}
	st.changes = st.changes[:0]
	for i := range d.rows {
		for _, b := range d.request(i).settings.Bias {
			if own(b.Token) {
				st.changes = append(st.changes, tensor.Adjustment{Row: int32(i), Column: b.Token - int32(from), Divisor: 1, More: b.Amount})
			}
		}
	}
	return on.AdjustElements(logits, st.changes)
}
