package runs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

func (w *world) baseSampler(session string, seq int64) string {
	w.t.Helper()
	s, err := w.CreateSampler(w.t.Context(), NewSampler{Owner: owner, SessionID: session, Seq: seq, BaseModel: "test/alias"})
	w.ok(err)
	return s.ID
}

func TestSampleOptionsAndRepeats(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	session := w.session()
	id := w.baseSampler(session, 0)
	info, err := w.Sampler(ctx, owner, id)
	w.ok(err)
	if info.ID != session+":sample:0" || info.BaseModel != "test/alias" || info.ServedModel != base {
		t.Errorf("sampler %+v", info)
	}
	if again := w.baseSampler(session, 0); again != id {
		t.Errorf("a repeat made %s", again)
	}
	_, err = w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: 0, BaseModel: base})
	w.refused(err, KindInvalid)

	req := w.sample(id, 3_000_000_000)
	req.PromptLogprobs, req.PromptLogprobsLastN, req.TopKPromptLogprobs, req.TopKSampledLogprobs = true, 1, 2, 3
	req.TargetPromptTokens, req.TargetPromptK, req.TargetPromptSparse, req.PromptAlternatives = []int32{5, -1}, 1, true, 2
	first, err := w.Sample(ctx, req)
	w.ok(err)
	if want := []string{first.RequestID + ":0", first.RequestID + ":1"}; !slices.Equal(first.SequenceIDs, want) {
		t.Errorf("sequence ids %v", first.SequenceIDs)
	}
	got := w.outcome(first.RequestID).Sample
	p := got.Prompt
	if len(p.Logprobs) != 3 || !math.IsNaN(float64(p.Logprobs[1])) || p.Logprobs[2] >= 0 || p.Top.K != 2 || len(p.Targets) != 2 || p.Targets[0] >= 0 || p.Targets[1] != 0 || len(p.AltTokens) != 4 {
		t.Errorf("prompt scores %+v", p)
	}
	if got.PromptLength != 3 || !slices.Equal(got.TargetPromptTokens, req.TargetPromptTokens) || got.TargetPromptK != 1 || !got.TargetPromptSparse || got.PromptAlternatives != 2 {
		t.Errorf("the result does not know its request: %+v", got)
	}
	if s := got.Sequences[1]; s.Top.K != 3 || len(s.Top.IDs) != 3*len(s.Tokens) || len(s.Logprobs) != len(s.Tokens) {
		t.Errorf("sequence %+v", s)
	}
	if again, err := w.Sample(ctx, req); err != nil || again.RequestID != first.RequestID {
		t.Errorf("a repeat: %v, %v", again, err)
	}
	req.Params.Temperature = 0.5
	_, err = w.Sample(ctx, req)
	w.refused(err, KindInvalid, "used before")

	// Without a seed one is drawn: two requests differ.
	free := w.sample(id, 1)
	free.Params.Seed, free.Params.MaxTokens = nil, intp(40)
	a := w.sampled(free)
	free.Seq = 2
	if b := w.sampled(free); fmt.Sprint(a) == fmt.Sprint(b) {
		t.Error("two samples without a seed are equal")
	}
}

func TestBadSamples(t *testing.T) {
	w := newWorld(t, nil)
	id := w.baseSampler(w.session(), 0)
	for i, c := range []struct {
		name   string
		change func(*Sample)
		kind   Kind
		words  string
	}{
		{"context", func(s *Sample) { s.Params.MaxTokens = intp(126) }, KindInvalid, "Prompt length plus max_tokens exceeds the model's context window: 3 prompt tokens + 126 max_tokens > 128."},
		{"huge max_tokens", func(s *Sample) { s.Params.MaxTokens = intp(math.MaxInt) }, KindInvalid, "Prompt length plus max_tokens exceeds"},
		{"prompt fills the context", func(s *Sample) { s.Prompt, s.Params.MaxTokens = make([]int32, 128), nil }, KindInvalid, "128 prompt tokens + 1 max_tokens > 128."},
		{"empty prompt", func(s *Sample) { s.Prompt = nil }, KindInvalid, "prompt"},
		{"token", func(s *Sample) { s.Prompt = []int32{64} }, KindInvalid, "0 … 63"},
		{"no samples", func(s *Sample) { s.NumSamples = 0 }, KindInvalid, "num_samples"},
		{"too many samples", func(s *Sample) { s.NumSamples = 1 << 40 }, KindInvalid, "num_samples"},
		{"temperature", func(s *Sample) { s.Params.Temperature = math.NaN() }, KindInvalid, "temperature"},
		{"top_p", func(s *Sample) { s.Params.TopP = 0 }, KindInvalid, "top_p"},
		{"negative top_k", func(s *Sample) { s.Params.TopK = -2 }, KindInvalid, "top_k: is -2"},
		{"large top_k", func(s *Sample) { s.Params.TopK = 1 << 40 }, KindInvalid, "-1 (off) … 2147483647"},
		{"top-k of the prompt", func(s *Sample) { s.TopKPromptLogprobs = 65 }, KindInvalid, "topk_prompt_logprobs"},
		{"last n", func(s *Sample) { s.PromptLogprobs, s.PromptLogprobsLastN = true, 3 }, KindInvalid, "1 … 2"},
		{"targets", func(s *Sample) { s.TargetPromptTokens, s.TargetPromptK = []int32{1}, 1 }, KindInvalid, "[2, K]"},
		{"too many target columns", func(s *Sample) { s.TargetPromptTokens, s.TargetPromptK = make([]int32, 2*(maxTop+1)), maxTop+1 }, KindInvalid, "1001 columns"},
		{"stop token", func(s *Sample) { s.Params.Stops.Tokens = []int32{-1} }, KindInvalid, "stop"},
		{"empty stop string", func(s *Sample) { s.Params.Stops.Strings = []string{""} }, KindInvalid, "stop"},
		{"negative number", func(s *Sample) { s.Seq = -1 }, KindInvalid, "seq_id"},
		{"unknown sampler", func(s *Sample) { s.SamplerID = "x:sample:0" }, KindNotFound, "x:sample:0"},
		{"foreign sampler", func(s *Sample) { s.Owner = other }, KindNotFound, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := w.sample(id, int64(i))
			c.change(&req)
			_, err := w.Sample(t.Context(), req)
			w.refused(err, c.kind, c.words)
		})
	}
}

func TestStops(t *testing.T) {
	w := newWorld(t, nil)
	id := w.baseSampler(w.session(), 0)
	plain := w.sample(id, 0)
	plain.Params.MaxTokens = intp(60)
	free := w.sampled(plain)
	tokens := free.Sequences[0].Tokens
	text := ""
	for _, x := range tokens {
		text += string('A' + x)
	}
	stop := string([]rune(text)[7:9]) // crosses a border of tokens
	end := len([]rune(text[:strings.Index(text, stop)])) + 2

	req := plain
	req.Seq, req.Params.Stops = 1, Stops{Given: true, Strings: []string{"no such text", stop}}
	got := w.sampled(req).Sequences[0]
	if !slices.Equal(got.Tokens, tokens[:end]) || !slices.Equal(got.Logprobs, free.Sequences[0].Logprobs[:end]) || got.StoppedByLength {
		t.Errorf("stop string: got %v (length %v), want %v", got.Tokens, got.StoppedByLength, tokens[:end])
	}
	req.Seq, req.Params.Stops = 2, Stops{Given: true, Tokens: []int32{tokens[4]}}
	got = w.sampled(req).Sequences[0]
	if n := slices.Index(tokens, tokens[4]) + 1; !slices.Equal(got.Tokens, tokens[:n]) || got.StoppedByLength {
		t.Errorf("stop token: got %v, want %v", got.Tokens, tokens[:n])
	}
	if !free.Sequences[0].StoppedByLength || len(tokens) != 60 {
		t.Errorf("with an empty list of stops it stopped after %d", len(tokens))
	}
	req.Seq, req.Params.Stops, req.Params.Temperature = 3, Stops{}, 3
	for _, s := range w.sampled(req).Sequences {
		if n := slices.Index(s.Tokens, 1); n >= 0 && n != len(s.Tokens)-1 {
			t.Errorf("the model's end token did not stop: %v", s.Tokens)
		}
	}
}

// The prompts that wait are bounded in all, and one owner's do not keep out another's.
func TestPromptsAreBounded(t *testing.T) {
	w, _ := gated(t, "sample", func(w *world) {
		w.config.MaxRunningSample = 1
		w.config.MaxQueuedBytes = 100 // a prompt of the tests has 12
	})
	ctx := t.Context()
	fill := func(who string) (taken int) {
		s, err := w.CreateSession(ctx, NewSession{Owner: who})
		w.ok(err)
		smp, err := w.CreateSampler(ctx, NewSampler{Owner: who, SessionID: s.ID, BaseModel: base})
		w.ok(err)
		for {
			req := w.sample(smp.ID, int64(taken))
			req.Owner = who
			if _, err := w.Sample(ctx, req); err != nil {
				w.refused(err, KindBusy, "prompts")
				return taken
			}
			taken++
		}
	}
	if ann, bob, eve := fill(owner), fill(other), fill("a third"); ann != 8 || bob != 4 || eve != 2 {
		t.Errorf("taken %d, %d and %d", ann, bob, eve)
	}
	if again := fill(owner); again != 0 {
		t.Errorf("%d more of the first", again)
	}
}

func TestManySamplesTakeTurnsAndAreBounded(t *testing.T) {
	w, open := gated(t, "sample", func(w *world) {
		w.config.MaxRunningSample = 4
		w.config.MaxQueuedSamples = 500
	})
	session := w.session()
	id := w.baseSampler(session, 0)
	var wg sync.WaitGroup
	var mu sync.Mutex
	busy := 0
	for i := range int64(600) {
		wg.Go(func() {
			req := w.sample(id, i)
			req.NumSamples, req.Params.MaxTokens = 1, intp(1)
			_, err := w.Sample(t.Context(), req)
			mu.Lock()
			defer mu.Unlock()
			if KindOf(err) == KindBusy {
				busy++
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if busy != 100 {
		t.Errorf("%d of 600 were turned away, 500 may wait", busy)
	}
	w.Core.mu.Lock()
	running := w.models[0].samples.running
	w.Core.mu.Unlock()
	if running != 4 {
		t.Errorf("%d run at once, want 4", running)
	}
	// Another session does not wait behind all of them.
	second := w.baseSampler(session, 1)
	open <- struct{}{}
	w.eventually(func() bool { return w.owners[owner].samples < 500 })
	late, err := w.Sample(t.Context(), w.sample(second, 0))
	w.ok(err)
	finished := make(chan error, 1)
	go func() {
		_, err := w.Wait(context.WithoutCancel(t.Context()), owner, late.RequestID, longest)
		finished <- err
	}()
	const soon = 50 // its turn is one of the next few, but who comes to the gate first is the scheduler's choice
	for i := 0; i < soon && len(finished) == 0; i++ {
		select {
		case err := <-finished:
			finished <- err
		case open <- struct{}{}:
		}
	}
	w.ok(<-finished)
	w.Core.mu.Lock()
	waiting := w.models[0].samples.waiting[w.samplers[id]]
	if waiting == nil {
		w.Core.mu.Unlock()
		t.Fatal("the second session waited for all of the first")
	}
	last := waiting.jobs[len(waiting.jobs)-1].future.id
	w.Core.mu.Unlock()
	w.ok(w.FinishSession(t.Context(), owner, session, "success", ""))
	w.failure(w.outcome(last), CategoryUser, "session has ended")
}

func TestCompletions(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	id := w.baseSampler(w.session(), 0)
	w.sampled(w.sample(id, 0)) // before anybody asks
	q := CompletionQuery{Owner: owner, SamplerID: id, Hold: longest}
	list, cursor, err := w.Completions(ctx, q)
	w.ok(err)
	if len(list) != 1 || list[0].RequestID != id+":0" || list[0].Failed || list[0].Size == 0 {
		t.Fatalf("first: %+v", list)
	}
	q.Cursor = cursor
	type news struct {
		list   []Completion
		cursor int64
		err    error
	}
	got := make(chan news, 1)
	go func() {
		list, cursor, err := w.Completions(ctx, q)
		got <- news{list, cursor, err}
	}()
	w.sampled(w.sample(id, 1))
	w.sampled(w.sample(id, 2_000_000_005)) // of another client
	n := <-got
	w.ok(n.err)
	if len(n.list) != 1 || n.list[0].RequestID != id+":1" {
		t.Fatalf("second: %+v", n.list)
	}
	q.Cursor, q.Hold = n.cursor, 0
	if list, cursor, err = w.Completions(ctx, q); err != nil || len(list) != 0 || cursor != n.cursor {
		t.Fatalf("without news: %v %d %v", list, cursor, err)
	}
	list, _, err = w.Completions(ctx, CompletionQuery{Owner: owner, SamplerID: id, Clone: 2})
	if err != nil || len(list) != 1 || list[0].RequestID != id+":2000000005" {
		t.Fatalf("the other client: %+v, %v", list, err)
	}
	_, _, err = w.Completions(ctx, CompletionQuery{Owner: other, SamplerID: id})
	w.refused(err, KindNotFound)
	w.restart()
	list, _, err = w.Completions(ctx, q) // with the old cursor
	if err != nil || len(list) != 2 {
		t.Fatalf("after a restart: %+v, %v", list, err)
	}
}

func TestCancelAndJoin(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.config.MaxRunningSample = 1
		w.fake = `{"vocab_size": 64, "max_context_length": 128, "delays": [{"operation": "token", "seconds": 10}]}`
	})
	ctx := t.Context()
	id := w.baseSampler(w.session(), 0)
	long := w.sample(id, 0)
	long.Params.MaxTokens = intp(100)
	first, err := w.Sample(ctx, long)
	w.ok(err)
	long.Seq = 1
	second, err := w.Sample(ctx, long)
	w.ok(err)
	w.ok(w.CancelFuture(ctx, other, first.RequestID))
	w.ok(w.CancelFuture(ctx, owner, "no such future"))
	if _, err := w.Wait(ctx, owner, first.RequestID, 0); !errors.Is(err, ErrPending) {
		t.Fatalf("a stranger cancelled: %v", err)
	}
	w.ok(w.CancelFuture(ctx, owner, second.RequestID)) // waiting
	w.failure(w.outcome(second.RequestID), CategoryUser, "cancelled")
	w.ok(w.CancelFuture(ctx, owner, first.RequestID)) // running
	w.failure(w.outcome(first.RequestID), CategoryUser, "cancelled")
	w.ok(w.CancelFuture(ctx, owner, first.RequestID))

	for i, c := range []struct {
		key  string
		want int64
	}{{"a", 1}, {"b", 2}, {"a", 1}, {"", 3}, {"", 4}} {
		n, err := w.JoinSampler(ctx, owner, id, c.key)
		if err != nil || n != c.want {
			t.Errorf("join %d: got %d, %v", i, n, err)
		}
	}
	w.restart()
	if n, err := w.JoinSampler(ctx, owner, id, "c"); err != nil || n != 5 {
		t.Errorf("join after a restart: %d, %v", n, err)
	}
}

func TestProvenance(t *testing.T) {
	w, rec := newWorld(t, nil), &struct {
		req plugins.ForwardBackwardRequest
	}{}
	ctx := t.Context()
	session := w.session()
	run := w.newRun(session, 0)
	w.mu.Lock()
	w.wrap = func(b plugins.Backend) plugins.Backend { return watchPass{b, &rec.req} }
	w.mu.Unlock()
	w.Core.mu.Lock()
	w.models[0].slots[0].known.Backend = watchPass{w.models[0].slots[0].known.Backend, &rec.req}
	w.Core.mu.Unlock()
	id := w.baseSampler(session, 0)
	s, err := w.Sample(ctx, w.sample(id, 0))
	w.ok(err)
	sampled := w.outcome(s.RequestID).Sample.Sequences[1]
	sequence := s.SequenceIDs[1]
	tokens := append([]int32{2, 3, 4}, sampled.Tokens...)
	n := len(tokens) - 1
	var targets []int64
	for _, x := range tokens[1:] {
		targets = append(targets, int64(x))
	}
	op := func(seq int64) ForwardBackward {
		adv := make([]float32, n)
		for i := 2; i < n; i++ {
			adv[i] = 1
		}
		return ForwardBackward{Operation: at(run, seq), Loss: "stable_reinforce", Config: map[string]float64{"ratio_cap": 3}, Data: []Datum{{
			Tokens: tokens[:n], Inputs: map[string]Tensor{"target_tokens": {Ints: targets}, "logprobs": {Floats: make([]float32, n)}, "advantages": {Floats: adv}},
			LossSpans: []Span{{SequenceID: sequence, Offset: 1, Length: 2}, {Sampled: true, SequenceID: sequence, Length: int64(n - 2)}},
		}}}
	}
	w.good(w.ForwardBackward(ctx, op(1)))
	if got := rec.req.Data[0].Logprobs; len(got) != n || got[0] != 0 || !slices.Equal(got[2:], sampled.Logprobs) {
		t.Errorf("the backend got %v, recorded was %v", got, sampled.Logprobs)
	}
	for i, c := range []struct {
		name   string
		change func(d *Datum)
		words  string
	}{
		{"a row that was not sampled has an advantage", func(d *Datum) { d.Inputs["advantages"].Floats[1] = 1 }, "row 1"},
		{"another token", func(d *Datum) { d.Inputs["target_tokens"].Ints[3] = (d.Inputs["target_tokens"].Ints[3] + 1) % 64 }, "row 3"},
		{"unknown sequence", func(d *Datum) { d.LossSpans[1].SequenceID = id + ":7:0" }, "no sequence"},
		{"no sequence at all", func(d *Datum) { d.LossSpans[1].SequenceID = "x" }, "not the id"},
		{"index", func(d *Datum) { d.LossSpans[1].SequenceID = s.RequestID + ":2" }, "no sequence"},
		{"an operation that is no sample", func(d *Datum) { d.LossSpans[1].SequenceID = run + ":1:0" }, "not the id"},
		{"beyond the sequence", func(d *Datum) { d.LossSpans[1].Offset = 1 << 60 }, "sampled tokens"},
		{"too long", func(d *Datum) { d.LossSpans[1].Length++ }, "rows are left"},
		{"too short", func(d *Datum) { d.LossSpans[1].Length-- }, "cover"},
		{"negative", func(d *Datum) { d.LossSpans[0].Length = -1 }, "length -1"},
	} {
		bad := op(int64(i + 2))
		bad.Data[0].Inputs["target_tokens"] = Tensor{Ints: slices.Clone(targets)}
		c.change(&bad.Data[0])
		t.Run(c.name, func(t *testing.T) { w.bad(w.ForwardBackward(ctx, bad))(t, c.words) })
	}
}

func TestLargePromptsAreReleased(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	req := w.sample(w.baseSampler(w.session(), 0), 0)
	req.Prompt = slices.Repeat([]int32{5}, 100)
	req.TargetPromptK = 50
	req.TargetPromptTokens = slices.Repeat([]int32{6}, 99*req.TargetPromptK)
	w.sampled(req)
	rec, err := w.store.Get(ctx, inOperations, req.SamplerID+":0")
	w.ok(err)
	if rec.Payload != nil || rec.Ref != (store.Ref{}) {
		t.Errorf("the request is still there: %d bytes, %+v", len(rec.Payload), rec.Ref)
	}
	w.sampled(req) // a repeat is known as one
	req.Prompt[0] = 7
	_, err = w.Sample(ctx, req)
	w.refused(err, KindInvalid, "used before")
}

// Samples are trained on in later sessions too: what was recorded of them outlives their own session by a day.
func TestProvenanceOutlivesItsSession(t *testing.T) {
	w, clock := clocked(t, nil)
	ctx := t.Context()
	past := w.session()
	s, err := w.Sample(ctx, w.sample(w.baseSampler(past, 0), 0))
	w.ok(err)
	sampled := w.outcome(s.RequestID).Sample.Sequences[0]
	w.ok(w.FinishSession(ctx, owner, past, "success", ""))
	tokens := append([]int32{4}, sampled.Tokens...)
	n := len(tokens) - 1
	targets := make([]int64, n)
	for i := range targets {
		targets[i] = int64(tokens[i+1])
	}
	train := func() (Submitted, error) {
		session := w.session()
		return w.ForwardBackward(ctx, ForwardBackward{Operation: at(w.newRun(session, 0), 1), Loss: "stable_reinforce", Config: map[string]float64{"ratio_cap": 3}, Data: []Datum{{
			Tokens: tokens[:n], Inputs: map[string]Tensor{"target_tokens": {Ints: targets}, "logprobs": {Floats: make([]float32, n)}, "advantages": {Floats: make([]float32, n)}},
			LossSpans: []Span{{Sampled: true, SequenceID: s.SequenceIDs[0], Length: int64(n)}},
		}}})
	}
	for _, restarted := range []bool{false, true} {
		clock.add(11 * time.Hour)
		w.sweep(ctx, time.Second)
		if restarted {
			w.restart()
		}
		w.good(train())
	}
	clock.add(3 * time.Hour)
	w.sweep(ctx, time.Second)
	submitted, err := train()
	w.bad(submitted, err)(t, "no sequence")
	if left, err := w.store.List(ctx, inResults, past+":sample:0", store.Range{}, 0); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

type watchPass struct {
	plugins.Backend
	req *plugins.ForwardBackwardRequest
}

func (x watchPass) ForwardBackward(ctx context.Context, req plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	*x.req = req
	return x.Backend.ForwardBackward(ctx, req)
}

func TestGenerate(t *testing.T) {
	w := newWorld(t, func(w *world) { w.config.Models[0].ChatLatest = true })
	ctx := t.Context()
	session := w.session()
	generate := func(name string, stops Stops) (tokens []int32, reason plugins.StopReason, err error) {
		target, err := w.Resolve(ctx, owner, name)
		if err != nil {
			return nil, 0, err
		}
		err = w.Generate(ctx, target, Generation{Owner: owner, SeedGiven: true, Stops: stops, Request: plugins.SampleRequest{
			Prompt: []int32{2, 3}, NumSamples: 1, MaxTokens: 20, Temperature: 1, TopP: 1, Seed: 5, RepetitionPenalty: 1,
		}}, func(e plugins.SampleEvent) error {
			if e.Tokens != nil {
				tokens = append(tokens, e.Tokens.Tokens...)
			}
			if e.Finished != nil {
				reason = e.Finished.Reason
			}
			return nil
		})
		return tokens, reason, err
	}
	none := Stops{Given: true}
	plain, reason, err := generate(base, none)
	if err != nil || len(plain) != 20 || reason != plugins.StopLength {
		t.Fatalf("base: %v %v %v", plain, reason, err)
	}
	_, err = w.Resolve(ctx, owner, base+":latest")
	w.refused(err, KindNotFound, "no adapter")
	run := w.newRun(session, 0)
	for i := range int64(3) {
		w.good(w.ForwardBackward(ctx, w.pass(run, 2*i+1)))
		w.good(w.OptimStep(ctx, w.step(run, 2*i+2)))
	}
	newest, _, err := generate(run, none)
	w.ok(err)
	if slices.Equal(newest, plain) {
		t.Error("the trained adapter generates what the base does")
	}
	saved := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 7), Name: "s"})).Saved.Path
	for _, name := range []string{"tinker://" + run, base + ":latest", base, "test/alias", "test/alias:latest", saved, base + ";" + saved} {
		if got, _, err := generate(name, none); err != nil || !slices.Equal(got, newest) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, newest)
		}
	}
	w.good(w.ForwardBackward(ctx, w.pass(run, 8)))
	w.good(w.OptimStep(ctx, OptimStep{Operation: at(run, 9), Adam: plugins.AdamParams{LearningRate: 0.3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}}))
	if got, _, _ := generate(run, none); slices.Equal(got, newest) {
		t.Error("the run's name did not move with its newest version")
	}
	if got, _, _ := generate(saved, none); !slices.Equal(got, newest) {
		t.Error("the checkpoint moved")
	}
	if got, reason, err := generate(saved, Stops{Given: true, Strings: []string{string('A' + newest[3])}}); err != nil || reason != plugins.StopToken || len(got) != slices.Index(newest, newest[3])+1 {
		t.Errorf("stop string: %v %v %v", got, reason, err)
	}
	for _, c := range []struct {
		owner, name string
		kind        Kind
	}{
		{other, run, KindNotFound}, {other, saved, KindNotFound}, {owner, "gpt-4", KindNotFound}, {owner, "tinker://" + run + "/sampler_weights/none", KindNotFound},
		{owner, "tinker://../../etc/passwd/x", KindInvalid}, {owner, "nope;" + saved, KindNotFound}, {other, base + ":latest", KindNotFound},
	} {
		_, err := w.Resolve(ctx, c.owner, c.name)
		w.refused(err, c.kind)
	}
	list, err := w.ServedModels(ctx, owner)
	w.ok(err)
	var ids []string
	for _, m := range list {
		ids = append(ids, m.ID)
	}
	if want := []string{base, "test/alias", "tinker://" + run, saved}; !slices.Equal(ids, want) {
		t.Errorf("served models %v, want %v", ids, want)
	}
	stop := errors.New("the client has gone")
	target, err := w.Resolve(ctx, owner, base)
	w.ok(err)
	err = w.Generate(ctx, target, Generation{Owner: owner, Stops: none, Request: plugins.SampleRequest{Prompt: []int32{2}, NumSamples: 1, MaxTokens: 50, Temperature: 1, TopP: 1, RepetitionPenalty: 1}},
		func(plugins.SampleEvent) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("an error of the receiver came back as %v", err)
	}
	err = w.Generate(ctx, target, Generation{Owner: owner, Stops: none, Request: plugins.SampleRequest{Prompt: []int32{2}, NumSamples: 1, MaxTokens: 500, Temperature: 1, TopP: 1, RepetitionPenalty: 1}}, nil)
	w.refused(err, KindInvalid, "Prompt length plus max_tokens exceeds")
}

// lookups counts the records that are looked up one by one.
type lookups struct {
	store.Store
	count atomic.Int64
}

func (l *lookups) Get(ctx context.Context, collection, key string) (store.Record, error) {
	l.count.Add(1)
	return l.Store.Get(ctx, collection, key)
}

// The store is asked about a sample only where it may have one: a repeat is found there, also by the next process, and a new one costs no look-up.
func TestOnlyRepeatedSamplesAreLookedUp(t *testing.T) {
	w := newWorld(t, nil)
	count := func() *lookups {
		l := &lookups{}
		w.inFront(func(s store.Store) store.Store { l.Store = s; return l })
		return l
	}
	l := count()
	id := w.baseSampler(w.session(), 0)
	ids := map[int64]string{}
	for _, seq := range []int64{0, 2, 1, cloneSize, 7} {
		s, err := w.Sample(t.Context(), w.sample(id, seq))
		w.ok(err)
		ids[seq] = s.RequestID
	}
	if n := l.count.Load(); n != 0 {
		t.Errorf("%d look-ups for new samples", n)
	}
	for _, request := range ids {
		w.outcome(request)
	}
	repeats := func() {
		t.Helper()
		for seq, request := range ids {
			if again, err := w.Sample(t.Context(), w.sample(id, seq)); err != nil || again.RequestID != request {
				t.Errorf("a repeat of %d: %+v, %v", seq, again, err)
			}
			other := w.sample(id, seq)
			other.Params.Temperature = 0.5
			_, err := w.Sample(t.Context(), other)
			w.refused(err, KindInvalid, "used before")
		}
	}
	repeats()
	w.restart()
	l = count()
	repeats()
	if l.count.Load() == 0 {
		t.Error("a process knew by itself what an earlier one had taken")
	}
	w.sampled(w.sample(id, 3))
}

// Two equal submissions of one number are one sample, also when the first is finished between the second one's look at what there is and its place in the queue.
func TestSimultaneousSamplesOfOneNumber(t *testing.T) {
	w := newWorld(t, nil)
	id := w.baseSampler(w.session(), 0)
	req := w.sample(id, 7)
	w.sampled(req)
	w.Core.mu.Lock()
	s := w.samplers[id]
	w.Core.mu.Unlock()
	resolved, err := checkSample(req, s.model.Model, 64, 128)
	w.ok(err)
	before, err := w.store.Get(t.Context(), inOperations, id+":7")
	w.ok(err)
	w.ok(w.submitSample(t.Context(), s, id+":7", hashSample(req), resolved)) // what the second one does after its look
	after, err := w.store.Get(t.Context(), inOperations, id+":7")
	w.ok(err)
	w.eventually(func() bool { return len(w.futures) == 0 })
	if string(after.Value) != string(before.Value) {
		t.Errorf("the sample was accepted twice:\n%s\n%s", before.Value, after.Value)
	}
	w.refused(w.submitSample(t.Context(), s, id+":7", "another", resolved), KindInvalid, "7 was used before")
}

// A sampling session whose numbers have too many gaps takes only numbers that make no more of them.
func TestGapsOfSampleNumbers(t *testing.T) {
	w := newWorld(t, nil)
	id := w.baseSampler(w.session(), 0)
	w.Core.mu.Lock()
	taken := &w.samplers[id].taken
	for i := range int64(maxGaps) {
		taken.spans = append(taken.spans, span64{10 * i, 10*i + 1})
	}
	w.Core.mu.Unlock()
	_, err := w.Sample(t.Context(), w.sample(id, 10*maxGaps+5))
	w.refused(err, KindInvalid, "seq_id", "leaves another gap", "65535 already")
	w.sampled(w.sample(id, 21))
	w.sampled(w.sample(id, 10*(maxGaps-1)+1))
}

// TestEndSequence: whoever reads an answer ends a sequence when it has what it wants. The other sequences go on.
func TestEndSequence(t *testing.T) {
	w := newWorld(t, nil)
	target, err := w.Resolve(t.Context(), owner, base)
	w.ok(err)
	tokens, reasons := make([][]int32, 3), make([][]plugins.StopReason, 3)
	err = w.Generate(t.Context(), target, Generation{Owner: owner, SeedGiven: true, Stops: Stops{Given: true}, Request: plugins.SampleRequest{
		Prompt: []int32{2, 3}, NumSamples: 3, MaxTokens: 20, Temperature: 1, TopP: 1, Seed: 5, RepetitionPenalty: 1,
	}}, func(e plugins.SampleEvent) error {
		switch {
		case e.Tokens != nil:
			i := e.Tokens.Sequence
			tokens[i] = append(tokens[i], e.Tokens.Tokens...)
			if i == 1 && len(tokens[i]) >= 4 {
				return fmt.Errorf("enough: %w", ErrEndSequence)
			}
		case e.Finished != nil:
			reasons[e.Finished.Sequence] = append(reasons[e.Finished.Sequence], e.Finished.Reason)
		}
		return nil
	})
	w.ok(err)
	if len(tokens[0]) != 20 || len(tokens[1]) != 4 || len(tokens[2]) != 20 {
		t.Errorf("tokens %v", tokens)
	}
	for i, want := range []plugins.StopReason{plugins.StopLength, plugins.StopToken, plugins.StopLength} {
		if !slices.Equal(reasons[i], []plugins.StopReason{want}) {
			t.Errorf("sequence %d ended with %v", i, reasons[i])
		}
	}
}
