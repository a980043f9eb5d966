package runs

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/tinsmith/tinsmith/plugins"
)

// recorder notes what reaches the backend.
type recorder struct {
	plugins.Backend
	mu    sync.Mutex
	calls []string
	ahead int
	most  int
}

func (r *recorder) note(position int64, what string) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, fmt.Sprint(position, " ", what))
	r.ahead++
	r.most = max(r.most, r.ahead)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ahead--
	}
}

func (r *recorder) ForwardBackward(ctx context.Context, req plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	defer r.note(req.Position, fmt.Sprint("pass ", req.Data[0].Tokens[0]))()
	return r.Backend.ForwardBackward(ctx, req)
}

func (r *recorder) OptimStep(ctx context.Context, req plugins.OptimStepRequest) (plugins.OptimStepResult, error) {
	defer r.note(req.Position, "step")()
	return r.Backend.OptimStep(ctx, req)
}

func recorded(t testing.TB, change func(*world)) (*world, *recorder) {
	rec := &recorder{}
	return newWorld(t, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend {
			rec.mu.Lock()
			defer rec.mu.Unlock()
			rec.Backend = b
			return rec
		}
		if change != nil {
			change(w)
		}
	}), rec
}

func TestRandomArrivalsExecuteInOrder(t *testing.T) {
	w, rec := recorded(t, func(w *world) { w.config.GapWait = time.Hour })
	run := w.newRun(w.session(), 0)
	const n = 60
	var wg sync.WaitGroup
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		wg.Go(func() {
			op := w.pass(run, int64(i+1))
			op.Data[0].Tokens = []int32{int32(i), 3, 4, 5}
			if _, err := w.ForwardBackward(t.Context(), op); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range n {
		if out := w.outcome(fmt.Sprint(run, ":", i+1)); out.Failure != nil {
			t.Fatal(out.Failure)
		}
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range rec.calls {
		seen[c] = true
	}
	for i := range n {
		if want := fmt.Sprintf("%d pass %d", i+1, i); !seen[want] {
			t.Errorf("no call %q", want)
		}
	}
	if rec.most > plugins.MaxAhead {
		t.Errorf("%d operations were sent ahead, at most %d may be", rec.most, plugins.MaxAhead)
	}
}

// The backend gets many operations of a run at once: it shares its time by tokens, but only among what it has.
func TestManyAreSentAhead(t *testing.T) {
	w, open := gated(t, "forward_backward", nil)
	run := w.newRun(w.session(), 0)
	const n = 40
	for i := range int64(n) {
		_, err := w.ForwardBackward(t.Context(), w.pass(run, i+1))
		w.ok(err)
	}
	w.eventually(func() bool { return w.runs[run].queue.ahead == n })
	close(open)
	for i := range n {
		if out := w.outcome(fmt.Sprint(run, ":", i+1)); out.Failure != nil {
			t.Fatal(out.Failure)
		}
	}
}

func TestRepeatsGapsAndRefusals(t *testing.T) {
	w, rec := recorded(t, nil)
	ctx := t.Context()
	session := w.session()
	run := w.newRun(session, 0)

	first, err := w.ForwardBackward(ctx, w.pass(run, 1))
	w.ok(err)
	again, err := w.ForwardBackward(ctx, w.pass(run, 1))
	if err != nil || again != first {
		t.Fatalf("a repeat: %v, %v", again, err)
	}
	w.good(first, nil)
	if again, err = w.ForwardBackward(ctx, w.pass(run, 1)); err != nil || again != first {
		t.Fatalf("a repeat of a finished one: %v, %v", again, err)
	}
	different := w.pass(run, 1)
	different.Data[0].Inputs["weights"] = Tensor{Floats: []float32{2, 1, 1, 1}}
	_, err = w.ForwardBackward(ctx, different)
	w.refused(err, KindInvalid, "used before")
	_, err = w.OptimStep(ctx, w.step(run, 1))
	w.refused(err, KindInvalid, "used before")

	// Number 2 never comes: 3 runs after the wait, and 2 is too late then.
	w.good(w.ForwardBackward(ctx, w.pass(run, 3)))
	late, err := w.ForwardBackward(ctx, w.pass(run, 2))
	w.bad(late, err)(t, "operation 2", "not run")
	if again, err := w.ForwardBackward(ctx, w.pass(run, 2)); err != nil || again != late {
		t.Fatalf("a repeat of the late one: %v, %v", again, err)
	}

	// A refused number is not waited for.
	w.Core.mu.Lock()
	w.Core.runs[run].queue.sequence.wait = time.Hour
	w.Core.mu.Unlock()
	_, err = w.SaveWeights(ctx, SaveWeights{Operation: at(run, 4), Name: "../evil"})
	w.refused(err, KindInvalid, "../evil")
	w.good(w.ForwardBackward(ctx, w.pass(run, 5)))
	w.NoteRefused(owner, run, 6)
	w.NoteRefused(other, run, 7) // not his: ignored
	w.good(w.ForwardBackward(ctx, w.pass(run, 7)))
	_, err = w.LoadWeights(ctx, LoadWeights{Operation: at(run, 8), Path: "tinker://" + run + "/weights/x"})
	w.refused(err, KindNotFound, "no checkpoint")

	// Wrong contents take their place in the order.
	w.bad(w.ForwardBackward(ctx, ForwardBackward{Operation: Operation{Owner: owner, RunID: run, Seq: 9, Refusal: "data[0]: images are not supported"}}))(t, "images")
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if want := "[1 pass 2 2 pass 2 3 pass 2 4 pass 2]"; fmt.Sprint(rec.calls) != want {
		t.Errorf("calls %v, want %v", rec.calls, want)
	}

	for _, seq := range []int64{0, -1, math.MaxInt32 + 1} {
		_, err = w.ForwardBackward(ctx, w.pass(run, seq))
		w.refused(err, KindInvalid, "seq_id")
	}
	_, err = w.ForwardBackward(ctx, w.pass("nobody:train:0", 1))
	w.refused(err, KindNotFound)
	foreign := w.pass(run, 10)
	foreign.Owner = other
	_, err = w.ForwardBackward(ctx, foreign)
	w.refused(err, KindNotFound)
}

func TestFailedWindows(t *testing.T) {
	for _, c := range []struct {
		name  string
		fails bool
		ops   func(w *world, run string) // numbers 1 … 2
	}{
		{"no pass at all is a step", false, nil},
		{"one pass that failed and none that did not", true, func(w *world, run string) {
			bad := w.pass(run, 1)
			bad.Data[0].Inputs["weights"] = Tensor{Floats: []float32{float32(math.NaN()), 1, 1, 1}}
			w.bad(w.ForwardBackward(w.t.Context(), bad))(w.t, "weights", "NonFiniteInTensor")
		}},
		{"one that failed and one that did not", false, func(w *world, run string) {
			bad := w.pass(run, 1)
			bad.Loss = "unknown"
			w.bad(w.ForwardBackward(w.t.Context(), bad))(w.t, "unknown")
			w.good(w.ForwardBackward(w.t.Context(), w.pass(run, 2)))
		}},
		{"a forward that failed does not count", false, func(w *world, run string) {
			bad := w.pass(run, 1)
			bad.ForwardOnly, bad.Loss = true, "unknown"
			w.bad(w.ForwardBackward(w.t.Context(), bad))(w.t, "unknown")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			run := w.newRun(w.session(), 0)
			if c.ops != nil {
				c.ops(w, run)
			}
			s, err := w.OptimStep(t.Context(), w.step(run, 3))
			if c.fails {
				w.bad(s, err)(t, "every forward_backward")
			} else {
				w.good(s, err)
			}
			w.good(w.ForwardBackward(t.Context(), w.pass(run, 4)))
			if out := w.good(w.OptimStep(t.Context(), w.step(run, 5))); c.fails != (out.OptimStep.Step == 1) {
				t.Errorf("the next step has number %d", out.OptimStep.Step)
			}
		})
	}
}

// A step that the backend did not apply, and that left it the gradient, leaves the next step something to apply, also when the only passes in between were refused. So it is when all is sent at once, and after a restart.
func TestKeptGradientsCountAsPasses(t *testing.T) {
	const hungry = 0.125 // the learning rate of steps that find no memory
	pass := func(w *world, run string, seq int64) (Submitted, error) {
		return w.ForwardBackward(w.t.Context(), w.pass(run, seq))
	}
	wrong := func(w *world, run string, seq int64) (Submitted, error) {
		op := w.pass(run, seq)
		op.Loss = "unknown"
		return w.ForwardBackward(w.t.Context(), op)
	}
	tooLarge := func(w *world, run string, seq int64) (Submitted, error) { // for the backend
		op := w.pass(run, seq)
		op.Data[0].Tokens[1] = marked
		return w.ForwardBackward(w.t.Context(), op)
	}
	with := func(change func(*plugins.AdamParams)) func(w *world, run string, seq int64) (Submitted, error) {
		return func(w *world, run string, seq int64) (Submitted, error) {
			op := w.step(run, seq)
			change(&op.Adam)
			return w.OptimStep(w.t.Context(), op)
		}
	}
	refused := with(func(a *plugins.AdamParams) { a.Beta2 = 1 })
	noMemory := with(func(a *plugins.AdamParams) { a.LearningRate = hungry })
	overflow := with(func(a *plugins.AdamParams) { *a = withRate(*a, overflowing) })
	for _, c := range []struct {
		name  string
		ops   []func(w *world, run string, seq int64) (Submitted, error)
		fails bool // the step behind them
		zero  bool // it has no gradient
	}{
		{"no memory", []func(*world, string, int64) (Submitted, error){pass, noMemory, wrong}, false, false},
		{"no memory twice", []func(*world, string, int64) (Submitted, error){pass, noMemory, noMemory, wrong}, false, false},
		{"refused", []func(*world, string, int64) (Submitted, error){pass, refused, wrong}, false, false},
		{"refused, then no memory", []func(*world, string, int64) (Submitted, error){pass, refused, wrong, noMemory, wrong}, false, false},
		{"no memory for a step without a gradient", []func(*world, string, int64) (Submitted, error){noMemory, wrong}, true, false},
		{"no memory for a pass", []func(*world, string, int64) (Submitted, error){tooLarge, noMemory, wrong}, true, false},
		{"no memory for a pass, and a step of nothing", []func(*world, string, int64) (Submitted, error){tooLarge, noMemory}, false, true},
		{"a step that drops what was kept", []func(*world, string, int64) (Submitted, error){pass, noMemory, overflow, wrong}, true, false},
	} {
		for _, how := range []string{"one by one", "at once", "restarted"} {
			t.Run(c.name+", "+how, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, func(w *world) {
					w.fake = fmt.Sprintf(`{"vocab_size": 64, "max_context_length": 128, "delays": [{"operation": "optim_step", "seconds": 0.005}], "faults": [
						{"operation": "optim_step", "learning_rate": %v, "action": "fail", "kind": "capacity", "message": "3 MiB are needed"},
						{"operation": "forward_backward", "token": %d, "action": "fail", "kind": "capacity", "message": "4 MiB are needed"}]}`, hungry, marked)
				})
				run := w.newRun(w.session(), 0)
				for i, submit := range c.ops {
					s, err := submit(w, run, int64(i+1))
					w.ok(err)
					if how != "at once" {
						w.outcome(s.RequestID)
					}
				}
				if how == "restarted" {
					w.restart()
				}
				s, err := w.OptimStep(t.Context(), w.step(run, int64(len(c.ops)+1)))
				if c.fails {
					w.bad(s, err)(t, "every forward_backward", "unknown")
					return
				}
				got := w.good(s, err).OptimStep
				if norm := got.Metrics["grad_norm"]; got.Step != 1 || (norm == 0) != c.zero {
					t.Errorf("step %d with a gradient of norm %v", got.Step, norm)
				}
			})
		}
	}
}

func TestFailedCreationFailsEverythingLater(t *testing.T) {
	w, open := gated(t, "create_adapter", func(w *world) {
		w.fake = `{"vocab_size": 64, "faults": [{"operation": "create_adapter", "n": 1, "action": "fail", "message": "no memory", "kind": "capacity"}]}`
	})
	session := w.session()
	s, err := w.CreateRun(t.Context(), NewRun{Owner: owner, SessionID: session, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
	w.ok(err)
	p, err := w.ForwardBackward(t.Context(), w.pass(s.RunID, 1))
	w.ok(err)
	close(open)
	w.failure(w.outcome(s.RequestID), CategoryServer, "no memory")
	w.failure(w.outcome(p.RequestID), CategoryServer, "no memory")
	_, err = w.ForwardBackward(t.Context(), w.pass(s.RunID, 2))
	w.refused(err, KindNotFound, "failed", "no memory")
}

func TestLargeQueuesAreReadBackFromTheJournal(t *testing.T) {
	for name, set := range map[string]func(*world, *run){ // as if much was waiting
		"of the run":  func(_ *world, r *run) { r.queue.buffered = plugins.MaxAheadBytes },
		"of all runs": func(w *world, _ *run) { w.passBytes = w.cfg.MaxPassBytes },
	} {
		t.Run(name, func(t *testing.T) { testReadBack(t, set) })
	}
}

func testReadBack(t *testing.T, set func(*world, *run)) {
	w, rec := recorded(t, func(w *world) {
		w.fake = `{"vocab_size": 64, "max_context_length": 128, "delays": [{"operation": "create_adapter", "seconds": 0.2}]}`
	})
	session := w.session()
	s, err := w.CreateRun(t.Context(), NewRun{Owner: owner, SessionID: session, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
	w.ok(err)
	w.Core.mu.Lock()
	set(w, w.runs[s.RunID])
	w.Core.mu.Unlock()
	for i := range int64(3) {
		_, err := w.ForwardBackward(t.Context(), w.pass(s.RunID, i+1))
		w.ok(err)
	}
	w.Core.mu.Lock()
	for _, op := range w.runs[s.RunID].queue.ready {
		if op.kind == OpForwardBackward && op.pass != nil {
			t.Error("a request was kept in memory")
		}
	}
	w.Core.mu.Unlock()
	for i := range int64(3) {
		if out := w.outcome(fmt.Sprint(s.RunID, ":", i+1)); out.Failure != nil || len(out.ForwardBackward.Logprobs[0]) != 4 {
			t.Errorf("outcome %+v", out)
		}
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if len(rec.calls) != 3 {
		t.Errorf("calls %v", rec.calls)
	}
}

// A result that was stored leaves memory, also while nothing comes behind its operation and when the run has ended.
func TestResultsLeaveMemory(t *testing.T) {
	w := newWorld(t, nil)
	session := w.session()
	run := w.newRun(session, 0)
	gone := func(seq int64) {
		t.Helper()
		result := weak.Make(w.good(w.ForwardBackward(t.Context(), w.pass(run, seq))).ForwardBackward)
		w.eventually(func() bool { runtime.GC(); return result.Value() == nil })
	}
	for seq := range int64(3) {
		gone(seq + 1)
	}
	last := weak.Make(w.good(w.ForwardBackward(t.Context(), w.pass(run, 4))).ForwardBackward)
	w.good(w.UnloadRun(t.Context(), owner, run))
	w.eventually(func() bool { runtime.GC(); return last.Value() == nil })
	if again := w.outcome(run + ":4"); again.ForwardBackward == nil {
		t.Errorf("a late poll gets %+v", again)
	}
}

func TestBadData(t *testing.T) {
	ints, floats := func(v ...int64) Tensor { return Tensor{Ints: v} }, func(v ...float32) Tensor { return Tensor{Floats: v} }
	rl := func() map[string]Tensor {
		return map[string]Tensor{"target_tokens": ints(1, 2), "logprobs": floats(-1, -1), "advantages": floats(1, 1)}
	}
	with := func(m map[string]Tensor, name string, v Tensor) map[string]Tensor { m[name] = v; return m }
	ce := func() map[string]Tensor {
		return map[string]Tensor{"target_tokens": ints(1, 2), "weights": floats(1, 1)}
	}
	for _, c := range []struct {
		name   string
		loss   string
		tokens []int32
		inputs map[string]Tensor
		config map[string]float64
		words  string // "" = good
	}{
		{name: "good", loss: "cross_entropy", inputs: ce()},
		{name: "integer weights", loss: "cross_entropy", inputs: with(ce(), "weights", ints(1, 0))},
		{name: "two dimensions", loss: "cross_entropy", inputs: map[string]Tensor{"target_tokens": {Shape: []int{2, 2}, Ints: []int64{1, 2, 3, 4}}, "weights": {Shape: []int{2, 2}, Floats: []float32{1, 1, 1, 1}}}},
		{name: "good ppo", loss: "ppo", inputs: rl(), config: map[string]float64{"clip_low_threshold": 0.9}},
		{name: "unknown loss", loss: "nope", inputs: ce(), words: "loss_fn"},
		{name: "custom loss", loss: "custom", inputs: ce(), words: "forward_backward_custom"},
		{name: "unknown setting", loss: "ppo", inputs: rl(), config: map[string]float64{"clip": 1}, words: "clip_low_threshold"},
		{name: "setting out of range", loss: "ppo", inputs: rl(), config: map[string]float64{"clip_low_threshold": -1}, words: "-1"},
		{name: "setting not finite", loss: "dro", inputs: rl(), config: map[string]float64{"beta": math.NaN()}, words: "beta"},
		{name: "crossed thresholds", loss: "ppo", inputs: rl(), config: map[string]float64{"clip_low_threshold": 2, "clip_high_threshold": 1}, words: "above"},
		{name: "missing input", loss: "ppo", inputs: ce(), words: "logprobs is missing"},
		{name: "no weights", loss: "cross_entropy", inputs: map[string]Tensor{"target_tokens": ints(1, 2)}},
		{name: "inputs of other losses", loss: "cross_entropy", inputs: with(rl(), "advantages", floats(float32(math.NaN())))},
		{name: "missing mask", loss: "gspo", inputs: rl(), words: "sequence_ratio_mask is missing"},
		{name: "no targets", loss: "cross_entropy", inputs: map[string]Tensor{"weights": floats(1, 1)}, words: "target_tokens is missing"},
		{name: "length", loss: "cross_entropy", inputs: with(ce(), "target_tokens", ints(1)), words: "2 positions"},
		{name: "length of weights", loss: "cross_entropy", inputs: with(ce(), "weights", floats(1)), words: "weights"},
		{name: "shape and elements", loss: "cross_entropy", inputs: with(ce(), "weights", Tensor{Shape: []int{3}, Floats: []float32{1, 1}}), words: "asks for 3"},
		{name: "huge shape", loss: "cross_entropy", inputs: with(ce(), "weights", Tensor{Shape: []int{1 << 40, 1 << 40}, Floats: []float32{1, 1}}), words: "not possible"},
		{name: "two dimensions with ppo", loss: "ppo", inputs: with(rl(), "target_tokens", Tensor{Shape: []int{2, 1}, Ints: []int64{1, 2}}), words: "only cross_entropy"},
		{name: "target out of vocabulary", loss: "cross_entropy", inputs: with(ce(), "target_tokens", ints(1, 64)), words: "0 … 63"},
		{name: "negative target", loss: "cross_entropy", inputs: with(ce(), "target_tokens", ints(1, -1)), words: "-1"},
		{name: "token out of vocabulary", loss: "cross_entropy", tokens: []int32{64, 1}, inputs: ce(), words: "model_input"},
		{name: "float targets", loss: "cross_entropy", inputs: with(ce(), "target_tokens", floats(1, 2)), words: "integers"},
		{name: "infinite advantage", loss: "ppo", inputs: with(rl(), "advantages", floats(1, float32(math.Inf(1)))), words: "advantages: element 1"},
		{name: "too long", loss: "cross_entropy", tokens: make([]int32, 129), inputs: ce(), words: "128"},
		{name: "empty", loss: "cross_entropy", tokens: []int32{}, inputs: ce(), words: "at least one token"},
		{name: "without provenance", loss: "stable_reinforce", inputs: rl(), words: "importance_sampling"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			run := w.newRun(w.session(), 0)
			if c.tokens == nil {
				c.tokens = []int32{1, 2}
			}
			op := ForwardBackward{Operation: at(run, 1), Loss: c.loss, Config: c.config, Data: []Datum{{Tokens: c.tokens, Inputs: c.inputs}}}
			s, err := w.ForwardBackward(t.Context(), op)
			if c.words == "" {
				w.good(s, err)
			} else {
				w.bad(s, err)(t, c.words)
			}
			w.good(w.ForwardBackward(t.Context(), w.pass(run, 2)))
		})
	}
	t.Run("adam", func(t *testing.T) {
		w := newWorld(t, nil)
		run := w.newRun(w.session(), 0)
		op := w.step(run, 1)
		op.Adam.Beta2 = 1
		w.bad(w.OptimStep(t.Context(), op))(t, "beta2")
		op = w.step(run, 2)
		op.Adam.LearningRate = math.NaN()
		w.bad(w.OptimStep(t.Context(), op))(t, "learning_rate")
	})
}
