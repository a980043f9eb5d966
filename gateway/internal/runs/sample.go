package runs

import (
	"context"
	"math"

	"go.opentelemetry.io/otel/trace"

	"github.com/tinsmith/tinsmith/plugins"
)

// Stops says what ends a sample.
type Stops struct {
	Given   bool     // false: the model's own end tokens stop it. true with both lists empty: nothing does
	Tokens  []int32  // the stop token is the last of the sample
	Strings []string // the token that completes the string is the last of the sample
}

// SamplingParams say how to draw.
type SamplingParams struct {
	MaxTokens   *int    // nil = up to the context limit
	Seed        *uint64 // nil = one is drawn and journalled
	Stops       Stops
	Temperature float64 // 0 = greedy
	TopK        int     // -1 or 0 = off
	TopP        float64 // in (0, 1]; 1 = off
}

// Sample is one asample request.
type Sample struct {
	Owner               string
	SamplerID           string
	Seq                 int64
	Unnumbered          bool // Seq is not given: it becomes the next one
	Prompt              []int32
	NumSamples          int
	Params              SamplingParams
	PromptLogprobs      bool
	PromptLogprobsLastN int     // 0 = all; else 1 … P-1, needs PromptLogprobs or TopKPromptLogprobs
	TopKPromptLogprobs  int     // 0 = off; else PromptLogprobs is on as well
	TopKSampledLogprobs int     // 0 = off
	TargetPromptTokens  []int32 // (P-1)×TargetPromptK row-major, -1 = not asked; nil = off
	TargetPromptK       int
	TargetPromptSparse  bool // the client sent the targets sparse and wants the answer so; -1 cells were not listed
	PromptAlternatives  int  // 0 = off
}

// SubmittedSample answers an accepted sample.
type SubmittedSample struct {
	RequestID   string
	SequenceIDs []string // one per sample
}

// SampleResult is what a sample gave, with what the encoding of the answer needs to know of the request.
type SampleResult struct {
	Prompt    plugins.PromptScores
	Sequences []SampledSequence

	PromptLength       int
	TargetPromptTokens []int32 // as in Sample
	TargetPromptK      int
	TargetPromptSparse bool
	PromptAlternatives int

	recorded bool // nothing is left but the sequences, without alternatives
}

// SampledSequence is one continuation.
type SampledSequence struct {
	StoppedByLength bool // else by a stop token or string
	Tokens          []int32
	Logprobs        []float32
	Top             plugins.TopLogprobs
}

// maxSamples and maxTop bound what one request can ask for.
const (
	maxSamples = 1024
	maxTop     = 1000
)

// checkSample resolves a request: everything that is left to the server is decided here and journalled so.
func checkSample(req Sample, m Model, vocab, limit int) (sampleRequest, error) {
	p := req.Params
	req.PromptLogprobs = req.PromptLogprobs || req.TopKPromptLogprobs > 0 // who asks for the likeliest tokens gets the prompt's own beside them
	out := sampleRequest{SparseTargets: req.TargetPromptSparse, SampleRequest: plugins.SampleRequest{
		Prompt: req.Prompt, NumSamples: req.NumSamples, Temperature: p.Temperature, TopK: p.TopK, TopP: p.TopP, RepetitionPenalty: 1, PromptLogprobs: req.PromptLogprobs,
		PromptLogprobsLastN: req.PromptLogprobsLastN, TopKPromptLogprobs: req.TopKPromptLogprobs, TopKSampledLogprobs: req.TopKSampledLogprobs,
		TargetPromptTokens: req.TargetPromptTokens, TargetPromptK: req.TargetPromptK, PromptAlternatives: req.PromptAlternatives,
	}}
	n := len(req.Prompt)
	switch {
	case n == 0:
		return out, invalidf("prompt: must have at least one token")
	case req.NumSamples < 1 || req.NumSamples > maxSamples:
		return out, invalidf("num_samples: is %d, must be in 1 … %d", req.NumSamples, maxSamples)
	case !(p.Temperature >= 0) || math.IsInf(p.Temperature, 0):
		return out, invalidf("sampling_params.temperature: is %v, must be a finite number of at least 0", p.Temperature)
	case !(p.TopP > 0 && p.TopP <= 1):
		return out, invalidf("sampling_params.top_p: is %v, must be above 0 and at most 1", p.TopP)
	case p.TopK < -1 || p.TopK > math.MaxInt32:
		return out, invalidf("sampling_params.top_k: is %d, must be in -1 (off) … %d", p.TopK, math.MaxInt32)
	case p.MaxTokens != nil && *p.MaxTokens < 0:
		return out, invalidf("sampling_params.max_tokens: is %d, must be at least 0", *p.MaxTokens)
	case req.PromptLogprobsLastN < 0 || req.PromptLogprobsLastN > 0 && (!req.PromptLogprobs || req.PromptLogprobsLastN > n-1):
		return out, invalidf("prompt_logprobs_last_n: is %d, must be in 1 … %d and needs prompt_logprobs or topk_prompt_logprobs", req.PromptLogprobsLastN, n-1)
	case req.TargetPromptK > maxTop:
		return out, invalidf("target_prompt_logprobs: has %d columns, at most %d are allowed", req.TargetPromptK, maxTop)
	case req.TargetPromptTokens != nil && (req.TargetPromptK < 1 || len(req.TargetPromptTokens) != (n-1)*req.TargetPromptK):
		return out, invalidf("target_prompt_logprobs: has %d cells, must be [%d, K]", len(req.TargetPromptTokens), n-1)
	}
	for _, k := range []struct {
		name  string
		value int
	}{{"topk_prompt_logprobs", req.TopKPromptLogprobs}, {"topk_sample_logprobs", req.TopKSampledLogprobs}, {"prompt_alt_tokens_k", req.PromptAlternatives}} {
		if top := min(maxTop, vocab); k.value < 0 || k.value > top {
			return out, invalidf("%s: is %d, must be in 0 … %d", k.name, k.value, top)
		}
	}
	for i, t := range req.Prompt {
		if t < 0 || int(t) >= vocab {
			return out, invalidf("prompt: token %d is %d, must be in 0 … %d", i, t, vocab-1)
		}
	}
	for i, t := range req.TargetPromptTokens {
		if t < -1 || int(t) >= vocab {
			return out, invalidf("target_prompt_logprobs: cell %d is %d, must be in -1 … %d", i, t, vocab-1)
		}
	}
	asked := 0
	if p.MaxTokens != nil {
		asked = *p.MaxTokens
	} else if asked = limit - n; asked < 1 {
		asked = 1
	}
	if n+asked > limit || n+asked < n {
		return out, invalidf("Prompt length plus max_tokens exceeds the model's context window: %d prompt tokens + %d max_tokens > %d.", n, asked, limit)
	}
	out.MaxTokens = asked
	// A sampled token has an id and a log-probability, and so has each of its alternatives.
	if per, most := int64(8+8*req.TopKSampledLogprobs), plugins.MaxBodyBytes/int64(req.NumSamples*max(asked, 1)); per > most {
		return out, invalidf("topk_sample_logprobs: %d alternatives for each of %d samples of up to %d tokens are more than the %d MiB of one answer; ask for fewer of one of them",
			req.TopKSampledLogprobs, req.NumSamples, asked, plugins.MaxBodyBytes>>20)
	}
	var err error
	out.StopTokens, out.StopStrings, err = resolveStops(p.Stops, m, vocab)
	if err != nil {
		return out, err
	}
	if p.Seed != nil {
		out.Seed = *p.Seed
	} else {
		out.Seed = randomSeed()
	}
	return out, nil
}

// resolveStops says which tokens and strings end a sample.
func resolveStops(s Stops, m Model, vocab int) ([]int32, []string, error) {
	const most, longest = 100, 4096
	if !s.Given {
		return m.EndTokens, nil, nil
	}
	if len(s.Tokens) > 10*most || len(s.Strings) > most {
		return nil, nil, invalidf("stop: has %d entries, at most %d strings or %d tokens are allowed", len(s.Tokens)+len(s.Strings), most, 10*most)
	}
	for _, t := range s.Tokens {
		if t < 0 || int(t) >= vocab {
			return nil, nil, invalidf("stop: token %d must be in 0 … %d", t, vocab-1)
		}
	}
	for _, str := range s.Strings {
		if str == "" || len(str) > longest {
			return nil, nil, invalidf("stop: a string has %d bytes, must have 1 … %d", len(str), longest)
		}
	}
	if len(s.Strings) > 0 && m.NewStopMatcher == nil {
		return nil, nil, invalidf("stop: %s has no tokenizer here, so only tokens can stop a sample", m.Name)
	}
	return s.Tokens, s.Strings, nil
}

func hashSample(req Sample) string {
	var h hasher
	p := req.Params
	h.int32s(req.Prompt)
	h.int32s(req.TargetPromptTokens)
	h.int32s(p.Stops.Tokens)
	h.int(int64(len(p.Stops.Strings)))
	h.text(p.Stops.Strings...)
	h.bool(p.MaxTokens != nil, p.Seed != nil, p.Stops.Given, req.PromptLogprobs)
	if p.MaxTokens != nil {
		h.int(int64(*p.MaxTokens))
	}
	if p.Seed != nil {
		h.int(int64(*p.Seed))
	}
	h.float(p.Temperature)
	h.float(p.TopP)
	for _, v := range []int{p.TopK, req.NumSamples, req.PromptLogprobsLastN, req.TopKPromptLogprobs, req.TopKSampledLogprobs, req.TargetPromptK, req.PromptAlternatives} {
		h.int(int64(v))
	}
	return h.sum(string(OpSample))
}

// Sample submits; the outcome has a SampleResult. KindBusy when too much is queued; KindInvalid for what is wrong with the request, also when prompt and max_tokens
// together exceed the context.
func (c *Core) Sample(ctx context.Context, req Sample) (SubmittedSample, error) {
	if req.Seq < 0 {
		return SubmittedSample{}, invalidf("seq_id: is %d, must be at least 0", req.Seq)
	}
	if req.NumSamples < 1 || req.NumSamples > maxSamples {
		return SubmittedSample{}, invalidf("num_samples: is %d, must be in 1 … %d", req.NumSamples, maxSamples)
	}
	hash := hashSample(req)
	if err := c.recall(ctx, req.SamplerID); err != nil {
		return SubmittedSample{}, err
	}
	c.mu.Lock()
	s, err := c.ownSampler(req.Owner, req.SamplerID)
	if err == nil && c.closing {
		err = errClosing
	}
	if err == nil {
		_, err = c.samplerSource(s)
	}
	c.mu.Unlock()
	if err != nil {
		return SubmittedSample{}, err
	}
	if !req.Unnumbered {
		return c.submitNumbered(ctx, s, req, hash)
	}
	if req.Seq, err = c.numberSample(ctx, s); err != nil {
		return SubmittedSample{}, err
	}
	answer, err := c.submitNumbered(ctx, s, req, unnumbered(hash))
	if err != nil {
		c.unnumber(s, req.Seq)
	}
	return answer, err
}

// submitNumbered submits a sample whose number is known.
func (c *Core) submitNumbered(ctx context.Context, s *sampler, req Sample, hash string) (SubmittedSample, error) {
	answer := SubmittedSample{RequestID: req.SamplerID + ":" + itoa(req.Seq)}
	for i := range req.NumSamples {
		answer.SequenceIDs = append(answer.SequenceIDs, answer.RequestID+":"+itoa(i))
	}
	c.mu.Lock()
	waiting, taken := c.futures[answer.RequestID] != nil, s.mayHave(req.Seq)
	c.mu.Unlock()
	if waiting || taken {
		if err := c.repeated(ctx, answer.RequestID, hash); waiting || KindOf(err) != KindNotFound {
			return answer.unless(err)
		}
	}
	vocab, limit := c.limits(s.model)
	if vocab == 0 { // else it is accepted also while the process is being replaced
		if _, err := c.anyBackend(ctx, s.model); err != nil {
			return SubmittedSample{}, err
		}
		vocab, limit = c.limits(s.model)
	}
	resolved, err := checkSample(req, s.model.Model, vocab, limit)
	if err != nil {
		return SubmittedSample{}, err
	}
	return answer.unless(c.submitSample(ctx, s, answer.RequestID, hash, resolved))
}

func (a SubmittedSample) unless(err error) (SubmittedSample, error) {
	if err != nil {
		return SubmittedSample{}, err
	}
	return a, nil
}

// maxGaps bounds what the numbers of a sampling session take in memory. Samples that overtake each other leave gaps only for as long as they are on their way.
const maxGaps = 1 << 16

// submitSample journals a resolved sample and queues it.
func (c *Core) submitSample(ctx context.Context, s *sampler, id, hash string, req sampleRequest) error {
	j := &sampleJob{sampler: s, req: req, bytes: req.promptBytes(), trace: trace.SpanContextFromContext(ctx)}
	parent, seq := parentOf(id)
	for checked := int64(-1); ; {
		c.mu.Lock()
		if c.futures[id] != nil {
			c.mu.Unlock()
			return c.repeated(ctx, id, hash)
		}
		if !s.taken.has(seq) || s.accepted == checked {
			break
		}
		// The same number came a moment ago, and has been finished since this request was looked at first; or its result is not kept any more. Nothing may come in between this time.
		checked = s.accepted
		c.mu.Unlock()
		if err := c.repeated(ctx, id, hash); KindOf(err) != KindNotFound {
			return err
		}
	}
	if n := len(s.taken.spans); n >= maxGaps && !s.taken.fits(seq) {
		c.mu.Unlock()
		return invalidf("seq_id: %d leaves another gap; the numbers of sampling session %s have %d already, and no more are kept: number samples one after the other", seq, s.ID, n-1)
	}
	if n := c.owners[s.Owner].samples; n >= c.cfg.MaxQueuedSamples {
		c.heldBack(s.Owner)
		c.mu.Unlock()
		return refusef(KindBusy, "%d samples of yours wait already; repeat a little later", n)
	}
	if err := c.maySample(s.Owner); err != nil {
		c.heldBackBy(s.Owner, err.Error())
		c.mu.Unlock()
		return err
	}
	if !c.fits(j) {
		c.heldBack(s.Owner)
		c.mu.Unlock()
		return refusef(KindBusy, "the prompts of waiting samples take %d MiB already; repeat a little later", c.promptBytes>>20)
	}
	s.taken.add(seq)
	s.accepted++
	j.future = c.newFuture(id, OpSample, s.Owner, s.session, s.model, hash)
	c.admit(j)
	c.mu.Unlock()
	err := c.journal(ctx, s.model, j.future.record(parent, seq, encodeSample(req)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.dismiss(j)
		s.taken.remove(seq)
		c.refuseFuture(j.future, notJournalled(err))
		return j.future.refusal
	}
	c.acceptFuture(j.future)
	c.queueSample(j)
	return nil
}
