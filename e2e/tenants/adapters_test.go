package tenants

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// probe is an adapter that answers in its own way, and what it answers while nobody disturbs.
type probe struct {
	sampler
	name string
	want []sampled // by prompt
}

// habit trains an adapter to answer every prompt with one token.
func (c client) habit(ctx context.Context, name string, token int64, prompts [][]int32) (*probe, error) {
	run, err := c.train(ctx, 8)
	if err != nil {
		return nil, err
	}
	for i := range 24 {
		prompt := prompts[i%len(prompts)]
		tokens := append(slices.Clone(prompt), int32(token), int32(token), int32(token))
		targets := make([]int64, len(tokens))
		for j := range targets {
			targets[j] = token
		}
		if err := run.step(ctx, tokens, targets, 5e-3); err != nil {
			return nil, err
		}
	}
	path, err := run.save(ctx, "habit")
	if err != nil {
		return nil, err
	}
	s, err := c.sampling(ctx, run.session, 0, path)
	if err != nil {
		return nil, err
	}
	p := &probe{sampler: s, name: name}
	for i, prompt := range prompts {
		got, err := s.draw(ctx, i, prompt, 4, 0)
		if err != nil {
			return nil, err
		}
		p.want = append(p.want, got)
	}
	return p, nil
}

// TestWrongAdapter has four adapters of two keys answer interleaved requests, 64 at a time: each answer is that of the adapter which was asked, and on our own server it has the very bits that it had alone.
func TestWrongAdapter(t *testing.T) {
	ctx := t.Context()
	server, ann, bob := start(t)
	prompts := [][]int32{ramp(1, 9), ramp(2, 20), ramp(3, 70)}
	var probes []*probe
	for i, owner := range []client{ann, bob, ann, bob} {
		probes = append(probes, must(owner.habit(ctx, fmt.Sprintf("adapter %d", i), int64(100+50*i), prompts))(t))
	}
	for i, p := range probes {
		for j, q := range probes[:i] {
			if slices.Equal(p.want[0].tokens, q.want[0].tokens) {
				t.Fatalf("adapters %d and %d answer alike: %v", j, i, p.want[0].tokens)
			}
		}
	}
	requests := sized(10_000, 600)
	turns := make(chan int)
	var workers sync.WaitGroup
	var mu sync.Mutex
	next := make([]int, len(probes))
	for i := range next {
		next[i] = len(prompts)
	}
	for w := range 64 {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for range turns {
				i, j := random.IntN(len(probes)), random.IntN(len(prompts))
				p := probes[i]
				mu.Lock()
				number := next[i]
				next[i]++
				mu.Unlock()
				got, err := p.draw(ctx, number, prompts[j], 4, 0)
				if err != nil {
					t.Errorf("%s: %v", p.name, err)
					return
				}
				if !slices.Equal(got.tokens, p.want[j].tokens) {
					t.Errorf("%s answered %v to prompt %d, alone %v", p.name, got.tokens, j, p.want[j].tokens)
				}
				if server.own() && !slices.Equal(got.logprobs, p.want[j].logprobs) {
					t.Errorf("%s: log-probabilities of prompt %d have other bits than alone", p.name, j)
				}
			}
		})
	}
	for range requests {
		if t.Failed() {
			break
		}
		turns <- 0
	}
	close(turns)
	workers.Wait()
	t.Logf("%d requests", requests)
}
