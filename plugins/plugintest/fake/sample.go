package fake

import (
	"cmp"
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
	state     []float64
	generated []int32
	counts    map[int32]int // of generated tokens
	finished  bool
	rule      *constraint.State // nil: anything may be drawn
	end       constraint.End
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
	if err := b.interfere(ctx, "sample"); err != nil {
		return err
	}
	if err := b.provoked(ctx, "sample", func(f *Fault) bool { return slices.Contains(req.Prompt, *f.Token) }); err != nil {
		return err
	}
	var p *parameters
	number := int64(0)
	if run.version != nil {
		p, number = &run.version.parameters, run.version.number
	}
	a := b.model.newActivations()
	state := make([]float64, b.model.hidden)
	scores := b.scorePrompt(&req, p, state, a)
	scores.Version = number
	if err := emit(plugins.SampleEvent{Prompt: scores}); err != nil {
		return err
	}
	return b.decode(ctx, &req, run, rules, p, state, a, emit)
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
		return lostError()
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

// scorePrompt runs the prompt and leaves the state after its last token.
func (b *Backend) scorePrompt(req *plugins.SampleRequest, p *parameters, state []float64, a *activations) *plugins.PromptScores {
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
	b.model.advance(state, req.Prompt[0])
	for i := 1; i < n; i++ {
		scored := i >= first && (req.PromptLogprobs || req.TopKPromptLogprobs > 0)
		if scored || req.TargetPromptK > 0 || req.PromptAlternatives > 0 {
			b.model.forward(p, state, a)
			lse := logSumExp(a.logits)
			if scored && req.PromptLogprobs {
				s.Logprobs[i] = float32(a.logits[req.Prompt[i]] - lse)
			}
			if k := req.TopKPromptLogprobs; scored && k > 0 {
				topOf(a.logits, lse, s.Top.IDs[i*k:][:k], s.Top.Logprobs[i*k:][:k])
			}
			for j := range req.TargetPromptK {
				at := (i-1)*req.TargetPromptK + j
				if t := req.TargetPromptTokens[at]; t >= 0 {
					s.Targets[at] = float32(a.logits[t] - lse)
				}
			}
			for j := range req.PromptAlternatives {
				u := uniform(req.Seed, uint32(j), uint32(i), drawAlternative, 0)
				t := draw(req, a.logits, false, u)
				s.AltTokens[(i-1)*req.PromptAlternatives+j] = t
				s.AltLogprobs[(i-1)*req.PromptAlternatives+j] = float32(a.logits[t] - lse)
			}
		}
		b.model.advance(state, req.Prompt[i])
	}
	b.progress(func(st *plugins.Status) { st.PrefillTokens += int64(n) })
	return s
}

// decode generates all sequences in step, one token of each in turn.
func (b *Backend) decode(ctx context.Context, req *plugins.SampleRequest, run *sampling, rules *constraint.Compiled, p *parameters, state []float64, a *activations, emit func(plugins.SampleEvent) error) error {
	all := make([]*sequence, req.NumSamples)
	for i := range all {
		all[i] = &sequence{index: i, state: slices.Clone(state), counts: map[int32]int{}}
		if rules != nil {
			all[i].rule, all[i].end = rules.Start()
		}
	}
	prompted := map[int32]bool{}
	for _, t := range req.Prompt {
		prompted[t] = true
	}
	row := make([]float64, b.model.vocab)
	for left := len(all); left > 0; {
		for _, s := range all {
			if s.finished {
				continue
			}
			if err := ctx.Err(); err != nil {
				return plugins.Cancelled(err)
			}
			b.mu.Lock()
			cancelled, ended := run.cancelled[s.index], run.ended
			b.mu.Unlock()
			var reason plugins.StopReason
			switch {
			case b.isLost():
				return lostError()
			case ended != nil:
				return ended
			case cancelled:
				reason, s.finished = plugins.StopCancelled, true
			case s.end == constraint.Complete:
				reason, s.finished = plugins.StopComplete, true
			case len(s.generated) == req.MaxTokens:
				reason, s.finished = plugins.StopLength, true
			default:
				if err := b.interfere(ctx, "token"); err != nil {
					return err
				}
				event, err := b.next(req, p, s, prompted, a, row)
				if err != nil {
					return err
				}
				if err := emit(plugins.SampleEvent{Tokens: event}); err != nil {
					return err
				}
				switch {
				case s.end == constraint.Complete:
					reason, s.finished = plugins.StopComplete, true
				case s.end == constraint.Stopped || slices.Contains(req.StopTokens, event.Tokens[0]):
					reason, s.finished = plugins.StopToken, true
				default:
					s.finished = len(s.generated) == req.MaxTokens
					reason = plugins.StopLength
				}
			}
			if s.finished {
				left--
				b.progress(func(*plugins.Status) { run.active-- })
				if err := emit(plugins.SampleEvent{Finished: &plugins.SequenceFinished{Sequence: s.index, Reason: reason}}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// next draws one token of a sequence.
func (b *Backend) next(req *plugins.SampleRequest, p *parameters, s *sequence, prompted map[int32]bool, a *activations, row []float64) (*plugins.SampledTokens, error) {
	b.model.forward(p, s.state, a)
	copy(row, a.logits)
	adjust(req, s, prompted, row)
	if req.Temperature > 0 {
		for i := range row {
			row[i] /= req.Temperature // by 1 changes no bit
		}
	}
	u := uniform(req.Seed, uint32(s.index), uint32(len(req.Prompt)+len(s.generated)), drawToken, 0)
	lse := logSumExp(row)
	from, left := row, float32(0) // what is drawn from
	if s.rule != nil {
		bits := make([]uint64, constraint.Words(len(row)))
		all, err := s.rule.Mask(bits)
		if err != nil {
			return nil, err
		}
		if !all {
			from = slices.Clone(row)
			for t := range from {
				if bits[t/64]>>(t%64)&1 == 0 {
					from[t] = math.Inf(-1)
				}
			}
			left = float32(logSumExp(from) - lse)
		}
	}
	token := drawFrom(req, from, s.rule == nil && len(s.generated) < req.MinTokens, u)
	if b.options.Say != nil {
		token = said(req, b.options.Say(req, s.index), len(s.generated), token)
	}
	event := &plugins.SampledTokens{Sequence: s.index, Tokens: []int32{token}, Logprobs: []float32{float32(row[token] - lse)}}
	if s.rule != nil {
		event.ConstraintLogprobs = []float32{left}
		var err error
		if s.end, err = s.rule.Accept(token); err != nil {
			return nil, err
		}
	}
	if k := req.TopKSampledLogprobs; k > 0 {
		event.Top = plugins.TopLogprobs{K: k, IDs: make([]int32, k), Logprobs: make([]float32, k)}
		topOf(row, lse, event.Top.IDs, event.Top.Logprobs)
	}
	s.generated = append(s.generated, token)
	s.counts[token]++
	b.model.advance(s.state, token)
	b.progress(func(st *plugins.Status) { st.SampledTokens++ })
	return event, nil
}

// said is the token at a place of what is to be said, and a stop token at its end; drawn where nothing is to be said.
func said(req *plugins.SampleRequest, say []int32, at int, drawn int32) int32 {
	switch {
	case at < len(say):
		return say[at]
	case say != nil && len(req.StopTokens) > 0:
		return req.StopTokens[0]
	}
	return drawn
}

// adjust applies penalties and bias.
func adjust(req *plugins.SampleRequest, s *sequence, prompted map[int32]bool, row []float64) {
	if req.RepetitionPenalty != 1 {
		for t := range row {
			if prompted[int32(t)] || s.counts[int32(t)] > 0 {
				if row[t] > 0 {
					row[t] /= req.RepetitionPenalty
				} else {
					row[t] *= req.RepetitionPenalty
				}
			}
		}
	}
	for t, n := range s.counts {
		row[t] -= float64(req.FrequencyPenalty*float64(n)) + req.PresencePenalty
	}
	for t, bias := range req.LogitBias {
		row[t] += bias
	}
}

// draw is drawFrom on logits that have not met the temperature.
func draw(req *plugins.SampleRequest, logits []float64, noStop bool, u float64) int32 {
	row := slices.Clone(logits)
	if req.Temperature > 0 {
		for i := range row {
			row[i] /= req.Temperature
		}
	}
	return drawFrom(req, row, noStop, u)
}

// drawFrom chooses a token from scaled logits: top-k, then top-p of what is left, then min-p of what is left, then by u.
func drawFrom(req *plugins.SampleRequest, row []float64, noStop bool, u float64) int32 {
	candidates := make([]int32, 0, len(row))
	for t := range row {
		if !math.IsInf(row[t], -1) && (!noStop || !slices.Contains(req.StopTokens, int32(t))) {
			candidates = append(candidates, int32(t))
		}
	}
	if len(candidates) == 0 { // every token is a stop token: then one of them has to be drawn
		for t := range row {
			candidates = append(candidates, int32(t))
		}
	}
	greedy := req.Temperature == 0
	if greedy || (req.TopK > 0 && req.TopK < len(candidates)) || req.TopP < 1 {
		slices.SortFunc(candidates, func(x, y int32) int { return likelier(row, x, y) })
	}
	if greedy {
		return candidates[0]
	}
	if req.TopK > 0 && req.TopK < len(candidates) {
		candidates = candidates[:req.TopK]
	}
	top := row[candidates[0]]
	for _, t := range candidates {
		top = max(top, row[t])
	}
	mass := func(t int32) float64 { return math.Exp(row[t] - top) }
	if req.TopP < 1 {
		total, sum := 0.0, 0.0
		for _, t := range candidates {
			total += mass(t)
		}
		for i, t := range candidates {
			if sum += mass(t); sum >= req.TopP*total {
				candidates = candidates[:i+1]
				break
			}
		}
	}
	if req.MinP > 0 {
		candidates = slices.DeleteFunc(candidates, func(t int32) bool { return mass(t) < req.MinP })
	}
	total, sum := 0.0, 0.0
	for _, t := range candidates {
		total += mass(t)
	}
	for _, t := range candidates {
		if sum += mass(t); sum > u*total {
			return t
		}
	}
	return candidates[len(candidates)-1]
}

func likelier(row []float64, x, y int32) int {
	if c := cmp.Compare(row[y], row[x]); c != 0 {
		return c
	}
	return cmp.Compare(x, y)
}

// topOf writes the likeliest tokens, descending, ties by lower id.
func topOf(row []float64, lse float64, ids []int32, logprobs []float32) {
	order := make([]int32, len(row))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(x, y int32) int { return likelier(row, x, y) })
	for i := range ids {
		ids[i] = order[i]
		logprobs[i] = float32(row[order[i]] - lse)
	}
}
