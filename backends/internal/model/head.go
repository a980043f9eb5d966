package model

import (
	"errors"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// span is a range of positions of one example.
type span struct {
	example, first, count int
}

// selection is some rows of the batch, in order, packed anew: what the head runs over at once. The rows that count in a loss go through it forward and backward, the others (prompts) only forward.
type selection struct {
	spans     []span
	hidden    tensor.Tensor // their rows of the final norm
	segments  []nn.Segment
	gradients []nn.GradientRange
}

// head visits every row's logits: log-probabilities, losses, the gradient by the logits, and from it those of the head's LoRA and by the last residual stream, which it gives if there is a backward pass.
// Full logits are never held.
func (t *training) head(hidden tensor.Tensor) (dx tensor.Tensor, err error) {
	defer func() { err = errors.Join(err, t.w.gather.releaseHead()) }()
	if err := t.datumRatios(hidden); err != nil {
		return dx, err
	}
	// Rows that count nothing are left out of the backward pass by what the example says, not by what was computed, so that every cut of a batch leaves out the same.
	counting, idle := t.w.counting[:0], t.w.idle[:0]
	for i, e := range t.examples {
		for from := 0; from < len(e.Tokens); {
			rest := e.Gradient == nil || e.Loss.Idle(e.Inputs, from, e.K)
			to := from + 1
			for to < len(e.Tokens) && (e.Gradient == nil || e.Loss.Idle(e.Inputs, to, e.K) == rest) {
				to++
			}
			if rest {
				idle = append(idle, span{i, from, to - from})
			} else {
				counting = append(counting, span{i, from, to - from})
			}
			from = to
		}
	}
	t.w.counting, t.w.idle = counting, idle
	if t.backward {
		if dx, err = t.w.keep.Get(hidden.Rows, hidden.Cols); err != nil {
			return dx, err
		}
	}
	if len(counting) > 0 {
		if err := t.countingRows(dx, hidden, counting); err != nil {
			return dx, err
		}
	}
	if len(idle) > 0 {
		if err := t.idleRows(hidden, idle); err != nil {
			return dx, err
		}
	}
	if !t.backward {
		return dx, nil
	}
	if len(counting) == 0 {
		if err := t.m.Device.Zero(dx); err != nil {
			return dx, err
		}
	}
	return dx, t.m.norm.Backward(t.p, dx, dx, t.w.residuals[len(t.m.layers)], false)
}

// countingRows takes rows forward and backward through the head and writes dx, the gradient by all rows of hidden.
func (t *training) countingRows(dx, hidden tensor.Tensor, spans []span) error {
	m, w := t.m, t.w
	s, err := t.choose(hidden, spans)
	if err != nil {
		return err
	}
	dhidden := dx
	if s.hidden.Rows != hidden.Rows {
		if dhidden, err = w.keep.Get(s.hidden.Rows, hidden.Cols); err != nil {
			return err
		}
	}
	if err := t.chunks(s, 2, func(from, to int, parts []span) error {
		p := w.slice(s.segments, s.gradients, from, to)
		rows := s.hidden.Slice(from, to)
		logits, err := m.logits(w, p, rows)
		if err != nil {
			return err
		}
		if err := t.gradientByLogits(logits, parts); err != nil {
			return err
		}
		return w.headOf(m).Backward(p, dhidden.Slice(from, to), logits, rows, &w.head, true)
	}); err != nil {
		return err
	}
	if s.hidden.Rows == hidden.Rows {
		return nil
	}
	if err := m.Device.Zero(dx); err != nil {
		return err
	}
	return t.eachSpan(spans, func(batch, packed, count int) error {
		return m.Device.Round(dx.Slice(batch, batch+count), dhidden.Slice(packed, packed+count))
	})
}

// gradientByLogits computes the losses of parts and makes logits, which has their rows, the gradient.
func (t *training) gradientByLogits(logits tensor.Tensor, parts []span) error {
	if t.results != nil {
		return t.results.gradient(t, logits, parts)
	}
	sums, logprobs, err := t.logprobs(logits, parts)
	if err != nil {
		return err
	}
	slopes := t.losses(parts, logprobs)
	row := 0
	for _, part := range parts {
		targets := t.targets(part)
		if err := t.m.Device.SoftmaxGradient(logits.Slice(row, row+part.count), sums.Slice(row, row+part.count), t.m.own(targets), slopes[:len(targets)]); err != nil {
			return err
		}
		slopes = slopes[len(targets):]
		row += part.count
	}
	return nil
}

// idleRows computes log-probabilities, and the losses of examples that have no gradient.
func (t *training) idleRows(hidden tensor.Tensor, spans []span) error {
	s, err := t.choose(hidden, spans)
	if err != nil {
		return err
	}
	return t.chunks(s, 1, func(from, to int, parts []span) error {
		logits, err := t.m.logits(t.w, t.w.slice(s.segments, nil, from, to), s.hidden.Slice(from, to))
		if err != nil {
			return err
		}
		if t.results != nil {
			_, _, err := t.results.logprobs(t, logits, parts, false)
			return err
		}
		_, logprobs, err := t.logprobs(logits, parts)
		if err != nil {
			return err
		}
		t.losses(parts, logprobs)
		return nil
	})
}

// choose packs the rows of spans, which ascend. All rows of the batch are not copied.
func (t *training) choose(hidden tensor.Tensor, spans []span) (selection, error) {
	s := selection{spans: spans}
	total := 0
	for _, part := range spans {
		total += part.count
	}
	if total == hidden.Rows {
		s.hidden, s.segments, s.gradients = hidden, t.p.Segments, t.p.Gradients
		return s, nil
	}
	var err error
	if s.hidden, err = t.w.keep.Get(total, hidden.Cols); err != nil {
		return s, err
	}
	rows := t.w.rows[:0]
	if err := t.eachSpan(spans, func(batch, packed, count int) error {
		for i := range count {
			rows = append(rows, int32(batch+i))
		}
		return t.m.Device.Round(s.hidden.Slice(packed, packed+count), hidden.Slice(batch, batch+count)) // a copy
	}); err != nil {
		return s, err
	}
	t.w.rows = rows
	s.segments = selectSegments(nil, t.p.Segments, rows)
	s.gradients = selectGradients(t.p.Gradients, rows)
	return s, nil
}

// selectGradients gives the ranges of the selected rows, which count anew from 0.
func selectGradients(gradients []nn.GradientRange, rows []int32) []nn.GradientRange {
	var to []nn.GradientRange
	i := 0
	for _, g := range gradients {
		for i < len(rows) && int(rows[i]) < g.From {
			i++
		}
		from := i
		for i < len(rows) && int(rows[i]) < g.To {
			i++
		}
		if i > from {
			to = append(to, nn.GradientRange{From: from, To: i, Modules: g.Modules, Onto: g.Onto, Whole: g.Whole})
		}
	}
	return to
}

// eachSpan calls visit with the first row of every span in the batch and in the selection.
func (t *training) eachSpan(spans []span, visit func(batch, packed, count int) error) error {
	packed := 0
	for _, s := range spans {
		if err := visit(t.p.Runs[s.example].Row+s.first, packed, s.count); err != nil {
			return err
		}
		packed += s.count
	}
	return nil
}

// chunks calls visit for the rows of a selection in pieces of nearly equal size whose logits fit their memory, with the spans in each. visit multiplies by the head so many times; of a model that is sharded the head is put together as
// a whole where that saves copies, after the first piece of the pass, which has taken all other memory that pieces need.
func (t *training) chunks(s selection, products int, visit func(from, to int, parts []span) error) error {
	tiles := t.m.tiles()
	most := evenChunks(s.hidden.Rows, chunkRows(trainingLogits*t.m.logitsBytes, t.m.widest(), tiles), tiles)
	parts := t.w.parts[:0]
	defer func() { t.w.parts = parts }()
	from, rows := 0, 0
	flush := func() error {
		if left := (s.hidden.Rows - from + most - 1) / most; t.visited && left*products > 1 {
			if err := t.w.gather.holdHead(); err != nil {
				return err
			}
		}
		t.visited = true
		mark := t.w.temp.Mark()
		if err := visit(from, from+rows, parts); err != nil {
			return err
		}
		from, rows, parts = from+rows, 0, parts[:0]
		if err := t.w.temp.Release(mark); err != nil {
			return err
		}
		if t.p.Yield != nil {
			return t.p.Yield()
		}
		return nil
	}
	for _, part := range s.spans {
		for part.count > 0 {
			n := min(most-rows, part.count)
			parts = append(parts, span{part.example, part.first, n})
			part.first, part.count, rows = part.first+n, part.count-n, rows+n
			if rows == most {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	if rows == 0 {
		return nil
	}
	return flush()
}

// logprobs computes the log-sum-exps of rows of logits, and in Go memory the log-probabilities of their targets in order.
func (t *training) logprobs(logits tensor.Tensor, parts []span) (sums tensor.Tensor, logprobs []float32, err error) {
	t.w.elements = t.elements(t.w.elements[:0], parts)
	sums, _, logprobs, err = t.m.logprobs(t.w, logits)
	return
}

// take copies log-probabilities of the targets of parts to the outcomes.
func (t *training) take(parts []span, logprobs []float32) {
	for _, part := range parts {
		k := t.examples[part.example].K
		logprobs = logprobs[copy(t.outcomes[part.example].Logprobs[part.first*k:], logprobs[:part.count*k]):]
	}
}

// losses evaluates the losses of parts into the outcomes, and gives their derivatives, zero where an example's loss is not finite, in memory of the workspace.
func (t *training) losses(parts []span, logprobs []float32) []float32 {
	t.take(parts, logprobs)
	t.w.slopes = slices.Grow(t.w.slopes[:0], len(logprobs))[:len(logprobs)]
	slopes := t.w.slopes
	for _, part := range parts {
		e, outcome := t.examples[part.example], &t.outcomes[part.example]
		n := part.count * e.K
		sum, err := e.Loss.Rows(outcome.Loss, e.Inputs, part.first, e.K, logprobs[:n], t.ratios.host[part.example], slopes[:n], outcome.Terms[part.first*e.K:])
		outcome.Loss = sum
		if err != nil && outcome.Err == nil {
			outcome.Err = err
		}
		if outcome.Err != nil {
			clear(slopes[:n])
		}
		logprobs, slopes = logprobs[n:], slopes[n:]
	}
	return t.w.slopes
}
