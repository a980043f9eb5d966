package runs

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestSequencer(t *testing.T) {
	start := time.Unix(1000, 0)
	type step struct {
		arrive, refuse int64
		after          time.Duration // overdue is asked that long after start
		want           []int64
		skipped        []span64
		late           bool
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"in order", []step{{arrive: 1, want: []int64{1}}, {arrive: 2, want: []int64{2}}}},
		{"overtaken", []step{{arrive: 3}, {arrive: 2}, {arrive: 1, want: []int64{1, 2, 3}}}},
		{"a refused number is not waited for", []step{{arrive: 1, want: []int64{1}}, {refuse: 2, skipped: []span64{{2, 3}}}, {arrive: 3, want: []int64{3}}}},
		{"refused after the next has arrived", []step{{arrive: 2}, {refuse: 1, want: []int64{2}, skipped: []span64{{1, 2}}}}},
		{"refused before the one below has arrived", []step{{refuse: 2}, {arrive: 1, want: []int64{1}, skipped: []span64{{2, 3}}}}},
		{"a refused number that comes after all", []step{{arrive: 1, want: []int64{1}}, {refuse: 3}, {arrive: 3}, {arrive: 2, want: []int64{2, 3}}}},
		{"a gap ends with the wait", []step{{arrive: 3}, {after: time.Second}, {after: 2 * time.Second, want: []int64{3}, skipped: []span64{{1, 3}}}, {arrive: 2, late: true}, {arrive: 4, want: []int64{4}}}},
		{"several gaps end at once", []step{{arrive: 2}, {arrive: 5}, {after: 2 * time.Second, want: []int64{2, 5}, skipped: []span64{{1, 2}, {3, 5}}}}},
		{"a huge gap costs nothing", []step{{arrive: 1 << 31}, {after: 2 * time.Second, want: []int64{1 << 31}, skipped: []span64{{1, 1 << 31}}}}},
		{"twice", []step{{arrive: 1, want: []int64{1}}, {arrive: 1, late: true}, {arrive: 3}, {arrive: 3, late: true}}},
		{"a refused number within a gap", []step{{refuse: 2}, {arrive: 4}, {after: 2 * time.Second, want: []int64{4}, skipped: []span64{{1, 2}, {2, 3}, {3, 4}}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSequencer(2 * time.Second)
			for i, x := range c.steps {
				var got []int64
				switch {
				case x.arrive != 0:
					ready, ok := s.arrive(x.arrive, start)
					if ok == x.late {
						t.Fatalf("step %d: accepted %v", i, ok)
					}
					got = ready
				case x.refuse != 0:
					got = s.refuse(x.refuse)
				default:
					got = s.overdue(start.Add(x.after))
				}
				if skipped := s.newlySkipped(); !slices.Equal(got, x.want) || !slices.Equal(skipped, x.skipped) {
					t.Fatalf("step %d: got %v and skipped %v, want %v and %v", i, got, skipped, x.want, x.skipped)
				}
			}
		})
	}
}

// Whatever the order of arrival, what is released ascends, nothing is lost and nothing comes twice.
func TestSequencerRandomArrivals(t *testing.T) {
	for round := range uint64(300) {
		r := rand.New(rand.NewPCG(round, 1))
		s := newSequencer(time.Second)
		now := time.Unix(1000, 0)
		numbers := r.Perm(40)
		arrived, released := map[int64]bool{}, []int64{}
		for _, n := range numbers {
			seq := int64(n + 1)
			now = now.Add(time.Duration(r.IntN(300)) * time.Millisecond)
			switch r.IntN(6) {
			case 0: // never comes
			case 1:
				released = append(released, s.refuse(seq)...)
			default:
				ready, ok := s.arrive(seq, now)
				if ok != !s.wasSkipped(seq) {
					t.Fatalf("round %d: %d accepted %v although skipped %v", round, seq, ok, s.wasSkipped(seq))
				}
				if ok {
					arrived[seq] = true
				}
				released = append(released, ready...)
			}
			if d := s.deadline(); !d.IsZero() && !now.Before(d) {
				released = append(released, s.overdue(now)...)
				if d := s.deadline(); !d.IsZero() && !now.Before(d) {
					t.Fatalf("round %d: something is still overdue", round)
				}
			}
		}
		released = append(released, s.overdue(now.Add(time.Hour))...)
		if !slices.IsSorted(released) || len(released) != len(arrived) {
			t.Fatalf("round %d: released %v of %d", round, released, len(arrived))
		}
		for _, seq := range released {
			if !arrived[seq] || s.wasSkipped(seq) {
				t.Fatalf("round %d: %d was released", round, seq)
			}
		}
		gaps := s.newlySkipped()
		if !slices.Equal(mergeSpans(gaps), s.skipped) {
			t.Fatalf("round %d: %v were told of what was skipped, %v", round, gaps, s.skipped)
		}
		for _, gap := range gaps {
			for n := gap.From; n < gap.To; n++ {
				if arrived[n] || !s.wasSkipped(n) {
					t.Fatalf("round %d: %d was skipped", round, n)
				}
			}
		}
		if !s.deadline().IsZero() {
			t.Fatalf("round %d: something is held for ever: %v", round, fmt.Sprint(s.held))
		}
	}
}
