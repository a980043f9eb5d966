package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
)

// pick chooses what goes through a replica next and makes sure that it has pages: one token of every sequence that only lacks its last one, then pieces
// of prompts, of which each key has its part. Where pages run out those of parked sequences are taken, then a sequence gives its own up and waits for a
// place again, of the key with the most pages for its weight the one that was admitted last; computing it a second time gives the same bits.
func (e *Engine) pick(r *replica, trainingWaits bool) (chunks []chunk) {
	p := r.sampler
	e.mu.Lock()
	running := p.step.running[:0]
	for _, s := range e.running {
		if s.request.replica == r {
			running = append(running, s)
		}
	}
	e.mu.Unlock()
	p.step.running = running
	defer clear(running)
	chunks = p.step.picked[:0]
	preempted := false
	for _, s := range running {
		if s.pages == nil || len(s.tokens)-s.computed != 1 {
			continue
		}
		for s.pages != nil && s.computed/kvcache.PageSize >= len(s.pages) {
			if more, ok := p.allocate(1); ok {
				p.fresh = append(p.fresh, page{more[0], -1})
				s.pages = append(s.pages, more[0])
				continue
			}
			e.preempt(last(running))
			preempted = true
		}
		if s.pages != nil {
			chunks = append(chunks, chunk{sequence: s, from: s.computed, to: len(s.tokens)})
		}
	}
	if preempted {
		gone := func(s *sequence) bool { return s.pages == nil }
		chunks = slices.DeleteFunc(chunks, func(c chunk) bool { return gone(c.sequence) })
		running = slices.DeleteFunc(running, gone)
	}
	d := aloneTime
	if trainingWaits || len(chunks) > 0 {
		d = stepTime
	}
	if e.bounds { // a piece longer than a bounded step would be one by itself
		d = min(d, time.Duration(e.pace.bound()*float64(time.Second)))
	}
	chunks = e.pickPrompts(running, chunks, e.pace.prefillTokens(d, e.loaded.config.PrefillTokens))
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range chunks {
		if s := chunks[i].sequence; s.request.scorer() == s {
			chunks[i].scores = s.request.scores
		}
	}
	p.step.picked = chunks
	return chunks
}

// last gives the sequence that gives up its pages first, of those that have some: one that had to do so already comes after the others.
func last(running []*sequence) *sequence {
	able := slices.DeleteFunc(slices.Clone(running), func(s *sequence) bool { return s.pages == nil })
	if free := slices.DeleteFunc(slices.Clone(able), (*sequence).isAssured); len(free) > 0 {
		able = free
	}
	slices.Reverse(able)
	return able[heaviest(able)]
}

// part is what a key has of the prompts' tokens in a step.
type part struct {
	line           *line
	wanted, weight float64
	tokens         int
}

// pickPrompts adds pieces of prompts of so many tokens together. Each key has its part of these by weight, and what others do not need; within it the
// sequences go in order of arrival.
func (e *Engine) pickPrompts(running []*sequence, chunks []chunk, budget int) []chunk {
	parts := e.parts[:0]
	defer func() { e.parts = parts; clear(parts[:cap(parts)]) }()
	total := 0.0
	of := func(s *sequence) int {
		return slices.IndexFunc(parts, func(p part) bool { return p.line == s.line })
	}
	for _, s := range running {
		n := len(s.tokens) - s.computed
		if n == 1 {
			continue
		}
		i := of(s)
		if i < 0 {
			share := max(s.request.Share.Weight, 0)
			if share == 0 {
				share = 1
			}
			i, parts = len(parts), append(parts, part{line: s.line, weight: share})
			total += share
		}
		parts[i].wanted += float64(n)
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.wanted/a.weight, b.wanted/b.weight) })
	for i := range parts { // who wants least goes first, and leaves more to the others
		p := &parts[i]
		p.tokens = int(min(p.wanted, max(1, float64(budget)*p.weight/total)))
		p.tokens = min(p.tokens, budget)
		budget -= p.tokens
		total -= p.weight
	}
	for _, s := range running {
		if n := len(s.tokens) - s.computed; n > 1 {
			p := &parts[of(s)]
			if n = min(n, p.tokens); s.request.replica.sampler.recurrent() {
				n = min(n, s.boundary(s.computed)-s.computed)
			}
			if n > 0 {
				p.tokens -= n
				chunks = append(chunks, chunk{sequence: s, from: s.computed, to: s.computed + n})
			}
		}
	}
	return chunks
}

// preempt puts a running sequence back to the head of those that wait, without its pages.
func (e *Engine) preempt(s *sequence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.request.replica.sampler.takePages(s)
	if s.done {
		return // it is about to be swept
	}
	e.running = slices.DeleteFunc(e.running, func(other *sequence) bool { return other == s })
	e.waiting.back(s)
}
