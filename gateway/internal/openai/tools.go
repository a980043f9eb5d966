package openai

import (
	"encoding/json"
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// chatTools reads tools, or functions in the older form.
func (r *chatRequest) chatTools() (*inference.ToolList, error) {
	l := &inference.ToolList{}
	field, raw := "tools", r.Tools
	if len(r.Functions) > 0 {
		if len(r.Tools) > 0 {
			return nil, inference.Invalid("functions", "cannot be given together with tools, which is the newer form of the same")
		}
		field, raw = "functions", r.Functions
	}
	var err error
	if l.Size, err = inference.CountTools(field, raw); err != nil {
		return nil, err
	}
	for i, one := range raw {
		at := fmt.Sprintf("%s[%d]", field, i)
		f, where, err := readFunction(at, one, field == "functions")
		if err != nil {
			return nil, err
		}
		t, err := f.Tool(where, "parameters")
		if err != nil {
			return nil, err
		}
		if err := l.Add(where, t); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// readFunction reads a tool's function, or a function by itself. A tool whose function's fields stand beside its type, as /v1/responses has them, is taken too.
func readFunction(at string, raw json.RawMessage, bare bool) (f inference.Function, where string, err error) {
	if inference.KindOf(raw) != '{' {
		return f, at, inference.Invalid(at, "must be an object")
	}
	if bare {
		return f, at, inference.DecodePart(at, raw, &f)
	}
	var t struct {
		Type     *string         `json:"type"`
		Function json.RawMessage `json:"function"`
	}
	if err := inference.DecodePart(at, raw, &t); err != nil {
		return f, at, err
	}
	if t.Type != nil && *t.Type != "function" {
		return f, at, inference.Unsupported(at+".type", fmt.Sprintf("%.40q is not supported; allowed is function", *t.Type))
	}
	if !inference.Given(t.Function) {
		return f, at, inference.DecodePart(at, raw, &f)
	}
	where = at + ".function"
	if inference.KindOf(t.Function) != '{' {
		return f, where, inference.Invalid(where, "must be an object")
	}
	return f, where, inference.DecodePart(where, t.Function, &f)
}

// choice reads tool_choice or function_call.
func (r *chatRequest) choice() (inference.Choice, error) {
	out := inference.Choice{Field: "tool_choice", Single: r.ParallelToolCalls != nil && !*r.ParallelToolCalls || len(r.Functions) > 0}
	raw := r.ToolChoice
	if inference.Given(r.FunctionCall) {
		if inference.Given(r.ToolChoice) {
			return out, inference.Invalid("function_call", "cannot be given together with tool_choice, which is the newer form of the same")
		}
		out.Field, raw = "function_call", r.FunctionCall
	}
	if !inference.Given(raw) {
		return out, nil
	}
	return out, readChoice(raw, &out)
}

// readChoice reads the forms of tool_choice: a word, a function, or a list of allowed ones.
func readChoice(raw json.RawMessage, out *inference.Choice) error {
	const allowed = `none, auto, required, {"type": "function", "function": {"name": "…"}} or {"type": "allowed_tools", …} is allowed`
	if inference.KindOf(raw) == '"' {
		word, err := inference.StringOf(raw)
		if err != nil {
			return inference.Invalid(out.Field, "%v", err)
		}
		switch word {
		case "none":
			out.Mode = inference.ChooseNone
		case "auto":
		case "required", "any":
			out.Mode = inference.ChooseRequired
		default:
			return inference.Invalid(out.Field, "%.40q is not known: %s", word, allowed)
		}
		return nil
	}
	var c namedTool
	if inference.KindOf(raw) != '{' {
		return inference.Invalid(out.Field, allowed)
	}
	if err := inference.DecodePart(out.Field, raw, &c); err != nil {
		return err
	}
	switch {
	case c.Type == "allowed_tools":
		return readAllowed(c, out)
	case c.Type != "" && c.Type != "function":
		return inference.Unsupported(out.Field+".type", fmt.Sprintf("%.40q is not supported: %s", c.Type, allowed))
	case c.name() == "":
		return inference.Invalid(out.Field+".function.name", "is required")
	}
	out.Mode, out.Names, out.Single = inference.ChooseRequired, []string{c.name()}, true
	return nil
}

// namedTool names a function in any of the forms of tool_choice.
type namedTool struct {
	Type     string `json:"type"`
	Name     string `json:"name"`
	Function *struct {
		Name string `json:"name"`
	} `json:"function"`
	AllowedTools json.RawMessage `json:"allowed_tools"`
	Mode         string          `json:"mode"`
	Tools        []namedTool     `json:"tools"`
}

func (t *namedTool) name() string {
	if t.Function != nil {
		return t.Function.Name
	}
	return t.Name
}

func readAllowed(c namedTool, out *inference.Choice) error {
	if inference.Given(c.AllowedTools) { // in the form of chat completions they stand one level deeper
		at := c.AllowedTools
		c = namedTool{}
		if err := inference.DecodePart(out.Field+".allowed_tools", at, &c); err != nil {
			return err
		}
	}
	switch c.Mode {
	case "auto", "":
	case "required":
		out.Mode = inference.ChooseRequired
	default:
		return inference.Invalid(out.Field+".allowed_tools.mode", "%.40q is not auto or required", c.Mode)
	}
	if len(c.Tools) == 0 {
		return inference.Invalid(out.Field+".allowed_tools.tools", "must name at least one tool")
	}
	if len(c.Tools) > inference.MaxTools {
		return inference.Invalid(out.Field+".allowed_tools.tools", "%d are more than %d", len(c.Tools), inference.MaxTools)
	}
	for _, t := range c.Tools {
		out.Names = append(out.Names, t.name())
	}
	return nil
}
