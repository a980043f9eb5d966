package engine

import (
	"math"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/sample"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// deviceDraws are the lists of draws on a device, used again in every step.
type deviceDraws struct {
	draws     []tensor.Draw
	changes   []tensor.Adjustment
	penalties []sample.Penalty
	results   []float32 // log-sum-exp, token and its logit of every row
}

// drawer gives the device if it draws tokens itself, and all that is asked of these rows: it must have them whole, and tells of no token but the drawn one.
func (p *samplingRank) drawer(d *drawing) tensor.Drawer {
	if !d.whole || d.k > 1 || d.width > tensor.MaxColumns {
		return nil
	}
	on, _ := p.model.Device.(tensor.Drawer)
	return on
}

// drawThere is draw on the device: what comes back is a token and two numbers per row, in one copy, and the host waits for nothing else.
func (p *samplingRank) drawThere(on tensor.Drawer, logits tensor.Tensor, d *drawing, drawn []token) error {
	n, st := len(d.rows), &p.step.there
	if err := p.adjustThere(on, logits, d); err != nil {
		return err
	}
	if err := p.scale(logits, d, func(*sample.Settings) bool { return true }); err != nil {
		return err
	}
	results, err := p.workspace.Scratch(n, 3)
	if err != nil {
		return err
	}
	lse := results.Columns(0, 1)
	if err := p.model.Device.LogSumExp(lse, logits); err != nil {
		return err
	}
	// Tokens that may not be drawn count in the log-probabilities of others all the same.
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
		if s.generated() < q.MinTokens {
			for _, t := range q.StopTokens {
				st.changes = append(st.changes, tensor.Adjustment{Row: int32(i), Column: t, Divisor: 1, More: float32(math.Inf(-1))})
			}
		}
	}
	if err := on.AdjustElements(logits, st.changes); err != nil {
		return err
	}
	probs := logits
	if !greedy {
		if probs, err = p.workspace.Scratch(n, logits.Cols); err != nil {
			return err
		}
		if err := p.model.Device.Softmax(probs, logits, lse); err != nil {
			return err
		}
	}
	if err := on.DrawTokens(results.Columns(1, 3), logits, probs, st.draws); err != nil {
		return err
	}
	st.results = slices.Grow(st.results[:0], 3*n)[:3*n]
	if err := p.model.Device.Download(st.results, results); err != nil {
		return err
	}
	for i, r := range d.rows {
		t, of := &drawn[r.chunk], st.results[3*i:3*i+3]
		of[2] -= of[0]
		t.id, t.logprob = int32(of[1]), of[2]
		if t.err == nil {
			t.err = checkLogprobs(of[2:])
		}
	}
	return nil
}

// adjustThere applies penalties, then bias, as sample.Settings.Adjust does.
func (p *samplingRank) adjustThere(on tensor.Drawer, logits tensor.Tensor, d *drawing) error {
	st := &p.step.there
	st.changes = st.changes[:0]
	for i := range d.rows {
		s := d.chunks[d.rows[i].chunk].sequence
		st.penalties = s.request.settings.Penalties(st.penalties[:0], s.history)
		for _, c := range st.penalties {
			st.changes = append(st.changes, tensor.Adjustment{Row: int32(i), Column: c.Token, Divisor: c.Divisor, Less: c.Less})
		}
	}
	if err := on.AdjustElements(logits, st.changes); err != nil {
		return err
	}
	st.changes = st.changes[:0]
	for i := range d.rows {
		for _, b := range d.request(i).settings.Bias {
			st.changes = append(st.changes, tensor.Adjustment{Row: int32(i), Column: b.Token, Divisor: 1, More: b.Amount})
		}
	}
	return on.AdjustElements(logits, st.changes)
}
