package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/gateway/internal/store/storetest"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	owner = "alice"
	other = "bob"
	base  = "test/model"
)

// longest is how long a test waits for what must come, however busy the machine is.
const longest = 3 * time.Minute

// world is a core over a store in a temporary directory and a backend in this process that can be lost and replaced.
type world struct {
	t      testing.TB
	dir    string
	config Config
	fake   string // configuration of the backend
	// postgres is the URL of a schema that has the records; "" = SQLite.
	postgres string
	*Core

	mu         sync.Mutex
	current    *fake.Backend
	lost       chan struct{}
	loaded     plugins.ModelInfo
	wrap       func(plugins.Backend) plugins.Backend
	failed     error  // set: Backend fails for good
	arithmetic string // of the next process, if it is to be another one
	store      store.Store
	front      *switched                     // what the core has for a store
	around     func(store.Store) store.Store // what the core has instead of the store; nil = the store
	crashes    atomic.Bool                   // processes end by themselves, not by the test, and the next one starts
	losses     atomic.Int64                  // that ended so
	accept     bool                          // the store is opened although it has lost something
	pool       *pool                         // the backends, if there are several; nil = one, which is current
}

// onPostgres is in the names of tests and benchmarks whose worlds have their records in PostgreSQL.
const onPostgres = "OnPostgres"

func newWorld(t testing.TB, change func(*world)) *world {
	t.Helper()
	w := &world{t: t, dir: dirOf(t), fake: `{"vocab_size": 64, "max_context_length": 128}`}
	w.config = Config{
		Models: []Model{{
			Name: base, Aliases: []string{"test/alias"}, EndTokens: []int32{1}, NewStopMatcher: func(stops []string) StopMatcher { return &letters{stops: stops} },
		}},
		GapWait: 50 * time.Millisecond, SweepEvery: time.Hour, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if change != nil {
		change(w)
	}
	if strings.Contains(t.Name(), onPostgres) {
		w.postgres = storetest.Schema(t)
	}
	w.restartBackend()
	w.open()
	t.Cleanup(w.close)
	return w
}

// dirOf makes a directory that goes with the test, also when a backend that was lost in the middle of a save still writes a little.
func dirOf(t testing.TB) string {
	dir, err := os.MkdirTemp("", "runs-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(longest); ; time.Sleep(10 * time.Millisecond) {
			if err := os.RemoveAll(dir); err == nil {
				return
			} else if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	})
	return dir
}

// letters takes token n for the n-th letter.
type letters struct {
	stops []string
	text  string
}

func (l *letters) Push(token int32) bool {
	l.text += string('A' + token)
	for _, s := range l.stops {
		if strings.Contains(l.text, s) {
			return true
		}
	}
	return false
}

func (w *world) open() {
	w.t.Helper()
	s, err := store.Open(w.t.Context(), store.Options{Dir: w.dir, Accept: w.accept, PostgresURL: w.postgres})
	w.ok(err)
	w.store = s
	cfg := w.config
	if cfg.Store == nil {
		cfg.Store = s
	}
	if w.around != nil {
		cfg.Store = w.around(s)
	}
	behind := cfg.Store
	w.front = &switched{Store: behind}
	w.front.now.Store(&behind)
	cfg.Store = w.front
	cfg.DataDir, cfg.Backends = w.dir, w
	if w.pool != nil {
		cfg.Backends = w.pool
	}
	w.Core, err = Open(w.t.Context(), cfg)
	w.ok(err)
}

func (w *world) close() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	w.Core.mu.Lock()
	w.countedRight()
	w.Core.mu.Unlock()
	w.ok(w.Core.Close(ctx))
	w.ok(w.store.Close())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current.Lose()
	if w.pool != nil {
		w.pool.end()
	}
}

// restart is a restart of the server, which takes the backend with it.
func (w *world) restart() {
	w.t.Helper()
	w.close()
	w.restartBackend()
	w.open()
}

// restartBackend replaces the backend's process.
func (w *world) restartBackend() {
	w.t.Helper()
	var b *fake.Backend
	b = fake.New(fake.Options{Exit: func(int) {
		if w.crashes.Load() {
			w.losses.Add(1)
			b.Lose()
			go w.restartBackend()
		}
	}})
	modelDir := w.t.TempDir()
	w.ok(os.WriteFile(filepath.Join(modelDir, "config.json"), []byte(`{"vocab_size": 64}`), 0o600))
	info, err := b.Load(w.t.Context(), plugins.LoadRequest{ModelDir: modelDir, Name: base, Config: json.RawMessage(w.fake), Scratch: w.t.TempDir()}, func(plugins.LoadProgress) {})
	w.ok(err)
	w.mu.Lock()
	old, lost := w.current, w.lost
	w.current, w.lost, w.loaded = b, make(chan struct{}), info
	w.mu.Unlock()
	if old != nil {
		old.Lose()
		close(lost)
	}
}

// Backend implements Backends.
func (w *world) Backend(ctx context.Context, _ string) (Backend, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return Backend{}, w.failed
	}
	info, err := w.current.Info(ctx)
	for err != nil && w.crashes.Load() && ctx.Err() == nil { // the next one is being started
		w.mu.Unlock()
		time.Sleep(time.Millisecond)
		w.mu.Lock()
		info, err = w.current.Info(ctx)
	}
	if err != nil {
		return Backend{}, err
	}
	var b plugins.Backend = w.current
	if w.wrap != nil {
		b = w.wrap(b)
	}
	return Backend{
		Backend: b, BootID: info.BootID, Lost: w.lost, Reason: func() string { return "killed by the test" }, Outside: func() bool { return !w.crashes.Load() },
		Model: plugins.ModelInfo{
			Architecture: "Fake", VocabSize: 64, MaxContextLength: 128, MaxRank: 64, ModelHash: w.loaded.ModelHash, Arithmetic: cmp.Or(w.arithmetic, w.loaded.Arithmetic),
		},
	}, nil
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// refused demands a refusal of a kind whose text has all the words.
func (w *world) refused(err error, kind Kind, words ...string) {
	w.t.Helper()
	if KindOf(err) != kind {
		w.t.Fatalf("got %v (kind %d), want kind %d", err, KindOf(err), kind)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			w.t.Errorf("%q does not say %q", err, word)
		}
	}
}

// outcome waits for a future.
func (w *world) outcome(id string) *Outcome {
	w.t.Helper()
	out, err := w.Wait(w.t.Context(), owner, id, longest)
	if err != nil {
		w.t.Fatalf("%s: %v", id, err)
	}
	return out
}

// good waits for a future that must not fail.
func (w *world) good(s Submitted, err error) *Outcome {
	w.t.Helper()
	w.ok(err)
	out := w.outcome(s.RequestID)
	if out.Failure != nil {
		w.t.Fatalf("%s failed: %+v", s.RequestID, *out.Failure)
	}
	return out
}

// bad waits for a future that must fail by the user's fault; call what it returns with the words that the message must have.
func (w *world) bad(s Submitted, err error) func(t testing.TB, words ...string) {
	w.t.Helper()
	w.ok(err)
	out := w.outcome(s.RequestID)
	return func(t testing.TB, words ...string) {
		t.Helper()
		w.failure(out, CategoryUser, words...)
	}
}

func (w *world) failure(out *Outcome, category Category, words ...string) {
	w.t.Helper()
	if out.Failure == nil {
		w.t.Fatalf("%s succeeded: %+v", out.RequestID, out)
	}
	if out.Failure.Category != category {
		w.t.Errorf("category %s, want %s (%s)", out.Failure.Category, category, out.Failure.Message)
	}
	for _, word := range words {
		if !strings.Contains(out.Failure.Message, word) {
			w.t.Errorf("%q does not say %q", out.Failure.Message, word)
		}
	}
}

func (w *world) session() string {
	w.t.Helper()
	s, err := w.CreateSession(w.t.Context(), NewSession{Owner: owner})
	w.ok(err)
	return s.ID
}

func seed(v uint64) *uint64 { return &v }

func (w *world) newRun(session string, n int64) string {
	w.t.Helper()
	out := w.good(w.CreateRun(w.t.Context(), NewRun{
		Owner: owner, SessionID: session, ModelSeq: n, BaseModel: base, LoRA: LoRAConfig{Rank: 4, Seed: seed(7), TrainAttn: true, TrainMLP: true, TrainUnembed: true},
	}))
	return out.CreatedRun.RunID
}

func at(run string, seq int64) Operation { return Operation{Owner: owner, RunID: run, Seq: seq} }

// pass is a forward_backward on one short sequence.
func (w *world) pass(run string, seq int64) ForwardBackward {
	return ForwardBackward{Operation: at(run, seq), Loss: "cross_entropy", Data: []Datum{{
		Tokens: []int32{2, 3, 4, 5}, Inputs: map[string]Tensor{"target_tokens": {Ints: []int64{3, 4, 5, 6}}, "weights": {Floats: []float32{1, 1, 1, 1}}},
	}}}
}

func (w *world) step(run string, seq int64) OptimStep {
	return OptimStep{Operation: at(run, seq), Adam: plugins.AdamParams{LearningRate: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}}
}

func intp(n int) *int { return &n }

func (w *world) sample(sampler string, seq int64) Sample {
	return Sample{Owner: owner, SamplerID: sampler, Seq: seq, Prompt: []int32{2, 3, 4}, NumSamples: 2, Params: SamplingParams{
		MaxTokens: intp(5), Seed: seed(11), Temperature: 1, TopP: 1, Stops: Stops{Given: true},
	}}
}

func (w *world) sampled(req Sample) *SampleResult {
	w.t.Helper()
	s, err := w.Sample(w.t.Context(), req)
	w.ok(err)
	out := w.outcome(s.RequestID)
	if out.Failure != nil {
		w.t.Fatalf("%s failed: %+v", s.RequestID, *out.Failure)
	}
	return out.Sample
}

// gate holds up an operation of a backend: each one until the test has sent it something, all when it has closed the channel.
type gate struct {
	plugins.Backend
	operation string
	open      chan struct{}
}

// gated has the processes of a world behind a gate.
func gated(t testing.TB, operation string, change func(*world)) (*world, chan struct{}) {
	open := make(chan struct{})
	return newWorld(t, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend { return gate{b, operation, open} }
		if change != nil {
			change(w)
		}
	}), open
}

func (g gate) wait(ctx context.Context, operation string) error {
	if operation != g.operation {
		return nil
	}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g gate) CreateAdapter(ctx context.Context, req plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	if err := g.wait(ctx, "create_adapter"); err != nil {
		return plugins.AdapterInfo{}, err
	}
	return g.Backend.CreateAdapter(ctx, req)
}

func (g gate) ForwardBackward(ctx context.Context, req plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	if err := g.wait(ctx, "forward_backward"); err != nil {
		return plugins.ForwardBackwardResult{}, err
	}
	return g.Backend.ForwardBackward(ctx, req)
}

func (g gate) Sample(ctx context.Context, req plugins.SampleRequest, event func(plugins.SampleEvent) error) error {
	if err := g.wait(ctx, "sample"); err != nil {
		return err
	}
	return g.Backend.Sample(ctx, req, event)
}

func TestTrainSaveSample(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	session := w.session()
	run := w.newRun(session, 0)
	if want := session + ":train:0"; run != want {
		t.Fatalf("run %s, want %s", run, want)
	}
	var ids, steps []Submitted
	seq := int64(0)
	for range 5 {
		seq++
		s, err := w.ForwardBackward(ctx, w.pass(run, seq))
		w.ok(err)
		ids = append(ids, s)
		seq++
		s, err = w.OptimStep(ctx, w.step(run, seq))
		w.ok(err)
		steps = append(steps, s)
	}
	for _, s := range steps {
		w.outcome(s.RequestID)
	}
	var last float64
	for i, s := range ids {
		out := w.outcome(s.RequestID)
		if out.Failure != nil {
			t.Fatal(out.Failure)
		}
		loss := out.ForwardBackward.Metrics["loss:sum"]
		if i > 0 && loss >= last {
			t.Errorf("pass %d: loss %v after %v", i, loss, last)
		}
		last = loss
	}
	saved := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, seq+1), Name: "final"}))
	unnamed := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, seq+2), SamplerSeq: 0}))
	named, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: 1, ModelPath: saved.Saved.Path})
	w.ok(err)
	a := w.sampled(w.sample(named.ID, 0))
	b := w.sampled(w.sample(unnamed.SavedSampler.SamplerID, 0))
	if fmt.Sprint(a.Sequences) != fmt.Sprint(b.Sequences) {
		t.Errorf("the saved and the pinned weights sample differently:\n%v\n%v", a.Sequences, b.Sequences)
	}
	if len(a.Sequences) != 2 || len(a.Sequences[0].Tokens) != 5 || !a.Sequences[0].StoppedByLength {
		t.Errorf("sequences %+v", a.Sequences)
	}
	list, err := w.RunStatuses(ctx, owner)
	w.ok(err)
	if len(list) != 1 || list[0].Step != 5 || list[0].LastLoss != last || list[0].AdapterNorm <= 0 || list[0].TrainedTokens != 20 {
		t.Errorf("status %+v", list)
	}

	// A checkpoint with the optimizer goes on exactly.
	state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, seq+3), Name: "state"}))
	second := w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: session, ModelSeq: 1, Path: state.Saved.Path, WithOptimizer: true}))
	one := w.good(w.ForwardBackward(ctx, w.pass(run, seq+4)))
	two := w.good(w.ForwardBackward(ctx, w.pass(second.Loaded.RunID, 1)))
	if one.ForwardBackward.Metrics["loss:sum"] != two.ForwardBackward.Metrics["loss:sum"] {
		t.Errorf("loaded weights differ: %v and %v", one.ForwardBackward.Metrics, two.ForwardBackward.Metrics)
	}
	w.good(w.OptimStep(ctx, w.step(run, seq+5)))
	w.good(w.OptimStep(ctx, w.step(second.Loaded.RunID, 2)))
	one = w.good(w.ForwardBackward(ctx, w.pass(run, seq+6)))
	two = w.good(w.ForwardBackward(ctx, w.pass(second.Loaded.RunID, 3)))
	if one.ForwardBackward.Metrics["loss:sum"] != two.ForwardBackward.Metrics["loss:sum"] {
		t.Errorf("loaded optimizer differs: %v and %v", one.ForwardBackward.Metrics, two.ForwardBackward.Metrics)
	}
	again := w.sampled(w.sample(unnamed.SavedSampler.SamplerID, 1))
	if fmt.Sprint(again.Sequences) != fmt.Sprint(b.Sequences) {
		t.Error("an unnamed sampler moved with the training")
	}
}

func TestWaitIsHeldAndForeignIDsAreUnknown(t *testing.T) {
	w, open := gated(t, "forward_backward", nil)
	run := w.newRun(w.session(), 0)
	s, err := w.ForwardBackward(t.Context(), w.pass(run, 1))
	w.ok(err)
	if _, err := w.Wait(t.Context(), owner, s.RequestID, 0); !errors.Is(err, ErrPending) {
		t.Errorf("without waiting: %v", err)
	}
	if _, err := w.Wait(t.Context(), owner, s.RequestID, time.Millisecond); !errors.Is(err, ErrPending) {
		t.Errorf("after a short wait: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Wait(ctx, owner, s.RequestID, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("with a client that has gone: %v", err)
	}
	_, err = w.Wait(t.Context(), other, s.RequestID, 0)
	w.refused(err, KindNotFound)
	_, err = w.Wait(t.Context(), owner, run+":99", 0)
	w.refused(err, KindNotFound)
	close(open)
	first := w.outcome(s.RequestID)
	if again := w.outcome(s.RequestID); fmt.Sprint(*again.ForwardBackward) != fmt.Sprint(*first.ForwardBackward) {
		t.Errorf("the stored result differs: %v, %v", again.ForwardBackward, first.ForwardBackward)
	}
}
