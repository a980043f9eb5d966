package anthropic

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// tool is a tool as this API defines it.
type tool struct {
	Type        *string         `json:"type"`
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Strict      *bool           `json:"strict"`
	Eager       *bool           `json:"eager_input_streaming"`
}

// toolSet are the tools of a request.
type toolSet struct {
	inference.ToolList
	eager   map[string]bool // tools whose input is streamed as it comes
	dropped []string        // kinds of tools that Anthropic's servers run
}

// Tools that have a type of their own carry a date behind their name, as web_search_20250305.
var (
	// serverTools are run by Anthropic's servers. Agents send them by default and do without them, so they are left out, and named in a header.
	serverTools = []string{"web_search", "web_fetch", "code_execution", "tool_search"}
	// clientTools are run by the client, but only Anthropic's models were told what they take.
	clientTools = []string{"bash", "text_editor", "str_replace_editor", "computer", "memory", "browser"}
)

// kindIn finds what a type is a version of.
func kindIn(kinds []string, of string) (string, bool) {
	i := slices.IndexFunc(kinds, func(kind string) bool { return of == kind || strings.HasPrefix(of, kind+"_") })
	if i < 0 {
		return "", false
	}
	return kinds[i], true
}

// toolSet reads the tools. Those that say nothing about it are eager with the beta.
func (r *messagesRequest) toolSet(beta bool) (*toolSet, error) {
	out := &toolSet{eager: map[string]bool{}}
	size, err := inference.CountTools("tools", r.Tools)
	if err != nil {
		return nil, err
	}
	out.Size = size
	for i, raw := range r.Tools {
		if err := out.read(fmt.Sprintf("tools[%d]", i), raw, beta); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (l *toolSet) read(at string, raw json.RawMessage, beta bool) error {
	if inference.KindOf(raw) != '{' {
		return inference.Invalid(at, "must be an object")
	}
	var t tool
	if err := inference.DecodePart(at, raw, &t); err != nil {
		return err
	}
	if t.Type != nil && *t.Type != "custom" {
		if kind, ok := kindIn(serverTools, *t.Type); ok {
			if !slices.Contains(l.dropped, kind) {
				l.dropped = append(l.dropped, kind)
			}
			return nil
		}
		if _, ok := kindIn(clientTools, *t.Type); ok {
			return inference.Unsupported(at+".type", fmt.Sprintf("%.40q is a tool that only Anthropic's models were told of: define one of your own with an input_schema", *t.Type))
		}
		return inference.Unsupported(at+".type", fmt.Sprintf("%.40q is not supported; allowed is custom", *t.Type))
	}
	f := inference.Function{Name: t.Name, Description: t.Description, Parameters: t.InputSchema, Strict: t.Strict}
	made, err := f.Tool(at, "input_schema")
	if err != nil {
		return err
	}
	if t.Eager != nil && *t.Eager || t.Eager == nil && beta {
		l.eager[t.Name] = true
	}
	return l.Add(at, made)
}

// eagerBeta tells whether a client asks for the input of all tools as it comes.
func eagerBeta(c inference.Call) bool {
	return slices.ContainsFunc(c.Request.Header.Values("Anthropic-Beta"), func(list string) bool { return strings.Contains(list, "fine-grained-tool-streaming") })
}

// choice reads tool_choice.
func (r *messagesRequest) choice(tools *toolSet) (inference.Choice, error) {
	out := inference.Choice{Field: "tool_choice"}
	if !inference.Given(r.ToolChoice) {
		return out, nil
	}
	if inference.KindOf(r.ToolChoice) != '{' {
		return out, inference.Invalid("tool_choice", `must be an object, as {"type": "auto"}`)
	}
	var c struct {
		Type   string `json:"type"`
		Name   string `json:"name"`
		Single bool   `json:"disable_parallel_tool_use"`
	}
	if err := inference.DecodePart("tool_choice", r.ToolChoice, &c); err != nil {
		return out, err
	}
	out.Single = c.Single
	switch c.Type {
	case "auto":
	case "none":
		out.Mode = inference.ChooseNone
	case "any":
		out.Mode = inference.ChooseRequired
	case "tool":
		if c.Name == "" {
			return out, inference.Invalid("tool_choice.name", "is required")
		}
		if slices.Contains(tools.dropped, c.Name) {
			return out, inference.Unsupported("tool_choice.name", fmt.Sprintf("%q is a tool of Anthropic's servers, which this one does not have", c.Name))
		}
		out.Mode, out.Names, out.Single = inference.ChooseRequired, []string{c.Name}, true
	default:
		return out, inference.Invalid("tool_choice.type", "%.40q is not one of auto, any, tool, none", c.Type)
	}
	return out, nil
}
