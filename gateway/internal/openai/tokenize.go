package openai

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

const (
	mostTokens  = 1 << 18 // that are made text at once: a token may be a long text
	manyTokens  = 4 << 10 // take memory that counts
	listedBytes = 64      // of a token in an answer, with its text, and that again as JSON
)

// textModel finds the model of a tokenizer request; without a name the first one that can be served.
func (s *Service) textModel(c inference.Call, name string) (*catalog.Model, error) {
	if name == "" {
		first := slices.IndexFunc(s.Order, func(m *catalog.Model) bool { return s.Core.Unserved(m.Name) == nil })
		name = s.Order[max(first, 0)].Name
	}
	_, m, err := s.Model(c, name)
	if err != nil {
		return nil, err
	}
	if m.Tokenizer == nil {
		return nil, inference.Invalid("model", "this model has no tokenizer")
	}
	return m, nil
}

func (s *Service) tokenize(c inference.Call) error {
	var r struct {
		Model               string            `json:"model"`
		Prompt              *string           `json:"prompt"`
		AddSpecialTokens    *bool             `json:"add_special_tokens"`
		ReturnTokenStrs     bool              `json:"return_token_strs"`
		Messages            []json.RawMessage `json:"messages"`
		Tools               []json.RawMessage `json:"tools"`
		AddGenerationPrompt *bool             `json:"add_generation_prompt"`
		ContinueFinal       bool              `json:"continue_final_message"`

		TemplateKwargs map[string]json.RawMessage `json:"chat_template_kwargs"`
	}
	if err := c.Decode(&r); err != nil {
		return err
	}
	m, err := s.textModel(c, r.Model)
	if err != nil {
		return err
	}
	var ids []int32
	b := budget.For(c.Request.Context(), c.Owner, budget.Limits{})
	defer b.End()
	switch {
	case r.Prompt != nil && r.Messages != nil:
		return inference.Invalid("prompt", "give either prompt or messages")
	case r.Prompt != nil:
		if err := s.Bound(c, m, "prompt", len(*r.Prompt)); err != nil {
			return err
		}
		if ids, err = m.Tokenizer.EncodeWithin(b, *r.Prompt, r.AddSpecialTokens == nil || *r.AddSpecialTokens); err != nil {
			return inference.TokenizeError(c.Request.Context(), "prompt", err)
		}
	case r.Messages != nil:
		ids, err = s.chatTokens(c, m, &chatRequest{
			Messages: r.Messages, Tools: r.Tools, AddGenerationPrompt: r.AddGenerationPrompt, ContinueFinal: r.ContinueFinal, TemplateKwargs: r.TemplateKwargs,
		})
	default:
		return inference.Invalid("prompt", "either prompt or messages is required")
	}
	if err != nil {
		return err
	}
	if ids == nil {
		ids = []int32{}
	}
	if len(ids) > manyTokens {
		if err := c.Claim.Take(int64(len(ids)) * listedBytes); err != nil {
			return err
		}
	}
	info, err := s.Core.ModelInfo(c.Request.Context(), m.Name)
	if err != nil {
		return err
	}
	out := gin.H{"tokens": ids, "count": len(ids), "max_model_len": info.MaxContextLength}
	if r.ReturnTokenStrs {
		names := make([]string, len(ids))
		for i, id := range ids {
			names[i], _ = m.Tokenizer.TokenString(id)
		}
		out["token_strs"] = names
	}
	return c.Send(http.StatusOK, out)
}

// chatTokens are the tokens of a chat's prompt.
func (s *Service) chatTokens(c inference.Call, m *catalog.Model, r *chatRequest) ([]int32, error) {
	tools, err := r.chatTools()
	if err != nil {
		return nil, err
	}
	conversation, err := s.conversation(c, m, r, tools, inference.Thinking{})
	if err != nil {
		return nil, err
	}
	prompt, err := s.Render(c, m, conversation)
	return prompt.Tokens, err
}

func (s *Service) detokenize(c inference.Call) error {
	var r struct {
		Model  string          `json:"model"`
		Tokens json.RawMessage `json:"tokens"`
	}
	if err := c.Decode(&r); err != nil {
		return err
	}
	m, err := s.textModel(c, r.Model)
	if err != nil {
		return err
	}
	if !inference.Given(r.Tokens) {
		return inference.Invalid("tokens", "is required")
	}
	ids, err := inference.TokenIDs(r.Tokens, 0)
	if err != nil {
		return inference.Invalid("tokens", "%v", err)
	}
	if len(ids) > mostTokens {
		return inference.Invalid("tokens", "%d ids are more than %d", len(ids), mostTokens)
	}
	for i, id := range ids {
		if _, ok := m.Tokenizer.TokenString(id); !ok {
			return inference.Invalid("tokens", "element %d: %d is not the id of a token", i, id)
		}
	}
	b := budget.For(c.Request.Context(), c.Owner, budget.Limits{})
	defer b.End()
	text, err := m.Tokenizer.DecodeWithin(b, ids, false)
	if err != nil {
		if c.Request.Context().Err() != nil || errors.Is(err, budget.ErrBusy) {
			return err
		}
		return inference.Invalid("tokens", "cannot be made text: %v", err)
	}
	return c.Send(http.StatusOK, gin.H{"prompt": text})
}

func (s *Service) tokenizerInfo(c inference.Call) error {
	m, err := s.textModel(c, c.Query("model"))
	if err != nil {
		return err
	}
	out := gin.H{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": nil, "bos_token": nil, "eos_token": nil, "pad_token": nil, "chat_template": orNull(m.Tokenizer.ChatTemplate())}
	for name, get := range map[string]func() (int32, bool){"bos_token": m.Tokenizer.BOS, "eos_token": m.Tokenizer.EOS, "pad_token": m.Tokenizer.PAD} {
		if id, ok := get(); ok {
			if text, ok := m.Tokenizer.TokenString(id); ok {
				out[name] = text
			}
		}
	}
	info, err := s.Core.ModelInfo(c.Request.Context(), m.Name)
	if err != nil {
		return err
	}
	out["model_max_length"] = info.MaxContextLength
	return c.Send(http.StatusOK, out)
}
