package engine

import (
	"cmp"
	"math/bits"
	"slices"
	"time"
)

// Who trains waits for the step of the sampler that is under way, and who sends one small operation after the other meets a step with each of them. A step
// with every place taken can be many times as long as a small cycle. So while a key trains, steps of other keys' samples are bounded: about as long as
// training's cycles are, so that an operation waits about as long as it takes. Sequences that do not fit keep their place and what they have computed, and
// go on in the next steps, each line's in turn, by its account as in share.go. A bound costs the sampler little: it holds only as far as a token takes not
// much longer in a small step than in a large one, as on processors. Where all go in about the time of a few, as on a GPU or where the weights' way from
// memory is what takes time, there is none. Nor is there one for a key's own training: whoever has both wants all of it done soon. What a sequence gives
// depends on none of it.

const (
	// trainsFor is for how long after its last cycle a key counts as training.
	trainsFor = 10 * time.Second
	// leastBound is how short a bounded step may be, in seconds: below that it is mostly what a step takes by itself.
	leastBound = 0.003
	// leastSpeed is which part of the tokens per second of a whole step a bounded one has at least.
	leastSpeed = 0.5
)

// trainers tells which keys have trained lately. It belongs to the device goroutine.
type trainers struct {
	window time.Duration // see trainsFor
	key    string        // of the newest pass
	last   time.Time     // when its cycle ended
	other  time.Time     // when the newest cycle of any other key ended
}

// trained notes that a key had a pass in a cycle that ends now.
func (t *trainers) trained(key string, now time.Time) {
	if key != t.key {
		t.key, t.other = key, t.last
	}
	t.last = now
}

// beside tells whether a key other than one of these lines' has trained lately.
func (t *trainers) beside(lines map[string]*line, now time.Time) bool {
	switch {
	case t.last.IsZero() || now.Sub(t.last) > t.window:
		return false
	case !t.other.IsZero() && now.Sub(t.other) <= t.window:
		return true
	}
	for key, l := range lines {
		if l.placed > 0 && key != t.key {
			return true
		}
	}
	return false
}

// boundsSteps tells whether the sampler's steps have others to consider.
func (e *Engine) boundsSteps() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.loaded.split() && e.trainers.beside(e.waiting.lines, time.Now())
}

// cycled notes how long the device worked for the passes of a cycle.
func (p *pace) cycled(d time.Duration) {
	if p.cycle == 0 {
		p.cycle = d.Seconds()
	}
	p.cycle += (d.Seconds() - p.cycle) / 3
}

// bound is how many seconds a bounded step may take.
func (p *pace) bound() float64 {
	if p.fixedCycle > 0 {
		return p.fixedCycle
	}
	return max(leastBound, p.cycle)
}

// boundTokens is how many of a step's tokens go on in a bounded one. All of them: it is not worth a bound.
func (p *pace) boundTokens(all int) int {
	n := all
	for n > 1 && p.stepSeconds(n) > p.bound() {
		n = smaller(n)
	}
	shortest := n
	for n < all && float64(n)/p.stepSeconds(n) < leastSpeed*float64(all)/p.stepSeconds(all) {
		n = 2*n + 1
	}
	if n < all && p.stepSeconds(n) > 2*p.stepSeconds(all)/3 { // it is hardly shorter
		n = all
	}
	if n > shortest {
		p.doubt(shortest)
	}
	return min(n, all)
}

// smaller is the most tokens of the class of steps below, see pace.steps.
func smaller(tokens int) int { return 1<<(bits.Len(uint(tokens))-1) - 1 }

// ranked is a chunk's place in the order in which a step is filled.
type ranked struct {
	at  int     // its index
	tag float64 // smallest first: the account that its line has with it
}

// boundStep leaves of the chunks of a step as many as a bounded step may have on each replica, one at least, and adds the others to those that rest. The
// order of what stays is as before.
func (e *Engine) boundStep(chunks, resting []chunk) (kept, rest []chunk) {
	if !e.bounds {
		return chunks, resting
	}
	goes, cut := make([]bool, len(chunks)), false
	for _, r := range e.loaded.sampling {
		cut = e.boundOn(r, chunks, goes) || cut
	}
	if !cut {
		return chunks, resting
	}
	if kept = chunks[:0]; resting == nil {
		resting = e.resting[:0]
	}
	for i, c := range chunks {
		if goes[i] {
			kept = append(kept, c)
		} else {
			resting = append(resting, c)
		}
	}
	e.resting = resting
	return kept, resting
}

// boundOn notes which chunks of a replica go on, and tells whether any does not.
func (e *Engine) boundOn(r *replica, chunks []chunk, goes []bool) (cut bool) {
	order, all := e.ranked[:0], 0
	for i, c := range chunks {
		if c.sequence.request.replica == r {
			order = append(order, ranked{at: i})
			all += c.to - c.from
		}
	}
	e.ranked = order
	tokens := e.pace.boundTokens(all)
	if tokens < all {
		e.rank(chunks, order, e.pace.stepSeconds(tokens)/float64(tokens))
	}
	taken := 0
	for _, o := range order {
		n := chunks[o.at].to - chunks[o.at].from
		if taken > 0 && taken+n > tokens {
			cut = true
			continue
		}
		goes[o.at] = true
		taken += n
	}
	return cut
}

// rank orders chunks by how much their lines will have had with them, if a token takes so many seconds: within a line, who went on longest ago goes first.
func (e *Engine) rank(chunks []chunk, order []ranked, seconds float64) {
	slices.SortStableFunc(order, func(a, b ranked) int { return cmp.Compare(chunks[a.at].sequence.went, chunks[b.at].sequence.went) })
	e.mu.Lock()
	defer e.mu.Unlock()
	accounts := map[*line]float64{}
	for i := range order {
		c := chunks[order[i].at]
		l := c.sequence.line
		if _, known := accounts[l]; !known {
			accounts[l] = l.account
		}
		accounts[l] += seconds * float64(c.to-c.from) / l.weight
		order[i].tag = accounts[l]
	}
	slices.SortStableFunc(order, func(a, b ranked) int { return cmp.Compare(a.tag, b.tag) })
}
