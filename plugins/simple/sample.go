package simple

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/constraint"
)

// unscored is the log-probability of absent entries of plugins.TopLogprobs.
const unscored = -99999

// Kinds of random draws, so that none repeats another's numbers.
const (
	drawToken = iota
	drawAlternative
)

// sampling is a running request; its mutable fields are guarded by Backend.mu.
type sampling struct {
	adapter   *adapter // nil for the base model
	version   *version
	cancelled []bool
	ended     error // why the whole request fails
	active    int
}

// sequence is one continuation.
type sequence struct {
	index     int
	next      Sequence
	generated []int32
	counts    map[int32]int // of generated tokens
	finished  bool
	rule      *constraint.State // nil: anything may be drawn
	end       constraint.End
}

func newSequence(index int, rules *constraint.Compiled) *sequence {
	s := &sequence{index: index, counts: map[int32]int{}}
	if rules != nil {
		s.rule, s.end = rules.Start()
	}
	return s
}

// add notes a token that was drawn.
func (s *sequence) add(token int32) (err error) {
	s.generated = append(s.generated, token)
	s.counts[token]++
	if s.rule != nil {
		s.end, err = s.rule.Accept(token)
	}
	return err
}

// Sample implements plugins.Backend.
func (b *Backend) Sample(ctx context.Context, req plugins.SampleRequest, emit func(plugins.SampleEvent) error) error {
	b.mu.Lock()
	err := b.accept()
	b.mu.Unlock()
	if err != nil {
		return err
	}
	if err := req.Validate(&b.info); err != nil {
		return err
	}
	rules, err := b.rules.Compile(ctx, &req)
	if err != nil {
		return err
	}
	run, err := b.startSample(&req)
	if err != nil {
		return err
	}
	defer b.endSample(req.ID, run)
	if err := b.before(ctx, "sample"); err != nil {
		return err
	}
	if err := b.options.Before(ctx, Operation{Name: "sample", Tokens: [][]int32{req.Prompt}, Content: true}); err != nil {
		return err
	}
	if err := b.stopped(ctx); err != nil {
		return err
	}
	d := &decoding{Backend: b, req: &req, run: run, rules: rules, prompted: map[int32]bool{}, row: make([]float64, b.info.VocabSize), emit: emit}
	number := int64(0)
	if run.version != nil {
		d.weights, number = &run.version.Weights, run.version.number
	}
	for _, t := range req.Prompt {
		d.prompted[t] = true
	}
	scores, err := b.scorePrompt(ctx, &req, d.weights)
	if err != nil {
		return err
	}
	scores.Version = number
	if err := emit(plugins.SampleEvent{Prompt: scores}); err != nil {
		return err
	}
	return d.all(ctx)
}

func (b *Backend) startSample(req *plugins.SampleRequest) (*sampling, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.accept(); err != nil {
		return nil, err
	}
	if b.samples[req.ID] != nil {
		return nil, plugins.Invalidf("id", "%.200q is running", req.ID)
	}
	run := &sampling{cancelled: make([]bool, req.NumSamples), active: req.NumSamples}
	if req.Adapter != "" {
		a, err := b.find(req.Adapter)
		if err != nil {
			return nil, err
		}
		run.adapter, run.version = a, a.latest
		if req.Version != plugins.LatestVersion {
			if run.version = a.versions[req.Version]; run.version == nil {
				return nil, &plugins.Error{Kind: plugins.KindNotFound, Field: "version", Message: fmt.Sprintf("adapter %.200q has no version %d any more or yet", req.Adapter, req.Version)}
			}
		}
		run.version.users++
	}
	b.samples[req.ID] = run
	b.begin()
	return run, nil
}

func (b *Backend) endSample(id string, run *sampling) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.samples, id)
	if run.version != nil {
		run.adapter.release(run.version)
	}
	b.end()
}

// Cancel implements plugins.Backend.
func (b *Backend) Cancel(_ context.Context, req plugins.CancelRequest) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isLost() {
		return b.LostError()
	}
	run := b.samples[req.ID]
	if run == nil {
		return nil
	}
	for i := range run.cancelled {
		if req.Sequence < 0 || req.Sequence == i {
			run.cancelled[i] = true
		}
	}
	return nil
}

// scorePrompt scores what was asked of the prompt.
func (b *Backend) scorePrompt(ctx context.Context, req *plugins.SampleRequest, w *Weights) (*plugins.PromptScores, error) {
	n := len(req.Prompt)
	first := 1 // the first prompt position that is scored
	if req.PromptLogprobsLastN > 0 {
		first = max(1, n-req.PromptLogprobsLastN)
	}
	s := &plugins.PromptScores{}
	if req.PromptLogprobs {
		s.Logprobs = slices.Repeat([]float32{float32(math.NaN())}, n)
	}
	if k := req.TopKPromptLogprobs; k > 0 {
		s.Top = plugins.TopLogprobs{K: k, IDs: make([]int32, n*k), Logprobs: slices.Repeat([]float32{unscored}, n*k)}
	}
	if req.TargetPromptK > 0 {
		s.Targets = make([]float32, len(req.TargetPromptTokens))
	}
	if req.PromptAlternatives > 0 {
		s.AltTokens = make([]int32, (n-1)*req.PromptAlternatives)
		s.AltLogprobs = make([]float32, (n-1)*req.PromptAlternatives)
	}
	from := n // the first position whose token is looked at
	switch {
	case req.TargetPromptK > 0 || req.PromptAlternatives > 0:
		from = 1
	case req.PromptLogprobs || req.TopKPromptLogprobs > 0:
		from = first
	}
	if from < n {
		pass, err := b.model.Forward(ctx, w, req.Prompt, false)
		if err != nil {
			return nil, err
		}
		defer pass.Close()
		if err := pass.Rows(ctx, from-1, n-1, func(at int, logits []float64, lse float64) error {
			scorePosition(s, req, at+1, at+1 >= first, logits, lse)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	b.Progress(func(st *plugins.Status) { st.PrefillTokens += int64(n) })
	return s, nil
}

// scorePosition scores one token of the prompt from the logits before it.
func scorePosition(s *plugins.PromptScores, req *plugins.SampleRequest, i int, scored bool, logits []float64, lse float64) {
	if scored && req.PromptLogprobs {
		s.Logprobs[i] = float32(logits[req.Prompt[i]] - lse)
	}
	if k := req.TopKPromptLogprobs; scored && k > 0 {
		topOf(logits, lse, s.Top.IDs[i*k:][:k], s.Top.Logprobs[i*k:][:k])
	}
	for j := range req.TargetPromptK {
		at := (i-1)*req.TargetPromptK + j
		if t := req.TargetPromptTokens[at]; t >= 0 {
			s.Targets[at] = float32(logits[t] - lse)
		}
	}
	for j := range req.PromptAlternatives {
		u := Uniform(req.Seed, uint32(j), uint32(i), drawAlternative, 0)
		t := draw(req, logits, false, u)
		s.AltTokens[(i-1)*req.PromptAlternatives+j] = t
		s.AltLogprobs[(i-1)*req.PromptAlternatives+j] = float32(logits[t] - lse)
	}
}
