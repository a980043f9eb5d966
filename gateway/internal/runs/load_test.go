package runs

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// A load in the middle of a run gives the run what the checkpoint has, and nothing of what was accumulated before it: from there on it is what a run is that was made from the checkpoint.
func TestLoadAtAnyTime(t *testing.T) {
	for _, withOptimizer := range []bool{true, false} {
		t.Run(fmt.Sprintf("optimizer %v", withOptimizer), func(t *testing.T) {
			w := newWorld(t, nil)
			ctx := t.Context()
			session := w.session()
			run := w.trained(session, 0)
			state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "state"})).Saved.Path
			w.good(w.OptimStep(ctx, w.step(run, 6)))
			other := w.pass(run, 7) // its gradient is not to be seen again
			other.Data[0].Tokens = []int32{9, 9, 9, 9}
			w.good(w.ForwardBackward(ctx, other))
			if got := w.good(w.LoadWeights(ctx, LoadWeights{Operation: at(run, 8), Path: state, WithOptimizer: withOptimizer})).Loaded; got.Path != state || got.RunID != run {
				t.Errorf("loaded %+v", got)
			}
			fresh := w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: session, ModelSeq: 1, Path: state, WithOptimizer: withOptimizer})).Loaded.RunID

			train := func(run string, seq int64) map[string]string {
				a := w.good(w.ForwardBackward(ctx, w.pass(run, seq))).ForwardBackward
				b := w.good(w.OptimStep(ctx, w.step(run, seq+1))).OptimStep
				c := w.good(w.OptimStep(ctx, w.step(run, seq+2))).OptimStep // of a zero gradient, with the moments that there are
				end := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, seq+3), Name: "end"})).Saved.Path
				facts := w.contents(end)
				for name := range facts {
					if name != plugins.AdapterWeightsFile && name != plugins.OptimizerFile {
						delete(facts, name)
					}
				}
				facts["log-probabilities"], facts["norms"] = fmt.Sprint(a.Logprobs), fmt.Sprint(b.Step, b.Metrics["grad_norm"], c.Step, c.Metrics["adapter_norm"])
				return facts
			}
			want := train(fresh, 1)
			if len(want) != 4 {
				t.Fatalf("there is nothing to compare: %v", len(want))
			}
			compare(t, train(run, 9), want)
		})
	}
}

// A load that was sent behind a save of the same name has what that save wrote.
func TestLoadBehindASaveOfTheSameName(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "state"})).Saved.Path
	want := w.good(w.OptimStep(ctx, w.step(run, 6))).OptimStep.Step
	save := SaveWeights{Operation: at(run, 8), Name: "state", Overwrite: true}
	load := LoadWeights{Operation: at(run, 9), Path: state, WithOptimizer: true}
	saved, err := w.SaveWeights(ctx, save) // both wait for operation 7
	w.ok(err)
	loaded, err := w.LoadWeights(ctx, load)
	w.ok(err)
	forward := w.pass(run, 7)
	forward.ForwardOnly = true
	before := w.good(w.ForwardBackward(ctx, forward)).ForwardBackward
	w.good(saved, nil)
	w.good(loaded, nil)
	forward.Seq = 10
	after := w.good(w.ForwardBackward(ctx, forward)).ForwardBackward
	if fmt.Sprint(after.Logprobs) != fmt.Sprint(before.Logprobs) {
		t.Errorf("the load has other weights than the save before it: %v, want %v", after.Logprobs, before.Logprobs)
	}
	w.good(w.ForwardBackward(ctx, w.pass(run, 11)))
	if got := w.good(w.OptimStep(ctx, w.step(run, 12))).OptimStep.Step; got != want+1 {
		t.Errorf("the step after it is number %d, want %d", got, want+1)
	}
}

// A load whose checkpoint is deleted before its turn says so.
func TestLoadOfWhatIsDeletedMeanwhile(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "state"})).Saved.Path
	dir := w.file(w.checkpoints[state].Dir)
	s, err := w.LoadWeights(ctx, LoadWeights{Operation: at(run, 7), Path: state})
	w.ok(err)
	w.ok(w.DeleteCheckpoint(ctx, owner, state, ""))
	w.eventually(func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
	w.good(w.ForwardBackward(ctx, w.pass(run, 6)))
	w.failure(w.outcome(s.RequestID), CategoryUser, "checkpoint "+state+" is deleted")
}

// What does not fit a run that has learnt something is refused, and the run goes on; what fails when it is loaded ends the run's work until a load succeeds.
func TestLoadThatFails(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	session := w.session()
	small := w.good(w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session, ModelSeq: 5, BaseModel: base, LoRA: LoRAConfig{Rank: 2, Seed: seed(7), TrainAttn: true, TrainMLP: true, TrainUnembed: true}})).CreatedRun.RunID
	misfit := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(small, 1), Name: "small"})).Saved.Path
	narrow := w.good(w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session, ModelSeq: 6, BaseModel: base, LoRA: LoRAConfig{Rank: 4, Seed: seed(7), TrainAttn: true, TrainMLP: true}})).CreatedRun.RunID
	headless := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(narrow, 1), Name: "headless"})).Saved.Path
	run := w.trained(session, 0)
	state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "state"})).Saved.Path
	whole := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 6), Name: "whole"})).Saved.Path

	_, err := w.LoadWeights(ctx, LoadWeights{Operation: at(run, 7), Path: misfit})
	w.refused(err, KindInvalid, "has rank 2, the model 4")
	_, err = w.LoadWeights(ctx, LoadWeights{Operation: Operation{Owner: owner, RunID: run, Unnumbered: true}, Path: headless})
	w.refused(err, KindInvalid, "trains attention and MLP, the model attention and MLP and the output head")
	w.good(w.ForwardBackward(ctx, w.pass(run, 8)))
	w.good(w.OptimStep(ctx, w.step(run, 9)))

	w.Core.mu.Lock()
	dir := w.file(w.checkpoints[state].Dir)
	w.Core.mu.Unlock()
	w.ok(os.Chmod(dir, 0o700))
	w.ok(os.Remove(filepath.Join(dir, plugins.ManifestFile)))
	s, err := w.LoadWeights(ctx, LoadWeights{Operation: at(run, 10), Path: state, WithOptimizer: true})
	w.ok(err)
	w.failure(w.outcome(s.RequestID), CategoryServer, "checkpoint "+state)
	behind, err := w.OptimStep(ctx, w.step(run, 11))
	w.ok(err)
	w.failure(w.outcome(behind.RequestID), CategoryServer, "loading model "+run+" failed")
	for _, name := range []string{"", "the backend", "the server"} { // the failure is remembered
		if name != "" {
			lose[name](w)
		}
		seq := map[string]int64{"": 12, "the backend": 13, "the server": 14}[name]
		s, err := w.ForwardBackward(ctx, w.pass(run, seq))
		w.ok(err)
		w.failure(w.outcome(s.RequestID), CategoryServer, "loading model "+run+" failed")
	}
	w.good(w.LoadWeights(ctx, LoadWeights{Operation: at(run, 15), Path: whole, WithOptimizer: true}))
	w.good(w.ForwardBackward(ctx, w.pass(run, 16)))
	if got := w.good(w.OptimStep(ctx, w.step(run, 17))).OptimStep; got.Step != 3 {
		t.Errorf("step %d after a load of step 2, want 3", got.Step)
	}
	w.restart()
	w.good(w.ForwardBackward(ctx, w.pass(run, 18)))
}

// noSnapshots is a backend for which versions cannot be written.
type noSnapshots struct{ plugins.Backend }

func (b noSnapshots) SaveAdapter(ctx context.Context, r plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	if strings.Contains(r.Path, string(filepath.Separator)+"snapshots"+string(filepath.Separator)) {
		return plugins.SaveAdapterResult{}, &plugins.Error{Kind: plugins.KindInternal, Message: "no room for snapshots"}
	}
	return b.Backend.SaveAdapter(ctx, r)
}

// A version that only a backend has is computed again across a load.
func TestRebuildAcrossALoad(t *testing.T) {
	run := func(t *testing.T, lost bool) []SampledSequence {
		w := newWorld(t, func(w *world) { w.wrap = func(b plugins.Backend) plugins.Backend { return noSnapshots{b} } })
		ctx := t.Context()
		session := w.session()
		run := w.trained(session, 0)
		state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "state"})).Saved.Path
		w.good(w.ForwardBackward(ctx, w.pass(run, 6)))
		w.good(w.OptimStep(ctx, w.step(run, 7)))
		early := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 8), SamplerSeq: 0})).SavedSampler.SamplerID
		w.good(w.ForwardBackward(ctx, w.pass(run, 9)))
		w.good(w.LoadWeights(ctx, LoadWeights{Operation: at(run, 10), Path: state}))
		w.good(w.ForwardBackward(ctx, w.pass(run, 11)))
		w.good(w.OptimStep(ctx, w.step(run, 12)))
		late := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 13), SamplerSeq: 1})).SavedSampler.SamplerID
		if lost {
			w.Core.mu.Lock()
			if base := w.basePoint(w.runs[run]); base != nil {
				t.Errorf("the run is rebuilt from %+v: not across the load", base)
			}
			w.Core.mu.Unlock()
			w.restartBackend()
		}
		w.good(w.ForwardBackward(ctx, w.pass(run, 14)))
		return append(w.sampled(w.sample(early, 0)).Sequences, w.sampled(w.sample(late, 0)).Sequences...)
	}
	want, got := run(t, false), run(t, true)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if slices.Equal(want[0].Logprobs, want[2].Logprobs) {
		t.Error("both samplers are the same: the test has nothing to compare")
	}
}

// narrowed is the archive of an adapter of rank 4 as one of rank 3, which no run can be created with: the last row of each A and the last column of each B are left out, without the manifest, as another program would write it.
func (w *world) narrowed(archive []byte) []byte {
	w.t.Helper()
	var out bytes.Buffer
	in, to := tar.NewReader(bytes.NewReader(archive)), tar.NewWriter(&out)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		w.ok(err)
		b, err := io.ReadAll(in)
		w.ok(err)
		switch h.Name {
		case plugins.AdapterConfigFile:
			b = bytes.Replace(b, []byte(`"r": 4`), []byte(`"r": 3`), 1)
		case plugins.AdapterWeightsFile:
			b = w.narrowedTensors(b)
		default:
			continue
		}
		w.ok(to.WriteHeader(&tar.Header{Name: h.Name, Mode: 0o644, Size: int64(len(b))}))
		_, err = to.Write(b)
		w.ok(err)
	}
	w.ok(to.Close())
	return out.Bytes()
}

func (w *world) narrowedTensors(b []byte) []byte {
	w.t.Helper()
	type entry struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	n := binary.LittleEndian.Uint64(b)
	raw := map[string]json.RawMessage{}
	w.ok(json.Unmarshal(b[8:8+n], &raw))
	delete(raw, "__metadata__")
	var data []byte
	entries := map[string]entry{}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		var e entry
		w.ok(json.Unmarshal(raw[name], &e))
		values, from, keep := b[8+int(n)+e.Offsets[0]:8+int(n)+e.Offsets[1]], len(data), e.Shape[1]
		if e.Shape[1] == 4 {
			keep = 3
		}
		rows := e.Shape[0]
		if e.Shape[0] == 4 {
			rows = 3
		}
		for row := range rows {
			data = append(data, values[4*row*e.Shape[1]:][:4*keep]...)
		}
		entries[name] = entry{e.DType, []int{rows, keep}, [2]int{from, len(data)}}
	}
	head, err := json.Marshal(entries)
	w.ok(err)
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head, data)
}

// A run that was made from an import has a shape that no run is created with. It is rebuilt with that shape also when what it needs is a load in its middle.
func TestRebuildOfAnImportAfterALoad(t *testing.T) {
	train := func(t *testing.T, lose func(*world)) map[string]string {
		w := newWorld(t, nil)
		ctx := t.Context()
		session := w.session()
		first := w.trained(session, 0)
		saved := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(first, 5), Name: "s"})).Saved.Path
		imported, _, err := w.Import(ctx, Import{Owner: owner, BaseModel: base, Name: "i", Tar: bytes.NewReader(w.narrowed(w.archive(saved)))})
		w.ok(err)
		run := w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: session, ModelSeq: 1, Path: imported.Path})).Loaded.RunID
		w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
		w.good(w.OptimStep(ctx, w.step(run, 2)))
		state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 3), Name: "state"})).Saved.Path
		w.good(w.ForwardBackward(ctx, w.pass(run, 4)))
		w.good(w.LoadWeights(ctx, LoadWeights{Operation: at(run, 5), Path: state, WithOptimizer: true}))
		w.eventually(func() bool { r := w.runs[run]; return !r.pruning && !r.prunable })
		lose(w)
		w.good(w.ForwardBackward(ctx, w.pass(run, 6)))
		w.good(w.OptimStep(ctx, w.step(run, 7)))
		lose(w)
		return w.contents(w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 8), Name: "end"})).Saved.Path)
	}
	want := train(t, func(*world) {})
	for name, lose := range lose {
		t.Run(name, func(t *testing.T) { compare(t, train(t, lose), want) })
	}
}
