package runs

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// marked is the token that crashes the backend of TestWorkThatCrashesTheBackend.
const marked = 60

// Work that crashes its backend whenever it runs fails with the reason, however much other work is with the backend, and everything else ends as if it had never been.
func TestWorkThatCrashesTheBackend(t *testing.T) {
	poisons := []struct {
		name   string
		submit func(w *world, run, sampler string, seq int64) (string, error)
	}{
		{"a pass", func(w *world, run, _ string, seq int64) (string, error) {
			op := w.pass(run, seq)
			op.Data[0].Tokens[1] = marked
			s, err := w.ForwardBackward(w.t.Context(), op)
			return s.RequestID, err
		}},
		{"a sample", func(w *world, _, sampler string, _ int64) (string, error) {
			op := w.sample(sampler, 1000)
			op.Prompt = []int32{3, marked, 4}
			s, err := w.Sample(w.t.Context(), op)
			return s.RequestID, err
		}},
	}
	for _, poison := range poisons {
		for _, crowd := range []int{0, 1, 12} {
			t.Run(fmt.Sprintf("%s among %d", poison.name, crowd), func(t *testing.T) {
				live := func(poisoned bool) (results []string, failure *Failure, losses, explained int64) {
					var told atomic.Int64
					w := newWorld(t, func(w *world) {
						w.fake = fmt.Sprintf(`{"vocab_size": 64, "max_context_length": 128, "delays": [{"operation": "forward_backward", "seconds": 0.1}, {"operation": "sample", "seconds": 0.1}],
							"faults": [{"operation": "forward_backward", "token": %d, "action": "crash"}, {"operation": "sample", "token": %d, "action": "crash"}]}`, marked, marked)
						w.config.Explained = func(string) { told.Add(1) }
					})
					w.crashes.Store(true)
					session := w.session()
					guilty, sampler := w.newRun(session, 0), w.baseSampler(session, 0)
					var guiltyID string
					var others []string
					for i := range crowd {
						others = append(others, w.newRun(session, int64(i+1)))
					}
					var ids []string
					submit := func(s Submitted, err error) {
						w.ok(err)
						ids = append(ids, s.RequestID)
					}
					rounds := int64(3)
					work := func(seq int64) {
						for i, run := range others {
							submit(w.ForwardBackward(t.Context(), w.pass(run, 2*seq-1)))
							submit(w.OptimStep(t.Context(), w.step(run, 2*seq)))
							s, err := w.Sample(t.Context(), w.sample(sampler, seq*100+int64(i)))
							w.ok(err)
							ids = append(ids, s.RequestID)
						}
					}
					work(1)
					if poisoned {
						var err error
						guiltyID, err = poison.submit(w, guilty, sampler, 1)
						w.ok(err)
					} else {
						w.good(w.ForwardBackward(t.Context(), w.pass(guilty, 1)))
					}
					for seq := int64(2); seq <= rounds; seq++ {
						work(seq)
					}
					for i, run := range others {
						submit(w.SaveWeightsForSampler(t.Context(), SaveWeightsForSampler{Operation: at(run, 2*rounds+1), Name: fmt.Sprint("end", i)}))
					}
					for _, id := range ids {
						out := w.outcome(id)
						if out.Failure != nil {
							t.Errorf("%s failed: %s", id, out.Failure.Message)
							continue
						}
						text := ""
						switch {
						case out.ForwardBackward != nil:
							text = fmt.Sprint(out.ForwardBackward.Logprobs, out.ForwardBackward.Metrics["loss:sum"])
						case out.OptimStep != nil:
							text = fmt.Sprint(out.OptimStep.Metrics["grad_norm"], out.OptimStep.Metrics["adapter_norm"])
						case out.Sample != nil:
							text = fmt.Sprint(out.Sample.Sequences)
						}
						results = append(results, text)
					}
					if poisoned {
						failure = w.outcome(guiltyID).Failure
					}
					return results, failure, w.losses.Load(), told.Load()
				}
				want, _, _, _ := live(false)
				got, failure, losses, explained := live(true)
				if failure == nil || failure.Category != CategoryServer || !strings.Contains(failure.Message, "it crashes the backend") || !strings.Contains(failure.Message, "killed by the test") {
					t.Errorf("the guilty operation ended with %+v", failure)
				}
				if losses < 2 || losses > 4 {
					t.Errorf("%d crashes, want 2 to 4", losses)
				}
				if explained < 1 || explained > 2 {
					t.Errorf("the crashes were explained %d times", explained)
				}
				if len(got) != len(want) {
					t.Fatalf("%d results, want %d", len(got), len(want))
				}
				for i := range want {
					if got[i] != want[i] {
						t.Errorf("result %d differs:\ngot  %s\nwant %s", i, got[i], want[i])
					}
				}
			})
		}
	}
}

// A direct request is not run again by the server, but by its client: one that has crashed the backend is run alone, and then refused.
func TestRequestThatCrashesTheBackend(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.fake = fmt.Sprintf(`{"vocab_size": 64, "max_context_length": 128, "faults": [{"operation": "sample", "token": %d, "action": "crash"}]}`, marked)
	})
	w.crashes.Store(true)
	target, err := w.Resolve(t.Context(), owner, base)
	w.ok(err)
	generate := func(prompt ...int32) error {
		return w.Generate(t.Context(), target, Generation{Owner: owner, Request: plugins.SampleRequest{Prompt: prompt, NumSamples: 1, MaxTokens: 2, TopP: 1, RepetitionPenalty: 1, Temperature: 1}},
			func(plugins.SampleEvent) error { return nil })
	}
	for i := range 4 {
		err := generate(1, marked, 2)
		if err == nil {
			t.Fatal("the request succeeded")
		}
		if refused := strings.Contains(err.Error(), "it crashes the backend"); refused != (i >= 2) {
			t.Errorf("attempt %d: %v", i+1, err)
		}
		w.ok(generate(1, 2, 3))
	}
	if n := w.losses.Load(); n != 2 {
		t.Errorf("%d crashes, want 2", n)
	}
}
