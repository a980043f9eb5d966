package openai

import (
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// thinkingFields are the names under which clients of several servers say what the model is to think, and how thoughts are told of.
type thinkingFields struct {
	ReasoningEffort *string   `json:"reasoning_effort"`
	Reasoning       *struct { // OpenRouter
		Effort    *string `json:"effort"`
		Enabled   *bool   `json:"enabled"`
		MaxTokens *int    `json:"max_tokens"`
		Exclude   bool    `json:"exclude"`
		Summary   *string `json:"summary"` // OpenAI, of responses: none is made
	} `json:"reasoning"`
	Thinking *struct { // LiteLLM, Z.ai
		Type         string `json:"type"`
		BudgetTokens *int   `json:"budget_tokens"`
	} `json:"thinking"`
	EnableThinking    *bool   `json:"enable_thinking"`       // Alibaba
	ThinkingBudget    *int    `json:"thinking_token_budget"` // vLLM
	IncludeReasoning  *bool   `json:"include_reasoning"`     // vLLM
	SeparateReasoning *bool   `json:"separate_reasoning"`    // SGLang
	ReasoningFormat   *string `json:"reasoning_format"`      // llama.cpp
}

// thinking brings them together. The first one that says something about a matter counts.
func (f *thinkingFields) thinking() (inference.Thinking, error) {
	out := inference.Thinking{Hidden: f.IncludeReasoning != nil && !*f.IncludeReasoning, Raw: f.SeparateReasoning != nil && !*f.SeparateReasoning}
	if f.ReasoningEffort != nil {
		out.Effort, out.EffortField = *f.ReasoningEffort, "reasoning_effort"
		if out.Effort == "" {
			return out, inference.Invalid("reasoning_effort", "must not be empty")
		}
	}
	if r := f.Reasoning; r != nil {
		if r.Effort != nil && out.Effort == "" {
			out.Effort, out.EffortField = *r.Effort, "reasoning.effort"
		}
		out.Enabled, out.EnabledField = r.Enabled, "reasoning.enabled"
		out.Hidden = out.Hidden || r.Exclude
	}
	if t := f.Thinking; t != nil && out.Enabled == nil {
		switch t.Type {
		case "enabled", "adaptive", "disabled":
			on := t.Type != "disabled"
			out.Enabled, out.EnabledField = &on, "thinking.type"
		default:
			return out, inference.Invalid("thinking.type", "%.40q is not one of enabled, adaptive, disabled", t.Type)
		}
	}
	if f.EnableThinking != nil && out.Enabled == nil {
		out.Enabled, out.EnabledField = f.EnableThinking, "enable_thinking"
	}
	if f.ReasoningFormat != nil {
		switch *f.ReasoningFormat {
		case "none":
			out.Raw = true
		case "auto", "deepseek", "deepseek-legacy":
		default:
			return out, inference.Invalid("reasoning_format", "%.40q is not one of none, auto, deepseek", *f.ReasoningFormat)
		}
	}
	f.budget(&out)
	return out, nil
}

// budget takes the bound of the thoughts' length.
func (f *thinkingFields) budget(out *inference.Thinking) {
	switch {
	case f.ThinkingBudget != nil:
		out.Budget, out.BudgetField = f.ThinkingBudget, "thinking_token_budget"
	case f.Reasoning != nil && f.Reasoning.MaxTokens != nil:
		out.Budget, out.BudgetField = f.Reasoning.MaxTokens, "reasoning.max_tokens"
	case f.Thinking != nil && f.Thinking.BudgetTokens != nil:
		out.Budget, out.BudgetField = f.Thinking.BudgetTokens, "thinking.budget_tokens"
	}
}
