package runs

import (
	"slices"

	"github.com/tinsmith/tinsmith/plugins"
)

// sampleQueue holds the samples of one model that wait. Owners share the backend's places in proportion to their weights; the sampling sessions of one take turns. Only those given to the backend have a goroutine.
type sampleQueue struct {
	owners  map[string]*ownerQueue
	waiting map[*sampler]*samplerQueue
	running int
	given   int64 // samples ever given to the backend
}

// ownerQueue is one owner's part. It exists while something waits or runs.
type ownerQueue struct {
	turns   []*sampler // those with something waiting
	running int
	last    int64 // number of the sample that was given last
}

// samplerQueue is what waits of one sampling session, in order. It exists while something waits.
type samplerQueue struct {
	jobs      []*sampleJob
	cancelled int // of them
}

func newSampleQueue() sampleQueue {
	return sampleQueue{owners: map[string]*ownerQueue{}, waiting: map[*sampler]*samplerQueue{}}
}

func (q *sampleQueue) push(j *sampleJob) {
	w := q.waiting[j.sampler]
	if w == nil {
		w = &samplerQueue{}
		q.waiting[j.sampler] = w
		o := q.owners[j.sampler.Owner]
		if o == nil {
			o = &ownerQueue{}
			q.owners[j.sampler.Owner] = o
		}
		o.turns = append(o.turns, j.sampler)
	}
	w.jobs = append(w.jobs, j)
}

// cancelled takes note that a waiting sample is over, with its why set. They leave together, when they are half of what their session has waiting: so nobody fills the memory
// with samples that count nowhere any more, and ending a session takes no more time than it has samples.
func (q *sampleQueue) cancelled(s *sampler) {
	w := q.waiting[s]
	if w == nil {
		return
	}
	if w.cancelled++; 2*w.cancelled < len(w.jobs) {
		return
	}
	w.jobs = slices.DeleteFunc(w.jobs, func(j *sampleJob) bool { return j.why != nil })
	w.cancelled = 0
	if len(w.jobs) > 0 {
		return
	}
	delete(q.waiting, s)
	o := q.owners[s.Owner]
	o.turns = slices.DeleteFunc(o.turns, func(x *sampler) bool { return x == s })
	q.tidy(s.Owner)
}

// live counts what waits and is not cancelled.
func (q *sampleQueue) live() int {
	n := 0
	for _, w := range q.waiting {
		n += len(w.jobs) - w.cancelled
	}
	return n
}

// pop gives the next sample of the owner who has the fewest running for its weight, among equals of the one who got one longest ago. It counts as
// running until ended. Nobody keeps others out by being first: where all places are taken it is one of an owner who has less than its part of them, by
// weight among those who have any, and at least one. So at most twice as many run, and one for each owner. Nil: there is none.
func (q *sampleQueue) pop(places int, share func(owner string) plugins.Share) *sampleJob {
	var next *ownerQueue
	var nextName string
	least, all := 0.0, 0.0
	if q.running >= places {
		for name := range q.owners {
			all += share(name).Weight
		}
	}
	for name, o := range q.owners {
		if len(o.turns) == 0 {
			continue
		}
		weight := share(name).Weight
		if all > 0 && o.running >= max(1, int(float64(places)*weight/all)) {
			continue
		}
		load := float64(o.running) / weight
		if next == nil || load < least || load == least && (o.last < next.last || o.last == next.last && name < nextName) {
			next, nextName, least = o, name, load
		}
	}
	if next == nil {
		return nil
	}
	s := next.turns[0]
	next.turns = next.turns[1:]
	w := q.waiting[s]
	j := w.jobs[0]
	w.jobs[0] = nil // its prompt shall not stay for as long as the others wait
	w.jobs = w.jobs[1:]
	if j.why != nil {
		w.cancelled--
	}
	if len(w.jobs) == 0 {
		delete(q.waiting, s)
	} else {
		next.turns = append(next.turns, s)
	}
	q.given++
	q.running++
	next.running++
	next.last = q.given
	return j
}

// begin counts a sample as running that did not wait.
func (q *sampleQueue) begin(j *sampleJob) {
	o := q.owners[j.sampler.Owner]
	if o == nil {
		o = &ownerQueue{}
		q.owners[j.sampler.Owner] = o
	}
	q.running++
	o.running++
}

// ended takes a sample that pop gave or begin counted out of the counts.
func (q *sampleQueue) ended(j *sampleJob) {
	q.running--
	q.owners[j.sampler.Owner].running--
	q.tidy(j.sampler.Owner)
}

// tidy forgets an owner of whom nothing waits or runs.
func (q *sampleQueue) tidy(owner string) {
	if o := q.owners[owner]; o.running == 0 && len(o.turns) == 0 {
		delete(q.owners, owner)
	}
}

// prefixScope says with whom an owner's requests share the beginnings of prompts.
func (c *Core) prefixScope(owner string) string {
	if c.cfg.SharePrefixes {
		return ""
	}
	return owner
}

// share says for whom work is done.
func (c *Core) share(owner string) plugins.Share {
	s := plugins.Share{Key: owner, Weight: c.cfg.Weights[owner]}
	if s.Weight == 0 {
		s.Weight = 1
	}
	return s
}
