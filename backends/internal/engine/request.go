package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/sample"
	"github.com/tinsmith/tinsmith/plugins"
)

// request is one Sample call. Its fields are guarded by Engine.mu but for those that never change and those of the device goroutine.
type request struct {
	plugins.SampleRequest // a copy of our own; never changed
	settings              sample.Settings
	run                   *run     // nil: the base model
	version               *version // held until the device goroutine has swept the last sequence; nil: the base model
	number                int64    // of the version, 0 for the base model
	key                   kvcache.Key
	replica               *replica // where its sequences run; nil until the first has a place

	sequences  []*sequence
	unfinished int // sequences that have not ended
	unswept    int // sequences that wait or have a place
	ended      bool
	err        error
	events     []plugins.SampleEvent
	notify     chan struct{}           // holds at most one; there are events, or the request has ended
	unused     []plugins.SampledTokens // for events to come

	scores *scores // filled by the device goroutine; nil once they were sent
}

// scorer is the sequence that goes through the prompt first and fills its scores: the first that has not ended. The others wait for it. The caller holds mu.
func (q *request) scorer() *sequence {
	for _, s := range q.sequences {
		if !s.done {
			return s
		}
	}
	return nil
}

// sequence is one continuation of a prompt. done and pending are guarded by Engine.mu; the rest is the device goroutine's.
type sequence struct {
	request *request
	index   int
	done    bool                   // ended: to be swept
	waits   bool                   // for a place; guarded by Engine.mu
	heldUp  bool                   // for its reader; guarded by Engine.mu
	began   bool                   // it has had a place; guarded by Engine.mu
	line    *line                  // guarded by Engine.mu
	pending *plugins.SampledTokens // the sequence's event that was not taken yet, to be added to
	taken   int                    // generated tokens before those of pending

	tokens      []int32 // prompt and generated; what is there never changes, as events have views of it and of the next three
	logprobs    []float32
	topIDs      []int32 // rows of the generated tokens
	topLogprobs []float32
	computed    int // positions whose keys and values are in pages
	shared      int // full pages that were offered to others
	pages       []int32
	slot        int   // of its state, as long as it has pages, of a model with recurrent layers
	wanted      int   // the next position at which another sequence would go on from its state
	rolling     int   // where behind its prompt it has a snapshot; 0: nowhere
	again       int   // if its pages were taken: how many tokens it had generated, but 1 at least
	went        int64 // the step of the sampler in which it went on last; 0: none
	passed      int   // steps in which those behind it could go first because there was no room for its adapter
	history     *sample.History
	constrained constrained
}

// generated counts the sampled tokens.
func (s *sequence) generated() int { return len(s.tokens) - len(s.request.Prompt) }

// firstRoom is for how many generated tokens there is room at first; it doubles when it is used up.
const firstRoom = 64

// mostPending is after how many tokens an event is sent that nobody waits for.
const mostPending = 1024

// room makes room for n generated tokens with k likeliest ones each.
func (s *sequence) room(n, k int) {
	s.tokens, s.logprobs = slices.Grow(s.tokens, n), slices.Grow(s.logprobs, n)
	s.topIDs, s.topLogprobs = slices.Grow(s.topIDs, n*k), slices.Grow(s.topLogprobs, n*k)
	if s.constrained.state != nil {
		s.constrained.left = slices.Grow(s.constrained.left, n)
	}
}

// tokensEvent gives one of events that are made many at once. The caller holds mu.
func (q *request) tokensEvent() *plugins.SampledTokens {
	if len(q.unused) == 0 {
		q.unused = make([]plugins.SampledTokens, min(firstRoom, q.MaxTokens*q.NumSamples))
	}
	event := &q.unused[0]
	q.unused = q.unused[1:]
	return event
}

// signal wakes the request's Sample call. The caller holds mu.
func (q *request) signal() {
	select {
	case q.notify <- struct{}{}:
	default:
	}
}

// finishSequence ends one sequence. The caller holds mu.
func (e *Engine) finishSequence(s *sequence, reason plugins.StopReason) {
	if s.done {
		return
	}
	q := s.request
	e.end(s)
	q.events = append(q.events, plugins.SampleEvent{Finished: &plugins.SequenceFinished{Sequence: s.index, Reason: reason}})
	if q.unfinished--; q.unfinished == 0 {
		q.ended = true
	}
	q.signal()
}

// endRequest ends a whole request with an error, or without one (its events tell). The caller holds mu.
func (e *Engine) endRequest(q *request, err error) {
	if q.ended {
		return
	}
	q.ended, q.err, q.unfinished = true, err, 0
	for _, s := range q.sequences {
		e.end(s)
	}
	q.signal()
	e.wake.Signal()
}

// end marks a sequence as ended: one that waits leaves at once, one that has a place is swept by the device goroutine. The caller holds mu.
func (e *Engine) end(s *sequence) {
	if s.done {
		return
	}
	s.done, s.pending = true, nil
	if !s.waits && !s.heldUp {
		return
	}
	if s.heldUp {
		e.goOn(s)
	} else {
		e.waiting.leave(s)
	}
	if s.began { // it may have been parked with pages, which are the device goroutine's
		e.stale++
	}
	e.swept(s)
}

// swept notes that a sequence is gone; with the last one of a request its version is given up. The caller holds mu.
func (e *Engine) swept(s *sequence) {
	if s.request.unswept--; s.request.unswept == 0 {
		e.release(s.request.version)
	}
}

// Sample generates tokens.
func (e *Engine) Sample(ctx context.Context, req plugins.SampleRequest, emit func(plugins.SampleEvent) error) error {
	l, err := e.ifLoaded()
	if err != nil {
		return err
	}
	if err := l.checkSample(&req); err != nil {
		return err
	}
	states, err := l.constrain(ctx, &req)
	if err != nil {
		return err
	}
	q, err := e.enqueue(l, req, states)
	if err != nil {
		return err
	}
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.endRequest(q, errClosed) // nobody listens any more: unless it has ended it is given up
		delete(e.requests, q.ID)
	}()
	var spare []plugins.SampleEvent
	for {
		select {
		case <-q.notify:
		case <-ctx.Done():
			return plugins.Cancelled(ctx.Err())
		}
		e.mu.Lock()
		events, ended, err := q.events, q.ended, q.err
		q.events = spare[:0]
		e.read(q)
		e.mu.Unlock()
		for _, event := range events {
			if err := emit(event); err != nil {
				return err
			}
		}
		clear(events)
		spare = events
		if ended {
			return err
		}
	}
}

// enqueue enters a checked request: fixes its version, holds it, and has its sequences wait for a place. states are those of its constraint, nil without one.
func (e *Engine) enqueue(l *loaded, req plugins.SampleRequest, states []constrained) (*request, error) {
	q := &request{SampleRequest: req, notify: make(chan struct{}, 1)}
	q.Constraint = nil // states have what is needed of it
	q.Prompt, q.StopTokens, q.TargetPromptTokens = slices.Clone(req.Prompt), slices.Clone(req.StopTokens), slices.Clone(req.TargetPromptTokens)
	slices.Sort(q.StopTokens)
	q.StopTokens = slices.Compact(q.StopTokens)
	q.settings = sample.Settings{Temperature: req.Temperature, TopK: req.TopK, TopP: req.TopP, MinP: req.MinP,
		FrequencyPenalty: req.FrequencyPenalty, PresencePenalty: req.PresencePenalty, RepetitionPenalty: req.RepetitionPenalty}
	for token, amount := range req.LogitBias {
		q.settings.Bias = append(q.settings.Bias, sample.Bias{Token: token, Amount: float32(amount)})
	}
	q.scores = newScores(&q.SampleRequest)
	q.key.Scope = req.PrefixScope
	if most := l.config.MaxWaiting; req.NumSamples > most {
		return nil, &plugins.Error{Kind: plugins.KindTooLarge, Field: "num_samples", Message: fmt.Sprintf("is %d, and at most %d sequences may wait for a place (backend.max_waiting)", req.NumSamples, most)}
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.accept(); err != nil {
		return nil, err
	}
	if e.requests[req.ID] != nil {
		return nil, plugins.Invalidf("id", "%q is running already", req.ID)
	}
	if n := e.waiting.count + req.NumSamples; !e.waiting.accepts(req.Share, req.NumSamples, l.config.MaxWaiting) {
		return nil, &plugins.Error{Kind: plugins.KindCapacity, Field: "num_samples", Message: fmt.Sprintf("%d sequences would wait; max_waiting is %d", n, l.config.MaxWaiting)}
	}
	if req.Adapter != "" {
		r, err := e.find(req.Adapter)
		if err != nil {
			return nil, err
		}
		v, err := e.resolve(r, req.Version)
		if err != nil {
			return nil, err
		}
		q.run, q.version, q.number = r, e.hold(v), v.number
		q.key.Adapter, q.key.Version = r.number, v.number
	}
	q.unfinished, q.unswept = req.NumSamples, req.NumSamples
	for i := range req.NumSamples {
		s := &sequence{request: q, index: i, tokens: slices.Clip(q.Prompt)} // its own from the first token that is added
		if states != nil {
			s.constrained = states[i]
		}
		q.sequences = append(q.sequences, s)
		e.waiting.join(s)
	}
	e.requests[req.ID] = q
	e.wake.Signal()
	return q, nil
}

// Cancel ends sequences of a running request.
func (e *Engine) Cancel(_ context.Context, req plugins.CancelRequest) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.requests[req.ID]
	if q == nil || q.ended {
		return nil
	}
	for _, s := range q.sequences {
		if req.Sequence < 0 || s.index == req.Sequence {
			e.finishSequence(s, plugins.StopCancelled)
		}
	}
	e.wake.Signal()
	return nil
}

// Bounds beyond those of the contract. Settings outside have no use, and logits would leave the range of float32.
const (
	maxAdjustment  = 1e6
	minTemperature = 1e-30
)

// checkSample names the first field of a request that cannot be used.
func (l *loaded) checkSample(q *plugins.SampleRequest) error {
	if err := q.Validate(&l.info); err != nil {
		return err
	}
	if q.Temperature != 0 && q.Temperature < minTemperature {
		return plugins.Invalidf("temperature", "%v is not allowed: 0 for the likeliest token, or at least %v", q.Temperature, minTemperature)
	}
	if q.RepetitionPenalty < 1/maxAdjustment || q.RepetitionPenalty > maxAdjustment {
		return plugins.Invalidf("repetition_penalty", "%v is not allowed: %v to %v", q.RepetitionPenalty, 1/maxAdjustment, maxAdjustment)
	}
	for token, amount := range q.LogitBias {
		if !(amount >= -maxAdjustment && amount <= maxAdjustment) {
			return plugins.Invalidf(fmt.Sprintf("logit_bias[%d]", token), "%v is not allowed: %v to %v", amount, -maxAdjustment, maxAdjustment)
		}
	}
	if q.MinTokens > 0 {
		distinct := map[int32]struct{}{}
		for _, t := range q.StopTokens {
			distinct[t] = struct{}{}
		}
		if len(distinct) == l.vocabulary {
			return plugins.Invalidf("min_tokens", "%d is not allowed while every token of the vocabulary is a stop token", q.MinTokens)
		}
	}
	// Each matrix fits an answer; together they must as well.
	if p := len(q.Prompt); 4*p*(1+2*q.TopKPromptLogprobs+q.TargetPromptK+2*q.PromptAlternatives) > plugins.MaxBodyBytes {
		return plugins.Invalidf("prompt", "the scores asked for %d tokens are more than the %d bytes of an answer", p, plugins.MaxBodyBytes)
	}
	return nil
}
