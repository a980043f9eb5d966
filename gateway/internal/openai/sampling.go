package openai

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire"
	"github.com/tinsmith/tinsmith/plugins"
)

// Bounds of request fields, OpenAI's where it has them.
const (
	maxChoices     = 128
	maxStopStrings = 64 // OpenAI: 4; clients of other servers send more
	maxTopLogprobs = 20
	maxLogitBias   = 1024
)

// samplingFields are the parameters that chat completions and completions share. The last group is vLLM's.
type samplingFields struct {
	Model            string             `json:"model"`
	Stream           bool               `json:"stream"`
	StreamOptions    *streamOptions     `json:"stream_options"`
	N                *int               `json:"n"`
	Temperature      *float64           `json:"temperature"`
	TopP             *float64           `json:"top_p"`
	Seed             json.RawMessage    `json:"seed"`
	Stop             json.RawMessage    `json:"stop"`
	FrequencyPenalty *float64           `json:"frequency_penalty"`
	PresencePenalty  *float64           `json:"presence_penalty"`
	LogitBias        map[string]float64 `json:"logit_bias"`

	TopK              *int     `json:"top_k"`
	MinP              *float64 `json:"min_p"`
	RepetitionPenalty *float64 `json:"repetition_penalty"`
	MinTokens         *int     `json:"min_tokens"`
	IgnoreEOS         bool     `json:"ignore_eos"`
	StopTokenIDs      []int32  `json:"stop_token_ids"`
	IncludeStop       bool     `json:"include_stop_str_in_output"`
	SkipSpecialTokens *bool    `json:"skip_special_tokens"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// generation is a validated request for one prompt.
type generation struct {
	runs.Generation
	stopStrings []string
	includeStop bool
	skipSpecial bool
	ends        map[int32]bool // tokens that end a sequence and are no text
}

// build validates the shared fields for a prompt. maxTokens nil = as many as fit.
func (f *samplingFields) build(owner string, m *catalog.Model, context int, prompt []int32, maxTokens *int, maxField string) (*generation, error) {
	if len(prompt) == 0 {
		return nil, invalid("prompt", "has no tokens")
	}
	g := &generation{skipSpecial: true, includeStop: f.IncludeStop, ends: map[int32]bool{}}
	g.Owner = owner
	r := &g.Request
	r.Prompt = prompt
	r.NumSamples, r.Temperature, r.TopP, r.TopK, r.RepetitionPenalty = 1, 1, 1, -1, 1
	setDefaults(r, m.Sampling)
	if f.N != nil {
		r.NumSamples = *f.N
	}
	if r.NumSamples < 1 || r.NumSamples > maxChoices {
		return nil, invalid("n", "%d is not between 1 and %d", r.NumSamples, maxChoices)
	}
	if err := f.numbers(r); err != nil {
		return nil, err
	}
	switch room := context - len(prompt); {
	case room < 0 || maxTokens != nil && *maxTokens > room:
		want := 0
		if maxTokens != nil {
			want = *maxTokens
		}
		return nil, &apiError{Status: 400, Type: "invalid_request_error", Param: maxField, Code: "context_length_exceeded", Message: "This model's maximum context length is " + strconv.Itoa(context) +
			" tokens. Prompt length plus max_tokens exceeds it: " + strconv.Itoa(len(prompt)) + " prompt tokens + " + strconv.Itoa(want) + " max_tokens > " + strconv.Itoa(context) + "."}
	case maxTokens != nil && *maxTokens < 0:
		return nil, invalid(maxField, "%d is negative", *maxTokens)
	case maxTokens != nil:
		r.MaxTokens = *maxTokens
	default:
		r.MaxTokens = room
	}
	seed, err := wire.ParseSeed("seed", f.Seed)
	if err != nil {
		return nil, invalid("seed", "must be a 64-bit integer")
	}
	if seed != nil {
		r.Seed, g.SeedGiven = *seed, true
	}
	stops, err := wire.ParseStops("stop", f.Stop)
	if err != nil || len(stops.Tokens) > 0 {
		return nil, invalid("stop", "must be a string or a list of strings")
	}
	if len(stops.Strings) > maxStopStrings {
		return nil, invalid("stop", "more than %d strings", maxStopStrings)
	}
	if len(stops.Strings) > 0 && m.Tokenizer == nil {
		return nil, invalid("stop", "this model has no tokenizer, so stop strings cannot be recognised")
	}
	g.stopStrings = stops.Strings
	g.Stops = runs.Stops{Given: true, Strings: stops.Strings, Tokens: append([]int32{}, f.StopTokenIDs...)}
	if !f.IgnoreEOS {
		g.Stops.Tokens = append(g.Stops.Tokens, m.EndTokens...)
	}
	for _, id := range g.Stops.Tokens {
		g.ends[id] = true
	}
	if f.SkipSpecialTokens != nil {
		g.skipSpecial = *f.SkipSpecialTokens
	}
	return g, nil
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
}

// numbers sets the numeric parameters within their bounds.
func (f *samplingFields) numbers(r *plugins.SampleRequest) error {
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
		{"repetition_penalty", f.RepetitionPenalty, math.SmallestNonzeroFloat32, 10, &r.RepetitionPenalty},
	} {
		if p.value == nil {
			continue
		}
		if !(*p.value >= p.least && *p.value <= p.most) {
			return invalid(p.name, "%v is not between %v and %v", *p.value, p.least, p.most)
		}
		*p.into = *p.value
	}
	if f.TopK != nil {
		r.TopK = *f.TopK
	}
	if r.TopP == 0 {
		r.TopP, r.TopK = 1, 1 // a nucleus of nothing is its likeliest token
	}
	if f.MinTokens != nil {
		if r.MinTokens = *f.MinTokens; r.MinTokens < 0 {
			return invalid("min_tokens", "%d is negative", r.MinTokens)
		}
	}
	if len(f.LogitBias) > maxLogitBias {
		return invalid("logit_bias", "%d entries are more than %d", len(f.LogitBias), maxLogitBias)
	}
	for text, bias := range f.LogitBias {
		id, err := strconv.ParseInt(text, 10, 32)
		if err != nil || id < 0 {
			return invalid("logit_bias", "%.40q is not a token id", text)
		}
		if !(bias >= -100 && bias <= 100) {
			return invalid("logit_bias", "%v is not between -100 and 100", bias)
		}
		if r.LogitBias == nil {
			r.LogitBias = map[int32]float64{}
		}
		r.LogitBias[int32(id)] = bias
	}
	return nil
}
