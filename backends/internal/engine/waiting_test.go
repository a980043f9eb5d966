package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// waiter makes a sequence of one token that may generate so many.
func waiter(name, key string, weight float64, tokens int) *sequence {
	q := &request{SampleRequest: plugins.SampleRequest{ID: name, Prompt: []int32{1}, MaxTokens: tokens, Share: plugins.Share{Key: key, Weight: weight}}}
	s := &sequence{request: q, tokens: q.Prompt}
	q.sequences = []*sequence{s}
	return s
}

// places gives n places and names who got them.
func places(w *waitingRoom, n int) (names []string, got []*sequence) {
	w.serve(func(s *sequence) answer {
		if len(got) == n {
			return enough
		}
		names, got = append(names, s.request.ID), append(got, s)
		return placed
	})
	return names, got
}

func TestWaitingRoom(t *testing.T) {
	join := func(w *waitingRoom, sequences ...*sequence) {
		for _, s := range sequences {
			w.join(s)
		}
	}
	crowd := func(w *waitingRoom, key string, weight float64, n, tokens int) (all []*sequence) {
		for i := range n {
			all = append(all, waiter(fmt.Sprint(key, i), key, weight, tokens))
		}
		join(w, all...)
		return all
	}
	t.Run("first come first served within a line", func(t *testing.T) {
		w := newWaitingRoom()
		crowd(&w, "a", 1, 4, 10)
		if got, _ := places(&w, 3); !slices.Equal(got, []string{"a0", "a1", "a2"}) || w.count != 1 {
			t.Errorf("%v, %d left", got, w.count)
		}
	})
	t.Run("keys take turns", func(t *testing.T) {
		w := newWaitingRoom()
		crowd(&w, "a", 1, 100, 10)
		places(&w, 5)
		crowd(&w, "b", 1, 2, 10)
		if got, _ := places(&w, 4); !slices.Contains(got[:2], "b0") || !slices.Contains(got, "b1") {
			t.Errorf("%v: the second key waits for the first one's crowd", got)
		}
	})
	t.Run("who has fewer places gets the next", func(t *testing.T) {
		w := newWaitingRoom()
		crowd(&w, "a", 1, 200, 10)
		places(&w, 10)
		crowd(&w, "b", 1, 200, 10)
		got, _ := places(&w, 30)
		if n := len(slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "a") })); n != 20 {
			t.Errorf("the key without places got %d of 30 while another had 10", n)
		}
	})
	t.Run("a key that comes late has saved up its lead and no more", func(t *testing.T) {
		w := newWaitingRoom()
		w.lead = 3
		crowd(&w, "a", 1, 2, 10)
		crowd(&w, "c", 1, 2, 10)
		places(&w, 2)
		w.lines["a"].account, w.lines["c"].account = 40, 50
		w.advance()
		crowd(&w, "b", 1, 2, 10)
		if got := w.lines["b"].account; got != 37 {
			t.Errorf("the account begins at %v, want 37", got)
		}
		got, _ := places(&w, 1)
		if !slices.Equal(got, []string{"b0"}) {
			t.Errorf("%v", got)
		}
	})
	t.Run("between those with as many places the smaller account decides", func(t *testing.T) {
		w := newWaitingRoom()
		crowd(&w, "a", 1, 3, 10)
		crowd(&w, "b", 1, 3, 10)
		w.lines["a"].account = 1
		if got, _ := places(&w, 3); !slices.Equal(got, []string{"b0", "a0", "b1"}) {
			t.Errorf("%v", got)
		}
	})
	t.Run("by weight", func(t *testing.T) {
		w := newWaitingRoom()
		crowd(&w, "a", 1, 100, 9)
		crowd(&w, "b", 3, 100, 9)
		got, _ := places(&w, 40)
		if n := len(slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "a") })); n != 30 {
			t.Errorf("the key of three times the weight got %d of 40 places", n)
		}
	})
	t.Run("claims", func(t *testing.T) {
		for _, c := range []struct {
			name            string
			places, others  int // of the line that may have to give up one, and of the one that waits
			weight, weight2 float64
			ahead           float64 // the first one's account before the other's
			want            bool
		}{
			{"who has none has a claim to one of several", 2, 0, 1, 1, 0, true},
			{"and to one of an equal who was given no more", 1, 0, 1, 1, 0, false},
			{"but when that was given much more", 1, 0, 1, 1, 11, true},
			{"up to as many", 33, 31, 1, 1, 0, true},
			{"and no more", 33, 32, 1, 1, 0, false},
			{"nor by the account, while it has some", 32, 32, 1, 1, 11, false},
			{"by weight", 16, 47, 1, 3, 0, false},
			{"by weight, one is lacking", 18, 46, 1, 3, 0, true},
			{"a small weight still has one", 64, 0, 1, 0.001, 0, true},
		} {
			w := newWaitingRoom()
			crowd(&w, "a", c.weight, c.places, 10)
			places(&w, c.places)
			crowd(&w, "b", c.weight2, c.others+1, 10)
			places(&w, c.others)
			a, b := w.lines["a"], w.lines["b"]
			a.account += c.ahead
			if got := w.debtors().owe(b, 10); got != c.want || w.anyClaims(10) != c.want || a.owes(b, 0, 10) != c.want {
				t.Errorf("%s: %v", c.name, got)
			}
			if w.debtors().owe(a, 10) && c.ahead == 0 {
				t.Errorf("%s: the other way round as well", c.name)
			}
		}
	})
	t.Run("nobody keeps others out", func(t *testing.T) {
		w := newWaitingRoom()
		crowd(&w, "a", 1, 10, 10)
		for _, c := range []struct {
			key    string
			weight float64
			n      int
			want   bool
		}{{"a", 1, 1, false}, {"b", 1, 10, true}, {"a", 1, 1, false}} {
			if got := w.accepts(plugins.Share{Key: c.key, Weight: c.weight}, c.n, 10); got != c.want {
				t.Errorf("%d of %s: %v", c.n, c.key, got)
			}
		}
		crowd(&w, "b", 3, 6, 10)
		for n, want := range map[int]bool{1: true, 2: false} { // its part is seven and a half
			if got := w.accepts(plugins.Share{Key: "b", Weight: 3}, n, 10); got != want {
				t.Errorf("%d of b: %v", n, got)
			}
		}
	})
	t.Run("the order is that of the lines as they are", func(t *testing.T) {
		random := rand.New(rand.NewPCG(35, 1))
		for range 50 {
			w := newWaitingRoom()
			for i := range 30 {
				crowd(&w, fmt.Sprint("k", i, "-"), float64(1+random.IntN(3)), 1+random.IntN(4), 10)
			}
			for _, l := range w.lines {
				l.account = float64(random.IntN(5))
			}
			answers := map[*line]answer{} // the last ones
			w.serve(func(s *sequence) answer {
				for _, l := range w.lines {
					if last, any := answers[l]; (!any || last == placed) && l.waiting() > 0 && before(l, s.line) {
						t.Fatalf("%s is asked before one of %s", s.request.ID, l.key)
					}
				}
				a := []answer{waitsOn, placed, placed, othersOnly}[random.IntN(4)]
				if last, any := answers[s.line]; any && last == othersOnly {
					t.Fatalf("%s is asked", s.request.ID)
				} else if any && last == waitsOn {
					return waitsOn
				}
				answers[s.line] = a
				if other := w.lines[fmt.Sprint("k", random.IntN(30), "-")]; a == placed && other.placed > 0 && other != s.line {
					other.placed-- // its place was taken
				}
				return a
			})
		}
	})
	t.Run("many lines of which none can have a place", func(t *testing.T) {
		w := newWaitingRoom()
		for i := range 50_000 { // in minutes, if each were compared with each
			crowd(&w, fmt.Sprint("k", i), 1, 1, 10)
		}
		asked := 0
		w.serve(func(*sequence) answer { asked++; return waitsOn })
		if asked != 50_000 {
			t.Errorf("%d were asked", asked)
		}
	})
	t.Run("one that cannot have a place is passed over", func(t *testing.T) {
		w := newWaitingRoom()
		crowd(&w, "a", 1, 3, 10)
		var asked []string
		w.serve(func(s *sequence) answer {
			asked = append(asked, s.request.ID)
			if s.request.ID == "a0" {
				return waitsOn
			}
			return placed
		})
		if !slices.Equal(asked, []string{"a0", "a1", "a2"}) || w.count != 1 {
			t.Errorf("asked %v, %d left", asked, w.count)
		}
		if got, _ := places(&w, 9); !slices.Equal(got, []string{"a0"}) {
			t.Errorf("then %v", got)
		}
	})
	t.Run("who gave up its place is first", func(t *testing.T) {
		w := newWaitingRoom()
		all := crowd(&w, "a", 1, 3, 10)
		places(&w, 2)
		w.back(all[1])
		if got, _ := places(&w, 9); !slices.Equal(got, []string{"a1", "a2"}) {
			t.Errorf("got %v", got)
		}
	})
	t.Run("those that ended leave nothing", func(t *testing.T) {
		w := newWaitingRoom()
		all := crowd(&w, "a", 1, 10_000, 10)
		for _, s := range all[:9_990] {
			w.leave(s)
		}
		if n := len(w.lines["a"].sequences); w.count != 10 || n > 200 {
			t.Errorf("%d wait, the line holds %d", w.count, n)
		}
		if got, _ := places(&w, 20); len(got) != 10 || got[0] != "a9990" {
			t.Errorf("got %v", got)
		}
	})
	t.Run("lines of many keys are forgotten", func(t *testing.T) {
		w := newWaitingRoom()
		for i := range 10 * idleLines {
			s := waiter("s", fmt.Sprint("key", i), 1, 10)
			w.join(s)
			_, got := places(&w, 1)
			w.leavePlace(got[0])
		}
		if len(w.lines) > idleLines {
			t.Errorf("%d lines are remembered", len(w.lines))
		}
	})
}

// Ten thousand sequences wait without a goroutine each, one more is refused, and all end at once when they are cancelled.
func TestManyWait(t *testing.T) {
	e := start(t, `{"max_waiting": 10000, "max_batch": 4}`)
	create(t, e, "a", 1, 4)
	release := block(t, e, nil)
	goroutines := runtime.NumGoroutine()
	prompt := make([]int32, 400)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for i := range 10 { // a thousand samples each
		group.Go(func() {
			q := ask(fmt.Sprint("q", i), "a", prompt, 1000, 8)
			if _, err := collect(ctx, e, q); plugins.KindOf(err) != plugins.KindCancelled {
				t.Errorf("request %d ended with %v", i, err)
			}
		})
	}
	eventually(t, "all wait", func() bool { return e.status(time.Now()).WaitingSamples == 10_000 })
	if n := runtime.NumGoroutine() - goroutines; n > 20 {
		t.Errorf("%d goroutines for ten requests", n)
	}
	if _, err := collect(t.Context(), e, ask("more", "", prompt, 1, 8)); !errors.Is(err, plugins.ErrCapacity) {
		t.Errorf("one more: %v, want KindCapacity", err)
	}
	cancel()
	group.Wait()
	if n := e.status(time.Now()).WaitingSamples; n != 0 {
		t.Errorf("%d wait after all were cancelled", n)
	}
	release()
}
