package runs

import "github.com/tinsmith/tinsmith/plugins"

// sampleQueue holds the samples of one model that wait. Owners share the backend's places in proportion to their weights; the sampling sessions of one take turns. Only those given to the backend have a goroutine.
type sampleQueue struct {
	owners  map[string]*ownerQueue
	waiting map[*sampler][]*sampleJob
	running int
	given   int64 // samples ever given to the backend
}

// ownerQueue is one owner's part. It exists while something waits or runs.
type ownerQueue struct {
	turns   []*sampler // those with something waiting
	running int
	last    int64 // number of the sample that was given last
}

func newSampleQueue() sampleQueue {
	return sampleQueue{owners: map[string]*ownerQueue{}, waiting: map[*sampler][]*sampleJob{}}
}

func (q *sampleQueue) push(j *sampleJob) {
	list := q.waiting[j.sampler]
	if len(list) == 0 {
		o := q.owners[j.sampler.Owner]
		if o == nil {
			o = &ownerQueue{}
			q.owners[j.sampler.Owner] = o
		}
		o.turns = append(o.turns, j.sampler)
	}
	q.waiting[j.sampler] = append(list, j)
}

// pop gives the next sample of the owner who has the fewest running for its weight, among equals of the one who got one longest ago. It counts as running until ended.
func (q *sampleQueue) pop(share func(owner string) plugins.Share) *sampleJob {
	var next *ownerQueue
	least := 0.0
	for name, o := range q.owners {
		if len(o.turns) == 0 {
			continue
		}
		load := float64(o.running) / share(name).Weight
		if next == nil || load < least || load == least && o.last < next.last {
			next, least = o, load
		}
	}
	if next == nil {
		return nil
	}
	s := next.turns[0]
	next.turns = next.turns[1:]
	list := q.waiting[s]
	j := list[0]
	if len(list) == 1 {
		delete(q.waiting, s)
	} else {
		q.waiting[s] = list[1:]
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
	o := q.owners[j.sampler.Owner]
	if o.running--; o.running == 0 && len(o.turns) == 0 {
		delete(q.owners, j.sampler.Owner)
	}
}

// share says for whom work is done.
func (c *Core) share(owner string) plugins.Share {
	s := plugins.Share{Key: owner, Weight: c.cfg.Weights[owner]}
	if s.Weight == 0 {
		s.Weight = 1
	}
	return s
}
