package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
)

// TestConversationAfterItsStatesWent: where the states behind a conversation's pages had to go while the pages stay, one turn is computed from the beginning, and the next one goes on from it.
func TestConversationAfterItsStatesWent(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 3))
	e := denseHybrid.start(t, `{"max_batch": 1, "kv_cache_tokens": 8192}`)
	cached := func(name string, prompt []int32) int {
		t.Helper()
		got, err := collect(t.Context(), e, ask(name, "", prompt, 1, 2))
		if err != nil {
			t.Fatal(err)
		}
		return got.prompt.CachedTokens
	}
	turn := randomTokens(random, 80)
	cached("turn 1", turn)
	hook(t, e, func() { e.loaded.sampling[0].sampler.cache.DropSnapshots() })
	for i, want := range []int{0, 128, 192} {
		turn = append(slices.Clone(turn), randomTokens(random, 70)...)
		if got := cached(fmt.Sprint("turn ", i+2), turn); got != want {
			t.Errorf("turn %d: %d tokens were cached, want %d", i+2, got, want)
		}
	}
}

// TestSnapshotsOfAPrompt: a prompt in many chunks takes no more slots than one in few.
func TestSnapshotsOfAPrompt(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 3))
	e := denseHybrid.start(t, `{"prefill_tokens": 64}`)
	hook(t, e, func() { e.pace.fixedPrefill = 64 })
	prompt := randomTokens(random, 330)
	if _, err := collect(t.Context(), e, ask("a", "", prompt, 1, 1)); err != nil {
		t.Fatal(err)
	}
	hook(t, e, func() {
		c := e.loaded.sampling[0].sampler.cache
		for n := kvcache.PageSize; n <= 320; n += kvcache.PageSize {
			pages, _ := c.MatchState(kvcache.Key{}, prompt[:n])
			c.Release(pages)
			want := 0
			if n == 320 {
				want = 5
			}
			if len(pages) != want {
				t.Errorf("%d tokens go on from %d pages, want %d", n, len(pages), want)
			}
		}
	})
}

// TestStatesWhereOthersGoOn: of several that wait for one prompt, each finds a state where it parts from it.
func TestStatesWhereOthersGoOn(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 3))
	e := denseHybrid.start(t, `{}`)
	a := randomTokens(random, 330)
	prompts := [][]int32{a, slices.Concat(a[:70], randomTokens(random, 60)), slices.Concat(a[:260], randomTokens(random, 20))}
	release := block(t, e, nil)
	waiting := func() int {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.waiting.count
	}
	results := make([]sampled, len(prompts))
	var calls []func()
	for i, p := range prompts {
		calls = append(calls, func() {
			eventually(t, "those before wait", func() bool { return waiting() >= i })
			var err error
			if results[i], err = collect(t.Context(), e, ask(fmt.Sprint("q", i), "", p, 1, 3)); err != nil {
				t.Error(err)
			}
		})
	}
	calls = append(calls, func() {
		eventually(t, "all wait", func() bool { return waiting() == len(prompts) })
		release()
	})
	together(calls...)
	for i, want := range []int{0, 64, 256} {
		if got := results[i].prompt.CachedTokens; got != want {
			t.Errorf("request %d: %d tokens were cached, want %d", i, got, want)
		}
	}
}
