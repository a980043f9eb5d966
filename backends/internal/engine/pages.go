package engine

import (
	"sync/atomic"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// The memory of the sampler's pages belongs to whoever needs it. Training passes and adapters that do not fit get whole blocks of pages on which nothing is, and as the last resort those on which something is cached; no
// sequence loses a page that it holds. The sampler has the blocks back when sequences wait for them and the memory is free again. So many pages as the longest sequence takes always stay, so that sampling never stands still
// for a long training pass. What a sequence gives does not depend on it: a page is cleared before it is used, and what is not cached any more is computed again. All of it is the device goroutine's.

// lendablePages is how many of the pages of a sampler may be given back at most, if so many are kept.
func lendablePages(pages, kept int) int {
	last := (pages-1)%kvcache.BlockPages + 1 // the last block may be smaller
	n := 0
	for give := last; pages-n-give >= kept && n < pages; give = kvcache.BlockPages {
		n += give
	}
	return n
}

// lends tells whether a replica's sampler can give pages back. Before there is one it goes by where they will be: devices with memory of their own cannot.
func (r *replica) lends() bool {
	if r.sampler != nil {
		return r.sampler.lends
	}
	_, own := r.devices[0].(tensor.OwnMemory)
	return !own
}

// returnable is the memory of the pages of all samplers that may be given back at most by a plan.
func (l *loaded) returnable(p *memoryPlan) int64 {
	var n int64
	for _, r := range l.sampling {
		if r.lends() {
			n += int64(lendablePages(p.positions/kvcache.PageSize, p.kept)) * pagesBytes(r.models)
		}
	}
	return n
}

// relieve frees memory for adapters that no step needs; see residency.
func (l *loaded) relieve(last bool) bool {
	if last {
		return l.givePages(true)
	}
	return l.shrink() || l.givePages(false)
}

// givePages gives the memory of one block of pages back, and tells whether there was one: with cached, of pages that are only kept as a cache too.
func (l *loaded) givePages(cached bool) bool {
	for _, r := range l.sampling {
		if r.sampler.give(l.plan.kept, cached) {
			return true
		}
	}
	return false
}

func (p *sampler) give(kept int, cached bool) bool {
	if !p.lends {
		return false
	}
	b, ok := p.cache.GiveBack(kept, cached)
	for !ok && cached && p.reclaim() {
		b, ok = p.cache.GiveBack(kept, cached)
	}
	if ok && !p.discard(b) {
		p.cache.TakeBack(b)
		p.lends = false
		return false
	}
	if ok {
		p.memory.give(p.blockBytes(b))
	}
	return ok
}

// discard gives the memory of a block back on all ranks, and tells whether they can do that.
func (p *sampler) discard(b kvcache.Block) bool {
	var cannot atomic.Bool
	err := p.replica.each(func(rank int) error {
		done, err := p.pages[rank].Discard(b.First, b.Count)
		if !done {
			cannot.Store(true)
		}
		return err
	}, nil)
	return err == nil && !cannot.Load()
}

func (p *sampler) blockBytes(b kvcache.Block) int64 {
	return int64(b.Count) * pagesBytes(p.replica.models)
}

// fetchPages has blocks that were given back come back to samplers whose free pages do not suffice for the sequences that run and those that wait first, as far as there is memory. If what is cached does not suffice either,
// what training passes hold between them is given up for it, and idle adapters go to files; what a pass or a step is using stays.
func (e *Engine) fetchPages() {
	l := e.loaded
	if l.passing && (len(l.training) > 1 || len(l.training[0].models) > 1) {
		return // not all ranks have taken yet what they need
	}
	wanted := -1
	for _, r := range l.sampling {
		p := r.sampler
		for p.cache.Absent() > 0 {
			if wanted < 0 {
				wanted = e.wantedPages()
			}
			if p.cache.Free() >= wanted || !p.fetch(l, p.cache.Available() < wanted) {
				break
			}
		}
	}
}

// wantedPages is how many pages the sequences need that wait first, if they share none, and one for each that is running.
func (e *Engine) wantedPages() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.running)
	for s := range e.waiting.first() {
		n += max(1, pagesOf(s.tokens)-len(s.pages))
	}
	return n
}

// fetch takes one block back if there is memory for it, or, with relief, if others can make room. It tells whether it has.
func (p *sampler) fetch(l *loaded, relief bool) bool {
	b, ok := p.cache.Missing()
	if !ok {
		return false
	}
	for !p.memory.take(p.blockBytes(b)) {
		if !relief {
			return false
		}
		if l.shrink() {
			continue
		}
		if moved, _ := l.adapters.moveOut(0); !moved {
			return false
		}
	}
	p.cache.TakeBack(b)
	return true
}
