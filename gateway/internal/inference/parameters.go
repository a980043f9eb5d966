package inference

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// Bounds of request fields, OpenAI's where it has them.
const (
	maxChoices     = 128
	maxStopStrings = 64 // OpenAI: 4; clients of other servers send more
	maxStopBytes   = 4096
	maxStopTokens  = 256
	MaxTopLogprobs = 20
	maxLogitBias   = 1024

	// greedyBelow is the temperature below which the likeliest token is certain as far as float32 can tell; dividing logits by less would overflow.
	greedyBelow = 1e-5
)

// Parameters are the fields of a request that all surfaces share. The last group is vLLM's.
type Parameters struct {
	Model            string             `json:"model"`
	Stream           bool               `json:"stream"`
	StreamOptions    *StreamOptions     `json:"stream_options"`
	N                *int               `json:"n"`
	Temperature      *float64           `json:"temperature"`
	TopP             *float64           `json:"top_p"`
	Seed             json.RawMessage    `json:"seed"`
	Stop             json.RawMessage    `json:"stop"`
	FrequencyPenalty *float64           `json:"frequency_penalty"`
	PresencePenalty  *float64           `json:"presence_penalty"`
	LogitBias        map[string]float64 `json:"logit_bias"`

	TopK              *int            `json:"top_k"`
	MinP              *float64        `json:"min_p"`
	RepetitionPenalty *float64        `json:"repetition_penalty"`
	MinTokens         *int            `json:"min_tokens"`
	IgnoreEOS         bool            `json:"ignore_eos"`
	StopTokenIDs      json.RawMessage `json:"stop_token_ids"`
	IncludeStop       bool            `json:"include_stop_str_in_output"`
	SkipSpecialTokens *bool           `json:"skip_special_tokens"`
	ReturnTokenIDs    bool            `json:"return_token_ids"`
	TokensAsIDs       bool            `json:"return_tokens_as_token_ids"`
	PromptScores      json.RawMessage `json:"prompt_logprobs"` // see PromptLogprobs

	ReturnDatum json.RawMessage `json:"return_datum"` // ours: the answer as training data

	// StopField is what a surface calls stop; "" is that.
	StopField string `json:"-"`
	// Plain leaves out what the model's generation_config.json says: what is not given changes nothing.
	Plain bool `json:"-"`

	Unserved
}

// Unserved are fields of other servers that change the answer and that this one does not serve. They are refused unless they ask for nothing: silence would be a
// wrong answer. Fields that nobody knows are left alone, as every server of this API does.
type Unserved struct {
	TruncatePrompt  json.RawMessage `json:"truncate_prompt_tokens"`
	BeamSearch      json.RawMessage `json:"use_beam_search"`
	BadWords        json.RawMessage `json:"bad_words"`
	AllowedTokenIDs json.RawMessage `json:"allowed_token_ids"`
}

// Refuse names the first that asks for something.
func (u *Unserved) Refuse() error {
	for _, f := range []struct {
		name  string
		value json.RawMessage
	}{
		{"truncate_prompt_tokens", u.TruncatePrompt},
		{"use_beam_search", u.BeamSearch},
		{"bad_words", u.BadWords},
		{"allowed_token_ids", u.AllowedTokenIDs},
	} {
		if !AsksNothing(f.value) {
			return Unsupported(f.name, "is not supported")
		}
	}
	return nil
}

// StreamOptions are what a stream holds beside the answer.
type StreamOptions struct {
	IncludeUsage         bool `json:"include_usage"`
	ContinuousUsageStats bool `json:"continuous_usage_stats"` // vLLM: the usage so far in every event
}

// Limit is max_tokens under the name that the client gave it; nil = as many as fit.
type Limit struct {
	Field  string
	Tokens *int
}

// Build validates the shared fields for a prompt.
func (f *Parameters) Build(owner string, m *catalog.Model, info plugins.ModelInfo, prompt []int32, most Limit) (*Generation, error) {
	if len(prompt) == 0 {
		return nil, Invalid("prompt", "has no tokens")
	}
	g := &Generation{skipSpecial: true, includeStop: f.IncludeStop, ignoreEnds: f.IgnoreEOS, ends: map[int32]bool{}}
	g.Owner = owner
	r := &g.Request
	r.Prompt = prompt
	r.NumSamples, r.Temperature, r.TopP, r.TopK, r.RepetitionPenalty = 1, 1, 1, -1, 1
	if !f.Plain {
		setDefaults(r, m.Sampling)
	}
	if f.N != nil {
		r.NumSamples = *f.N
	}
	if r.NumSamples < 1 || r.NumSamples > maxChoices {
		return nil, Invalid("n", "%d is not between 1 and %d", r.NumSamples, maxChoices)
	}
	if err := f.numbers(r); err != nil {
		return nil, err
	}
	if err := f.bias(r, info.VocabSize); err != nil {
		return nil, err
	}
	if err := most.apply(r, info.MaxContextLength); err != nil {
		return nil, err
	}
	if err := f.minTokens(r); err != nil {
		return nil, err
	}
	seed, err := seedOf(f.Seed)
	if err != nil {
		return nil, err
	}
	if seed != nil {
		r.Seed, g.SeedGiven = *seed, true
	}
	if err := f.stops(g, m, info.VocabSize); err != nil {
		return nil, err
	}
	if f.SkipSpecialTokens != nil {
		g.skipSpecial = *f.SkipSpecialTokens
	}
	return g, nil
}

// apply sets MaxTokens within the context.
func (l Limit) apply(r *plugins.SampleRequest, context int) error {
	room, want := context-len(r.Prompt), 1
	if l.Tokens != nil {
		if want = *l.Tokens; want < 0 {
			return Invalid(l.Field, "%d is negative", want)
		}
	}
	if want > room {
		return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Param: l.Field, Code: "context_length_exceeded", Prompt: len(r.Prompt), Context: context, Message: fmt.Sprintf(
			"This model's maximum context length is %d tokens. Prompt length plus max_tokens exceeds it: %d prompt tokens + %d max_tokens > %d.", context, len(r.Prompt), want, context)}
	}
	r.MaxTokens = want
	if l.Tokens == nil {
		r.MaxTokens = room
	}
	return nil
}

func (f *Parameters) minTokens(r *plugins.SampleRequest) error {
	if f.MinTokens == nil || *f.MinTokens == 0 {
		return nil
	}
	if *f.MinTokens < 0 || *f.MinTokens > r.MaxTokens {
		return Invalid("min_tokens", "%d is not between 0 and max_tokens, which is %d", *f.MinTokens, r.MaxTokens)
	}
	if Given(f.Stop) && !AsksNothing(f.Stop) {
		return Unsupported("min_tokens", "cannot be combined with stop strings, only with stop tokens")
	}
	r.MinTokens = *f.MinTokens
	return nil
}

// stops sets what ends a sequence.
func (f *Parameters) stops(g *Generation, m *catalog.Model, vocab int) error {
	strings, err := stopsOf(cmp.Or(f.StopField, "stop"), f.Stop)
	if err != nil {
		return err
	}
	g.Stops = runs.Stops{Given: true, Strings: strings, Tokens: []int32{}}
	if Given(f.StopTokenIDs) {
		if g.Stops.Tokens, err = TokenIDs(f.StopTokenIDs, vocab); err != nil {
			return Invalid("stop_token_ids", "%v", err)
		}
		if len(g.Stops.Tokens) > maxStopTokens {
			return Invalid("stop_token_ids", "%d ids are more than %d", len(g.Stops.Tokens), maxStopTokens)
		}
	}
	if !f.IgnoreEOS {
		g.Stops.Tokens = append(g.Stops.Tokens, m.EndTokens...)
	}
	for _, id := range g.Stops.Tokens {
		g.ends[id] = true
	}
	return nil
}

// setDefaults takes what the model's generation_config.json says for requests that say nothing.
func setDefaults(r *plugins.SampleRequest, d catalog.SamplingDefaults) {
	if d.Temperature != nil {
		r.Temperature = *d.Temperature
	}
	if d.TopP != nil {
		r.TopP = *d.TopP
	}
	if d.TopK != nil {
		r.TopK = *d.TopK
	}
	if d.MinP != nil {
		r.MinP = *d.MinP
	}
	if d.RepetitionPenalty != nil {
		r.RepetitionPenalty = *d.RepetitionPenalty
	}
}

// numbers sets the numeric parameters within their bounds.
func (f *Parameters) numbers(r *plugins.SampleRequest) error {
	for _, p := range []struct {
		name        string
		value       *float64
		least, most float64
		into        *float64
	}{
		{"temperature", f.Temperature, 0, 2, &r.Temperature},
		{"top_p", f.TopP, 0, 1, &r.TopP},
		{"min_p", f.MinP, 0, 1, &r.MinP},
		{"frequency_penalty", f.FrequencyPenalty, -2, 2, &r.FrequencyPenalty},
		{"presence_penalty", f.PresencePenalty, -2, 2, &r.PresencePenalty},
	} {
		if p.value == nil {
			continue
		}
		if !(*p.value >= p.least && *p.value <= p.most) {
			return Invalid(p.name, "%v is not between %v and %v", *p.value, p.least, p.most)
		}
		*p.into = *p.value
	}
	if v := f.RepetitionPenalty; v != nil {
		if !(*v >= math.SmallestNonzeroFloat32 && *v <= 10) {
			return Invalid("repetition_penalty", "%v is not above 0 and at most 10", *v)
		}
		r.RepetitionPenalty = *v
	}
	if k := f.TopK; k != nil {
		if *k < -1 || *k > math.MaxInt32 {
			return Invalid("top_k", "%d is not between -1 (off) and %d", *k, math.MaxInt32)
		}
		r.TopK = *k
	}
	if r.TopP == 0 {
		r.TopP, r.TopK = 1, 1 // a nucleus of nothing is its likeliest token
	}
	if r.Temperature < greedyBelow {
		r.Temperature = 0
	}
	return nil
}

// bias sets logit_bias, whose keys are token ids.
func (f *Parameters) bias(r *plugins.SampleRequest, vocab int) error {
	if len(f.LogitBias) > maxLogitBias {
		return Invalid("logit_bias", "%d entries are more than %d", len(f.LogitBias), maxLogitBias)
	}
	for text, bias := range f.LogitBias {
		id, err := strconv.ParseInt(text, 10, 32)
		if err != nil || id < 0 || id >= int64(vocab) {
			return Invalid("logit_bias", "%.40q is not a token id%s", text, idRange(vocab))
		}
		if !(bias >= -100 && bias <= 100) {
			return Invalid("logit_bias", "%v is not between -100 and 100", bias)
		}
		if r.LogitBias == nil {
			r.LogitBias = map[int32]float64{}
		}
		r.LogitBias[int32(id)] = bias
	}
	return nil
}
