package plugins

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds on single requests that keep one message within MaxMessageBytes.
const (
	// MaxIDBytes bounds adapter ids, pin names and sample ids.
	MaxIDBytes = 200
	// MaxSamples bounds SampleRequest.NumSamples.
	MaxSamples = 4096
	// MaxTopLogprobs bounds every "k" of a SampleRequest.
	MaxTopLogprobs = 1024
	// MaxWeight bounds Share.Weight.
	MaxWeight = 1e6
	// MaxGrammarBytes bounds Constraint.Grammar.
	MaxGrammarBytes = 1 << 20
	// MaxThinkTokens bounds each list of a ThinkRule.
	MaxThinkTokens = 256
	// MaxTokenBytes bounds one token of a Vocabulary.
	MaxTokenBytes = 4096
	// maxScoreBytes bounds the answer about a prompt.
	maxScoreBytes = MaxBodyBytes
)

// The Validate methods check everything about a request that can be told without the adapter's state. Every backend calls them, so that
// the same mistake gets the same answer everywhere, and the gateway may call them before it accepts a request. Each returns nil or a
// KindInvalid *Error whose Field names the field in snake case ("data[3].target_tokens", "adam.beta1").

// Validate checks the request against the model.
func (r *CreateAdapterRequest) Validate(m *ModelInfo) error {
	if err := checkID("adapter", r.Adapter); err != nil {
		return err
	}
	c := &r.Config
	if c.Rank < 1 || c.Rank > m.MaxRank || c.Rank&(c.Rank-1) != 0 {
		return Invalidf("config.rank", "%d is not allowed: a power of two from 1 to %d", c.Rank, m.MaxRank)
	}
	if !c.TrainAttention && !c.TrainMLP && !c.TrainUnembed {
		return Invalidf("config", "at least one of train_attention, train_mlp and train_unembed must be true")
	}
	if len(c.Modules) != 0 {
		return Invalidf("config.modules", "cannot be chosen when an adapter is created: they follow from the train_ flags")
	}
	if c.Alpha != 0 {
		return Invalidf("config.alpha", "cannot be chosen when an adapter is created: it is 32")
	}
	return nil
}

// Validate checks the request against the model.
func (r *ForwardBackwardRequest) Validate(m *ModelInfo) error {
	if err := checkOrdered(r.Adapter, r.Position); err != nil {
		return err
	}
	if err := r.Share.validate(); err != nil {
		return err
	}
	if _, err := ResolveLossConfig(r.Loss, r.LossConfig); err != nil {
		return err
	}
	spec, _ := LookupLoss(r.Loss)
	if len(r.Data) == 0 {
		return Invalidf("data", "must hold at least one datum")
	}
	for i := range r.Data {
		if err := r.Data[i].validate(r.Loss, spec, m); err != nil {
			var bad *Error
			if errors.As(err, &bad) { // names are made for what is wrong only
				bad.Field = fmt.Sprintf("data[%d].%s", i, bad.Field)
			}
			return err
		}
	}
	return nil
}

func (d *Datum) validate(loss string, spec LossSpec, m *ModelInfo) error {
	n := len(d.Tokens)
	if n == 0 {
		return Invalidf("tokens", "must hold at least one token")
	}
	if n > m.MaxContextLength {
		return Invalidf("tokens", "%d tokens are more than the context of %d", n, m.MaxContextLength)
	}
	if err := checkTokens("tokens", d.Tokens, 0, m.VocabSize); err != nil {
		return err
	}
	if d.K < 1 || d.K > m.VocabSize {
		return Invalidf("target_tokens", "%d targets per position are not allowed: 1 to %d", d.K, m.VocabSize)
	}
	if d.K > 1 && !spec.Weights {
		return Invalidf("target_tokens", "%d targets per position are not allowed with loss %s: only 1", d.K, loss)
	}
	if len(d.Targets) != n*d.K {
		return Invalidf("target_tokens", "%d values do not fit %d tokens with %d targets each: %d expected", len(d.Targets), n, d.K, n*d.K)
	}
	if err := checkTokens("target_tokens", d.Targets, 0, m.VocabSize); err != nil {
		return err
	}
	for _, in := range []struct {
		name   string
		values []float32
		used   bool
		length int
	}{
		{"weights", d.Weights, spec.Weights || d.Weights != nil, n * d.K},
		{"logprobs", d.Logprobs, spec.Logprobs, n},
		{"advantages", d.Advantages, spec.Logprobs, n},
		{"sequence_ratio_mask", d.SequenceRatioMask, spec.SequenceRatioMask, n},
	} {
		switch {
		case !in.used && in.values != nil:
			return Invalidf(in.name, "is not an input of loss %s", loss)
		case in.used && len(in.values) != in.length:
			return Invalidf(in.name, "has %d values, loss %s needs %d", len(in.values), loss, in.length)
		}
		for i, v := range in.values {
			if !finite(float64(v)) {
				return Invalidf(fmt.Sprintf("%s[%d]", in.name, i), "%v is not allowed: a finite number", v)
			}
			if v < 0 && spec.Clips && in.name == "weights" {
				return Invalidf(fmt.Sprintf("%s[%d]", in.name, i), "%v is not allowed: at least 0 with loss %s", v, loss)
			}
		}
	}
	return nil
}

// Validate checks the request.
func (r *OptimStepRequest) Validate() error {
	if err := checkOrdered(r.Adapter, r.Position); err != nil {
		return err
	}
	a := &r.Adam
	for _, f := range []struct {
		name  string
		value float64
		below float64 // exclusive upper bound
	}{
		{"learning_rate", a.LearningRate, math.Inf(1)},
		{"beta1", a.Beta1, 1},
		{"beta2", a.Beta2, 1},
		{"eps", a.Eps, math.Inf(1)},
		{"weight_decay", a.WeightDecay, math.Inf(1)},
		{"grad_clip_norm", a.GradClipNorm, math.Inf(1)},
	} {
		if !(f.value >= 0 && f.value < f.below) {
			if f.below == 1 {
				return Invalidf("adam."+f.name, "%v is not allowed: at least 0 and below 1", f.value)
			}
			return Invalidf("adam."+f.name, "%v is not allowed: a finite number of at least 0", f.value)
		}
	}
	return nil
}

// Validate checks the request.
func (r *PinRequest) Validate() error {
	if err := checkID("adapter", r.Adapter); err != nil {
		return err
	}
	if r.Position < 0 {
		return Invalidf("position", "%d is not allowed: at least 0", r.Position)
	}
	return checkID("name", r.Name)
}

// Validate checks the request against the model.
func (r *SampleRequest) Validate(m *ModelInfo) error {
	if err := checkID("id", r.ID); err != nil {
		return err
	}
	if err := r.Share.validate(); err != nil {
		return err
	}
	if n := len(r.PrefixScope); n > MaxIDBytes {
		return Invalidf("prefix_scope", "has %d bytes, at most %d are allowed", n, MaxIDBytes)
	}
	if r.Adapter != "" {
		if err := checkID("adapter", r.Adapter); err != nil {
			return err
		}
	}
	if r.Version < LatestVersion || (r.Adapter == "" && r.Version > 0) {
		return Invalidf("version", "%d is not allowed: a version of the adapter, or %d for the latest", r.Version, LatestVersion)
	}
	p := len(r.Prompt)
	if p == 0 {
		return Invalidf("prompt", "must hold at least one token")
	}
	if p > m.MaxContextLength {
		return Invalidf("prompt", "%d tokens are more than the context of %d", p, m.MaxContextLength)
	}
	if err := checkTokens("prompt", r.Prompt, 0, m.VocabSize); err != nil {
		return err
	}
	if r.NumSamples < 1 || r.NumSamples > MaxSamples {
		return Invalidf("num_samples", "%d is not allowed: 1 to %d", r.NumSamples, MaxSamples)
	}
	if r.MaxTokens < 0 || r.MaxTokens > m.MaxContextLength-p {
		return Invalidf("max_tokens", "%d is not allowed: 0 to %d, what the context of %d leaves after %d prompt tokens", r.MaxTokens, m.MaxContextLength-p, m.MaxContextLength, p)
	}
	if r.MinTokens < 0 || r.MinTokens > r.MaxTokens {
		return Invalidf("min_tokens", "%d is not allowed: 0 to max_tokens, which is %d", r.MinTokens, r.MaxTokens)
	}
	for _, f := range []struct {
		name     string
		value    float64
		ok       bool
		expected string
	}{
		{"temperature", r.Temperature, r.Temperature >= 0, "a finite number of at least 0"},
		{"top_p", r.TopP, r.TopP > 0 && r.TopP <= 1, "above 0 and at most 1"},
		{"min_p", r.MinP, r.MinP >= 0 && r.MinP <= 1, "0 to 1"},
		{"frequency_penalty", r.FrequencyPenalty, r.FrequencyPenalty >= -2 && r.FrequencyPenalty <= 2, "-2 to 2"},
		{"presence_penalty", r.PresencePenalty, r.PresencePenalty >= -2 && r.PresencePenalty <= 2, "-2 to 2"},
		{"repetition_penalty", r.RepetitionPenalty, r.RepetitionPenalty > 0, "a finite number above 0"},
	} {
		if !f.ok || !finite(f.value) {
			return Invalidf(f.name, "%v is not allowed: %s", f.value, f.expected)
		}
	}
	if err := checkTokens("stop_tokens", r.StopTokens, 0, m.VocabSize); err != nil {
		return err
	}
	for token, bias := range r.LogitBias {
		field := fmt.Sprintf("logit_bias[%d]", token)
		if token < 0 || int(token) >= m.VocabSize {
			return Invalidf(field, "not a token id: 0 to %d allowed", m.VocabSize-1)
		}
		if !finite(bias) {
			return Invalidf(field, "%v is not allowed: a finite number", bias)
		}
	}
	if err := r.validateConstraint(m); err != nil {
		return err
	}
	return r.validateScores(m)
}

// validateConstraint checks everything about a constraint but the grammar itself.
func (r *SampleRequest) validateConstraint(m *ModelInfo) error {
	c := r.Constraint
	if c == nil {
		return nil
	}
	if n := len(c.Grammar); n > MaxGrammarBytes {
		return Invalidf("constraint.grammar", "has %d bytes, at most %d are allowed", n, MaxGrammarBytes)
	}
	if len(c.Grammar) > 0 && r.MinTokens > 0 {
		return Invalidf("min_tokens", "%d is not allowed with a grammar, which says by itself where a text may end: only 0", r.MinTokens)
	}
	if err := checkTokens("constraint.excluded", c.Excluded, 0, m.VocabSize); err != nil {
		return err
	}
	for i := 1; i < len(c.Excluded); i++ {
		if c.Excluded[i] <= c.Excluded[i-1] {
			return Invalidf(fmt.Sprintf("constraint.excluded[%d]", i), "is %d after %d: the tokens must ascend", c.Excluded[i], c.Excluded[i-1])
		}
	}
	t := c.Think
	if t == nil {
		return nil
	}
	for _, l := range []struct {
		name   string
		tokens []int32
		least  int
	}{{"open", t.Open, 0}, {"close", t.Close, 1}, {"forced", t.Forced, 0}, {"without", t.Without, 0}} {
		field := "constraint.think." + l.name
		if n := len(l.tokens); n < l.least || n > MaxThinkTokens {
			return Invalidf(field, "%d tokens are not allowed: %d to %d", n, l.least, MaxThinkTokens)
		}
		if err := checkTokens(field, l.tokens, 0, m.VocabSize); err != nil {
			return err
		}
	}
	switch {
	case len(t.Open) == 0 && !t.Inside:
		return Invalidf("constraint.think.open", "is missing: a sequence that does not begin inside its thinking needs it")
	case t.Budget < 0 || t.Budget > 0 && len(t.Forced) == 0:
		return Invalidf("constraint.think.budget", "%d is not allowed: at least 0, and 0 where no tokens are forced", t.Budget)
	case len(t.Forced) > 0 && !contains(t.Forced, t.Close):
		return Invalidf("constraint.think.forced", "does not have constraint.think.close in it")
	}
	return nil
}

// contains tells whether part stands somewhere in all.
func contains(all, part []int32) bool {
	for i := 0; i+len(part) <= len(all); i++ {
		if slices.Equal(all[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

func (v *Vocabulary) checkSpecial() error {
	if len(v.Special) != len(v.Tokens) {
		return Invalidf("vocabulary.special", "has %d values for %d tokens", len(v.Special), len(v.Tokens))
	}
	return nil
}

// Validate checks the vocabulary against the model.
func (v *Vocabulary) Validate(m *ModelInfo) error {
	n := len(v.Tokens)
	if n == 0 || n > m.VocabSize {
		return Invalidf("vocabulary.tokens", "%d tokens are not allowed: 1 to %d", n, m.VocabSize)
	}
	if err := v.checkSpecial(); err != nil {
		return err
	}
	for i, t := range v.Tokens {
		if len(t) > MaxTokenBytes {
			return Invalidf(fmt.Sprintf("vocabulary.tokens[%d]", i), "has %d bytes, at most %d are allowed", len(t), MaxTokenBytes)
		}
	}
	return checkTokens("vocabulary.ends", v.Ends, 0, n)
}

func (r *SampleRequest) validateScores(m *ModelInfo) error {
	p, kMax := len(r.Prompt), min(MaxTopLogprobs, m.VocabSize)
	for _, f := range []struct {
		name  string
		value int
		max   int
	}{
		{"top_k_sampled_logprobs", r.TopKSampledLogprobs, kMax},
		{"top_k_prompt_logprobs", r.TopKPromptLogprobs, kMax},
		{"target_prompt_k", r.TargetPromptK, MaxTopLogprobs},
		{"prompt_alternatives", r.PromptAlternatives, MaxTopLogprobs},
	} {
		if f.value < 0 || f.value > f.max {
			return Invalidf(f.name, "%d is not allowed: 0 to %d", f.value, f.max)
		}
		if int64(f.value)*int64(p)*8 > maxScoreBytes {
			return Invalidf(f.name, "%d values for each of %d prompt tokens are more than one answer holds: at most %d", f.value, p, maxScoreBytes/8/p)
		}
	}
	if r.PromptLogprobsLastN < 0 {
		return Invalidf("prompt_logprobs_last_n", "%d is not allowed: at least 0, where 0 means all", r.PromptLogprobsLastN)
	}
	if len(r.TargetPromptTokens) != (p-1)*r.TargetPromptK {
		return Invalidf("target_prompt_tokens", "%d values do not fit %d prompt tokens with %d targets each: %d expected",
			len(r.TargetPromptTokens), p, r.TargetPromptK, (p-1)*r.TargetPromptK)
	}
	return checkTokens("target_prompt_tokens", r.TargetPromptTokens, -1, m.VocabSize)
}

// Validate checks the request.
func (r *SaveAdapterRequest) Validate() error {
	if err := checkID("adapter", r.Adapter); err != nil {
		return err
	}
	if r.Position < 0 {
		return Invalidf("position", "%d is not allowed: at least 0", r.Position)
	}
	if r.Version < LatestVersion {
		return Invalidf("version", "%d is not allowed: a version of the adapter, or %d for the latest", r.Version, LatestVersion)
	}
	if err := checkScope(r.Scope); err != nil {
		return err
	}
	if r.Position == 0 && r.Scope == ScopeAccumulator {
		return Invalidf("scope", "the accumulated gradient belongs to a place in the order: position must not be 0")
	}
	if r.ExportNames != "" && r.ExportNames != ExportPEFT && r.ExportNames != ExportTinker {
		return Invalidf("export_names", "%.100q is not allowed: %s or %s", r.ExportNames, ExportPEFT, ExportTinker)
	}
	return checkPath(r.Path)
}

// Validate checks the request.
func (r *LoadAdapterRequest) Validate() error {
	if err := checkID("adapter", r.Adapter); err != nil {
		return err
	}
	if r.Position < 0 {
		return Invalidf("position", "%d is not allowed: at least 0", r.Position)
	}
	if err := checkScope(r.Scope); err != nil {
		return err
	}
	if r.Frozen && r.Position != 0 {
		return Invalidf("frozen", "only an adapter that is created by the load (position 0) can be frozen")
	}
	if r.Version < 0 {
		return Invalidf("version", "%d is not allowed: at least 0", r.Version)
	}
	if r.Frozen && r.Scope != ScopeWeights {
		return Invalidf("scope", "a frozen adapter has weights only")
	}
	return checkPath(r.Path)
}

func (s Share) validate() error {
	if len(s.Key) > MaxIDBytes {
		return Invalidf("share.key", "is %d bytes long; at most %d are allowed", len(s.Key), MaxIDBytes)
	}
	if !(s.Weight >= 0 && s.Weight <= MaxWeight) {
		return Invalidf("share.weight", "%v is not allowed: above 0 to %v, or 0 for 1", s.Weight, MaxWeight)
	}
	return nil
}

func checkOrdered(adapter string, position int64) error {
	if err := checkID("adapter", adapter); err != nil {
		return err
	}
	if position < 1 {
		return Invalidf("position", "%d is not allowed: at least 1", position)
	}
	return nil
}

func checkID(field, id string) error {
	if id == "" || len(id) > MaxIDBytes {
		return Invalidf(field, "%d bytes are not allowed: 1 to %d", len(id), MaxIDBytes)
	}
	return nil
}

func checkScope(s Scope) error {
	if s < ScopeWeights || s > ScopeAccumulator {
		return Invalidf("scope", "%d is not allowed: %d to %d", s, ScopeWeights, ScopeAccumulator)
	}
	return nil
}

func checkPath(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return Invalidf("path", "%.200q is not allowed: a clean absolute path", path)
	}
	return nil
}

func checkTokens(field string, tokens []int32, low int32, vocab int) error {
	for i, t := range tokens {
		if t < low || int(t) >= vocab {
			return Invalidf(fmt.Sprintf("%s[%d]", field, i), "%d is not a token id: 0 to %d allowed", t, vocab-1)
		}
	}
	return nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
