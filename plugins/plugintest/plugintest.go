// Package plugintest holds the behaviour that every backend must show, as tests that any implementation of plugins.Backend can be put to: by its
// own package's tests, in the same process or over the transport.
package plugintest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// Subject is a backend that has loaded a small model. What the tests ask of the model: at least 16 tokens, a context of at least 24, a
// MaxRank of at least 4, and that few steps of training can make it fit one short sequence better.
type Subject struct {
	Backend plugins.Backend
	Model   plugins.ModelInfo
	// Places is how many sequences of a request are decoded at once at most; 0 means 64.
	Places int
	// Late says that the arithmetic of this backend's decoding is another one than that of its passes: log-probabilities are known, and tokens sent, when a sequence has ended.
	// Then it is not tested that tokens are sent while their sequence goes on.
	Late bool
	// Starve has optimizer steps find no memory from now on, or again as much as they need. Nil where that cannot be brought about; then it is not tested.
	Starve func(starved bool)
	// Shrink has the backend be configured, from now on, so that no adapter ever fits, or again as it was. Nil where that cannot be brought about; then it is not tested.
	Shrink func(small bool)
}

// Factory makes a fresh subject for one test and cleans up at the test's end.
type Factory func(t *testing.T) Subject

// RunAll runs all tests. Each makes its own subject.
func RunAll(t *testing.T, factory Factory) {
	for _, c := range []struct {
		name string
		run  func(*suite)
	}{
		{"info and status", (*suite).infoAndStatus},
		{"create and delete", (*suite).createAndDelete},
		{"modules follow the flags", (*suite).modulesFollowFlags},
		{"order by position", (*suite).order},
		{"positions are used up once", (*suite).positions},
		{"training lowers the loss", (*suite).trainingLowersLoss},
		{"accumulation", (*suite).accumulation},
		{"forward only", (*suite).forwardOnly},
		{"losses", (*suite).losses},
		{"failed window", (*suite).failedWindow},
		{"empty window", (*suite).emptyWindow},
		{"no memory for a step", (*suite).starvedStep},
		{"too small for an adapter", (*suite).tooSmall},
		{"not finite", (*suite).notFinite},
		{"invalid training requests", (*suite).invalidTraining},
		{"invalid sample requests", (*suite).invalidSamples},
		{"neighbours do not matter", (*suite).neighbours},
		{"versions and pins", (*suite).versionsAndPins},
		{"sampler is trainer", (*suite).samplerIsTrainer},
		{"prompt scores", (*suite).promptScores},
		{"seeds", (*suite).seeds},
		{"greedy and filters", (*suite).greedyAndFilters},
		{"stop tokens and lengths", (*suite).stopTokens},
		{"penalties and bias", (*suite).penaltiesAndBias},
		{"cancel", (*suite).cancel},
		{"emit error ends a sample", (*suite).emitError},
		{"a key beside a crowd", (*suite).crowd},
		{"readers that do not read", (*suite).slowReaders},
		{"scopes of prefixes", (*suite).prefixScopes},
		{"excluded tokens", (*suite).excludedTokens},
		{"thinking", (*suite).thinking},
		{"grammars", (*suite).grammars},
		{"ends under a grammar", (*suite).grammarEnds},
		{"wrong constraints", (*suite).badConstraints},
		{"save and load", (*suite).saveAndLoad},
		{"accumulator checkpoint", (*suite).accumulatorCheckpoint},
		{"load into an adapter", (*suite).loadInto},
		{"a foreign adapter's scale", (*suite).scale},
		{"damaged checkpoints", (*suite).damagedCheckpoints},
		{"frozen adapter", (*suite).frozen},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := factory(t)
			if s.Model.VocabSize < 16 || s.Model.MaxContextLength < 24 || s.Model.MaxRank < 4 {
				t.Fatalf("the model is too small for these tests: %+v", s.Model)
			}
			c.run(&suite{T: t, b: s.Backend, model: s.Model, places: cmp.Or(s.Places, 64), late: s.Late, starve: s.Starve, shrink: s.Shrink})
		})
	}
}

// suite is one test in progress.
type suite struct {
	*testing.T
	b      plugins.Backend
	model  plugins.ModelInfo
	places int
	late   bool
	starve func(starved bool)
	shrink func(small bool)
}

var allModules = plugins.AdapterConfig{Rank: 2, Seed: 1, TrainAttention: true, TrainMLP: true, TrainUnembed: true}

var adam = plugins.AdamParams{LearningRate: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}

// run is an adapter with its next position.
type run struct {
	*suite
	id      string
	modules []string // that carry LoRA, of one that create made
	next    int64
}

func (s *suite) create(id string, c plugins.AdapterConfig) *run {
	s.Helper()
	res, err := s.b.CreateAdapter(s.Context(), plugins.CreateAdapterRequest{Adapter: id, Config: c})
	if err != nil {
		s.Fatalf("create %s: %v", id, err)
	}
	return &run{suite: s, id: id, modules: res.Config.Modules}
}

func (r *run) position() int64 {
	r.next++
	return r.next
}

// tryForward runs cross entropy on the data.
func (r *run) tryForward(forwardOnly bool, data ...plugins.Datum) (plugins.ForwardBackwardResult, error) {
	return r.b.ForwardBackward(r.Context(), plugins.ForwardBackwardRequest{Adapter: r.id, Position: r.position(), Data: data, Loss: "cross_entropy", ForwardOnly: forwardOnly})
}

func (r *run) forwardBackward(data ...plugins.Datum) plugins.ForwardBackwardResult {
	r.Helper()
	res, err := r.tryForward(false, data...)
	if err != nil {
		r.Fatalf("forward_backward: %v", err)
	}
	return res
}

func (r *run) forward(data ...plugins.Datum) plugins.ForwardBackwardResult {
	r.Helper()
	res, err := r.tryForward(true, data...)
	if err != nil {
		r.Fatalf("forward: %v", err)
	}
	return res
}

func (r *run) tryStep() (plugins.OptimStepResult, error) {
	return r.b.OptimStep(r.Context(), plugins.OptimStepRequest{Adapter: r.id, Position: r.position(), Adam: adam})
}

func (r *run) step() plugins.OptimStepResult {
	r.Helper()
	res, err := r.tryStep()
	if err != nil {
		r.Fatalf("optim_step: %v", err)
	}
	return res
}

// train makes n steps on d.
func (r *run) train(n int, d plugins.Datum) {
	r.Helper()
	for range n {
		r.forwardBackward(d)
		r.step()
	}
}

// datum makes a sequence whose tokens follow from its number.
func (s *suite) datum(number, length int) plugins.Datum {
	d := plugins.Datum{K: 1}
	for i := range length {
		d.Tokens = append(d.Tokens, int32((number*7+i*i*3+i)%min(s.model.VocabSize, 97)))
	}
	d.Targets = append(append([]int32(nil), d.Tokens[1:]...), int32(number%16))
	for i := range length {
		d.Weights = append(d.Weights, float32(1+i%2)/2)
	}
	return d
}

func (s *suite) wantKind(what string, err error, kind plugins.Kind) {
	s.Helper()
	if err == nil || plugins.KindOf(err) != kind {
		s.Errorf("%s: error %v, want kind %q", what, err, kind)
	}
}

func (s *suite) wantInvalid(what string, err error, field string) {
	s.Helper()
	var e *plugins.Error
	if !errors.As(err, &e) || e.Kind != plugins.KindInvalid || e.Field != field || e.Message == "" {
		s.Errorf("%s: error %v, want an invalid %s", what, err, field)
	}
}

// sameBits compares floats bit by bit; NaN equals NaN.
func (s *suite) sameBits(what string, got, want []float32) {
	s.Helper()
	if len(got) != len(want) {
		s.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			s.Errorf("%s: value %d is %v (%08x), want %v (%08x)", what, i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
			return
		}
	}
}

func (s *suite) differ(what string, a, b []float32) {
	s.Helper()
	for i := range a {
		if a[i] != b[i] {
			return
		}
	}
	s.Errorf("%s: the same values, want different ones", what)
}

// sampled is a whole answer.
type sampled struct {
	prompt   *plugins.PromptScores
	tokens   [][]int32
	logprobs [][]float32
	left     [][]float32 // ConstraintLogprobs
	top      []plugins.TopLogprobs
	reasons  []plugins.StopReason
}

var sampleNumber struct {
	sync.Mutex
	n int
}

// request is an ordinary request, to be changed by a test.
func (s *suite) request(adapter string, n, maxTokens int) plugins.SampleRequest {
	sampleNumber.Lock()
	defer sampleNumber.Unlock()
	sampleNumber.n++
	return plugins.SampleRequest{
		ID: fmt.Sprintf("sample-%d", sampleNumber.n), Adapter: adapter, Version: plugins.LatestVersion, Prompt: s.datum(3, 6).Tokens, NumSamples: n, MaxTokens: maxTokens,
		Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: 11,
	}
}

// trySample runs a request and checks the order of its events. each, unless nil, sees them first.
func (s *suite) trySample(req plugins.SampleRequest, each func(plugins.SampleEvent) error) (*sampled, error) {
	out := &sampled{
		tokens: make([][]int32, req.NumSamples), logprobs: make([][]float32, req.NumSamples), left: make([][]float32, req.NumSamples), top: make([]plugins.TopLogprobs, req.NumSamples), reasons: make([]plugins.StopReason, req.NumSamples),
	}
	finished := make([]bool, req.NumSamples)
	err := s.b.Sample(s.Context(), req, func(e plugins.SampleEvent) error {
		if each != nil {
			if err := each(e); err != nil {
				return err
			}
		}
		switch {
		case e.Prompt != nil:
			if out.prompt != nil {
				s.Error("a second event about the prompt")
			}
			out.prompt = e.Prompt
		case e.Tokens != nil:
			i := e.Tokens.Sequence
			if out.prompt == nil || finished[i] || len(e.Tokens.Tokens) == 0 || len(e.Tokens.Tokens) != len(e.Tokens.Logprobs) {
				s.Errorf("misplaced or malformed tokens of sequence %d: %+v", i, e.Tokens)
			}
			out.tokens[i] = append(out.tokens[i], e.Tokens.Tokens...)
			out.logprobs[i] = append(out.logprobs[i], e.Tokens.Logprobs...)
			out.left[i] = append(out.left[i], e.Tokens.ConstraintLogprobs...)
			out.top[i].K = e.Tokens.Top.K
			out.top[i].IDs = append(out.top[i].IDs, e.Tokens.Top.IDs...)
			out.top[i].Logprobs = append(out.top[i].Logprobs, e.Tokens.Top.Logprobs...)
		case e.Finished != nil:
			if finished[e.Finished.Sequence] {
				s.Errorf("sequence %d finished twice", e.Finished.Sequence)
			}
			finished[e.Finished.Sequence] = true
			out.reasons[e.Finished.Sequence] = e.Finished.Reason
		default:
			s.Error("an empty event")
		}
		return nil
	})
	if err == nil {
		for i, f := range finished {
			if !f {
				s.Errorf("sequence %d never finished", i)
			}
		}
		if out.prompt == nil {
			s.Fatal("no event about the prompt")
		}
	}
	return out, err
}

func (s *suite) sample(req plugins.SampleRequest) *sampled {
	s.Helper()
	out, err := s.trySample(req, nil)
	if err != nil {
		s.Fatalf("sample: %v", err)
	}
	return out
}
