package runs

import (
	"errors"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// unserved makes the base model of a world one that cannot be served, or can be again, for the next process.
func (w *world) unserved(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = why
}

// newFailingWorld has a second model, which works. The core asks the world which one cannot be served.
func newFailingWorld(t *testing.T) *world {
	return newWorld(t, func(w *world) {
		w.config.Models = append(w.config.Models, Model{Name: "test/other"})
		w.config.Failed = func(model string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if model != base {
				return nil
			}
			return w.failed
		}
	})
}

// TestModelThatCannotBeServed: what asks for it is refused at once, for good and with the reason; what does not need it goes on, and so does everything after a start that mends it.
func TestModelThatCannotBeServed(t *testing.T) {
	w := newFailingWorld(t)
	ctx := t.Context()
	session := w.session()
	run := w.newRun(session, 0)
	w.good(w.ForwardBackward(ctx, w.pass(run, 1)))
	w.good(w.OptimStep(ctx, w.step(run, 2)))
	saved := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 3), Name: "a"})).Saved.Path
	weights := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 4), Name: "a"})).Saved.Path
	sampler, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: 1, BaseModel: base})
	w.ok(err)
	before := w.sampled(w.sample(sampler.ID, 1))

	w.close()
	w.unserved(errors.New("load: no weights"))
	w.restartBackend()
	w.open()
	create := func(model string, n int64) error {
		_, err := w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session, ModelSeq: n, BaseModel: model, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
		return err
	}
	for _, c := range []struct {
		name string
		ask  func() error
	}{
		{"run", func() error { return create(base, 1) }},
		{"run under an alias", func() error { return create("test/alias", 1) }},
		{"run from a checkpoint", func() error {
			_, err := w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: session, ModelSeq: 1, Path: weights})
			return err
		}},
		{"pass", func() error { _, err := w.ForwardBackward(ctx, w.pass(run, 5)); return err }},
		{"step", func() error { _, err := w.OptimStep(ctx, w.step(run, 5)); return err }},
		{"sampling session", func() error {
			_, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: 2, BaseModel: base})
			return err
		}},
		{"sampling session of a checkpoint", func() error {
			_, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: 2, ModelPath: saved})
			return err
		}},
		{"sample", func() error { _, err := w.Sample(ctx, w.sample(sampler.ID, 2)); return err }},
		{"name", func() error { _, err := w.Resolve(ctx, owner, base); return err }},
		{"alias", func() error { _, err := w.Resolve(ctx, owner, "test/alias"); return err }},
		{"name of a run", func() error { _, err := w.Resolve(ctx, owner, "tinker://"+run); return err }},
		{"name of a checkpoint", func() error { _, err := w.Resolve(ctx, owner, saved); return err }},
		{"request that was resolved before", func() error {
			return w.Generate(ctx, Target{Name: base, ServedModel: base}, Generation{Owner: owner}, func(plugins.SampleEvent) error { return nil })
		}},
		{"description", func() error { _, err := w.ModelInfo(ctx, base); return err }},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.ask()
			if KindOf(err) != KindFailed || err.Error() != "model "+base+" is not served, and will not be before the server is started again: load: no weights" {
				t.Errorf("kind %d: %v", KindOf(err), err)
			}
		})
	}
	w.ok(create("test/other", 7))
	if err := create("test/none", 8); err == nil || err.Error() != `base_model "test/none": is not served here; served are test/other` {
		t.Error(err)
	}
	served, err := w.ServedModels(ctx, owner)
	w.ok(err)
	for _, m := range served {
		if m.BaseModel != "test/other" {
			t.Errorf("listed: %+v", m)
		}
	}
	if _, err := w.WeightsInfo(ctx, owner, "", saved); err != nil {
		t.Errorf("what is stored is not told any more: %v", err)
	}

	w.close()
	w.unserved(nil)
	w.restartBackend()
	w.open()
	w.good(w.ForwardBackward(ctx, w.pass(run, 5)))
	if after := w.sampled(w.sample(sampler.ID, 1)); after.Sequences[0].Tokens[0] != before.Sequences[0].Tokens[0] {
		t.Errorf("%v, before %v", after, before)
	}
}
