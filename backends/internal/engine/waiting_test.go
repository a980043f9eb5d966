package engine

import (
	"context"
	"errors"
	"fmt"
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
	t.Run("a key that comes late has saved up nothing", func(t *testing.T) {
		w := newWaitingRoom()
		crowd(&w, "a", 1, 200, 10)
		places(&w, 100)
		crowd(&w, "b", 1, 200, 10)
		got, _ := places(&w, 40)
		if n := len(slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "a") })); n < 19 || n > 21 {
			t.Errorf("the late key got %d of 40 places", n)
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
	t.Run("by tokens, as far as they were used", func(t *testing.T) {
		w := newWaitingRoom()
		crowd(&w, "long", 1, 100, 99)
		crowd(&w, "short", 1, 100, 9)
		got, sequences := places(&w, 11)
		if n := len(slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "short") })); n != 1 && n != 2 {
			t.Errorf("%d of 11 places for the key whose requests are ten times as long", n)
		}
		for _, s := range sequences { // all stop at once
			w.leavePlace(s)
		}
		if long, short := w.lines["long"], w.lines["short"]; long.tag > 5 || short.tag > 11 {
			t.Errorf("tags %v and %v: what was not used is still charged", long.tag, short.tag)
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
