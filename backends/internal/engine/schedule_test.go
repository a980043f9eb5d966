package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// plan of a run: what a client sends, in order.
type action struct {
	kind    string // "pass", "forward", "bad", "step", "pin", "save and load", "sample"
	data    []plugins.Datum
	loss    string
	request plugins.SampleRequest
}

// randomActions makes a run's script.
func randomActions(random *rand.Rand) []action {
	var script []action
	for range 4 + random.IntN(16) {
		a := action{kind: []string{"pass", "pass", "pass", "forward", "bad", "step", "step", "pin", "save and load", "sample"}[random.IntN(10)], loss: "cross_entropy"}
		switch a.kind {
		case "pass", "forward":
			a.data = randomData(random, 1+random.IntN(10), 40)
			if random.IntN(2) == 0 {
				a.loss = []string{"importance_sampling", "ppo", "cispo", "dro", "stable_reinforce"}[random.IntN(5)]
				for i := range a.data {
					d := &a.data[i]
					d.Advantages, d.Weights, d.Logprobs = d.Weights, nil, make([]float32, len(d.Tokens))
					for k := range d.Logprobs {
						d.Logprobs[k] = -4 - random.Float32()
						d.Advantages[k] -= 0.5
					}
				}
			}
		case "sample":
			a.request = ask("", "", randomTokens(random, 1+random.IntN(100)), 1+random.IntN(3), 1+random.IntN(20))
			a.request.Seed = random.Uint64()
		}
		script = append(script, a)
	}
	return script
}

// play runs a script on one adapter and gives a line per action with everything that must not depend on others. All operations are sent ahead; samples
// wait for what stands before them. With keys the runs are of several keys.
func play(t *testing.T, e *Engine, id string, script []action, keys bool) []string {
	d := create(t, e, id, 77, 4)
	lines := make([]string, len(script))
	var sent sync.WaitGroup
	ahead := make(chan struct{}, plugins.MaxAhead-1)
	send := func(i int, f func() string) {
		ahead <- struct{}{}
		sent.Go(func() { lines[i] = f(); <-ahead })
	}
	failed := func(err error) string { return fmt.Sprint(plugins.KindOf(err), " ", err) }
	for i, a := range script {
		position := int64(0)
		if a.kind != "sample" {
			position = d.position()
		}
		switch a.kind {
		case "pass", "forward", "bad":
			if a.kind == "bad" {
				a.data = []plugins.Datum{{Tokens: []int32{1}, Targets: []int32{-1}, K: 1, Weights: []float32{1}}}
			}
			send(i, func() string {
				r, err := e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: id, Position: position, Data: a.data, Loss: a.loss, ForwardOnly: a.kind == "forward"})
				if err != nil {
					return failed(err)
				}
				return fmt.Sprint(r.Logprobs, r.Metrics["loss:sum"])
			})
		case "step":
			send(i, func() string {
				r, err := e.OptimStep(context.Background(), plugins.OptimStepRequest{Adapter: id, Position: position, Adam: adamDefaults})
				if err != nil {
					return failed(err)
				}
				return fmt.Sprint(r.Version, r.Step, r.Metrics["grad_norm"], r.Metrics["adapter_norm"])
			})
		case "pin":
			send(i, func() string {
				r, err := e.Pin(context.Background(), plugins.PinRequest{Adapter: id, Position: position, Name: fmt.Sprint("pin", i)})
				if err != nil {
					return failed(err)
				}
				q := ask(fmt.Sprint(id, " pin ", i), id, []int32{4, 5, 6}, 1, 8)
				q.Version = r.Version
				s, err := collect(context.Background(), e, q)
				if err != nil {
					return failed(err)
				}
				if i%2 == 0 {
					err = e.Unpin(context.Background(), plugins.UnpinRequest{Adapter: id, Name: fmt.Sprint("pin", i)})
				}
				return fmt.Sprint(r.Version, s.sequences, err)
			})
		case "save and load":
			path := filepath.Join(t.TempDir(), "checkpoint")
			send(i, func() string {
				r, err := e.SaveAdapter(context.Background(), plugins.SaveAdapterRequest{Adapter: id, Position: position, Scope: plugins.ScopeAccumulator, Path: path})
				if err != nil {
					return failed(err)
				}
				return fmt.Sprint(r.Version, r.Step, r.Bytes > 0)
			})
			next := d.position()
			ahead <- struct{}{}
			sent.Go(func() {
				if _, err := e.LoadAdapter(context.Background(), plugins.LoadAdapterRequest{Adapter: id, Position: next, Scope: plugins.ScopeAccumulator, Path: path}); err != nil {
					t.Errorf("%s: load: %v", id, err)
				}
				<-ahead
			})
		case "sample":
			sent.Wait() // so that "latest" means the same every time
			q := a.request
			q.ID, q.Adapter = fmt.Sprint(id, " ", i), id
			if n := len(id); keys {
				q.Share = plugins.Share{Key: fmt.Sprint(id[n-1] % 4), Weight: float64(1 + id[n-1]%3)}
			}
			s, err := collect(context.Background(), e, q)
			if err != nil {
				lines[i] = failed(err)
			} else {
				lines[i] = fmt.Sprint(s.prompt.Version, s.sequences, s.reasons)
			}
		}
	}
	sent.Wait()
	return append(lines, fmt.Sprint(d.weights()))
}

// Runs of random operations give the same answers alone, one after the other on one thread, and all at once among each other with everything cut small.
func TestRandomSchedules(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 8))
			scripts := make([][]action, 6)
			for i := range scripts {
				scripts[i] = randomActions(random)
			}
			alone, crowded := start(t, `{"threads": 1}`), start(t, `{"threads": 2, "batch_tokens": 90, "cycle_tokens": 400, "prefill_tokens": 29, "kv_cache_tokens": 1024, "max_batch": 7}`)
			want := make([][]string, len(scripts))
			for i, s := range scripts {
				want[i] = play(t, alone, fmt.Sprint("run", i), s, false)
			}
			var group sync.WaitGroup
			for i, s := range scripts {
				group.Go(func() {
					got := play(t, crowded, fmt.Sprint("run", i), s, true)
					if !slices.Equal(got, want[i]) {
						for k := range got {
							if got[k] != want[i][k] {
								kind := "weights"
								if k < len(s) {
									kind = s[k].kind
								}
								t.Errorf("run %d, action %d (%s):\n%.300s\nalone:\n%.300s", i, k, kind, got[k], want[i][k])
								break
							}
						}
					}
				})
			}
			group.Wait()
		})
	}
}
