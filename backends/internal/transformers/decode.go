package transformers

import (
	"context"

	"github.com/tinsmith/tinsmith/plugins/simple"
)

// prefix is a prompt that the worker has run, with its cache.
type prefix struct {
	*model
	weights *simple.Weights
	id      uint64
}

// Prefill implements simple.Model.
func (m *model) Prefill(ctx context.Context, w *simple.Weights, prompt []int32) (simple.Prefix, error) {
	p := &prefix{model: m, weights: w}
	err := m.with(ctx, w, func(key uint64) error {
		id := m.lastID.Add(1)
		if _, err := m.exchange(request{Verb: "prefill", ID: id, Key: key}, nil, encoded(prompt)); err != nil {
			return err
		}
		p.id = id
		return nil
	})
	return p, err
}

// Continue implements simple.Prefix.
func (p *prefix) Continue(ctx context.Context) (simple.Sequence, error) {
	s := &sequence{model: p.model, weights: p.weights, token: -1}
	err := p.with(ctx, nil, func(uint64) error {
		id := p.lastID.Add(1)
		if _, err := p.exchange(request{Verb: "fork", ID: id, From: p.id}, nil); err != nil {
			return err
		}
		s.id = id
		return nil
	})
	return s, err
}

// Close implements simple.Prefix.
func (p *prefix) Close() { p.release(p.id) }

// sequence is a continuation in the worker, one token short of what was appended.
type sequence struct {
	*model
	weights *simple.Weights
	id      uint64
	token   int32 // appended, and not yet run; −1: none
}

// Next implements simple.Sequence.
func (s *sequence) Next(ctx context.Context, logits []float64) error {
	var body []byte
	err := s.with(ctx, s.weights, func(uint64) (err error) {
		body, err = s.exchange(request{Verb: "step", ID: s.id, Token: s.token}, nil)
		return err
	})
	if err == nil {
		err = s.wrongSize("step", len(body), 4*len(logits))
	}
	if err != nil {
		return err
	}
	s.token = -1
	for i := range logits {
		logits[i] = float64(float32At(body, i))
	}
	return nil
}

// Append implements simple.Sequence.
func (s *sequence) Append(token int32) { s.token = token }

// Close implements simple.Sequence.
func (s *sequence) Close() { s.release(s.id) }
