package openai

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// Statuses of responses and of their items.
const (
	statusInProgress = "in_progress"
	statusCompleted  = "completed"
	statusIncomplete = "incomplete"
	statusFailed     = "failed"
)

// responseObject is a response as clients see it: all keys are always there.
type responseObject struct {
	ID                 string             `json:"id"`
	Object             string             `json:"object"`
	CreatedAt          int64              `json:"created_at"`
	CompletedAt        *int64             `json:"completed_at"`
	Status             string             `json:"status"`
	Background         bool               `json:"background"`
	Error              *responseError     `json:"error"`
	IncompleteDetails  *incompleteDetails `json:"incomplete_details"`
	Instructions       *string            `json:"instructions"`
	MaxOutputTokens    *int               `json:"max_output_tokens"`
	MaxToolCalls       *int               `json:"max_tool_calls"`
	Model              string             `json:"model"`
	Output             []item             `json:"output"`
	ParallelToolCalls  bool               `json:"parallel_tool_calls"`
	PreviousResponseID *string            `json:"previous_response_id"`
	PromptCacheKey     *string            `json:"prompt_cache_key"`
	Reasoning          struct {
		Effort  *string `json:"effort"`
		Summary *string `json:"summary"`
	} `json:"reasoning"`
	SafetyIdentifier *string `json:"safety_identifier"`
	ServiceTier      string  `json:"service_tier"`
	Store            bool    `json:"store"`
	Temperature      float64 `json:"temperature"`
	TopP             float64 `json:"top_p"`
	FrequencyPenalty float64 `json:"frequency_penalty"`
	PresencePenalty  float64 `json:"presence_penalty"`
	Text             struct {
		Format    toldFormat `json:"format"`
		Verbosity *string    `json:"verbosity,omitempty"`
	} `json:"text"`
	ToolChoice  any               `json:"tool_choice"`
	Tools       []any             `json:"tools"`
	TopLogprobs int               `json:"top_logprobs"`
	Truncation  string            `json:"truncation"`
	Usage       *responseUsage    `json:"usage"`
	User        *string           `json:"user"`
	Metadata    map[string]string `json:"metadata"`

	*inference.Exact                  // nil: left out
	TokenIDs         *[]int32         `json:"token_ids,omitempty"`
	Datum            *inference.Datum `json:"datum,omitempty"`
	SequenceID       string           `json:"sequence_id,omitempty"`

	SchemaErrors []inference.SchemaError `json:"schema_errors,omitempty"`
}

type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type incompleteDetails struct {
	Reason string `json:"reason"`
}

// responseUsage counts tokens in the words of this surface.
type responseUsage struct {
	InputTokens  int `json:"input_tokens"`
	InputDetails struct {
		CachedTokens     int `json:"cached_tokens"`
		CacheWriteTokens int `json:"cache_write_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens  int `json:"output_tokens"`
	OutputDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

func usageOf(u *inference.Usage) *responseUsage {
	out := &responseUsage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens, TotalTokens: u.TotalTokens}
	out.InputDetails.CachedTokens = u.PromptDetails.CachedTokens
	out.OutputDetails.ReasoningTokens = u.CompletionDetails.ReasoningTokens
	return out
}

// Ids of responses and their items have a text in common, so that an item's id tells which response it is of.
const (
	responsePrefix = "resp_"
	idLength       = 26 // of rand.Text
)

// itemPrefixes are how ids of items begin.
var itemPrefixes = map[string]string{
	itemMessage: "msg_", itemReasoning: "rs_", itemCall: "fc_", itemOutput: "fco_", itemCustomCall: "ctc_", itemCustomOutput: "ctco_",
}

// answerOf is what the ids of a response's items have in common; "" for an id that is not ours.
func answerOf(id string) string {
	_, rest, ok := strings.Cut(id, "_")
	if !ok || len(rest) < idLength {
		return ""
	}
	return rest[:idLength]
}

// responseAnswer is one response in the making. Whole answers and streams come from the same steps.
type responseAnswer struct {
	*asked
	*inference.Job
	service *Service
	object  responseObject
	key     string // what the ids have in common
	kept    *inference.Allowance
	input   []byte // the conversation, packed, to be stored

	send     func(responseEvent) error // nil for a whole answer
	begun    bool
	number   int               // of the next event
	open     *openItem         // the last of the output, if it is not ended
	pending  []inference.Token // that are no thoughts, and whose text has not come yet
	counted  int               // tokens that have come
	unsaid   []int32           // tokens that no event has told of
	finished inference.Part
}

// openItem is an item of the output in the making.
type openItem struct {
	index    int
	text     strings.Builder
	logprobs []chatLogprob
}

// begin checks the request and makes it a job.
func (a *responseAnswer) begin(c inference.Call) (err error) {
	if a.stores {
		if err := a.service.Core.TakesResponses(); err != nil {
			return err
		}
		if a.input, err = packItems(a.items); err != nil {
			return err
		}
	}
	if a.Job, err = a.service.Prepare(c, &a.Parameters, &a.request); err != nil {
		return err
	}
	a.items, a.Input, a.responsesRequest.Tools = nil, nil, nil // a stream may be long, and needs none of them
	if err := c.Claim.Take(int64(len(a.input))); err != nil {
		return err
	}
	a.kept = a.service.Allow(c, a.responsesRequest.Stream)
	a.key = rand.Text()
	a.describe()
	return nil
}

// describe fills in what of the response is known at its beginning.
func (a *responseAnswer) describe() {
	r, q := a.responsesRequest, a.Generation.Request
	o := &a.object
	o.ID, o.Object, o.CreatedAt, o.Status, o.ServiceTier = responsePrefix+a.key, "response", time.Now().Unix(), statusInProgress, "default"
	o.Model, o.Output, o.Store = r.Model, []item{}, a.stores
	o.Instructions, o.MaxOutputTokens, o.MaxToolCalls = r.Instructions, r.MaxOutputTokens, r.MaxToolCalls
	o.PreviousResponseID, o.PromptCacheKey, o.SafetyIdentifier, o.User = r.PreviousResponseID, r.PromptCacheKey, r.SafetyIdentifier, r.User
	o.ParallelToolCalls = r.ParallelToolCalls == nil || *r.ParallelToolCalls
	if effort := a.request.Thinking.Effort; effort != "" {
		o.Reasoning.Effort = &effort
	}
	if r.Reasoning != nil {
		o.Reasoning.Summary = r.Reasoning.Summary
	}
	o.Temperature, o.TopP, o.FrequencyPenalty, o.PresencePenalty = q.Temperature, q.TopP, q.FrequencyPenalty, q.PresencePenalty
	if r.TopP != nil {
		o.TopP = *r.TopP
	}
	o.Text.Format = a.format
	if r.Text != nil {
		o.Text.Verbosity = r.Text.Verbosity
	}
	o.Tools, o.ToolChoice = a.tools.told, a.choice
	o.TopLogprobs = max(a.request.TopLogprobs, 0)
	o.Truncation = textOr(r.Truncation, "disabled")
	if o.Metadata = r.Metadata; o.Metadata == nil {
		o.Metadata = map[string]string{}
	}
}

// newItem begins an item of the output.
func (a *responseAnswer) newItem(i item) *item {
	index := len(a.object.Output)
	i.ID, i.Status = fmt.Sprintf("%s%s%02d", itemPrefixes[i.Type], a.key, index), statusInProgress
	a.object.Output = append(a.object.Output, i)
	a.open = &openItem{index: index}
	return &a.object.Output[index]
}

// encrypts tells whether reasoning has encrypted_content: where the client asks for it, or keeps the conversation itself.
func (a *responseAnswer) encrypts() bool {
	return a.includes("reasoning.encrypted_content") || !a.stores && a.Reasoning != nil
}

// seal ends the answer: its object is what the client gets, and what is stored.
func (a *responseAnswer) seal() (err error) {
	o := &a.object
	o.Status = statusCompleted
	if a.finished.Reason == inference.FinishLength {
		o.Status, o.IncompleteDetails = statusIncomplete, &incompleteDetails{"max_output_tokens"}
	} else {
		now := time.Now().Unix()
		o.CompletedAt = &now
	}
	o.Usage = usageOf(&a.Usage)
	o.SchemaErrors = a.Job.SchemaErrors(0)
	if a.Exact {
		ids := a.Job.TokenIDs(0)
		o.Exact, o.TokenIDs, o.SequenceID = a.ExactPrompt(), &ids, a.Job.SequenceID(0)
		o.Datum, err = a.Job.Datum(0)
	}
	return err
}

// finish seals the answer and stores it.
func (a *responseAnswer) finish(c inference.Call) error {
	if err := a.seal(); err != nil {
		return err
	}
	if !a.stores {
		return nil
	}
	content, err := packResponse(&a.object, a.input, a.Memory())
	if err != nil {
		return err
	}
	return a.service.Core.KeepResponse(c.Request.Context(), c.Owner, a.object.ID, content)
}

func (a *responseAnswer) whole(c inference.Call) error {
	if err := a.Run(c.Request.Context(), a.part); err != nil {
		return err
	}
	if err := a.finish(c); err != nil {
		return err
	}
	return c.Send(http.StatusOK, &a.object)
}
