package runs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// A story is a run with everything in it that a rebuild must get right, told operation by operation.
type story struct {
	*world
	session string
	run     string
}

// submission is one step of a story: it submits and gives the id of the future.
type submission struct {
	name   string
	submit func(*story) (string, error)
}

func passOf(seq int64, tokens ...int32) submission {
	return submission{fmt.Sprint("pass ", seq), func(s *story) (string, error) {
		op := s.pass(s.run, seq)
		op.Data[0].Tokens = tokens
		for i := range tokens {
			op.Data[0].Inputs["target_tokens"].Ints[i] = int64(tokens[(i+1)%len(tokens)])
		}
		got, err := s.ForwardBackward(s.t.Context(), op)
		return got.RequestID, err
	}}
}

func stepOf(seq int64, rate float64) submission {
	return submission{fmt.Sprint("step ", seq), func(s *story) (string, error) {
		op := s.step(s.run, seq)
		op.Adam = withRate(op.Adam, rate)
		got, err := s.OptimStep(s.t.Context(), op)
		return got.RequestID, err
	}}
}

// overflowing is the learning rate of steps that are taken, and that fail at the backend because the new weights are not finite.
const overflowing = 3e38

func withRate(a plugins.AdamParams, rate float64) plugins.AdamParams {
	if a.LearningRate = rate; rate == overflowing {
		a.WeightDecay = rate
	}
	return a
}

func unnamedOf(seq, sampler int64) submission {
	return submission{fmt.Sprint("unnamed save ", seq), func(s *story) (string, error) {
		got, err := s.SaveWeightsForSampler(s.t.Context(), SaveWeightsForSampler{Operation: at(s.run, seq), SamplerSeq: sampler})
		return got.RequestID, err
	}}
}

// wrongOf is a pass that is refused, so that no backend sees it.
func wrongOf(seq int64) submission {
	return submission{fmt.Sprint("a pass that is wrong ", seq), func(s *story) (string, error) {
		op := s.pass(s.run, seq)
		op.Loss = "no such loss"
		got, err := s.ForwardBackward(s.t.Context(), op)
		return got.RequestID, err
	}}
}

func plot() []submission {
	return []submission{
		passOf(1, 2, 3, 4, 5),
		passOf(2, 9, 8, 7, 6),
		stepOf(3, 0.01),
		passOf(4, 5, 5, 6, 6),
		{"forward 5", func(s *story) (string, error) {
			op := s.pass(s.run, 5)
			op.ForwardOnly = true
			got, err := s.ForwardBackward(s.t.Context(), op)
			return got.RequestID, err
		}},
		stepOf(6, 0.02),
		unnamedOf(7, 0),
		wrongOf(8),
		stepOf(9, 0.03), // fails: its window has only a failure
		passOf(10, 1, 2, 1, 2),
		stepOf(11, overflowing), // fails: the new weights are not finite; drops the pass
		stepOf(12, 0.01),        // of a zero gradient
		passOf(13, 7, 7, 8, 8),
		{"save 14", func(s *story) (string, error) {
			got, err := s.SaveWeights(s.t.Context(), SaveWeights{Operation: at(s.run, 14), Name: "middle"})
			return got.RequestID, err
		}},
		passOf(16, 11, 12, 13, 14), // 15 never comes
		stepOf(17, 0.01),
		unnamedOf(18, 1),
		passOf(19, 3, 1, 4, 1),
		unnamedOf(20, 2),
		stepOf(21, 0.01),
		{"named save 22", func(s *story) (string, error) {
			got, err := s.SaveWeightsForSampler(s.t.Context(), SaveWeightsForSampler{Operation: at(s.run, 22), Name: "named"})
			return got.RequestID, err
		}},
		passOf(23, 2, 7, 1, 8),
		stepOf(24, 0.005),
		{"a pass whose gradient overflows 25", func(s *story) (string, error) {
			op := s.pass(s.run, 25)
			op.Data[0].Inputs["weights"] = Tensor{Floats: []float32{3e38, 3e38, 3e38, 3e38}}
			got, err := s.ForwardBackward(s.t.Context(), op)
			return got.RequestID, err
		}},
		stepOf(26, 0.01), // fails with it
		passOf(27, 8, 2, 8, 1),
		{"save 28", func(s *story) (string, error) {
			got, err := s.SaveWeights(s.t.Context(), SaveWeights{Operation: at(s.run, 28), Name: "end"})
			return got.RequestID, err
		}},
		passOf(29, 6, 6, 5, 5), // its gradient is cleared by the load
		wrongOf(30),
		loadOf(31, 14, "middle", true),
		unnamedOf(32, 3),
		passOf(33, 4, 3, 2, 1),
		stepOf(34, 0.01),
		passOf(35, 1, 3, 5, 7),
		loadOf(36, 28, "end", false),
		loadOf(37, 14, "middle", false),
		stepOf(38, 0.01), // of a zero gradient
		passOf(39, 9, 7, 5, 3),
		stepOf(40, 0.01),
		unnamedOf(41, 4),
		{"save 42", func(s *story) (string, error) {
			got, err := s.SaveWeights(s.t.Context(), SaveWeights{Operation: at(s.run, 42), Name: "last"})
			return got.RequestID, err
		}},
	}
}

// loadOf loads a checkpoint of the run itself, which operation from saves.
func loadOf(seq, from int64, name string, optimizer bool) submission {
	return submission{fmt.Sprint("load ", seq), func(s *story) (string, error) {
		s.outcome(s.run + ":" + itoa(from))
		path := Path{RunID: s.run, Kind: KindWeights, Name: name}.String()
		got, err := s.LoadWeights(s.t.Context(), LoadWeights{Operation: at(s.run, seq), Path: path, WithOptimizer: optimizer})
		return got.RequestID, err
	}}
}

// tell submits a plot; disturb is called before each step with its number. With patience every result is awaited before the next step.
func (s *story) tell(plot []submission, patience bool, disturb func(i int)) []string {
	s.t.Helper()
	var ids []string
	for i, p := range plot {
		disturb(i)
		id, err := p.submit(s)
		if err != nil {
			s.t.Fatalf("%s: %v", p.name, err)
		}
		ids = append(ids, id)
		if patience {
			s.outcome(id)
		}
	}
	return ids
}

// has tells whether there is a sampling session.
func (s *story) has(id string) bool {
	s.Core.mu.Lock()
	defer s.Core.mu.Unlock()
	return s.samplers[id] != nil
}

// account is everything that clients were told, and the files that were written, free of ids and times.
func (s *story) account(ids []string) map[string]string {
	s.t.Helper()
	facts := map[string]string{}
	clean := func(text string) string { return strings.ReplaceAll(text, s.session, "SESSION") }
	for _, id := range ids {
		out := s.outcome(id)
		var fact string
		switch {
		case out.Failure != nil && strings.Contains(out.Failure.Message, "since the last"):
			fact = "failed with its window" // found by the backend, or after a rebuild by the queue, which words it otherwise
		case out.Failure != nil:
			fact = "failed: " + out.Failure.Message
		case out.ForwardBackward != nil:
			delete(out.ForwardBackward.Metrics, "clock_cycle:unique") // cycles are of a process
			fact = fmt.Sprint(*out.ForwardBackward)
		case out.OptimStep != nil:
			delete(out.OptimStep.Metrics, "clock_cycle")
			fact = fmt.Sprint(*out.OptimStep)
		case out.Sample != nil:
			fact = fmt.Sprint(out.Sample.Sequences)
		case out.Saved != nil:
			fact = fmt.Sprint(*out.Saved)
		default:
			fact = "done"
		}
		facts[clean(id)] = clean(fact)
	}
	for i := range int64(5) {
		if !s.has(s.session + ":sample:" + itoa(i)) {
			continue // the plot ends before
		}
		facts[fmt.Sprint("sampler ", i)] = fmt.Sprint(s.sampled(s.sample(s.session+":sample:"+itoa(i), 100)).Sequences)
	}
	s.Core.mu.Lock()
	saved := maps.Clone(s.checkpoints)
	s.Core.mu.Unlock()
	for path, cp := range saved {
		files, err := os.ReadDir(s.file(cp.Dir))
		s.ok(err)
		for _, f := range files {
			if f.Name() == descriptionFile {
				continue // it has times
			}
			content, err := os.ReadFile(filepath.Join(s.file(cp.Dir), f.Name()))
			s.ok(err)
			facts[clean(path)+"/"+f.Name()] = string(content)
		}
	}
	info, err := s.Run(s.t.Context(), owner, s.run, ScopeOwned)
	s.ok(err)
	facts["run"] = fmt.Sprint(info.Live, info.Corrupted, info.CorruptedReason, info.Inexact)
	return facts
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			t.Errorf("%s:\n got %.300q\nwant %.300q", key, got[key], want[key])
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			t.Errorf("%s: should not be there", key)
		}
	}
}

func begin(w *world) *story {
	s := &story{world: w, session: w.session()}
	s.run = w.newRun(s.session, 0)
	return s
}

func undisturbed(t *testing.T) map[string]string {
	s := begin(newWorld(t, nil))
	facts := s.account(s.tell(plot(), true, func(int) {}))
	if facts["sampler 4"] == "" {
		t.Fatal("the last sampler is not there")
	}
	failedAtBackend(t, facts, 11)
	return facts
}

// failedAtBackend makes sure that a step which drops its window came to the backend: one that is refused before drops nothing.
func failedAtBackend(t *testing.T, facts map[string]string, seq int64) {
	t.Helper()
	if got := facts[fmt.Sprint("SESSION:train:0:", seq)]; !strings.HasPrefix(got, "failed: base_model.") {
		t.Errorf("step %d: %s; want new weights that are not finite", seq, got)
	}
}

// lose is what can go away.
var lose = map[string]func(*world){
	"the backend":                  (*world).restartBackend,
	"the server":                   (*world).restart,
	"the backend, twice":           func(w *world) { w.restartBackend(); w.restartBackend() },
	"the server, then the backend": func(w *world) { w.restart(); w.restartBackend() },
}

// After a loss at any place everything is bit for bit what it would have been: results, samplers, files.
func TestRebuiltRunsAreWhatTheyWouldHaveBeen(t *testing.T) {
	want := undisturbed(t)
	steps := plot()
	for _, name := range slices.Sorted(maps.Keys(lose)) {
		for i := 0; i <= len(steps); i += 2 + len(name)%3 { // the names have different lengths, so that each place is met by some loss
			for _, variant := range []struct{ patience, points bool }{{true, false}, {false, false}, {true, true}, {false, true}} {
				t.Run(fmt.Sprintf("%s, before step %d, %+v", name, i, variant), func(t *testing.T) {
					t.Parallel()
					patience := variant.patience
					s := begin(newWorld(t, func(w *world) {
						if variant.points {
							w.pointsAlways()
						}
					}))
					ids := s.tell(steps, patience, func(at int) {
						if at == i {
							lose[name](s.world)
						}
					})
					if i == len(steps) {
						lose[name](s.world)
					}
					compare(t, s.account(ids), want)
				})
			}
		}
	}
}

// An optim_step for which the backend had no memory fails and leaves its gradient to the next one, with or without a loss in between.
func TestStepsWithoutMemoryKeepTheirGradient(t *testing.T) {
	const hungry = 0.125 // the learning rate of steps that find no memory
	fake := fmt.Sprintf(`{"vocab_size": 64, "max_context_length": 128, "faults": [{"operation": "optim_step", "learning_rate": %v, "action": "fail", "kind": "capacity", "message": "3 MiB are needed, 2 MiB are left"}]}`, hungry)
	steps := []submission{
		passOf(1, 2, 3, 4, 5),
		stepOf(2, 0.01),
		passOf(3, 9, 8, 7, 6),
		stepOf(4, hungry),
		stepOf(5, hungry),
		unnamedOf(6, 0),
		passOf(7, 5, 5, 6, 6),
		stepOf(8, hungry),
		stepOf(9, 0.02),
		unnamedOf(10, 1),
		passOf(11, 3, 1, 4, 1),
		stepOf(12, hungry),
		stepOf(13, overflowing), // fails: the new weights are not finite; drops the pass
		stepOf(14, hungry),
		wrongOf(15),
		stepOf(16, 0.01), // fails: there is no gradient, and its window has only a failure
		passOf(17, 2, 7, 1, 8),
		stepOf(18, hungry),
		stepOf(19, hungry),
		wrongOf(20),
		stepOf(21, 0.01), // applies the pass
		unnamedOf(22, 2),
		{"save 23", func(s *story) (string, error) {
			got, err := s.SaveWeights(s.t.Context(), SaveWeights{Operation: at(s.run, 23), Name: "end"})
			return got.RequestID, err
		}},
	}
	hungrySteps := map[int64]bool{4: true, 5: true, 8: true, 12: true, 14: true, 18: true, 19: true}
	// What is told and written is what a run without the hungry steps has.
	plain := begin(newWorld(t, nil))
	want := plain.account(plain.tell(slices.DeleteFunc(slices.Clone(steps), func(p submission) bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(hungrySteps)), func(seq int64) bool { return p.name == fmt.Sprint("step ", seq) })
	}), true, func(int) {}))
	failedAtBackend(t, want, 13)
	for seq := range hungrySteps {
		want[fmt.Sprint("SESSION:train:0:", seq)] = "failed: 3 MiB are needed, 2 MiB are left"
	}
	tell := func(t *testing.T, patience, points bool, disturb func(w *world, i int)) {
		t.Parallel()
		s := begin(newWorld(t, func(w *world) {
			w.fake = fake
			if points {
				w.pointsAlways()
			}
		}))
		ids := s.tell(steps, patience, func(i int) { disturb(s.world, i) })
		disturb(s.world, len(steps))
		compare(t, s.account(ids), want)
	}
	for _, variant := range []struct{ patience, points bool }{{true, false}, {false, false}, {true, true}, {false, true}} {
		t.Run(fmt.Sprintf("undisturbed, %+v", variant), func(t *testing.T) {
			tell(t, variant.patience, variant.points, func(*world, int) {})
		})
		for n, name := range slices.Sorted(maps.Keys(lose)) {
			for at := n % 3; at <= len(steps); at += 3 {
				t.Run(fmt.Sprintf("%s, before step %d, %+v", name, at, variant), func(t *testing.T) {
					tell(t, variant.patience, variant.points, func(w *world, i int) {
						if i == at {
							lose[name](w)
						}
					})
				})
			}
		}
	}
}

// Losses at random moments, while several runs work side by side.
func TestRunsSurviveLossesAtRandomMoments(t *testing.T) {
	want := undisturbed(t)
	const runs = 4
	w := newWorld(t, func(w *world) {
		w.pointsAlways()
		w.fake = `{"vocab_size": 64, "max_context_length": 128, "delays": [{"operation": "forward_backward", "seconds": 0.004}, {"operation": "optim_step", "seconds": 0.003}, {"operation": "pin", "seconds": 0.002}, {"operation": "save_adapter", "seconds": 0.003}]}`
	})
	stories := make([]*story, runs)
	ids := make([][]string, runs)
	for i := range stories {
		stories[i] = begin(w)
	}
	stop := make(chan struct{})
	var killer, tellers sync.WaitGroup
	killer.Go(func() {
		random := rand.New(rand.NewPCG(3, 4))
		for range 12 {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(5+random.IntN(60)) * time.Millisecond):
				w.restartBackend()
			}
		}
	})
	for i, s := range stories {
		tellers.Go(func() {
			for _, p := range plot() {
				id, err := p.submit(s)
				if err != nil {
					t.Errorf("%s: %v", p.name, err)
					return
				}
				ids[i] = append(ids[i], id)
				time.Sleep(3 * time.Millisecond)
			}
		})
	}
	tellers.Wait()
	killer.Wait()
	close(stop)
	if t.Failed() {
		return
	}
	w.restart()
	for i, s := range stories {
		got := s.account(ids[i])
		for key := range got { // the checkpoints of the others
			if strings.Contains(key, "tinker://") && !strings.Contains(key, "SESSION") {
				delete(got, key)
			}
		}
		compare(t, got, want)
	}
}

// A run that was made from a checkpoint is rebuilt from its own copy of it: the checkpoint may be gone.
func TestLoadedRunsOutliveTheirCheckpoint(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(w *world, session, path string) string
		next int64
	}{
		{"created from it", func(w *world, session, path string) string {
			return w.good(w.CreateRunFromCheckpoint(w.t.Context(), NewRunFromCheckpoint{Owner: owner, SessionID: session, ModelSeq: 1, Path: path, WithOptimizer: true})).Loaded.RunID
		}, 1},
		{"loaded into a fresh run", func(w *world, session, path string) string {
			run := w.newRun(session, 1)
			return w.good(w.LoadWeights(w.t.Context(), LoadWeights{Operation: at(run, 1), Path: path, WithOptimizer: true})).Loaded.RunID
		}, 2},
	} {
		for _, name := range slices.Sorted(maps.Keys(lose)) {
			t.Run(c.name+", lost "+name, func(t *testing.T) {
				files := map[bool]map[string]string{}
				for _, disturbed := range []bool{false, true} {
					w := newWorld(t, nil)
					ctx := t.Context()
					session := w.session()
					path := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(w.trained(session, 0), 5), Name: "state"})).Saved.Path
					run := c.make(w, session, path)
					w.good(w.ForwardBackward(ctx, w.pass(run, c.next)))
					w.good(w.OptimStep(ctx, w.step(run, c.next+1)))
					w.good(w.ForwardBackward(ctx, w.pass(run, c.next+2)))
					w.ok(w.DeleteCheckpoint(ctx, owner, path, ""))
					if disturbed {
						lose[name](w)
					}
					w.good(w.OptimStep(ctx, w.step(run, c.next+3)))
					end := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, c.next+4), Name: "end"})).Saved.Path
					files[disturbed] = w.contents(end)
				}
				compare(t, files[true], files[false])
			})
		}
	}
}

func TestRunsThatCannotBeRebuilt(t *testing.T) {
	t.Run("the journal is damaged", func(t *testing.T) {
		w := newWorld(t, nil)
		ctx := t.Context()
		session := w.session()
		run := w.newRun(session, 0)
		large := w.pass(run, 1)
		large.Data = slices.Repeat(large.Data, 500) // too large to be kept in the database
		w.good(w.ForwardBackward(ctx, large))
		w.good(w.OptimStep(ctx, w.step(run, 2)))
		state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 3), Name: "state"})).Saved.Path
		other := w.trained(session, 1)
		segments, err := filepath.Glob(filepath.Join(w.dir, "journal", "*"))
		w.ok(err)
		for _, s := range segments {
			w.ok(os.Truncate(s, 100))
		}
		w.restart()
		w.eventually(func() bool { return w.runs[run].State == stateCorrupted })
		_, err = w.OptimStep(ctx, w.step(run, 4))
		w.refused(err, KindNotFound, "corrupted", "damaged", state)
		w.good(w.ForwardBackward(ctx, w.pass(other, 5)))
		if again, err := w.OptimStep(ctx, w.step(run, 2)); err != nil || again.RequestID != run+":2" {
			t.Errorf("a repeat of a finished operation: %v, %v", again, err)
		}
		status, err := w.Session(ctx, owner, session)
		w.ok(err)
		if status.Status.Type != StatusFailed || len(status.Status.RunIDs) != 1 {
			t.Errorf("session %+v", status)
		}
	})
	t.Run("the model has other weights", func(t *testing.T) {
		w := newWorld(t, nil)
		run := w.trained(w.session(), 0)
		w.fake = `{"vocab_size": 64, "max_context_length": 128, "seed": 99}`
		w.restart()
		w.eventually(func() bool { return w.runs[run].State == stateCorrupted })
		_, err := w.OptimStep(t.Context(), w.step(run, 5))
		w.refused(err, KindNotFound, "not those that it was trained on", "no checkpoint")
	})
	t.Run("the model is not served any more", func(t *testing.T) {
		w := newWorld(t, nil)
		run := w.trained(w.session(), 0)
		w.config.Models = []Model{{Name: "another"}}
		w.restart()
		info, err := w.Run(t.Context(), owner, run, ScopeOwned)
		w.ok(err)
		if !info.Corrupted || !strings.Contains(info.CorruptedReason, "not served") {
			t.Errorf("run %+v", info)
		}
	})
}

// Another arithmetic is no loss, but it is said.
func TestReplayUnderAnotherArithmetic(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	w.mu.Lock()
	w.arithmetic = "another"
	w.mu.Unlock()
	w.restartBackend()
	w.good(w.ForwardBackward(ctx, w.pass(run, 5)))
	info, err := w.Run(ctx, owner, run, ScopeOwned)
	w.ok(err)
	if info.Corrupted || !strings.Contains(info.Inexact, "another") || !strings.Contains(info.Inexact, "fake-float64") {
		t.Errorf("run %+v", info)
	}
	w.restart()
	if info, err = w.Run(ctx, owner, run, ScopeOwned); err != nil || info.Inexact == "" {
		t.Errorf("after a restart: %+v, %v", info, err)
	}
}

// An arithmetic that only has another name than before is the same, and the run has the new name from then on.
func TestReplayUnderARenamedArithmetic(t *testing.T) {
	w := newWorld(t, func(w *world) { w.arithmetic = "cpu-amx-1/float32" })
	run := w.trained(w.session(), 0)
	w.mu.Lock()
	w.arithmetic = "cpu-fma-2/float32"
	w.mu.Unlock()
	w.restartBackend()
	w.good(w.ForwardBackward(t.Context(), w.pass(run, 5)))
	w.restart()
	w.eventually(func() bool { return w.runs[run].rebuild == nil && w.runs[run].Arithmetic == "cpu-fma-2/float32" })
	info, err := w.Run(t.Context(), owner, run, ScopeOwned)
	w.ok(err)
	if info.Inexact != "" {
		t.Errorf("run %+v", info)
	}
}

// troubled makes the passes of a process fail for reasons of its own while it is told so.
type troubled struct {
	plugins.Backend
	times *int
	kind  plugins.Kind
	mu    *sync.Mutex
}

func (b troubled) ForwardBackward(ctx context.Context, req plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	b.mu.Lock()
	fails := *b.times > 0
	if fails {
		*b.times--
	}
	b.mu.Unlock()
	got, err := b.Backend.ForwardBackward(ctx, req)
	if fails && err == nil {
		err = &plugins.Error{Kind: b.kind, Message: "no memory"}
	}
	return got, err
}

// A past operation that fails although it had succeeded begins the rebuild anew. If it goes on failing, the run is given up, never continued with other weights; but not where the process has only less memory than an earlier one
// had, or is configured to take less: then what waits fails, and the run goes on when the process suits it again.
func TestARebuildThatFails(t *testing.T) {
	const waits, lives, ends = "waits", "lives", "ends"
	const long, short = 5 * time.Minute, time.Nanosecond
	for _, c := range []struct {
		name     string
		times    int
		kind     plugins.Kind
		patience time.Duration
		want     string
	}{
		{"twice", 2, plugins.KindCapacity, long, lives},
		{"for a while, for a fault", minRebuilds + 1, plugins.KindInternal, long, lives},
		{"a few times, for a fault", minRebuilds - 1, plugins.KindInternal, short, lives},
		{"always, for a fault", 1 << 30, plugins.KindInternal, short, ends},
		{"as long as there is no memory", 1 << 30, plugins.KindCapacity, long, waits},
		{"as long as it is too large", 1 << 30, plugins.KindInvalid, long, waits},
		{"as long as there can be no memory", 1 << 30, plugins.KindTooLarge, long, waits},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			times := 0
			w := newWorld(t, func(w *world) {
				w.config.RebuildPatience = c.patience
				w.wrap = func(b plugins.Backend) plugins.Backend { return troubled{b, &times, c.kind, &mu} }
			})
			ctx := t.Context()
			set := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				times = n
			}
			run := w.trained(w.session(), 0)
			set(c.times)
			w.restartBackend()
			s, err := w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "end"})
			if c.want == lives {
				var why string
				w.eventually(func() bool {
					b := w.runs[run].rebuild
					if b != nil {
						why = b.trouble
					}
					return why != ""
				})
				if !strings.Contains(why, "no memory") {
					t.Errorf("while it is tried again: %q", why)
				}
				w.good(s, err)
				return
			}
			if err == nil {
				if failure := w.outcome(s.RequestID).Failure; failure == nil || !strings.Contains(failure.Message, "no memory") {
					t.Errorf("the save that waited: %+v", failure)
				}
			}
			info, err := w.Run(ctx, owner, run, ScopeOwned)
			w.ok(err)
			if info.Corrupted != (c.want == ends) || info.Corrupted && !strings.Contains(info.CorruptedReason, "no memory") {
				t.Errorf("run %+v", info)
			}
			if c.want == ends {
				return
			}
			if s, err = w.ForwardBackward(ctx, w.pass(run, 6)); err == nil { // it is tried again for each
				if failure := w.outcome(s.RequestID).Failure; failure == nil || !strings.Contains(failure.Message, ", which had succeeded, failed: no memory") {
					t.Errorf("a pass that came meanwhile: %+v", failure)
				}
			}
			w.restart() // which does not end it either
			set(0)
			w.restartBackend()
			w.good(w.ForwardBackward(ctx, w.pass(run, 7)))
			if out := w.good(w.OptimStep(ctx, w.step(run, 8))); out.OptimStep.Step != 3 {
				t.Errorf("step %d, want 3", out.OptimStep.Step)
			}
		})
	}
}

// A backend that stays dead fails what waits; when there is one again, the run goes on from where it was.
func TestBackendThatStaysDeadAndComesBack(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	w.mu.Lock()
	w.failed = errors.New("crashed 5 times, last words: out of memory")
	w.mu.Unlock()
	w.restartBackend()
	s, err := w.ForwardBackward(ctx, w.pass(run, 5))
	w.ok(err)
	w.failure(w.outcome(s.RequestID), CategoryServer, "out of memory")
	w.mu.Lock()
	w.failed = nil
	w.mu.Unlock()
	w.good(w.ForwardBackward(ctx, w.pass(run, 6)))
	if out := w.good(w.OptimStep(ctx, w.step(run, 7))); out.OptimStep.Step != 3 {
		t.Errorf("step %d, want 3", out.OptimStep.Step)
	}
}
