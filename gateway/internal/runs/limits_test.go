package runs

import (
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// limited is a world in which only owner has limits, with a clock that the test moves.
func limited(t testing.TB, limits Limits, change func(*world)) (w *world, pass func(time.Duration)) {
	var moved atomic.Int64
	begin := time.Now()
	w = newWorld(t, func(w *world) {
		w.config.Limits = LimitTable{Named: map[string]Limits{owner: limits}}
		w.config.Now = func() time.Time { return begin.Add(time.Duration(moved.Load())) }
		if change != nil {
			change(w)
		}
	})
	return w, func(d time.Duration) { moved.Add(int64(d)) }
}

// strangerRun makes a run of the other owner, who has no limits.
func (w *world) strangerRun() string {
	w.t.Helper()
	ctx := w.t.Context()
	s, err := w.CreateSession(ctx, NewSession{Owner: other})
	w.ok(err)
	made, err := w.CreateRun(ctx, NewRun{Owner: other, SessionID: s.ID, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
	w.ok(err)
	if out, err := w.Wait(ctx, other, made.RequestID, longest); err != nil || out.Failure != nil {
		w.t.Fatalf("%+v, %v", out, err)
	}
	return made.RunID
}

func TestLimitOfRuns(t *testing.T) {
	w, _ := limited(t, Limits{Runs: 2}, nil)
	ctx := t.Context()
	session := w.session()
	first := w.newRun(session, 0)
	w.newRun(session, 1)
	request := NewRun{Owner: owner, SessionID: session, ModelSeq: 2, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}}
	_, err := w.CreateRun(ctx, request)
	w.refused(err, KindBusy, "key alice", "2 runs are live", "no more than 2", "limits: runs", "unload_model")
	if AfterOf(err) <= 0 || AfterOf(err) > time.Minute {
		t.Errorf("to be repeated after %v", AfterOf(err))
	}
	if again := w.newRun(session, 0); again != first {
		t.Errorf("the repeat of a creation made %s", again)
	}
	w.strangerRun()
	w.good(w.UnloadRun(ctx, owner, first))
	w.eventually(func() bool { return w.liveRuns(owner) == 1 })
	w.good(w.CreateRun(ctx, request))
	w.SetLimits(LimitTable{})
	w.newRun(session, 3)
}

// A pass over the limit is refused before anything of it is kept: what follows waits for it, and its repeat takes its place. Nothing is skipped, however long the gap is waited for.
func TestLimitOfTrainedTokens(t *testing.T) {
	w, pass := limited(t, Limits{TrainedPerMinute: 8}, nil)
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.good(w.ForwardBackward(ctx, w.pass(run, 1))) // a repeat counts once
	w.good(w.ForwardBackward(ctx, w.pass(run, 2)))
	early, err := w.OptimStep(ctx, w.step(run, 4)) // it has overtaken number 3
	w.ok(err)
	_, err = w.ForwardBackward(ctx, w.pass(run, 3))
	w.refused(err, KindBusy, "key alice", "8 tokens were trained", "8 may be", "trained_tokens_per_minute", "repeat in")
	wait := AfterOf(err)
	if wait < time.Second || wait > time.Minute {
		t.Fatalf("to be repeated after %v", wait)
	}
	_, err = w.OptimStep(ctx, w.step(run, 5))
	w.refused(err, KindBusy, "operation 3 of this model comes first", "trained_tokens_per_minute")
	if AfterOf(err) != wait {
		t.Errorf("what comes behind is to be repeated after %v, not %v", AfterOf(err), wait)
	}
	stranger := w.pass(w.strangerRun(), 1)
	stranger.Owner = other
	if s, err := w.ForwardBackward(ctx, stranger); err != nil {
		t.Errorf("another owner: %v", err)
	} else if _, err := w.Wait(ctx, other, s.RequestID, longest); err != nil {
		t.Error(err)
	}
	pass(wait)
	w.Core.mu.Lock()
	r := w.runs[run]
	w.Core.mu.Unlock()
	w.skipOverdue(r) // the time for a gap has passed long ago
	w.good(w.ForwardBackward(ctx, w.pass(run, 3)))
	if out := w.outcome(early.RequestID); out.Failure != nil {
		t.Errorf("the step behind it: %+v", out.Failure)
	}
	w.good(w.OptimStep(ctx, w.step(run, 5)))
}

// What has no number is refused without leaving a gap, and its repeat gets the next number.
func TestLimitOfUnnumberedOperations(t *testing.T) {
	w, pass := limited(t, Limits{TrainedPerMinute: 4}, nil)
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	free := w.pass(run, 0)
	free.Unnumbered = true
	w.good(w.ForwardBackward(ctx, free))
	_, err := w.ForwardBackward(ctx, free)
	w.refused(err, KindBusy, "trained_tokens_per_minute")
	step := w.step(run, 0)
	step.Unnumbered = true
	w.good(w.OptimStep(ctx, step)) // what comes behind it does not wait for it: nobody knows whether it is repeated
	pass(time.Minute)
	w.good(w.ForwardBackward(ctx, free))
}

// The place of a refused operation is kept over restarts, for as long after each as its client may take to repeat it, and no longer.
func TestTurnSurvivesARestart(t *testing.T) {
	w, pass := limited(t, Limits{TrainedPerMinute: 8}, func(w *world) { w.config.GapWait = 50 * time.Millisecond })
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.good(w.ForwardBackward(ctx, w.pass(run, 2)))
	refuse := func(seq int64) (wait time.Duration) {
		t.Helper()
		_, err := w.ForwardBackward(ctx, w.pass(run, seq))
		w.refused(err, KindBusy, "key alice", "trained_tokens_per_minute")
		return AfterOf(err)
	}
	skip := func() { // what is overdue
		w.Core.mu.Lock()
		r := w.runs[run]
		w.Core.mu.Unlock()
		w.skipOverdue(r)
	}
	turns := func() int { return w.records()[inTurns] }
	refuse(3)
	wait := refuse(3)
	if n := turns(); n != 1 {
		t.Errorf("%d places are in the journal", n)
	}
	_, err := w.OptimStep(ctx, w.step(run, 4))
	w.refused(err, KindBusy, "operation 3 of this model comes first")
	w.restart()
	_, err = w.OptimStep(ctx, w.step(run, 4))
	w.refused(err, KindBusy, "operation 3 of this model comes first", "trained_tokens_per_minute")
	if AfterOf(err) != wait {
		t.Errorf("after the restart it is to be repeated after %v, not %v", AfterOf(err), wait)
	}
	pass(wait)
	skip()
	w.good(w.ForwardBackward(ctx, w.pass(run, 3)))
	if n := turns(); n != 0 {
		t.Errorf("%d places are in the journal when the operation is there", n)
	}
	w.restart()
	if out := w.good(w.OptimStep(ctx, w.step(run, 4))); out.OptimStep.Step != 1 {
		t.Errorf("step %d, want 1", out.OptimStep.Step)
	}
	// Nobody comes again for this one.
	wait = refuse(5)
	w.restart()
	pass(wait + patienceForTurn)
	behind, err := w.OptimStep(ctx, w.step(run, 6))
	w.ok(err)
	pass(time.Second)
	skip()
	w.good(behind, nil)
	w.quiet()
	if n := turns(); n != 0 {
		t.Errorf("%d places are in the journal when the number was given up", n)
	}
	w.restart()
	w.good(w.OptimStep(ctx, w.step(run, 7)))
}

// A refusal for which a place is kept is answered when that is in the journal.
func TestTurnIsDurableFirst(t *testing.T) {
	w, pass := limited(t, Limits{TrainedPerMinute: 4}, nil)
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	f := w.failing(inTurns)
	_, err := w.ForwardBackward(ctx, w.pass(run, 2))
	if err == nil || KindOf(err) == KindBusy || f.refused.Load() == 0 {
		t.Errorf("a refusal whose place is not in the journal: %v", err)
	}
	f.collection.Store("")
	_, err = w.ForwardBackward(ctx, w.pass(run, 2))
	w.refused(err, KindBusy, "trained_tokens_per_minute")
	wait := AfterOf(err)
	w.restart()
	_, err = w.OptimStep(ctx, w.step(run, 3))
	w.refused(err, KindBusy, "operation 2 of this model comes first")
	pass(wait)
	w.good(w.ForwardBackward(ctx, w.pass(run, 2)))
}

// A client that never repeats what was refused does not stop its run for ever.
func TestTurnEnds(t *testing.T) {
	w, pass := limited(t, Limits{TrainedPerMinute: 4}, nil)
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	_, err := w.ForwardBackward(ctx, w.pass(run, 2))
	w.refused(err, KindBusy)
	pass(AfterOf(err) + patienceForTurn)
	behind, err := w.OptimStep(ctx, w.step(run, 3))
	w.ok(err)
	pass(time.Second) // more than a gap is waited for
	w.good(behind, nil)
}

// What was used counts over a restart, once, also of an operation that was accepted and had not run.
func TestLimitIsRememberedOverARestart(t *testing.T) {
	open := make(chan struct{})
	w, pass := limited(t, Limits{TrainedPerMinute: 12}, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend { return gate{b, "forward_backward", open} }
	})
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	for seq := int64(1); seq <= 2; seq++ {
		_, err := w.ForwardBackward(ctx, w.pass(run, seq))
		w.ok(err)
	}
	w.restart()
	close(open)
	for seq := int64(1); seq <= 2; seq++ { // the client repeats what it has no answer to
		w.good(w.ForwardBackward(ctx, w.pass(run, seq)))
	}
	if used := w.Use(owner).Trained; used != 8 {
		t.Errorf("%d tokens count after the restart, not 8", used)
	}
	w.good(w.ForwardBackward(ctx, w.pass(run, 3)))
	_, err := w.ForwardBackward(ctx, w.pass(run, 4))
	w.refused(err, KindBusy, "12 tokens were trained")
	pass(2*paceKept + time.Minute)
	w.sweep(ctx, time.Second)
	if left, err := w.store.Count(ctx, inPaces, owner, rangeOfAll); err != nil || left != 0 {
		t.Errorf("%d records are kept for ever, %v", left, err)
	}
	w.good(w.ForwardBackward(ctx, w.pass(w.newRun(w.session(), 0), 1))) // the session has expired
}

func TestLimitOfSamplesInFlight(t *testing.T) {
	release := make(chan struct{})
	w, _ := limited(t, Limits{Samples: 2}, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend { return &stalled{b, owner, release} }
	})
	ctx := t.Context()
	id := w.baseSampler(w.session(), 0)
	var waiting []string
	for seq := range int64(2) {
		s, err := w.Sample(ctx, w.sample(id, seq))
		w.ok(err)
		waiting = append(waiting, s.RequestID)
	}
	_, err := w.Sample(ctx, w.sample(id, 2))
	w.refused(err, KindBusy, "key alice", "2 sampling requests are in flight", "no more than 2", "limits: samples")
	if why := w.Paused(waiting[0]); !why.Limited || why.Reason != err.Error() {
		t.Errorf("who waits is told %+v", why)
	}
	target, err := w.Resolve(ctx, owner, base)
	w.ok(err)
	direct := Generation{Owner: owner, Request: plugins.SampleRequest{Prompt: []int32{2}, NumSamples: 1, MaxTokens: 2, TopP: 1, RepetitionPenalty: 1, Temperature: 1}}
	ignore := func(plugins.SampleEvent) error { return nil }
	w.refused(w.Generate(ctx, target, direct, ignore), KindBusy, "limits: samples")
	if _, err := w.Sample(ctx, w.sample(id, 1)); err != nil {
		t.Errorf("a repeat of one that was accepted: %v", err)
	}
	strange := direct
	strange.Owner = other
	w.ok(w.Generate(ctx, target, strange, ignore))
	close(release)
	for _, id := range waiting {
		w.outcome(id)
	}
	w.sampled(w.sample(id, 2)) // its number is free
	w.ok(w.Generate(ctx, target, direct, ignore))
}

// A request counts with what it may sample until it is done, and with what it has sampled from then on.
func TestLimitOfSampledTokens(t *testing.T) {
	release := make(chan struct{})
	w, pass := limited(t, Limits{SampledPerMinute: 20}, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend { return &stalled{b, owner, release} }
	})
	ctx := t.Context()
	id := w.baseSampler(w.session(), 0)
	first, err := w.Sample(ctx, w.sample(id, 0)) // 2 of 5 tokens
	w.ok(err)
	second, err := w.Sample(ctx, w.sample(id, 1))
	w.ok(err)
	_, err = w.Sample(ctx, w.sample(id, 2))
	w.refused(err, KindBusy, "key alice", "may sample 20 more", "sampled_tokens_per_minute", "max_tokens")
	w.restart() // what is in flight counts as before
	w.eventually(func() bool { return w.samplesOf(owner) == 2 })
	_, err = w.Sample(ctx, w.sample(id, 2))
	w.refused(err, KindBusy, "may sample 20 more")
	close(release)
	used := w.outcome(first.RequestID).Sample.sampled() + w.outcome(second.RequestID).Sample.sampled()
	w.eventually(func() bool { return w.samplesOf(owner) == 0 })
	if got := w.Use(owner).Sampled; got != used || used == 0 {
		t.Errorf("%d tokens count, %d were sampled", got, used)
	}
	w.restart()
	if got := w.Use(owner).Sampled; got != used {
		t.Errorf("%d tokens count after a restart, %d were sampled", got, used)
	}
	err = nil
	for seq := int64(2); err == nil; seq++ {
		var s SubmittedSample
		if s, err = w.Sample(ctx, w.sample(id, seq)); err == nil {
			w.outcome(s.RequestID)
			w.eventually(func() bool { return w.samplesOf(owner) == 0 })
		}
	}
	w.refused(err, KindBusy, "tokens were sampled within a minute", "20 may be")
	target, gone := w.Resolve(ctx, owner, base)
	w.ok(gone)
	direct := Generation{Owner: owner, Request: plugins.SampleRequest{Prompt: []int32{2}, NumSamples: 1, MaxTokens: 2, TopP: 1, RepetitionPenalty: 1, Temperature: 1}}
	w.refused(w.Generate(ctx, target, direct, nil), KindBusy, "sampled_tokens_per_minute")
	pass(2 * time.Minute)
	before := w.Use(owner).Sampled
	w.ok(w.Generate(ctx, target, direct, func(plugins.SampleEvent) error { return nil }))
	if got := w.Use(owner).Sampled; before != 0 || got < 1 || got > 2 {
		t.Errorf("%d tokens count before a direct request and %d after it", before, got)
	}
}

func TestLimitOfCheckpoints(t *testing.T) {
	w, _ := limited(t, Limits{CheckpointBytes: 1}, nil)
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	save := func(seq int64, name string, overwrite bool) SaveWeights {
		return SaveWeights{Operation: at(run, seq), Name: name, Overwrite: overwrite}
	}
	w.good(w.SaveWeights(ctx, save(1, "a", false))) // nobody knows before how much it takes
	size := w.Use(owner).CheckpointBytes
	if size <= 1 {
		t.Fatalf("a checkpoint of %d bytes", size)
	}
	w.SetLimits(LimitTable{Default: Limits{CheckpointBytes: 2*size + size/2}})
	w.good(w.SaveWeights(ctx, save(2, "b", false)))
	_, err := w.SaveWeights(ctx, save(3, "c", false))
	w.refused(err, KindBusy, "key alice", "MiB", "checkpoint_mib", "delete")
	_, err = w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: owner, Source: Path{run, KindWeights, "a"}.String(), ProjectID: "p"})
	w.refused(err, KindBusy, "checkpoint_mib")
	w.ok(w.DeleteCheckpoint(ctx, owner, Path{run, KindWeights, "a"}.String(), ""))
	w.good(w.SaveWeights(ctx, save(3, "c", false)))         // in its place: nothing was skipped
	w.good(w.SaveWeights(ctx, save(4, "c", true)))          // takes no more than what it replaces
	if got := w.Use(owner).CheckpointBytes; got != 2*size { // all are alike
		t.Errorf("%d bytes count, two of %d are there", got, size)
	}
	w.Core.mu.Lock()
	reserved := len(w.storing)
	w.Core.mu.Unlock()
	if reserved != 0 {
		t.Errorf("%d owners have saves that are being written", reserved)
	}
	if _, err := w.SaveWeights(ctx, save(5, "d", false)); KindOf(err) != KindBusy {
		t.Errorf("one more: %v", err)
	}
}

// Two saves at once cannot both have what is left for one.
func TestLimitCountsSavesThatAreBeingWritten(t *testing.T) {
	open := make(chan struct{}, 1)
	w, _ := limited(t, Limits{}, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend { return gate{b, "forward_backward", open} }
	})
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 1), Name: "a"}))
	w.SetLimits(LimitTable{Default: Limits{CheckpointBytes: 2 * w.Use(owner).CheckpointBytes}})
	_, err := w.ForwardBackward(ctx, w.pass(run, 2)) // holds up what is behind it
	w.ok(err)
	held, err := w.SaveWeights(ctx, SaveWeights{Operation: at(run, 3), Name: "b"})
	w.ok(err)
	_, err = w.SaveWeights(ctx, SaveWeights{Operation: at(run, 4), Name: "c"})
	w.refused(err, KindBusy, "checkpoint_mib")
	close(open)
	w.good(held, nil)
}

// Use is counted by day, owner and model, whatever the model was called.
func TestUsageByDay(t *testing.T) {
	w, pass := limited(t, Limits{}, nil)
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.good(w.OptimStep(ctx, w.step(run, 2)))
	sampled := w.sampled(w.sample(w.baseSampler(w.session(), 0), 0)).sampled() // by the alias
	w.strangerRun()
	began := w.config.Now()
	w.restart()
	list, err := w.UsageByDay(ctx, []string{owner}, began)
	w.ok(err)
	today := began.UTC().Truncate(24 * time.Hour)
	want := DayUse{Day: today, Owner: owner, Model: base, Trained: 4, Sampled: sampled, Prompt: 3, Steps: 1, Requests: 4}
	if len(list) != 1 || list[0] != want {
		t.Errorf("got %+v, want %+v", list, want)
	}
	all, err := w.UsageByDay(ctx, nil, began)
	w.ok(err)
	if len(all) != 2 || all[0] != want || all[1].Owner != other || all[1].Requests != 1 {
		t.Errorf("of all: %+v", all)
	}
	w.config.UsageByHour = 24 * time.Hour
	w.restart()
	pass(5 * 24 * time.Hour)
	w.sweep(ctx, time.Second)
	if left, err := w.store.Count(ctx, inUsage, owner, rangeOfAll); err != nil || left != 0 {
		t.Errorf("%d records are left by hour, %v", left, err)
	}
	if list, err = w.UsageByDay(ctx, []string{owner}, began); err != nil || len(list) != 1 || list[0] != want {
		t.Errorf("by day: %+v, %v", list, err)
	}
	if list, err = w.UsageByDay(ctx, nil, w.config.Now()); err != nil || len(list) != 0 {
		t.Errorf("of today: %+v, %v", list, err)
	}
}

var rangeOfAll = store.Range{From: 0, To: math.MaxInt64}

// Clients' own numbers count over all runs of an owner, live or not, until the runs are removed; what replaces others or is thinned out counts nothing.
func TestLimitOfMetricValues(t *testing.T) {
	w, pass := limited(t, Limits{MetricValues: 100}, func(w *world) { w.config.SessionsKept = 24 * time.Hour })
	ctx := t.Context()
	rows := func(from, steps int, names ...string) (rows []MetricRow) {
		for i := range steps {
			row := MetricRow{Step: int64(from + i), Values: map[string]float64{}}
			for _, name := range names {
				row.Values[name] = float64(i)
			}
			rows = append(rows, row)
		}
		return rows
	}
	add := func(run string, rows []MetricRow) {
		t.Helper()
		_, err := w.AddMetrics(ctx, owner, run, rows)
		w.ok(err)
	}
	over := func(run string, rows []MetricRow) {
		t.Helper()
		before := w.curve(run, "reward")
		_, err := w.AddMetrics(ctx, owner, run, rows)
		w.refused(err, KindBusy, "key alice", "metric_values", "100")
		if AfterOf(err) <= 0 {
			t.Error("no time is told after which it may be repeated")
		}
		if after := w.curve(run, "reward"); len(after) != len(before) {
			t.Errorf("%d values are kept of what was refused", len(after)-len(before))
		}
	}
	use := func(want int64) {
		t.Helper()
		if got := w.Use(owner).MetricValues; got != want {
			t.Errorf("%d values count, want %d", got, want)
		}
	}
	session := w.session()
	first, second := w.newRun(session, 0), w.newRun(session, 1)
	add(first, rows(0, 20, "reward", "accuracy"))
	add(second, rows(0, 50, "reward"))
	use(90)
	add(first, rows(0, 20, "reward", "accuracy")) // a repeat
	add(first, rows(5, 5, "reward"))              // late
	use(90)
	over(second, rows(50, 11, "reward"))
	over(first, rows(20, 1, "one more name for each of its steps"))
	use(90)
	add(second, rows(50, 10, "reward"))
	use(100)
	over(first, rows(20, 1, "reward"))
	add(second, rows(55, 5, "reward"))
	if _, err := w.AddMetrics(ctx, other, w.strangerRun(), rows(0, 200, "reward")); err != nil {
		t.Errorf("another owner: %v", err)
	}
	w.restart()
	use(100)
	over(w.newRun(w.session(), 0), rows(0, 1, "reward"))
	w.ok(w.FinishSession(ctx, owner, session, "success", ""))
	w.quiet()
	use(100)
	pass(48 * time.Hour)
	w.sweep(ctx, time.Hour)
	pass(48 * time.Hour)
	w.sweep(ctx, time.Hour)
	use(0)
	add(w.newRun(w.session(), 0), rows(0, 100, "reward"))
	w.restart()
	use(100)
}
