package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// of has a request done for a key.
func of(q plugins.SampleRequest, key string, weight float64) plugins.SampleRequest {
	q.Share = plugins.Share{Key: key, Weight: weight}
	return q
}

// Devices whose steps take longer the more tokens they have, and ones whose steps do not, in seconds.
func byTokens(tokens int) float64 { return 0.001 * float64(4+tokens) }
func byStep(int) float64          { return 0.01 }

// watched gives an engine and calls each with every step of the sampler: how many tokens of each key it has.
func watched(t *testing.T, section string, seconds func(int) float64, each func(tokens map[string]int)) *Engine {
	t.Helper()
	var e *Engine
	o := testOptions()
	o.OpenDevice = func(c Config) (tensor.Device, error) {
		d, err := cpu.New(cpu.Options{Threads: c.Threads})
		return &faulty{Device: d, gather: func([]int32) error {
			tokens := map[string]int{}
			for _, c := range e.loaded.sampling[0].sampler.step.through {
				tokens[c.sequence.request.Share.Key] += c.to - c.from
			}
			each(tokens)
			return nil
		}}, err
	}
	dir := t.TempDir()
	if err := writeTiny(dir); err != nil {
		t.Fatal(err)
	}
	e = New(o)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Config: []byte(section)}, nil); err != nil {
		t.Fatal(err)
	}
	hook(t, e, func() { e.pace.fixedStep = seconds })
	return e
}

// crowdOf makes requests of one key that keep all places for long.
func crowdOf(key string, requests, samples, tokens int) (all []plugins.SampleRequest) {
	random := rand.New(rand.NewPCG(31, uint64(requests)))
	for i := range requests {
		q := of(ask(fmt.Sprint(key, i), "", randomTokens(random, 5+30*i), samples, tokens), key, 1)
		q.Seed, q.FrequencyPenalty = uint64(i), 0.5
		all = append(all, q)
	}
	return all
}

// While a key has all places and more waiting, another one's short sample is done before any of the first one's has ended, on every placement and also
// where pages are so few that parked sequences lose theirs. The crowd's results are those of a quiet server, and so are the neighbour's.
func TestNeighbourOfACrowd(t *testing.T) {
	crowd := crowdOf("crowd", 3, 8, 180)
	small := func(i int) plugins.SampleRequest {
		return of(ask(fmt.Sprint("small", i), "", randomTokens(rand.New(rand.NewPCG(32, uint64(i))), 135), 2, 4), "neighbour", 1) // of three pages
	}
	const rounds = 3
	for i, p := range slices.Concat([]placement{{"single", "single", `{"threads": 2}`}}, copies[:1], cuts[:1], copies[1:2], sharded[:1], cuts[2:3], splits[:1], mixed[1:2]) {
		for _, tight := range []bool{false, true} {
			if tight && i > 2 {
				continue
			}
			t.Run(fmt.Sprintf("%s, few pages %v", p.name, tight), func(t *testing.T) {
				section := `"max_batch": 3`
				if tight {
					section += `, "kv_cache_tokens": 512, "max_context_length": 256` // eight pages; a sequence of the crowd comes to three or four
				}
				// Devices begin when the whole crowd is there. They stand where its first sequence, and with it two more, have two pages each, of which the neighbour needs one, and go on only while the neighbour has a
				// request: where several sample, not to the end of the first sequence, for the neighbour's may be with another one, which is slow.
				var e *Engine
				crowded, begun, round := atomic.Bool{}, atomic.Bool{}, atomic.Int64{} // the neighbour's rounds are counted from 1 on
				standing := make(chan struct{}, 1)
				there := func(q plugins.SampleRequest) bool { return e.requests[q.ID] != nil }
				stands := func() bool {
					e.mu.Lock()
					defer e.mu.Unlock()
					if !begun.Load() && !(there(crowd[0]) && there(crowd[1]) && there(crowd[2])) {
						return true
					}
					begun.Store(true)
					generated, n := 0, int(round.Load())
					if q := e.requests[crowd[0].ID]; q != nil {
						generated = q.sequences[0].generated()
					}
					if n > 0 {
						return generated >= 170 && len(e.loaded.sampling) > 1 || !there(small(n-1)) || !slices.ContainsFunc(e.requests[small(n-1).ID].sequences, func(s *sequence) bool { return !s.done })
					}
					if generated < 62 {
						return false
					}
					select {
					case standing <- struct{}{}:
					default:
					}
					return true
				}
				o := testOptions()
				o.OpenDevice = func(c Config) (tensor.Device, error) {
					d, err := cpu.New(cpu.Options{Threads: c.Threads})
					return &faulty{Device: d, gather: func([]int32) error {
						for crowded.Load() && stands() {
							time.Sleep(time.Millisecond)
						}
						return nil
					}}, err
				}
				e = placeWith(t, p.with(section), o)
				t.Cleanup(func() { crowded.Store(false) })
				hook(t, e, func() { e.pace.fixedStep = byTokens })
				want := map[string]sampled{}
				for _, q := range append(slices.Clone(crowd), small(0), small(1), small(2)) {
					s, err := collect(t.Context(), e, q)
					if err != nil {
						t.Fatal(err)
					}
					want[q.ID] = s
				}
				crowded.Store(true)
				var mu sync.Mutex
				again := 0
				got := map[string]sampled{}
				var group sync.WaitGroup
				for _, q := range crowd {
					group.Go(func() {
						s, err := collect(t.Context(), e, q)
						if err != nil {
							t.Error(err)
						}
						mu.Lock()
						defer mu.Unlock()
						got[q.ID] = s
					})
					eventually(t, "the request is there", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return there(q) }) // in this order
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				select {
				case <-standing:
				case <-ctx.Done():
					t.Fatal("the crowd's first sequence does not get on")
				}
				e.mu.Lock()
				requests := slices.Collect(maps.Values(e.requests))
				e.mu.Unlock()
				for i := range rounds {
					q := small(i)
					round.Add(1)
					s, err := collect(ctx, e, q)
					if err != nil {
						t.Fatal(err)
					}
					mu.Lock()
					got[q.ID] = s
					mu.Unlock()
				}
				// Cancelling the crowd's first sequence tells whether it was still under way.
				if err := e.Cancel(t.Context(), plugins.CancelRequest{ID: crowd[0].ID, Sequence: 0}); err != nil {
					t.Error(err)
				}
				crowded.Store(false)
				group.Wait()
				hook(t, e, func() {
					for _, q := range requests {
						for _, s := range q.sequences {
							if s.again > 0 {
								again++
							}
						}
					}
				})
				if tight && len(e.loaded.sampling) == 1 && again == 0 {
					t.Error("no sequence lost its pages")
				}
				first := got[crowd[0].ID]
				if first.reasons[0] != plugins.StopCancelled {
					t.Error("the neighbour's samples were done after one of the crowd's")
				}
				n, whole := len(first.sequences[0].Tokens), &want[crowd[0].ID].sequences[0]
				whole.Tokens, whole.Logprobs = whole.Tokens[:n], whole.Logprobs[:n] // as far as it came
				for id, w := range want {
					for i := range w.sequences {
						if !slices.Equal(got[id].sequences[i].Tokens, w.sequences[i].Tokens) {
							t.Errorf("%s, sequence %d: other tokens than on a quiet server", id, i)
						}
						equalBits(t, id, got[id].sequences[i].Logprobs, w.sequences[i].Logprobs)
					}
				}
				eventually(t, "all pages are free", func() bool {
					s := e.status(time.Now())
					return s.KVPagesFree == s.KVPages && s.RunningSamples == 0 && s.WaitingSamples == 0
				})
				hook(t, e, func() {
					for _, r := range e.loaded.sampling {
						if n := len(r.sampler.parked); n > 0 {
							t.Errorf("%d sequences are still parked", n)
						}
					}
				})
			})
		}
	}
}

// A neighbour's sample does not wait for steps of the crowd where these take long: the crowd rests for it. Where a step takes as long without the crowd,
// they go together.
func TestCrowdRests(t *testing.T) {
	for _, c := range []struct {
		name    string
		seconds func(int) float64
		rests   bool
	}{{"steps by tokens", byTokens, true}, {"steps of the same time", byStep, false}} {
		t.Run(c.name, func(t *testing.T) {
			alone, beside := 0, 0 // the neighbour's steps
			e := watched(t, `{"max_batch": 16}`, c.seconds, func(tokens map[string]int) {
				switch {
				case tokens["neighbour"] > 0 && tokens["crowd"] > 0:
					beside++
				case tokens["neighbour"] > 0:
					alone++
				}
			})
			busy(t, e, crowdOf("crowd", 2, 20, 400))
			for i := range 5 {
				if _, err := collect(t.Context(), e, of(ask(fmt.Sprint("q", i), "", []int32{1, 2, 3}, 1, 4), "neighbour", 1)); err != nil {
					t.Fatal(err)
				}
			}
			hook(t, e, func() {
				if alone+beside != 20 || c.rests && beside > 0 || !c.rests && alone > 0 {
					t.Errorf("%d steps alone and %d beside the crowd", alone, beside)
				}
			})
		})
	}
}

// busy sends requests, which are cancelled at the test's end, and waits until they have no place free.
func busy(t *testing.T, e *Engine, requests []plugins.SampleRequest) {
	t.Helper()
	var group sync.WaitGroup
	t.Cleanup(group.Wait) // after the test's context has ended
	for _, q := range requests {
		group.Go(func() { _, _ = collect(t.Context(), e, q) })
	}
	eventually(t, "all places are taken", func() bool {
		return e.status(time.Now()).RunningSamples == e.loaded.config.MaxBatch*len(e.loaded.sampling)
	})
}

// Keys that all have more than enough get tokens by their weights, whether there are places for all of them or not, and sequences do not come and go in
// every step.
func TestTokensByWeight(t *testing.T) {
	for _, c := range []struct {
		name    string
		places  int
		weights map[string]float64
	}{
		{"two keys", 8, map[string]float64{"a": 1, "b": 3}},
		{"more keys than places", 2, map[string]float64{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}},
		{"more keys than places, by weight", 2, map[string]float64{"a": 1, "b": 1, "c": 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const steps = 1200
			had := map[string]int{}
			counted, changes := 0, 0
			last := ""
			done := make(chan struct{})
			e := watched(t, fmt.Sprintf(`{"max_batch": %d}`, c.places), byStep, func(tokens map[string]int) {
				if len(tokens) < min(len(c.weights), c.places) || counted == steps {
					return
				}
				keys := []string{}
				for key, n := range tokens {
					had[key] += n
					keys = append(keys, key)
				}
				slices.Sort(keys)
				if now := strings.Join(keys, " "); now != last {
					last = now
					changes++
				}
				if counted++; counted == steps {
					close(done)
				}
			})
			release := block(t, e, nil)
			var group sync.WaitGroup
			defer group.Wait()
			for key, weight := range c.weights {
				for i := range 12 {
					group.Go(func() {
						q := of(ask(fmt.Sprint(key, i), "", []int32{1}, 8, 500), key, weight)
						err := e.Sample(t.Context(), q, func(plugins.SampleEvent) error {
							select {
							case <-done:
								return errClosed
							default:
								return nil
							}
						})
						if err != nil && !errors.Is(err, errClosed) {
							t.Error(err)
						}
					})
				}
			}
			eventually(t, "all wait", func() bool { return e.status(time.Now()).WaitingSamples == 96*len(c.weights) })
			release()
			<-done
			total, all := 0, 0.0
			for key, weight := range c.weights {
				total, all = total+had[key], all+weight
			}
			for key, weight := range c.weights {
				if got, want := float64(had[key])/float64(total), weight/all; got < 0.85*want || got > 1.15*want {
					t.Errorf("key %s has %.2f of the tokens, want %.2f: %v", key, got, want, had)
				}
			}
			if changes > steps/5 {
				t.Errorf("the keys that run changed %d times in %d steps", changes, steps)
			}
		})
	}
}

// Who took for an hour what another key, that is always at work, did not want rests for moments when its steps begin to hold up that one.
func TestDebtIsForgotten(t *testing.T) {
	e := &Engine{waiting: newWaitingRoom()}
	e.pace.fixedStep = func(tokens int) float64 { return max(0.01, 0.001*float64(tokens)) }
	e.waiting.lead = e.pace.sharesOf(16).quantum
	light, heavy := waiter("light", "light", 1, 10), waiter("heavy", "heavy", 1, 10)
	e.waiting.join(light)
	e.waiting.join(heavy)
	places(&e.waiting, 2)
	do := func(chunks ...chunk) { e.charge([]step{{chunks: chunks}}) }
	for range 360_000 { // decoding steps of ten milliseconds
		do(chunk{sequence: light, to: 1}, chunk{sequence: heavy, to: 15})
	}
	if !heavy.line.owes(&line{weight: 1, account: e.waiting.clock - e.waiting.lead}, 0, e.waiting.lead) {
		t.Error("who has had so much owes its place to nobody")
	}
	rests := 0
	for ; rests < 1000; rests++ { // with a long prompt
		kept, resting := e.partStep([]chunk{{sequence: light, to: 1}, {sequence: heavy, to: 400}})
		if len(resting) == 0 {
			break
		}
		do(kept...)
	}
	if rests == 0 || rests > 100 {
		t.Errorf("it rests for %d steps", rests)
	}
}

// The prompts of one key's requests do not hold up another's: each has its part of a step's tokens of prompts.
func TestPromptsByKey(t *testing.T) {
	steps, short := 0, 0
	e := watched(t, `{"max_batch": 8, "prefill_tokens": 64}`, byStep, func(tokens map[string]int) {
		steps++
		if tokens["short"] > 0 {
			short = steps
		}
		if n := tokens["long"] + tokens["short"]; n > 64 {
			t.Errorf("%d tokens of prompts in a step", n)
		}
	})
	random := rand.New(rand.NewPCG(33, 1))
	var requests []plugins.SampleRequest
	for i := range 4 {
		requests = append(requests, of(ask(fmt.Sprint("long", i), "", randomTokens(random, 400), 1, 1), "long", 1))
	}
	requests = append(requests, of(ask("short", "", randomTokens(random, 30), 1, 1), "short", 1))
	sendTogether(t, e, requests...)
	if short != 1 {
		t.Errorf("the short prompt was done in step %d of %d", short, steps)
	}
}

// Who does not read has no place: its sequence is parked after so many tokens, others go on, and it goes on when its tokens are read. What it gets is the same.
func TestReadersThatDoNotRead(t *testing.T) {
	const context = 4 * mostUnread
	dir := t.TempDir()
	if err := writeModelOf(dir, shape{tinyVocabulary, 32, 64, 1, 2, 1, 16}, context); err != nil {
		t.Fatal(err)
	}
	load := func() *Engine {
		e := open(t)
		if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Config: []byte(`{"max_batch": 2, "kv_cache_tokens": 32768}`)}, nil); err != nil {
			t.Fatal(err)
		}
		return e
	}
	q := func(i int) plugins.SampleRequest {
		q := ask(fmt.Sprint("slow", i), "", []int32{int32(i), 2}, 1, context-2)
		q.Seed = uint64(i)
		return q
	}
	want, err := collect(t.Context(), load(), q(0))
	if err != nil {
		t.Fatal(err)
	}
	e := load()
	read := make(chan struct{})
	var got []float32
	var group sync.WaitGroup
	for i := range 3 {
		group.Go(func() {
			if err := e.Sample(t.Context(), q(i), func(event plugins.SampleEvent) error {
				<-read
				if i == 0 && event.Tokens != nil {
					got = append(got, event.Tokens.Logprobs...)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all three are held up", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.heldUp == 3 && len(e.running) == 0
	})
	status := e.status(time.Now())
	if status.WaitingSamples != 3 || status.LastProgressAge != 0 {
		t.Errorf("%d wait, work has waited for %v", status.WaitingSamples, status.LastProgressAge)
	}
	if n := status.SampledTokens; n > 3*(mostUnread+512) {
		t.Errorf("%d tokens were sampled for nobody", n)
	}
	if _, err := collect(t.Context(), e, ask("other", "", []int32{1}, 1, 4)); err != nil {
		t.Error(err)
	}
	if err := e.Cancel(t.Context(), plugins.CancelRequest{ID: "slow2", Sequence: -1}); err != nil {
		t.Error(err)
	}
	eventually(t, "the pages of one that is cancelled are free", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.heldUp == 2 && e.stale == 0
	})
	close(read)
	group.Wait()
	equalBits(t, "log-probabilities", got, want.sequences[0].Logprobs)
}

// Sequences of one prompt that wait for their reader give up its pages, which they share, to who needs them.
func TestPagesOfReadersThatDoNotRead(t *testing.T) {
	e := watched(t, `{"max_batch": 4, "kv_cache_tokens": 512}`, byStep, func(map[string]int) { time.Sleep(time.Millisecond) }) // eight pages
	random := rand.New(rand.NewPCG(34, 1))
	slow, other := of(ask("slow", "", randomTokens(random, 300), 2, 200), "slow", 1), of(ask("other", "", randomTokens(random, 400), 1, 4), "other", 1)
	want, err := collect(t.Context(), e, slow)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	got := make([][]float32, 2)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		if err := e.Sample(t.Context(), slow, func(event plugins.SampleEvent) error {
			<-read
			if event.Tokens != nil {
				got[event.Tokens.Sequence] = append(got[event.Tokens.Sequence], event.Tokens.Logprobs...)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "both are held up", func() bool {
		hook(t, e, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, s := range e.running {
				if s.pending != nil { // as if so much was unread already
					s.pending.Tokens = make([]int32, mostUnread)
				}
			}
			e.holdUp()
		})
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.heldUp == 2
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := collect(ctx, e, other); err != nil {
		t.Error(err)
	}
	close(read)
	group.Wait()
	for i := range got {
		equalBits(t, "log-probabilities", got[i], want.sequences[i].Logprobs)
	}
}

// A key that has a place has nobody wait for its second adapter, for which there is no room.
func TestAdapterWithoutRoomHoldsUpItsKey(t *testing.T) {
	e := watched(t, `{"max_batch": 8}`, byStep, func(map[string]int) { time.Sleep(2 * time.Millisecond) })
	create(t, e, "a", 1, 8)
	create(t, e, "b", 2, 8)
	hook(t, e, func() { e.loaded.adapters.limit = 3 * e.runs["a"].latest.weights.bytes }) // half of it is for the sampler
	random := rand.New(rand.NewPCG(36, 1))
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	var first sampled
	send := func(q plugins.SampleRequest, key string, to *sampled) {
		group.Go(func() {
			s, err := collect(ctx, e, of(q, key, 1))
			if err == nil && to != nil {
				*to = s
			}
		})
	}
	send(ask("first", "a", randomTokens(random, 3), 1, 500), "one", &first)
	eventually(t, "the first adapter is at work", func() bool { return e.status(time.Now()).RunningSamples == 1 })
	send(ask("second", "b", randomTokens(random, 3), 1, 4), "one", nil)
	send(ask("long", "", randomTokens(random, 3), 3, 500), "other", nil)
	eventually(t, "those behind the second adapter have gone first for long", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		q := e.requests["second"]
		return q != nil && q.sequences[0].passed > maxPassed
	})
	if _, err := collect(t.Context(), e, of(ask("short", "", randomTokens(random, 3), 1, 4), "other", 1)); err != nil {
		t.Fatal(err)
	}
	if err := e.Cancel(t.Context(), plugins.CancelRequest{ID: "first", Sequence: 0}); err != nil {
		t.Error(err)
	}
	group.Wait()
	if first.reasons[0] != plugins.StopCancelled {
		t.Error("the other key's sample waited for the first one's")
	}
}

// Nor for its second sequence, for which there are no pages.
func TestSequenceWithoutPagesHoldsUpItsKey(t *testing.T) {
	e := watched(t, `{"max_batch": 8, "kv_cache_tokens": 512}`, byStep, func(map[string]int) { time.Sleep(2 * time.Millisecond) }) // eight pages
	random := rand.New(rand.NewPCG(37, 1))
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	send := func(q plugins.SampleRequest, key string) {
		group.Go(func() { _, _ = collect(ctx, e, of(q, key, 1)) })
	}
	send(ask("first", "", randomTokens(random, 260), 1, 50), "one") // five pages
	eventually(t, "the first is at work", func() bool { return e.status(time.Now()).RunningSamples == 1 })
	release := block(t, e, func() { e.waiting.lines["one"].account = -1 }) // so that it is asked first
	send(ask("second", "", randomTokens(random, 500), 1, 4), "one")
	send(ask("others", "", randomTokens(random, 3), 2, 40), "other")
	eventually(t, "all wait", func() bool { return e.status(time.Now()).WaitingSamples == 3 })
	release()
	beside := false
	eventually(t, "both of the other key are at work beside it", func() bool {
		s := e.status(time.Now())
		beside = s.RunningSamples == 3 && s.WaitingSamples == 1
		return beside || s.RunningSamples+s.WaitingSamples == 0
	})
	if !beside {
		t.Error("the other key waited")
	}
}

// A key that has as many sequences waiting as may wait keeps nobody out, and is refused more itself.
func TestWaitingIsShared(t *testing.T) {
	e := start(t, `{"max_waiting": 50, "max_batch": 2}`)
	busy(t, e, crowdOf("crowd", 1, 50, 500))
	if _, err := collect(t.Context(), e, of(ask("more", "", []int32{1}, 10, 4), "crowd", 1)); !errors.Is(err, plugins.ErrCapacity) {
		t.Errorf("more of the same key: %v", err)
	}
	if _, err := collect(t.Context(), e, of(ask("other", "", []int32{1}, 20, 4), "other", 1)); err != nil {
		t.Errorf("another key: %v", err)
	}
}
