package runs

import (
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// Owners share places by weight, sessions of one owner take turns, and nothing of an owner is kept when nothing of it waits or runs.
func TestSampleQueue(t *testing.T) {
	q := newSampleQueue()
	weights := map[string]float64{"ann": 1, "bob": 3}
	share := func(owner string) plugins.Share { return plugins.Share{Key: owner, Weight: weights[owner]} }
	session := func(owner string) *sampler {
		s := &sampler{}
		s.Owner = owner
		return s
	}
	first, second, other := session("ann"), session("ann"), session("bob")
	for range 100 {
		q.push(&sampleJob{sampler: first})
		q.push(&sampleJob{sampler: other})
	}
	q.push(&sampleJob{sampler: second})
	var running []*sampleJob
	had := map[*sampler]int{}
	for range 40 {
		j := q.pop(40, share)
		running = append(running, j)
		had[j.sampler]++
	}
	if had[other] != 30 || had[second] != 1 || had[first] != 9 {
		t.Errorf("of 40 places, weights 1 and 3: %d and %d, and the second session %d", had[first]+had[second], had[other], had[second])
	}
	for _, j := range running {
		q.ended(j)
	}
	n := 0
	for j := q.pop(40, share); j != nil; j = q.pop(40, share) {
		q.ended(j)
		n++
	}
	// Those that were cancelled go with the next ones, in whatever order, and the others keep theirs.
	var waiting []*sampleJob
	cancel := func(jobs ...*sampleJob) {
		for _, j := range jobs {
			j.why = &Failure{}
			q.cancelled(j.sampler)
		}
	}
	for range 10 {
		j := &sampleJob{sampler: first}
		waiting = append(waiting, j)
		q.push(j)
	}
	cancel(waiting[0], waiting[3], waiting[4], waiting[9])
	if got := q.pop(40, share); got != waiting[0] || q.live() != 6 {
		t.Errorf("popped %p, want the first; %d live", got, q.live())
	}
	q.ended(waiting[0])
	cancel(waiting[8], waiting[5])
	if got := q.waiting[first].jobs; len(got) != 4 || got[0] != waiting[1] || got[3] != waiting[7] || q.live() != 4 {
		t.Errorf("%d are left, %d live", len(got), q.live())
	}
	if got := q.pop(40, share); got != waiting[1] {
		t.Errorf("popped %p, want the second", got)
	}
	cancel(waiting[2], waiting[6], waiting[7])
	if got := q.pop(40, share); got != nil || len(q.owners) != 1 {
		t.Errorf("popped %p, %d owners; one sample runs", got, len(q.owners))
	}
	q.ended(waiting[1])
	if n != 161 || q.running != 0 || len(q.owners) != 0 || len(q.waiting) != 0 {
		t.Errorf("%d were left, %d run, %d owners and %d sessions are remembered", n, q.running, len(q.owners), len(q.waiting))
	}
}

// An owner who comes while another has all places gets its part of them at once, and no more while they are taken.
func TestSamplePlaces(t *testing.T) {
	q := newSampleQueue()
	weights := map[string]float64{"ann": 1, "bob": 1, "eve": 2}
	share := func(owner string) plugins.Share { return plugins.Share{Key: owner, Weight: weights[owner]} }
	for _, c := range []struct {
		owner string
		want  int // of 100 places
	}{{"ann", 100}, {"bob", 50}, {"eve", 50}, {"ann", 0}, {"bob", 0}} {
		s := &sampler{}
		s.Owner = c.owner
		for range 200 {
			q.push(&sampleJob{sampler: s})
		}
		n := 0
		for j := q.pop(100, share); j != nil; j = q.pop(100, share) {
			if j.sampler != s {
				t.Fatalf("%s got a place while %s waited", j.sampler.Owner, c.owner)
			}
			n++
		}
		if n != c.want {
			t.Errorf("%s got %d, want %d", c.owner, n, c.want)
		}
	}
	if q.running != 200 {
		t.Errorf("%d run", q.running)
	}
}
