package model

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// ratios are those of data whose losses need all log-probabilities of a datum before any derivative: a pass computes their log-probabilities twice.
type ratios struct {
	host   []float64     // of every example; where results stay on the device, they are known when these are fetched
	there  tensor.Tensor // on that device, of the data that have one
	datums []int32       // of every example: which of them is its own
}

// datumRatios makes the first pass of losses that need ratios of data.
func (t *training) datumRatios(hidden tensor.Tensor) error {
	t.ratios.host = make([]float64, len(t.examples))
	t.ratios.datums = make([]int32, len(t.examples))
	var spans []span
	for i, e := range t.examples {
		if e.Loss.PerDatum() {
			t.ratios.datums[i] = int32(len(spans))
			spans = append(spans, span{i, 0, len(e.Tokens)})
		}
	}
	if len(spans) == 0 {
		return nil
	}
	first, err := t.firstLogprobs(hidden, spans)
	if err != nil {
		return fmt.Errorf("ratios of data: %w", err)
	}
	if first == nil {
		t.hostRatios()
		return nil
	}
	return t.deviceRatios(first, spans)
}

// firstLogprobs computes the log-probabilities of spans, which are whole examples with one target per position, as Check demands of such losses: on the device where it keeps results, else into the outcomes.
func (t *training) firstLogprobs(hidden tensor.Tensor, spans []span) (*results, error) {
	s, err := t.choose(hidden, spans)
	if err != nil {
		return nil, err
	}
	there, err := t.newResults(s.hidden.Rows)
	if err != nil {
		return nil, err
	}
	return there, t.chunks(s, 1, func(from, to int, parts []span) error {
		logits, err := t.m.logits(t.w, t.w.slice(s.segments, nil, from, to), s.hidden.Slice(from, to))
		if err != nil {
			return err
		}
		if there != nil {
			_, _, err := there.logprobs(t, logits, parts, false)
			return err
		}
		_, logprobs, err := t.logprobs(logits, parts)
		if err == nil {
			t.take(parts, logprobs)
		}
		return err
	})
}

// hostRatios computes the ratios from the outcomes' log-probabilities.
func (t *training) hostRatios() {
	for i, e := range t.examples {
		if e.Loss.PerDatum() {
			t.ratios.host[i] = e.Loss.DatumRatio(e.Inputs, t.outcomes[i].Logprobs)
		}
	}
}

// deviceRatios has the device compute the ratios of spans from the log-probabilities of all their positions.
func (t *training) deviceRatios(first *results, spans []span) (err error) {
	if t.ratios.there, err = t.w.keep.Get(1, 2*len(spans)); err != nil {
		return err
	}
	var positions []tensor.RatioPosition
	var ends []int32
	column := 0
	for _, s := range spans {
		e := t.examples[s.example]
		positions = e.Loss.AppendRatioPositions(positions, e.Inputs, column)
		ends = append(ends, int32(len(positions)))
		column += s.count
	}
	return first.on.DatumRatios(t.ratios.there, first.values, positions, ends)
}
