package runs

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"
)

func next(run string) Operation { return Operation{Owner: owner, RunID: run, Unnumbered: true} }

// Operations without a number run in the order of their arrival, behind everything that was there.
func TestOperationsWithoutANumber(t *testing.T) {
	w := newWorld(t, func(w *world) { w.config.GapWait = time.Hour })
	ctx := t.Context()
	session := w.session()
	plain, run := w.newRun(session, 0), w.newRun(session, 1)
	id := func(s Submitted, err error) string {
		t.Helper()
		w.good(s, err)
		return s.RequestID
	}
	step := func(run string) OptimStep { op := w.step(run, 0); op.Operation = next(run); return op }
	pass := func(run string) ForwardBackward { op := w.pass(run, 0); op.Operation = next(run); return op }
	for i, got := range []string{
		id(w.ForwardBackward(ctx, pass(run))), id(w.OptimStep(ctx, step(run))), id(w.SaveWeights(ctx, SaveWeights{Operation: next(run), Name: "a"})),
		id(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: next(run), Name: "b"})), id(w.SaveWeightsExternal(ctx, SaveWeightsExternal{Operation: next(run), Name: "c"})),
		id(w.LoadWeights(ctx, LoadWeights{Operation: next(run), Path: "tinker://" + run + "/weights/a"})),
	} {
		if want := run + ":" + itoa(int64(i+1)); got != want {
			t.Errorf("operation %d is %s, want %s", i, got, want)
		}
	}
	// They are what numbered ones are.
	w.good(w.ForwardBackward(ctx, w.pass(plain, 1)))
	w.good(w.OptimStep(ctx, w.step(plain, 2)))
	a := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(plain, 3), Name: "a"})).Saved.Path
	compare(t, w.contents("tinker://"+run+"/weights/a"), w.contents(a))

	// Mixed with numbered ones they come behind the highest: 9 waits for 7 and 8, and the next one behind it.
	nine, err := w.ForwardBackward(ctx, w.pass(run, 9))
	w.ok(err)
	ten, err := w.OptimStep(ctx, step(run))
	w.ok(err)
	if want := run + ":10"; ten.RequestID != want {
		t.Errorf("behind 9 comes %s, want %s", ten.RequestID, want)
	}
	w.good(w.ForwardBackward(ctx, w.pass(run, 7)))
	w.good(w.ForwardBackward(ctx, w.pass(run, 8)))
	w.good(nine, nil)
	w.good(ten, nil)

	// One that is refused takes no number; a number that was given so belongs to nobody else.
	_, err = w.SaveWeights(ctx, SaveWeights{Operation: next(run), Name: "../evil"})
	w.refused(err, KindInvalid)
	if got := id(w.ForwardBackward(ctx, pass(run))); got != run+":11" {
		t.Errorf("after a refusal comes %s", got)
	}
	_, err = w.ForwardBackward(ctx, w.pass(run, 11))
	w.refused(err, KindInvalid, "seq_id: 11 was used before")

	w.restart()
	if got := id(w.ForwardBackward(ctx, pass(run))); got != run+":12" {
		t.Errorf("after a restart comes %s", got)
	}
	last := w.pass(run, math.MaxInt32)
	w.config.GapWait = time.Hour
	if _, err := w.ForwardBackward(ctx, last); err != nil {
		t.Fatal(err)
	}
	_, err = w.ForwardBackward(ctx, pass(run))
	w.refused(err, KindInvalid, "seq_id: is left out, and there is none after")
}

// However many come at once, each has a number of its own and all are done.
func TestOperationsWithoutANumberAtOnce(t *testing.T) {
	w := newWorld(t, func(w *world) { w.config.GapWait = time.Hour })
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	ids := make([]string, 40)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			op := w.pass(run, 0)
			op.Operation = next(run)
			s, err := w.ForwardBackward(ctx, op)
			if err != nil {
				t.Error(err)
			}
			ids[i] = s.RequestID
		})
	}
	all.Wait()
	slices.Sort(ids)
	if n := len(slices.Compact(slices.Clone(ids))); n != len(ids) {
		t.Fatalf("%d ids of %d operations", n, len(ids))
	}
	for _, id := range ids {
		w.good(Submitted{RequestID: id}, nil)
	}
}

func TestSamplesWithoutANumber(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	sampler := w.baseSampler(w.session(), 0)
	unnumbered := w.sample(sampler, 0)
	unnumbered.Unnumbered = true
	want := fmt.Sprint(w.sampled(w.sample(sampler, 7)).Sequences)
	expect := func(n int64) {
		t.Helper()
		s, err := w.Sample(ctx, unnumbered)
		w.ok(err)
		if s.RequestID != sampler+":"+itoa(n) || s.SequenceIDs[1] != s.RequestID+":1" {
			t.Errorf("got %+v, want number %d", s, n)
		}
		if got := fmt.Sprint(w.outcome(s.RequestID).Sample.Sequences); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	expect(8)
	expect(9)
	bad := unnumbered
	bad.Prompt = []int32{99}
	_, err := w.Sample(ctx, bad)
	w.refused(err, KindInvalid, "prompt")
	expect(10) // a refusal leaves no gap
	_, err = w.Sample(ctx, w.sample(sampler, 10))
	w.refused(err, KindInvalid, "seq_id: 10 was used before")
	w.restart()
	expect(11)
	if _, err := w.Sample(ctx, w.sample(sampler, math.MaxInt64-1)); err != nil {
		t.Fatal(err)
	}
	_, err = w.Sample(ctx, unnumbered)
	w.refused(err, KindInvalid, "seq_id: is left out")
}

// The likeliest tokens come with the prompt's own log-probabilities.
func TestTopPromptLogprobsAlone(t *testing.T) {
	w := newWorld(t, nil)
	sampler := w.baseSampler(w.session(), 0)
	req := w.sample(sampler, 0)
	req.TopKPromptLogprobs = 2
	alone := w.sampled(req).Prompt
	req.Seq, req.PromptLogprobs = 1, true
	both := w.sampled(req).Prompt
	if len(alone.Logprobs) != 3 || len(alone.Top.IDs) != 6 || fmt.Sprint(alone.Logprobs, alone.Top) != fmt.Sprint(both.Logprobs, both.Top) {
		t.Errorf("got %+v, want %+v", alone, both)
	}
	req.Seq, req.PromptLogprobs, req.PromptLogprobsLastN = 2, false, 1
	if last := w.sampled(req).Prompt; !math.IsNaN(float64(last.Logprobs[1])) || last.Logprobs[2] != both.Logprobs[2] {
		t.Errorf("the last one alone: %v", last.Logprobs)
	}
}
