package runs

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// says is what a model's name generates for an owner.
func (w *world) says(owner, name string) []int32 {
	w.t.Helper()
	target, err := w.Resolve(w.t.Context(), owner, name)
	w.ok(err)
	var tokens []int32
	w.ok(w.Generate(w.t.Context(), target, Generation{Owner: owner, SeedGiven: true, Stops: Stops{Given: true}, Request: plugins.SampleRequest{
		Prompt: []int32{2, 3}, NumSamples: 1, MaxTokens: 20, Temperature: 1, TopP: 1, Seed: 5, RepetitionPenalty: 1,
	}}, func(e plugins.SampleEvent) error {
		if e.Tokens != nil {
			tokens = append(tokens, e.Tokens.Tokens...)
		}
		return nil
	}))
	return tokens
}

// means demands that a name generates what another one does.
func (w *world) means(owner, name string, want []int32) {
	w.t.Helper()
	if got := w.says(owner, name); !slices.Equal(got, want) {
		w.t.Errorf("%s generates %v, want %v", name, got, want)
	}
}

// TestNameOfARunThatHasEnded: it answers with the run's newest checkpoint of either kind, for others with the newest published one, as long as there is one.
func TestNameOfARunThatHasEnded(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	session := w.session()
	run := w.newRun(session, 0)
	name := "tinker://" + run
	far := func(seq int64) {
		w.good(w.ForwardBackward(ctx, w.pass(run, seq)))
		w.good(w.OptimStep(ctx, OptimStep{Operation: at(run, seq+1), Adam: plugins.AdamParams{LearningRate: 0.3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}}))
	}
	far(1)
	first := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 3), Name: "a"})).Saved.Path
	old := w.says(owner, name)
	far(4)
	second := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 6), Name: "b"})).Saved.Path
	newest := w.says(owner, name)
	if slices.Equal(old, newest) {
		t.Fatal("the step changed nothing that is generated")
	}
	unsaved := w.newRun(session, 1)
	_, err := w.Resolve(ctx, other, name)
	w.refused(err, KindNotFound, "no model")
	w.ok(w.PublishCheckpoint(ctx, owner, first, true))
	w.means(other, name, old) // also while it is live

	w.good(w.UnloadRun(ctx, owner, run))
	w.good(w.UnloadRun(ctx, owner, unsaved))
	ended := func() {
		t.Helper()
		w.means(owner, name, newest)
		w.means(owner, run, newest)
		w.means(owner, base+";"+name, newest)
		w.means(other, name, old)
		target, err := w.Resolve(ctx, owner, name)
		w.ok(err)
		if described, ok := w.ServedModel(owner, target); !ok || described.ID != second || described.RunID != run {
			t.Errorf("described as %+v", described)
		}
		_, err = w.Resolve(ctx, owner, "tinker://"+unsaved)
		w.refused(err, KindNotFound)
	}
	ended()
	_, err = w.Resolve(ctx, owner, unsaved)
	w.refused(err, KindNotFound, "it has no checkpoint")
	w.ok(w.FinishSession(ctx, owner, session, "success", ""))
	ended()
	w.restart() // neither session nor run is in memory then
	ended()
	w.ok(w.PublishCheckpoint(ctx, owner, first, false))
	_, err = w.Resolve(ctx, other, name)
	w.refused(err, KindNotFound, "no model")
	w.ok(w.DeleteCheckpoint(ctx, owner, second, ""))
	w.means(owner, name, old)
	w.ok(w.DeleteCheckpoint(ctx, owner, first, ""))
	_, err = w.Resolve(ctx, owner, name)
	w.refused(err, KindNotFound)
}

// TestLatestAfterALoss: NAME:latest is the run that was trained last, whatever was lost since, and also while the runs are rebuilt.
func TestLatestAfterALoss(t *testing.T) {
	for name, lose := range lose {
		for _, points := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, points %v", name, points), func(t *testing.T) {
				w := newWorld(t, func(w *world) {
					if points {
						w.pointsAlways()
					}
				})
				session := w.session()
				var runs []string
				for i := range int64(5) {
					runs = append(runs, w.newRun(session, i))
				}
				for _, i := range []int{1, 4, 0, 2, 3, 2} {
					seq := w.runs[runs[i]].queue.sequence.highest() + 1
					w.good(w.ForwardBackward(t.Context(), w.pass(runs[i], seq)))
					w.good(w.OptimStep(t.Context(), w.step(runs[i], seq+1)))
				}
				latest := func(when string) {
					t.Helper()
					target, err := w.Resolve(t.Context(), owner, base+":latest")
					w.ok(err)
					if target.RunID != runs[2] {
						t.Errorf("%s: the newest is run %d, want 2", when, slices.Index(runs, target.RunID))
					}
				}
				lose(w)
				latest("at once")
				for _, r := range runs {
					w.says(owner, r) // waits until it is rebuilt
				}
				latest("when all are rebuilt")
			})
		}
	}
}

// TestLatestIsTrained: an import moves NAME:latest when a step has trained it, and not before, in whatever form it is there.
func TestLatestIsTrained(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	const latest = base + ":latest"
	session := w.session()
	run := w.trained(session, 0)
	saved := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 5), Name: "s"})).Saved.Path
	token, _, err := w.ArchiveToken(ctx, Requester{Owner: owner}, saved)
	w.ok(err)
	_, write, err := w.OpenArchive(ctx, token)
	w.ok(err)
	var archive bytes.Buffer
	w.ok(write(&archive))
	load := func(owner string) (training, sampler CheckpointInfo) {
		t.Helper()
		training, sampler, err := w.Import(ctx, Import{Owner: owner, BaseModel: base, Name: "i", Tar: bytes.NewReader(archive.Bytes())})
		w.ok(err)
		return training, sampler
	}
	is := func(want string) {
		t.Helper()
		target, err := w.Resolve(ctx, owner, latest)
		w.ok(err)
		if got := max(target.Path, "tinker://"+target.RunID); got != want {
			t.Errorf("%s is %s, want %s", latest, got, want)
		}
	}
	w.good(w.UnloadRun(ctx, owner, run))
	is(saved)
	training, sampler := load(owner)
	is(saved)
	copied, err := w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: owner, Source: sampler.Path, ProjectID: "p"})
	w.ok(err)
	is(saved)
	restored := w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: session, ModelSeq: 1, Path: training.Path})).Loaded.RunID
	is(saved)
	w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(restored, 1), Name: "untrained"}))
	is(saved)
	w.restart()
	is(saved)
	w.good(w.ForwardBackward(ctx, w.pass(restored, 2)))
	is(saved)
	w.good(w.OptimStep(ctx, w.step(restored, 3)))
	is("tinker://" + restored)
	mine := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(restored, 4), Name: "trained"})).Saved.Path
	w.restart()
	is("tinker://" + restored)
	w.good(w.UnloadRun(ctx, owner, restored))
	is(mine)
	for _, name := range []string{sampler.Path, copied.Path, "tinker://" + sampler.RunID} { // by their own names they are there
		w.means(owner, name, w.says(owner, sampler.Path))
	}
	fresh := w.newRun(session, 2)
	is("tinker://" + fresh)
	w.good(w.LoadWeights(ctx, LoadWeights{Operation: at(fresh, 1), Path: training.Path}))
	is(mine)
	w.restart()
	is(mine)
	w.good(w.ForwardBackward(ctx, w.pass(fresh, 2)))
	w.good(w.OptimStep(ctx, w.step(fresh, 3)))
	is("tinker://" + fresh)
	load(other)
	_, err = w.Resolve(ctx, other, latest)
	w.refused(err, KindNotFound, "named by its path until it has been trained")
}
