package simulation

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

// oracle is the undisturbed run: it gives the operations that a run had, in their order, to a backend of its own, one after the other, and compares.
type oracle struct {
	w        *world
	of       *server
	dir      string
	backends map[string]*fake.Backend
	done     map[*training]bool
	folders  map[*saved]string // where a checkpoint lies that was made here
	newest   map[string]*saved // by path
	n        int
}

func newOracle(w *world, of *server) *oracle {
	o := &oracle{w: w, of: of, dir: filepath.Join(w.home, "oracle"), backends: map[string]*fake.Backend{}, done: map[*training]bool{}, folders: map[*saved]string{}, newest: map[string]*saved{}}
	for _, model := range models {
		o.backends[model], _, _ = newFake(model)
	}
	mustBe(os.MkdirAll(o.dir, 0o700))
	return o
}

// compare checks everything that clients were told.
func (o *oracle) compare() {
	for _, c := range o.w.clients {
		for _, t := range c.runs {
			o.train(t)
		}
		for _, s := range c.samplers {
			if s.from == nil {
				o.sample(s, "", plugins.LatestVersion)
			}
		}
	}
	o.compareFiles()
}

func scope(optimizer bool) plugins.Scope {
	if optimizer {
		return plugins.ScopeOptimizer
	}
	return plugins.ScopeWeights
}

// train runs one run, and those before it whose checkpoints it begins with.
func (o *oracle) train(t *training) {
	if o.done[t] || t.created == nil {
		return
	}
	o.done[t] = true
	ctx, b := context.Background(), o.backends[t.model]
	var err error
	var want string
	if t.from != nil {
		o.train(t.from.by.of)
		if o.folders[t.from] == "" { // what it comes from went wrong
			o.w.violation("%s begins with %s, which the reference has not made", t.id, t.from.path)
			return
		}
		_, err = b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: t.id, Path: o.folders[t.from], Scope: scope(t.withAdam)})
		want = fmt.Sprint("loaded ", runs.LoadedWeights{Path: t.from.path, RunID: t.id})
	} else {
		config := plugins.AdapterConfig{Rank: t.rank, Seed: t.seed, TrainAttention: true, TrainMLP: true, TrainUnembed: true}
		_, err = b.CreateAdapter(ctx, plugins.CreateAdapterRequest{Adapter: t.id, Config: config})
		want = "made " + t.id
	}
	mustBe(err)
	if t.created.outcome != want {
		o.w.violation("%s: %s, undisturbed %s", t.created.id, t.created.outcome, want)
		return
	}
	position, sent, refused := int64(0), false, ""
	tasks := slices.Clone(t.tasks)
	slices.SortFunc(tasks, func(a, b *task) int { return int(a.number - b.number) })
	for _, x := range tasks {
		if x.id == "" {
			continue
		}
		if skipped(x.outcome) {
			if !x.overlap {
				o.w.violation("%s was skipped, though nothing had overtaken it", x.id)
			}
			continue
		}
		if x.bad != "" && !strings.Contains(x.outcome, "16 is not a token id") { // else it came to the backend, which was not known when it was submitted
			if want := "failed (user)"; !strings.HasPrefix(x.outcome, want) || !strings.Contains(x.outcome, x.bad) {
				o.w.violation("%s: %s, should have failed for %s", x.id, x.outcome, x.bad)
			}
			if refused == "" && !x.pass.ForwardOnly {
				refused = x.bad
			}
			continue
		}
		if x.step != nil && !sent && refused != "" {
			if !allRefused(x.outcome, refused) {
				o.w.violation("%s: %s, though all passes before it were refused", x.id, x.outcome)
			}
			refused = ""
			continue
		}
		position++
		// After a restart the backend does not know any more of passes that failed there; the core does.
		if got, want := x.outcome, o.run(b, x, position); got != want && !(x.step != nil && strings.Contains(want, "no forward_backward since the last step succeeded") && allRefused(got, "")) {
			o.w.violation("%s: %s\n\tundisturbed: %s", x.id, got, want)
			return
		}
		if x.pass != nil && !x.pass.ForwardOnly {
			sent = true
		}
		if x.step != nil || x.load != nil {
			sent, refused = false, ""
		}
	}
}

// allRefused tells whether a step failed because all passes before it had, the first with a reason.
func allRefused(outcome, reason string) bool {
	return strings.HasPrefix(outcome, "failed (user): every forward_backward since the last optim_step failed") && strings.Contains(outcome, reason)
}

// run runs one operation and says what comes of it.
func (o *oracle) run(b *fake.Backend, x *task, position int64) string {
	ctx, adapter := context.Background(), x.of.id
	out := &runs.Outcome{}
	var err error
	switch {
	case x.pass != nil:
		req := plugins.ForwardBackwardRequest{Adapter: adapter, Position: position, Loss: x.pass.Loss, ForwardOnly: x.pass.ForwardOnly}
		fb := &runs.ForwardBackwardResult{}
		for _, d := range x.pass.Data {
			datum := plugins.Datum{Tokens: d.Tokens, K: 1, Weights: d.Inputs["weights"].Floats, Logprobs: d.Inputs["logprobs"].Floats, Advantages: d.Inputs["advantages"].Floats}
			for _, target := range d.Inputs["target_tokens"].Ints {
				datum.Targets = append(datum.Targets, int32(target))
			}
			req.Data, fb.K = append(req.Data, datum), append(fb.K, 0)
		}
		fb.ForwardBackwardResult, err = b.ForwardBackward(ctx, req)
		out.ForwardBackward = fb
	case x.step != nil:
		var got plugins.OptimStepResult
		got, err = b.OptimStep(ctx, plugins.OptimStepRequest{Adapter: adapter, Position: position, Adam: x.step.Adam})
		out.OptimStep = &got
	case x.load != nil:
		o.train(x.load.by.of)
		if o.folders[x.load] == "" {
			return "nothing: the reference has not made " + x.load.path
		}
		_, err = b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: adapter, Position: position, Path: o.folders[x.load], Scope: scope(x.optim)})
		out.Loaded = &runs.LoadedWeights{Path: x.load.path, RunID: adapter}
	case x.save.path == "":
		var got plugins.PinResult
		got, err = b.Pin(ctx, plugins.PinRequest{Adapter: adapter, Position: position, Name: fmt.Sprint("at ", position)})
		session, _, _ := strings.Cut(adapter, ":train:")
		out.SavedSampler = &runs.SavedSampler{SamplerID: fmt.Sprint(session, ":sample:", x.save.slot)}
		for _, s := range x.save.uses {
			o.sample(s, adapter, got.Version)
		}
	default:
		o.n++
		dir := filepath.Join(o.dir, fmt.Sprint(o.n))
		var got plugins.SaveAdapterResult
		got, err = b.SaveAdapter(ctx, plugins.SaveAdapterRequest{Adapter: adapter, Position: position, Scope: scope(x.save.kind == runs.KindWeights), Path: dir})
		out.Saved = &runs.SavedWeights{Path: x.save.path, Size: got.Bytes}
		o.folders[x.save], o.newest[x.save.path] = dir, x.save
		for _, s := range x.save.uses {
			frozen := fmt.Sprint("frozen ", o.n)
			_, err := b.LoadAdapter(ctx, plugins.LoadAdapterRequest{Adapter: frozen, Path: dir, Scope: plugins.ScopeWeights, Frozen: true})
			mustBe(err)
			o.sample(s, frozen, plugins.LatestVersion)
		}
	}
	if err != nil {
		return canonical(&runs.Outcome{Failure: &runs.Failure{Category: runs.CategoryUser, Message: err.Error()}})
	}
	return canonical(out)
}

// sample draws what a sampling session was asked for.
func (o *oracle) sample(s *sampling, adapter string, version int64) {
	for _, x := range s.samples {
		p := x.request.Params
		result := runs.SampleResult{Sequences: make([]runs.SampledSequence, x.request.NumSamples)}
		o.n++
		err := o.backends[s.model].Sample(context.Background(), plugins.SampleRequest{
			ID: fmt.Sprint("sample ", o.n), Adapter: adapter, Version: version, Prompt: x.request.Prompt, NumSamples: x.request.NumSamples, MaxTokens: *p.MaxTokens, Temperature: p.Temperature,
			TopK: p.TopK, TopP: p.TopP, Seed: *p.Seed, RepetitionPenalty: 1,
		}, func(e plugins.SampleEvent) error {
			if t := e.Tokens; t != nil {
				q := &result.Sequences[t.Sequence]
				q.Tokens, q.Logprobs = append(q.Tokens, t.Tokens...), append(q.Logprobs, t.Logprobs...)
			}
			if f := e.Finished; f != nil {
				result.Sequences[f.Sequence].StoppedByLength = f.Reason == plugins.StopLength
			}
			return nil
		})
		mustBe(err)
		if want := canonical(&runs.Outcome{Sample: &result}); x.outcome != want {
			o.w.violation("sample %s: %s\n\tundisturbed: %s", x.id, x.outcome, want)
		}
	}
}

// compareFiles checks that the newest checkpoint of every path has the weights that it should have.
func (o *oracle) compareFiles() {
	for _, path := range slices.Sorted(maps.Keys(o.newest)) {
		s := o.newest[path]
		rec, err := o.of.store.Get(context.Background(), "checkpoints", path)
		if o.w.deleted[path] || s.ttl > 0 && err != nil {
			continue
		}
		if err != nil {
			o.w.violation("the record of %s: %v", path, err)
			continue
		}
		for _, name := range []string{plugins.AdapterWeightsFile, plugins.OptimizerFile} {
			if name == plugins.OptimizerFile && s.kind != runs.KindWeights {
				continue
			}
			got, err := os.ReadFile(filepath.Join(o.of.dir, checkpointOf(rec).Dir, name))
			want := must(os.ReadFile(filepath.Join(o.folders[s], name)))
			if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
				o.w.violation("%s of %s is not that of an undisturbed run (%v)", name, path, err)
			}
		}
	}
}
