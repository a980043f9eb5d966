package engine

import (
	"math/bits"
	"time"
)

// Keys share the sampler's time as well as its places, by weight. Each line of the waiting room has an account of the time that its tokens took, over
// its weight: a step's time is charged by tokens, of prompts and of answers alike. Places alone would have a key that has a single sequence wait in
// every step for the many of another one. So where an account is behind, the lines before it rest for some steps: they keep their places and what they
// have computed, and go on when the other has caught up. They rest only where steps without them are much shorter: where a step takes about as long with
// them, as on a GPU, all go together and nobody loses anything. A line that had nothing to do begins a little behind the others, so that who comes now
// and then is served at once, and has saved up no more than that. What a sequence gives depends on none of it.

// shares are the times by which lines are weighed against each other.
type shares struct {
	ahead   float64 // seconds that an account may be before another one until its line rests
	quantum float64 // and until it gives up its last place; an account begins so far behind
}

// Bounds of shares: a line that has as many places as are left to it has them for leastQuantum and for quantumSteps steps at least, so that sequences do
// not come and go all the time.
const (
	leastQuantum = 0.25 // seconds
	quantumSteps = 16
)

// mostDebt is how many quanta a line's account may be before the clock when it is charged: who took for hours what nobody else wanted does not rest for
// hours when somebody does. It is more than the one quantum by which a line gives up its last place.
const mostDebt = 2

// sharesOf gives the times for steps of so many tokens.
func (p *pace) sharesOf(tokens int) shares {
	step := p.stepSeconds(tokens)
	return shares{ahead: step, quantum: max(leastQuantum, quantumSteps*step)}
}

// stepSeconds is about how long the sampler's step with so many tokens takes, by those of about as many before. What was never measured is taken to be
// in proportion to its tokens: so it is tried.
func (p *pace) stepSeconds(tokens int) float64 {
	if p.fixedStep != nil {
		return p.fixedStep(tokens)
	}
	class := bits.Len(uint(tokens))
	if p.steps[class] > 0 {
		return p.steps[class]
	}
	for distance := 1; distance < len(p.steps); distance++ {
		if i := class - distance; i >= 0 && p.steps[i] > 0 {
			return p.steps[i] * float64(uint64(1)<<distance)
		}
		if i := class + distance; i < len(p.steps) && p.steps[i] > 0 {
			return p.steps[i] / float64(uint64(1)<<distance)
		}
	}
	return 0
}

// sampled notes that a step with so many tokens took d. What takes longer than usual once is mostly another program's doing, so it counts little.
func (p *pace) sampled(tokens int, d time.Duration) {
	usual, took := &p.steps[bits.Len(uint(tokens))], d.Seconds()
	switch {
	case *usual == 0:
		*usual = took
	case took < *usual:
		*usual += (took - *usual) / 3
	default:
		*usual += (min(took, 4**usual) - *usual) / 16
	}
}

// doubt lets the time of steps with so many tokens seem a little shorter than it was: so they are tried again now and then after they have turned out
// not to be worth it.
func (p *pace) doubt(tokens int) { p.steps[bits.Len(uint(tokens))] *= 0.99 }

// partStep parts the chunks of a step: those of lines whose accounts are before others' by so much that they rest in this step, if it is much shorter
// without them, and the rest. The order within each stays.
func (e *Engine) partStep(chunks []chunk) (kept, resting []chunk) {
	e.mu.Lock()
	defer e.mu.Unlock()
	first, several := chunks[0].sequence.line, false
	least, all := first.account, 0
	for _, c := range chunks {
		several = several || c.sequence.line != first
		least = min(least, c.sequence.line.account)
		all += c.to - c.from
	}
	if !several {
		return chunks, nil
	}
	most := least + e.pace.sharesOf(all).ahead
	left := 0
	for _, c := range chunks {
		if c.sequence.line.account <= most {
			left += c.to - c.from
		}
	}
	if left == all {
		return chunks, nil
	}
	if 2*e.pace.stepSeconds(left) > e.pace.stepSeconds(all) {
		e.pace.doubt(left)
		return chunks, nil
	}
	kept, resting = chunks[:0], e.resting[:0]
	for _, c := range chunks {
		if c.sequence.line.account <= most {
			kept = append(kept, c)
		} else {
			resting = append(resting, c)
		}
	}
	e.resting = resting
	return kept, resting
}

// charge enters a step into the accounts of those whose tokens it had. What they had long before is forgotten.
func (e *Engine) charge(steps []step) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, st := range steps {
		for _, c := range st.chunks {
			l := c.sequence.line
			l.account = min(l.account, e.waiting.clock+mostDebt*e.waiting.lead)
		}
	}
	for _, st := range steps {
		all := 0
		for _, c := range st.chunks {
			all += c.to - c.from
		}
		each := e.pace.stepSeconds(all) / float64(all)
		for _, c := range st.chunks {
			l := c.sequence.line
			l.account += each * float64(c.to-c.from) / l.weight
		}
	}
	e.waiting.advance()
}

// advance moves the clock to the least account of the lines that have work. It never goes back.
func (w *waitingRoom) advance() {
	least, any := 0.0, false
	for _, l := range w.lines {
		if (l.placed > 0 || l.waiting() > 0) && (!any || l.account < least) {
			least, any = l.account, true
		}
	}
	if any {
		w.clock = max(w.clock, least)
	}
}

// debtors are the lines that have to give up a place first, if any has to.
type debtors struct {
	most    *line // the one with the most places for its weight, of those that have several
	longest *line // the one with the largest account
}

func (w *waitingRoom) debtors() (d debtors) {
	for _, l := range w.lines {
		if l.placed > 1 && (d.most == nil || float64(l.placed-1)/l.weight > float64(d.most.placed-1)/d.most.weight) {
			d.most = l
		}
		if l.placed > 0 && (d.longest == nil || l.account > d.longest.account) {
			d.longest = l
		}
	}
	return d
}

// owe tells whether a line may have a place that another one has.
func (d debtors) owe(l *line, quantum float64) bool {
	return d.most != nil && d.most.owes(l, 0, quantum) || d.longest != nil && d.longest.owes(l, 0, quantum)
}

// anyClaims tells whether a line with sequences that wait may have a place that another one has.
func (w *waitingRoom) anyClaims(quantum float64) bool {
	d := w.debtors()
	for _, l := range w.lines {
		if l.waiting() > 0 && d.owe(l, quantum) {
			return true
		}
	}
	return false
}

// owes tells whether a line has to give up a place for another one that waits: if both have as many for their weights as before, or closer to it, or the
// other has none; or if it has had its last for so much time more than the other one. The caller counts the places that it has given up already.
func (l *line) owes(other *line, given int, quantum float64) bool {
	left := l.placed - given - 1
	if l == other || left < 0 {
		return false
	}
	if left > 0 && (other.placed == 0 || other.load(1) <= float64(left)/l.weight) {
		return true
	}
	return other.placed == 0 && l.account-other.account > quantum
}
