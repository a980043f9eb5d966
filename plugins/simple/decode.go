package simple

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/constraint"
)

// decoding draws the sequences of one request.
type decoding struct {
	*Backend
	req      *plugins.SampleRequest
	run      *sampling
	rules    *constraint.Compiled // nil: anything may be drawn
	weights  *Weights             // nil: the base model
	prompted map[int32]bool
	row      []float64
	prefix   Prefix
	emit     func(plugins.SampleEvent) error
}

// all draws all sequences: in step, one token of each in turn, or one after the other, see Model.Immediate.
func (d *decoding) all(ctx context.Context) error {
	defer func() {
		if d.prefix != nil {
			d.prefix.Close()
		}
	}()
	together := d.req.NumSamples
	if !d.model.Immediate() {
		together = 1
	}
	for from := 0; from < d.req.NumSamples; from += together {
		var some []*sequence
		for i := from; i < min(from+together, d.req.NumSamples); i++ {
			some = append(some, newSequence(i, d.rules))
		}
		if err := d.some(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// some draws a few sequences in step.
func (d *decoding) some(ctx context.Context, sequences []*sequence) error {
	defer func() {
		for _, s := range sequences {
			if s.next != nil {
				s.next.Close()
			}
		}
	}()
	for left := len(sequences); left > 0; {
		for _, s := range sequences {
			if s.finished {
				continue
			}
			reason, err := d.advance(ctx, s)
			if err != nil {
				return err
			}
			if !s.finished {
				continue
			}
			left--
			d.Progress(func(*plugins.Status) { d.run.active-- })
			if err := d.emit(plugins.SampleEvent{Finished: &plugins.SequenceFinished{Sequence: s.index, Reason: reason}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// advance draws one token of a sequence, or finds that it has ended.
func (d *decoding) advance(ctx context.Context, s *sequence) (plugins.StopReason, error) {
	if err := ctx.Err(); err != nil {
		return 0, plugins.Cancelled(err)
	}
	d.mu.Lock()
	cancelled, ended := d.run.cancelled[s.index], d.run.ended
	d.mu.Unlock()
	switch {
	case d.isLost():
		return 0, d.LostError()
	case ended != nil:
		return 0, ended
	case cancelled:
		s.finished = true
		return plugins.StopCancelled, nil
	case s.end == constraint.Complete:
		s.finished = true
		return plugins.StopComplete, nil
	case len(s.generated) == d.req.MaxTokens:
		s.finished = true
		return plugins.StopLength, nil
	}
	if err := d.before(ctx, "token"); err != nil {
		return 0, err
	}
	token, event, err := d.draw(ctx, s)
	if err != nil {
		return 0, err
	}
	immediate := d.model.Immediate()
	if immediate {
		if err := d.emit(plugins.SampleEvent{Tokens: event}); err != nil {
			return 0, err
		}
	}
	reason := plugins.StopLength
	switch {
	case s.end == constraint.Complete:
		reason, s.finished = plugins.StopComplete, true
	case s.end == constraint.Stopped || slices.Contains(d.req.StopTokens, token):
		reason, s.finished = plugins.StopToken, true
	default:
		s.finished = len(s.generated) == d.req.MaxTokens
	}
	if s.finished && !immediate {
		if event, err = d.scored(ctx, s); err != nil {
			return 0, err
		}
		return reason, d.emit(plugins.SampleEvent{Tokens: event})
	}
	return reason, nil
}

// draw draws the next token of a sequence; the event has its log-probabilities under the row that it was drawn from.
func (d *decoding) draw(ctx context.Context, s *sequence) (int32, *plugins.SampledTokens, error) {
	if err := d.logits(ctx, s); err != nil {
		return 0, nil, err
	}
	at := len(s.generated)
	j, err := d.judge(s, d.row, math.NaN())
	if err != nil {
		return 0, nil, err
	}
	u := Uniform(d.req.Seed, uint32(s.index), uint32(len(d.req.Prompt)+at), drawToken, 0)
	token := drawFrom(d.req, j.allowed, s.rule == nil && at < d.req.MinTokens, u)
	if d.options.Say != nil {
		token = said(d.req, d.options.Say(d.req, s.index), at, token)
	}
	event := &plugins.SampledTokens{Sequence: s.index}
	d.add(event, j, token, s.rule != nil)
	if err := s.add(token); err != nil {
		return 0, nil, err
	}
	s.next.Append(token)
	d.Progress(func(st *plugins.Status) { st.SampledTokens++ })
	return token, event, nil
}

// logits reads the next row of a sequence, which begins with its first.
func (d *decoding) logits(ctx context.Context, s *sequence) (err error) {
	if d.prefix == nil {
		if d.prefix, err = d.model.Prefill(ctx, d.weights, d.req.Prompt); err != nil {
			return err
		}
	}
	if s.next == nil {
		if s.next, err = d.prefix.Continue(ctx); err != nil {
			return err
		}
	}
	return s.next.Next(ctx, d.row)
}

// scored gives the whole of a sequence with the log-probabilities of a pass over prompt and answer, which are the trainer's.
func (d *decoding) scored(ctx context.Context, s *sequence) (*plugins.SampledTokens, error) {
	n := len(d.req.Prompt)
	tokens := slices.Concat(d.req.Prompt, s.generated)
	pass, err := d.model.Forward(ctx, d.weights, tokens[:len(tokens)-1], false)
	if err != nil {
		return nil, err
	}
	defer pass.Close()
	event, again := &plugins.SampledTokens{Sequence: s.index}, newSequence(s.index, d.rules)
	err = pass.Rows(ctx, n-1, len(tokens)-1, func(at int, logits []float64, lse float64) error {
		j, err := d.judge(again, logits, lse)
		if err != nil {
			return err
		}
		token := tokens[at+1]
		d.add(event, j, token, again.rule != nil)
		return again.add(token)
	})
	return event, err
}

// judged is a row after penalties, bias and temperature.
type judged struct {
	row, allowed []float64 // allowed has −∞ for what must not be drawn
	lse          float64   // of row
	left         float32   // log-probability of all that may be drawn
}

// judge adjusts a row for a sequence. lse is that of the row as it comes, NaN if it is not known.
func (d *decoding) judge(s *sequence, row []float64, lse float64) (judged, error) {
	plain := adjust(d.req, s, d.prompted, row)
	if d.req.Temperature > 0 && d.req.Temperature != 1 {
		plain = false
		for i := range row {
			row[i] /= d.req.Temperature
		}
	}
	if !plain || math.IsNaN(lse) {
		lse = LogSumExp(row)
	}
	if math.IsNaN(lse) || math.IsInf(lse, 0) {
		return judged{}, &plugins.Error{Kind: plugins.KindNotFinite, Field: "logits", Message: fmt.Sprintf("the logits of token %d have the sum %v", len(s.generated), lse)}
	}
	j := judged{row: row, allowed: row, lse: lse}
	if s.rule == nil {
		return j, nil
	}
	bits := make([]uint64, constraint.Words(len(row)))
	all, err := s.rule.Mask(bits)
	if err != nil || all {
		return j, err
	}
	j.allowed = slices.Clone(row)
	for t := range j.allowed {
		if bits[t/64]>>(t%64)&1 == 0 {
			j.allowed[t] = math.Inf(-1)
		}
	}
	j.left = float32(LogSumExp(j.allowed) - lse)
	return j, nil
}

// add puts a token into an event.
func (d *decoding) add(event *plugins.SampledTokens, j judged, token int32, constrained bool) {
	event.Tokens = append(event.Tokens, token)
	event.Logprobs = append(event.Logprobs, float32(j.row[token]-j.lse))
	if constrained {
		event.ConstraintLogprobs = append(event.ConstraintLogprobs, j.left)
	}
	if k := d.req.TopKSampledLogprobs; k > 0 {
		ids, logprobs := make([]int32, k), make([]float32, k)
		topOf(j.row, j.lse, ids, logprobs)
		event.Top = plugins.TopLogprobs{K: k, IDs: append(event.Top.IDs, ids...), Logprobs: append(event.Top.Logprobs, logprobs...)}
	}
}

// said is the token at a place of what is to be said, and a stop token at its end; drawn where nothing is to be said.
func said(req *plugins.SampleRequest, say []int32, at int, drawn int32) int32 {
	switch {
	case at < len(say):
		return say[at]
	case say != nil && len(req.StopTokens) > 0:
		return req.StopTokens[0]
	}
	return drawn
}
