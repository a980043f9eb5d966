package model

import (
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// results are log-probabilities of targets that stay on a device which differentiates losses itself, in the order in which chunks of logits were computed, until they are fetched at once: the host launches a pass as a whole
// and waits at its end.
type results struct {
	on     tensor.Differentiator
	values tensor.Tensor // 1 × n
	n      int           // that have been computed
	spans  []span        // that they belong to

	host    []float32 // what fetch gets
	fetched func() error
}

// newResults has room for n values; nil if the device has the host compute losses.
func (t *training) newResults(n int) (*results, error) {
	on, ok := t.m.Device.(tensor.Differentiator)
	if !ok {
		return nil, nil
	}
	values, err := t.w.keep.Get(1, n)
	return &results{on: on, values: values}, err
}

// logprobs computes the log-probabilities of the targets of parts, of which logits has the rows. With slopes it gives the losses' derivatives by them, 1 × targets, and the log-sum-exps of the rows, in scratch memory.
func (r *results) logprobs(t *training, logits tensor.Tensor, parts []span, slopes bool) (derivatives, sums tensor.Tensor, err error) {
	m, w := t.m, t.w
	w.elements, w.terms = t.elements(w.elements[:0], parts), w.terms[:0]
	row := 0
	for _, part := range parts {
		e := t.examples[part.example]
		w.terms = e.Loss.AppendTerms(w.terms, e.Inputs, part.first, part.count, e.K, row, t.ratios.datums[part.example])
		row += part.count
	}
	if sums, err = w.temp.Get(logits.Rows, 1); err != nil {
		return
	}
	if err = m.LogSumExp(w, sums, logits); err != nil {
		return
	}
	values := r.values.Columns(r.n, r.n+len(w.elements))
	if err = m.Device.GatherElements(values, logits, w.elements); err != nil {
		return
	}
	if m.Comm != nil { // each rank has the logits of its own columns, and zeros
		if err = m.Comm.AllReduce(values); err != nil {
			return
		}
	}
	if slopes {
		if derivatives, err = w.temp.Get(1, len(w.elements)); err != nil {
			return
		}
	}
	if err = r.on.Differentiate(derivatives, values, sums, t.ratios.there, w.terms); err != nil {
		return
	}
	r.n += len(w.elements)
	r.spans = append(r.spans, parts...)
	return
}

// gradient makes rows of logits the gradient of the losses by them.
func (r *results) gradient(t *training, logits tensor.Tensor, parts []span) error {
	slopes, sums, err := r.logprobs(t, logits, parts, true)
	if err != nil {
		return err
	}
	row, at := 0, 0
	for _, part := range parts {
		targets := t.targets(part)
		if err := r.on.SoftmaxGradientBy(logits.Slice(row, row+part.count), sums.Slice(row, row+part.count), t.m.own(targets), slopes.Columns(at, at+len(targets))); err != nil {
			return err
		}
		row, at = row+part.count, at+len(targets)
	}
	return nil
}

// fetch has the log-probabilities copied to the host.
func (r *results) fetch() (err error) {
	r.host = make([]float32, r.n)
	r.fetched, err = r.on.StartDownload(r.host, r.values.Columns(0, r.n))
	return err
}

// wait waits for what was fetched and gives the log-probabilities with the spans that they belong to.
func (r *results) wait() ([]span, []float32, error) { return r.spans, r.host, r.fetched() }

// elements appends the places of the targets of parts, of which logits have the rows.
func (t *training) elements(to []tensor.Element, parts []span) []tensor.Element {
	row := 0
	for _, part := range parts {
		to = t.m.appendTargets(to, row, t.targets(part), t.examples[part.example].K)
		row += part.count
	}
	return to
}

// targets are those of a span.
func (t *training) targets(part span) []int32 {
	e := t.examples[part.example]
	return e.Targets[part.first*e.K : (part.first+part.count)*e.K]
}
