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
		j := q.pop(share)
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
	for j := q.pop(share); j != nil; j = q.pop(share) {
		q.ended(j)
		n++
	}
	if n != 161 || q.running != 0 || len(q.owners) != 0 || len(q.waiting) != 0 {
		t.Errorf("%d were left, %d run, %d owners and %d sessions are remembered", n, q.running, len(q.owners), len(q.waiting))
	}
}
