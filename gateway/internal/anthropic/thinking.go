package anthropic

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// thinkingConfig says what the model is to think, and how thoughts are told of.
type thinkingConfig struct {
	Type         string  `json:"type"`
	BudgetTokens *int    `json:"budget_tokens"`
	Display      *string `json:"display"`
}

// thinking reads what is said about thoughts. omitted ones are not shown.
func (r *messagesRequest) thinking() (out inference.Thinking, omitted bool, err error) {
	out.Lenient = true // there are clients that always send a wish, whatever the model can do
	if r.OutputConfig != nil && r.OutputConfig.Effort != nil {
		out.Effort, out.EffortField = *r.OutputConfig.Effort, "output_config.effort"
		if out.Effort == "" {
			return out, false, inference.Invalid(out.EffortField, "must not be empty")
		}
	}
	t := r.Thinking
	if t == nil {
		return out, false, nil
	}
	on := true
	switch t.Type {
	case "enabled", "adaptive", "between_tools":
	case "disabled":
		on = false
		out.Effort = "" // of what is off
	default:
		return out, false, inference.Invalid("thinking.type", "%.40q is not one of enabled, adaptive, disabled", t.Type)
	}
	out.Enabled, out.EnabledField = &on, "thinking.type"
	if t.BudgetTokens != nil && on {
		if *t.BudgetTokens < 1 {
			return out, false, inference.Invalid("thinking.budget_tokens", "%d is not at least 1", *t.BudgetTokens)
		}
		out.Budget, out.BudgetField = t.BudgetTokens, "thinking.budget_tokens"
	}
	if t.Display != nil {
		switch *t.Display {
		case "omitted":
			omitted = true
		case "summarized":
		default:
			return out, false, inference.Invalid("thinking.display", "%.40q is not one of summarized, omitted", *t.Display)
		}
	}
	return out, omitted, nil
}

// Thoughts have a signature, which clients send back with them. Ours keeps no secret and proves nothing: it is the text itself where that is omitted, so that the model can be given it
// again, and else its hash, because there must be one.
const signaturePrefix = "tin1."

// signature is that of shown thoughts.
func signature(sum [sha256.Size]byte) string {
	return signaturePrefix + base64.RawURLEncoding.EncodeToString(sum[:])
}

// enclosed is the signature of omitted thoughts.
func enclosed(text string) string {
	return signaturePrefix + base64.RawURLEncoding.EncodeToString([]byte(text))
}

// restored are the thoughts of a block. Signatures of others say nothing.
func restored(text, signature string) string {
	inside, ours := strings.CutPrefix(signature, signaturePrefix)
	if text != "" || !ours {
		return text
	}
	b, err := base64.RawURLEncoding.DecodeString(inside)
	if err != nil || !utf8.Valid(b) {
		return ""
	}
	return string(b)
}
