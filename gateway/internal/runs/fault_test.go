package runs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// switched is the store of a world's core. Another one takes its commits and look-ups from a moment on, while the core goes on.
type switched struct {
	store.Store
	now atomic.Pointer[store.Store]
}

func (s *switched) Commit(ctx context.Context, b store.Batch) error {
	return (*s.now.Load()).Commit(ctx, b)
}

func (s *switched) Get(ctx context.Context, collection, key string) (store.Record, error) {
	return (*s.now.Load()).Get(ctx, collection, key)
}

// inFront has the core's commits and look-ups go through another store, which is made of the one that they went to.
func (w *world) inFront(around func(store.Store) store.Store) {
	s := around(*w.front.now.Load())
	w.front.now.Store(&s)
}

// failing is a store whose commits of a collection fail while it is told so.
type failing struct {
	store.Store
	collection  atomic.Value // string
	unavailable atomic.Bool  // the failure is one that passes
	refused     atomic.Int64 // failed commits
}

var errDisk = errors.New("the disk is full")

func (f *failing) Commit(ctx context.Context, b store.Batch) error {
	for _, r := range b.Put {
		if r.Collection == f.collection.Load() {
			f.refused.Add(1)
			if f.unavailable.Load() {
				return fmt.Errorf("%w: %w", store.ErrUnavailable, errDisk)
			}
			return errDisk
		}
	}
	return f.Store.Commit(ctx, b)
}

// failing has commits of a collection fail as if the store could not be written to for now.
func (w *world) failing(collection string) *failing {
	f := &failing{}
	f.collection.Store(collection)
	f.unavailable.Store(true)
	w.inFront(func(s store.Store) store.Store { f.Store = s; return f })
	return f
}

// What could not be journalled was never accepted: the same number can be sent again. A result that cannot be stored is not delivered before it can be.
func TestStoreFaults(t *testing.T) {
	f := &failing{}
	f.collection.Store("")
	w := newWorld(t, nil)
	w.inFront(func(s store.Store) store.Store { f.Store = s; return f })
	ctx := t.Context()
	session := w.session()
	run := w.newRun(session, 0)
	f.collection.Store(inOperations)
	if _, err := w.ForwardBackward(ctx, w.pass(run, 1)); !errors.Is(err, errDisk) {
		t.Fatalf("a pass that was not journalled: %v", err)
	}
	if _, err := w.Sample(ctx, w.sample(w.baseSampler(session, 0), 0)); !errors.Is(err, errDisk) {
		t.Fatalf("a sample that was not journalled: %v", err)
	}
	if _, err := w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session, ModelSeq: 1, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}}); !errors.Is(err, errDisk) {
		t.Fatalf("a run that was not journalled: %v", err)
	}
	unnamed := SaveWeightsForSampler{Operation: at(run, 2), SamplerSeq: 1}
	if _, err := w.SaveWeightsForSampler(ctx, unnamed); !errors.Is(err, errDisk) {
		t.Fatalf("a save that was not journalled: %v", err)
	}
	f.collection.Store("")
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.good(w.SaveWeightsForSampler(ctx, unnamed))
	w.sampled(w.sample(fmt.Sprint(session, ":sample:0"), 0))
	w.newRun(session, 1)
	f.collection.Store(inResults)
	s, err := w.OptimStep(ctx, w.step(run, 3))
	w.ok(err)
	if _, err := w.Wait(ctx, owner, s.RequestID, 100*time.Millisecond); !errors.Is(err, ErrPending) {
		t.Errorf("a result that is not stored: %v", err)
	}
	f.collection.Store("")
	w.good(s, nil)
	w.good(w.OptimStep(ctx, w.step(run, 4)))
	if n := w.Stats(); n.QueuedOperations != 0 || n.WaitingSamples != 0 || n.RunningSamples != 0 {
		t.Errorf("left over: %+v", n)
	}
}

// While the store cannot be written to, new work is refused for now, and what was computed waits until it can be stored.
func TestStoreTrouble(t *testing.T) {
	w := newWorld(t, nil)
	f := w.failing("")
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	f.collection.Store(inResults)
	s, err := w.ForwardBackward(ctx, w.pass(run, 1))
	w.ok(err)
	for f.refused.Load() < 2 { // it is tried again
		time.Sleep(time.Millisecond)
	}
	if _, err := w.Wait(ctx, owner, s.RequestID, time.Millisecond); !errors.Is(err, ErrPending) {
		t.Errorf("a result that is not stored: %v", err)
	}
	f.collection.Store(inOperations)
	_, err = w.OptimStep(ctx, w.step(run, 2))
	w.refused(err, KindUnavailable, "disk is full")
	w.ok(w.outcomeError(s.RequestID))
	f.collection.Store("")
	w.good(w.OptimStep(ctx, w.step(run, 2)))
}

// Nothing behind a number that was skipped runs before the skip is in the journal: a restart would wait for the number again, and run it in a place that is no longer there.
func TestSkipsAreDurableFirst(t *testing.T) {
	f := &failing{}
	f.collection.Store(inSkips)
	w := newWorld(t, nil)
	w.inFront(func(s store.Store) store.Store { f.Store = s; return f })
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	s, err := w.ForwardBackward(ctx, w.pass(run, 2)) // 1 never comes
	w.ok(err)
	w.eventually(func() bool { return f.refused.Load() > 0 })
	w.Core.mu.Lock()
	given := w.runs[run].queue.position
	w.Core.mu.Unlock()
	if given != 0 {
		t.Error("the backend has what is behind a skip that is not in the journal")
	}
	f.collection.Store("")
	w.good(s, nil)
}

// outcomeError gives the failure of an operation.
func (w *world) outcomeError(id string) error {
	if out := w.outcome(id); out.Failure != nil {
		return errors.New(out.Failure.Message)
	}
	return nil
}

// What the owner of the backends refuses is not journalled, and is taken under the same number later.
func TestRefuse(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	session := w.session()
	run, smp := w.newRun(session, 0), w.baseSampler(session, 0)
	hangs := true
	w.Core.cfg.Refuse = func(model string) error {
		if hangs && model == base {
			return errors.New("the backend hangs")
		}
		return nil
	}
	_, err := w.ForwardBackward(ctx, w.pass(run, 1))
	w.refused(err, KindUnavailable, "hangs")
	_, err = w.Sample(ctx, w.sample(smp, 0))
	w.refused(err, KindUnavailable, "hangs")
	w.refused(w.Generate(ctx, Target{ServedModel: base}, Generation{Owner: owner}, nil), KindUnavailable, "hangs")
	hangs = false
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.sampled(w.sample(smp, 0))
}

// roomless fails to load saved adapters while it is told so.
type roomless struct {
	plugins.Backend
	kind  *atomic.Int64 // of the failure; negative = none
	tries *atomic.Int64
}

func (b roomless) LoadAdapter(ctx context.Context, req plugins.LoadAdapterRequest) (plugins.AdapterInfo, error) {
	b.tries.Add(1)
	if k := b.kind.Load(); k >= 0 {
		return plugins.AdapterInfo{}, &plugins.Error{Kind: plugins.Kind(k), Message: "800 MiB are needed"}
	}
	return b.Backend.LoadAdapter(ctx, req)
}

// A sample whose adapter has no room for now waits for it. One whose adapter never fits fails, by its user's fault, with the reason; when the backend is larger the next one is served.
func TestSampleWithoutRoom(t *testing.T) {
	var kind, tries atomic.Int64
	kind.Store(-1)
	w := newWorld(t, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend { return roomless{b, &kind, &tries} }
	})
	ctx := t.Context()
	session := w.session()
	run := w.trained(session, 0)
	saved := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 5), Name: "a"})).Saved
	sampler, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: 0, ModelPath: saved.Path})
	w.ok(err)

	kind.Store(int64(plugins.KindTooLarge))
	s, err := w.Sample(ctx, w.sample(sampler.ID, 0))
	w.bad(Submitted{RequestID: s.RequestID}, err)(t, saved.Path, "800 MiB are needed")
	target, err := w.Resolve(ctx, owner, saved.Path)
	w.ok(err)
	direct := Generation{Owner: owner, Request: plugins.SampleRequest{Prompt: []int32{2}, NumSamples: 1, MaxTokens: 1, TopP: 1, RepetitionPenalty: 1}}
	if err := w.Generate(ctx, target, direct, func(plugins.SampleEvent) error { return nil }); !errors.Is(err, plugins.ErrTooLarge) {
		t.Errorf("a direct request: %v", err)
	}

	kind.Store(int64(plugins.KindCapacity))
	tries.Store(0)
	waiting, err := w.Sample(ctx, w.sample(sampler.ID, 1))
	w.ok(err)
	w.eventually(func() bool { return tries.Load() > 2 })
	if _, err := w.Wait(ctx, owner, waiting.RequestID, time.Millisecond); !errors.Is(err, ErrPending) {
		t.Errorf("a sample that waits for room: %v", err)
	}

	kind.Store(-1)
	w.good(Submitted{RequestID: waiting.RequestID}, nil)
	w.sampled(w.sample(sampler.ID, 2))
}

// A step that there can be no memory for leaves its gradient to the next one, also when the run is rebuilt between the two.
func TestStepTooLarge(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	session := w.session()
	run, same := w.newRun(session, 0), w.newRun(session, 1)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.current.Shrink(true)
	s, err := w.OptimStep(ctx, w.step(run, 2))
	w.bad(s, err)(t, "too small")
	w.restartBackend()
	w.good(w.OptimStep(ctx, w.step(run, 3)))
	w.good(w.ForwardBackward(ctx, w.pass(same, 1)))
	w.good(w.OptimStep(ctx, w.step(same, 2)))
	got, want := w.good(w.ForwardBackward(ctx, w.pass(run, 4))).ForwardBackward.Logprobs, w.good(w.ForwardBackward(ctx, w.pass(same, 3))).ForwardBackward.Logprobs
	if !reflect.DeepEqual(got, want) {
		t.Errorf("after the step: %v, without the one that failed: %v", got, want)
	}
}

// unmakeable has adapters wait while they are made, until they are deleted.
type unmakeable struct {
	plugins.Backend
	begun, deleted chan string
}

func (b unmakeable) CreateAdapter(ctx context.Context, req plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	b.begun <- req.Adapter
	for {
		select {
		case id := <-b.deleted:
			if id == req.Adapter {
				return plugins.AdapterInfo{}, &plugins.Error{Kind: plugins.KindNotFound, Message: "deleted while it was made"}
			}
		case <-ctx.Done():
			return plugins.AdapterInfo{}, plugins.Cancelled(ctx.Err())
		}
	}
}

func (b unmakeable) DeleteAdapter(_ context.Context, id string) error {
	b.deleted <- id
	return nil
}

// A run whose session ends while its adapter is made, which waits as for a full disk, is given up at once.
func TestEndWhileARunIsMade(t *testing.T) {
	begun, deleted := make(chan string, 1), make(chan string, 1)
	w := newWorld(t, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend { return unmakeable{b, begun, deleted} }
	})
	ctx := t.Context()
	session := w.session()
	s, err := w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
	w.ok(err)
	if id := <-begun; id != s.RunID {
		t.Fatalf("%s is made, not %s", id, s.RunID)
	}
	w.ok(w.FinishSession(ctx, owner, session, "success", ""))
	w.bad(s, nil)(t, "its session has ended")
}

// unready has no process for the first adapter that is asked for, which it tells when it may.
type unready struct {
	plugins.Backend
	begun, tell chan struct{}
	asked       *atomic.Int64
}

func (b unready) CreateAdapter(ctx context.Context, req plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	if b.asked.Add(1) > 1 {
		return b.Backend.CreateAdapter(ctx, req)
	}
	close(b.begun)
	<-b.tell
	return plugins.AdapterInfo{}, &plugins.Error{Kind: plugins.KindUnavailable, Message: "the process ends"}
}

// A run whose session ends while its backend is replaced is not made by the next one.
func TestEndBetweenTwoBackends(t *testing.T) {
	var asked atomic.Int64
	begun, tell := make(chan struct{}), make(chan struct{})
	w := newWorld(t, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend { return unready{b, begun, tell, &asked} }
	})
	ctx := t.Context()
	session := w.session()
	s, err := w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
	w.ok(err)
	<-begun
	w.ok(w.FinishSession(ctx, owner, session, "success", ""))
	close(tell)
	w.bad(s, nil)(t, "its session has ended")
	if n := asked.Load(); n != 1 {
		t.Errorf("the adapter was asked for %d times", n)
	}
}

// overtaken is a store that makes the first commit of a checkpoint wait for the second one, as long as it can come.
type overtaken struct {
	store.Store
	armed   atomic.Bool
	commits atomic.Int64
	second  chan struct{} // closed when the second one is durable
}

func (o *overtaken) Commit(ctx context.Context, b store.Batch) error {
	saved := false
	for _, r := range b.Put {
		saved = saved || r.Collection == inCheckpoints
	}
	if !saved || !o.armed.Load() {
		return o.Store.Commit(ctx, b)
	}
	switch o.commits.Add(1) {
	case 1:
		select {
		case <-o.second:
		case <-time.After(300 * time.Millisecond):
		}
	case 2:
		defer close(o.second)
	}
	return o.Store.Commit(ctx, b)
}

// overtake puts such a store in place; nothing may run yet.
func (w *world) overtake() *overtaken {
	o := &overtaken{second: make(chan struct{})}
	w.inFront(func(s store.Store) store.Store { o.Store = s; return o })
	return o
}

// Of two saves under one name the later one stays, also when the store has the result of the earlier one last.
func TestLaterSaveReplacesEarlierOne(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	o := w.overtake()
	run := w.newRun(w.session(), 0)
	o.armed.Store(true)
	first, err := w.SaveWeights(ctx, SaveWeights{Operation: at(run, 1), Name: "same", Overwrite: true})
	w.ok(err)
	_, err = w.OptimStep(ctx, w.step(run, 2))
	w.ok(err)
	w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 3), Name: "same", Overwrite: true}))
	path := w.outcome(first.RequestID).Saved.Path
	w.restart()
	info, err := w.WeightsInfo(ctx, owner, "", path)
	w.ok(err)
	if info.Step != 1 {
		t.Errorf("the checkpoint has step %d, the later save had step 1", info.Step)
	}
	w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: w.session(), ModelSeq: 0, Path: path, WithOptimizer: true}))
}

// What is changed of a checkpoint while another save replaces it is changed of the older one, before, or of the newer one.
func TestChangeBesideSaveKeepsTheNewFiles(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	o := w.overtake()
	run := w.newRun(w.session(), 0)
	path := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 1), Name: "same", Overwrite: true})).Saved.Path
	o.armed.Store(true) // the change is first, and the save would go by
	changed := make(chan error, 1)
	go func() { changed <- w.PublishCheckpoint(ctx, owner, path, true) }()
	for o.commits.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 2), Name: "same", Overwrite: true}))
	w.ok(<-changed)
	w.restart()
	w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: w.session(), ModelSeq: 0, Path: path, WithOptimizer: true}))
}
