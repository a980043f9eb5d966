package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/plugins"
)

// fill takes pages of each replica, as sequences that run there would, until the function it gives is called.
func fill(t *testing.T, e *Engine, pages []int) (release func()) {
	t.Helper()
	taken := make([][]int32, len(pages))
	hook(t, e, func() {
		for i, n := range pages {
			var ok bool
			if taken[i], ok = e.loaded.sampling[i].sampler.cache.Allocate(n); !ok {
				t.Errorf("replica %d has no %d pages", i, n)
			}
		}
	})
	return func() {
		hook(t, e, func() {
			for i, p := range taken {
				e.loaded.sampling[i].sampler.cache.Release(p)
			}
		})
	}
}

// keeps counts the full pages of a prompt that each replica has in its prefix cache: what was sampled there leaves them behind.
func keeps(t *testing.T, e *Engine, key kvcache.Key, prompt []int32) (pages []int) {
	t.Helper()
	hook(t, e, func() {
		for _, r := range e.loaded.sampling {
			held := r.sampler.cache.Match(key, prompt)
			r.sampler.cache.Release(held)
			pages = append(pages, len(held))
		}
	})
	return pages
}

// sendTogether makes requests that are all there before the first is looked at, in this order.
func sendTogether(t *testing.T, e *Engine, requests ...plugins.SampleRequest) []sampled {
	t.Helper()
	results := make([]sampled, len(requests))
	var done sync.WaitGroup
	release := block(t, e, nil)
	sequences := 0
	for i, q := range requests {
		done.Go(func() {
			var err error
			if results[i], err = collect(t.Context(), e, q); err != nil {
				t.Error(err)
			}
		})
		sequences += q.NumSamples
		eventually(t, "the request waits", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.waiting.count == sequences
		})
	}
	release()
	done.Wait()
	return results
}

// A request is sampled on the replica with the most room, among equals on the one that has most of its prompt in pages, and all its sequences on the same one.
func TestRequestsGoWhereThereIsRoom(t *testing.T) {
	random := rand.New(rand.NewPCG(14, 1))
	const full = 3 // pages of the prompt
	prompt := randomTokens(random, full*kvcache.PageSize+5)
	all := func(n int) (requests []plugins.SampleRequest) { // with prompts of their own, but for the first
		for i := range n {
			q := ask(fmt.Sprint("q", i), "", prompt, 1, 4)
			if i > 0 {
				q.Prompt = randomTokens(random, len(prompt))
			}
			requests = append(requests, q)
		}
		return requests
	}
	for _, c := range []struct {
		name     string
		replicas int
		settings string
		before   [][2]int // pages of the prompt that a replica gets before
		filled   []int    // pages of each replica that are taken
		requests int
		samples  int   // of the first request
		want     []int // the replica of each request
	}{
		{name: "the first has more room", replicas: 2, filled: []int{0, 1}, requests: 1, want: []int{0}},
		{name: "the second has more room", replicas: 2, filled: []int{1, 0}, requests: 1, want: []int{1}},
		{name: "the third of four has most", replicas: 4, filled: []int{3, 2, 1, 2}, requests: 1, want: []int{2}},
		{name: "equal room, the first has the prompt", replicas: 2, before: [][2]int{{0, full}}, requests: 1, want: []int{0}},
		{name: "equal room, the second has the prompt", replicas: 2, before: [][2]int{{1, full}}, requests: 1, want: []int{1}},
		{name: "equal room, the second of three has more of the prompt", replicas: 3, before: [][2]int{{0, 1}, {1, 2}, {2, 1}}, requests: 1, want: []int{1}},
		{name: "room counts more than the prompt", replicas: 2, before: [][2]int{{0, full}}, filled: []int{1, 0}, requests: 1, want: []int{1}},
		{name: "of four two have more room, of which the last has a little of the prompt", replicas: 4, before: [][2]int{{0, full}, {3, 1}}, filled: []int{1, 1, 0, 0}, requests: 1, want: []int{3}},
		{name: "each request takes room from the next", replicas: 3, filled: []int{1, 0, 2}, requests: 3, want: []int{1, 0, 2}},
		{name: "no more sequences than max_batch", replicas: 2, settings: `"max_batch": 1`, filled: []int{0, 20}, requests: 2, want: []int{0, 1}},
		{name: "the samples of a request stay together", replicas: 3, filled: []int{0, 1, 1}, requests: 1, samples: 6, want: []int{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := placement{"", "dataparallel", `{"kv_cache_tokens": 2048, "devices": ["cpu"` + strings.Repeat(`, "cpu"`, c.replicas-1) + `]}`}
			if c.settings != "" {
				p = p.with(c.settings)
			}
			e := place(t, p)
			for i, b := range c.before {
				others := slices.Repeat([]int{4}, c.replicas)
				others[b[0]] = 0
				release := fill(t, e, others)
				sendTogether(t, e, ask(fmt.Sprint("before", i), "", prompt[:b[1]*kvcache.PageSize+1], 1, 1))
				release()
			}
			had := keeps(t, e, kvcache.Key{}, prompt)
			for _, b := range c.before {
				if had[b[0]] != b[1] {
					t.Fatalf("replicas have %v pages of the prompt, want %v", had, c.before)
				}
			}
			defer fill(t, e, append(c.filled, make([]int, c.replicas-len(c.filled))...))()
			requests := all(c.requests)
			if c.samples > 0 {
				requests[0].NumSamples = c.samples
			}
			before := e.counters.prefillTokens.Load()
			sendTogether(t, e, requests...)
			for i, q := range requests {
				for r, n := range keeps(t, e, kvcache.Key{}, q.Prompt) {
					if i == 0 && had[r] > 0 && r != c.want[i] {
						continue // it had them before
					}
					if there := n == full; there != (r == c.want[i]) {
						t.Errorf("request %d: replica %d has %d of %d pages of its prompt; want it on %d", i, r, n, full, c.want[i])
					}
				}
			}
			if len(c.before) == 0 {
				return
			}
			computed, want := e.counters.prefillTokens.Load()-before, int64(len(prompt)-had[c.want[0]]*kvcache.PageSize)
			if computed != want {
				t.Errorf("%d tokens of the prompt were computed, want %d: those that replica %d did not have", computed, want, c.want[0])
			}
		})
	}
}

// There is no replica without a version: as soon as there is a new one, requests for it are spread over all GPUs, and each gives the same.
func TestVersionsAreOnAllReplicas(t *testing.T) {
	e := placeOnCUDA(t, placement{plugin: "dataparallel", section: `{"devices": ["cuda:0", "cuda:1"]` + smallMemory + `}`}, 2)
	random := rand.New(rand.NewPCG(14, 2))
	d := create(t, e, "a", 1, 2)
	prompt := randomTokens(random, kvcache.PageSize+1)
	var last []float32
	for version := range int64(2) {
		if version > 0 {
			d.pass(randomData(random, 1, 6))
			d.step()
		}
		results := sendTogether(t, e, ask("q0", d.adapter, prompt, 1, 2), ask("q1", d.adapter, prompt, 1, 2))
		if t.Failed() {
			return
		}
		key := kvcache.Key{Version: version}
		hook(t, e, func() { key.Adapter = e.runs[d.adapter].number })
		if pages := keeps(t, e, key, prompt); !slices.Equal(pages, []int{1, 1}) {
			t.Errorf("version %d: the prompt was computed for %v pages of the replicas, want one of each", version, pages)
		}
		logprobs := results[0].sequences[0].Logprobs
		equalBits(t, fmt.Sprint("version ", version), results[1].sequences[0].Logprobs, logprobs)
		if slices.Equal(logprobs, last) {
			t.Errorf("version %d gives what the one before it gives", version)
		}
		last = logprobs
	}
}
