package transformers

import (
	"context"
	"errors"

	"github.com/tinsmith/tinsmith/plugins/simple"
)

// Forward implements simple.Model. The sequence runs when something is asked of it.
func (m *model) Forward(_ context.Context, w *simple.Weights, tokens []int32, gradient bool) (simple.Pass, error) {
	return &pass{model: m, weights: w, tokens: tokens, gradient: gradient}, nil
}

// pass is one sequence in the worker.
type pass struct {
	*model
	weights  *simple.Weights
	tokens   []int32
	gradient bool
	id       uint64 // 0: not in the worker
	sums     []float64
}

// run has the worker run the sequence and gives the logits of its targets.
func (p *pass) run(ctx context.Context, targets []int32) (picked []float32, err error) {
	if p.id != 0 {
		return nil, errors.New("the sequence was run before")
	}
	n := len(p.tokens)
	err = p.with(ctx, p.weights, func(key uint64) error {
		id := p.lastID.Add(1)
		body, err := p.exchange(request{Verb: "forward", ID: id, Key: key, Tokens: n, Gradient: p.gradient}, nil, encoded(p.tokens, targets))
		if err != nil {
			return err
		}
		p.id = id
		if err := p.wrongSize("forward", len(body), 8*n+4*len(targets)); err != nil {
			return err
		}
		p.sums, picked = make([]float64, n), make([]float32, len(targets))
		for i := range p.sums {
			p.sums[i] = float64At(body, i)
		}
		for i := range picked {
			picked[i] = float32At(body[8*n:], i)
		}
		return nil
	})
	return picked, err
}

// Logprobs implements simple.Pass.
func (p *pass) Logprobs(ctx context.Context, targets []int32, k int) ([]float64, error) {
	picked, err := p.run(ctx, targets)
	if err != nil {
		return nil, err
	}
	lps := make([]float64, len(targets))
	for i, logit := range picked {
		lps[i] = float64(logit) - p.sums[i/k]
	}
	return lps, nil
}

// Rows implements simple.Pass.
func (p *pass) Rows(ctx context.Context, from, to int, each func(i int, logits []float64, logSumExp float64) error) error {
	if p.id == 0 {
		if _, err := p.run(ctx, nil); err != nil {
			return err
		}
	}
	row, many := make([]float64, p.vocab), max(1, chunk/16/p.vocab)
	for at := from; at < to; at += many {
		end := min(at+many, to)
		var body []byte
		if err := p.with(ctx, nil, func(uint64) (err error) {
			body, err = p.exchange(request{Verb: "rows", ID: p.id, From: uint64(at), To: end}, nil)
			return err
		}); err != nil {
			return err
		}
		if err := p.wrongSize("rows", len(body), 4*p.vocab*(end-at)); err != nil {
			return err
		}
		for i := at; i < end; i++ {
			for j := range row {
				row[j] = float64(float32At(body, (i-at)*p.vocab+j))
			}
			if err := each(i, row, p.sums[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Backward implements simple.Pass.
func (p *pass) Backward(ctx context.Context, coefficients, sum []float64) error {
	return p.with(ctx, nil, func(uint64) error {
		id := p.id
		p.id = 0 // the worker drops it, whatever comes of it
		if _, err := p.exchange(request{Verb: "backward", ID: id}, nil, encoded(coefficients)); err != nil {
			return err
		}
		for at := 0; at < len(sum); at += chunk / 4 {
			end := min(at+chunk/4, len(sum))
			body, err := p.exchange(request{Verb: "gradients", From: uint64(at), To: end}, nil)
			if err == nil {
				err = p.wrongSize("gradients", len(body), 4*(end-at))
			}
			if err != nil {
				return err
			}
			for i := at; i < end; i++ {
				sum[i] += float64(float32At(body, i-at))
			}
		}
		return nil
	})
}

// Close implements simple.Pass.
func (p *pass) Close() {
	if p.id != 0 {
		p.release(p.id)
		p.id = 0
	}
}
