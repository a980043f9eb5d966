package openai

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// Bounds of tools: all of them are read by the model at every turn.
const (
	maxTools            = 512
	maxToolsBytes       = 1 << 20
	maxParametersBytes  = 256 << 10
	maxDescriptionBytes = 64 << 10
	maxToolName         = 256
)

// functionTool is a function as a request defines it.
type functionTool struct {
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
}

// tool checks one function. at names it, as in tools[0].function.
func (f *functionTool) tool(at string) (inference.Tool, error) {
	if f.Name == "" || len(f.Name) > maxToolName || strings.ContainsFunc(f.Name, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"'<>`, c) }) {
		return inference.Tool{}, inference.Invalid(at+".name", "%.40q is not allowed: 1 to %d printable ASCII characters without spaces, quotes, < and >", f.Name, maxToolName)
	}
	out := inference.Tool{Name: f.Name, Description: f.Description, Strict: f.Strict != nil && *f.Strict}
	if f.Description != nil && len(*f.Description) > maxDescriptionBytes {
		return inference.Tool{}, inference.Invalid(at+".description", "%d bytes are more than %d", len(*f.Description), maxDescriptionBytes)
	}
	if inference.Given(f.Parameters) {
		if inference.KindOf(f.Parameters) != '{' {
			return inference.Tool{}, inference.Invalid(at+".parameters", "must be an object: a JSON schema")
		}
		if len(f.Parameters) > maxParametersBytes {
			return inference.Tool{}, inference.Invalid(at+".parameters", "%d bytes are more than %d", len(f.Parameters), maxParametersBytes)
		}
		out.Parameters = f.Parameters
	}
	return out, nil
}

// toolList collects functions and refuses names that occur twice and more than there may be.
type toolList struct {
	tools []inference.Tool
	size  int
	names map[string]bool
}

func (l *toolList) add(at string, t inference.Tool) error {
	if l.names[t.Name] {
		return inference.Invalid(at+".name", "%q is the name of an earlier one", t.Name)
	}
	if l.names == nil {
		l.names = map[string]bool{}
	}
	l.names[t.Name] = true
	l.tools = append(l.tools, t)
	return nil
}

// countTools refuses too many or too large ones before they are looked at.
func countTools(field string, raw []json.RawMessage) (size int, err error) {
	if len(raw) > maxTools {
		return 0, inference.Invalid(field, "%d are more than %d", len(raw), maxTools)
	}
	for _, one := range raw {
		size += len(one)
	}
	if size > maxToolsBytes {
		return 0, inference.Invalid(field, "%d bytes are more than %d", size, maxToolsBytes)
	}
	return size, nil
}

// chatTools reads tools, or functions in the older form.
func (r *chatRequest) chatTools() (*toolList, error) {
	l := &toolList{}
	field, raw := "tools", r.Tools
	if len(r.Functions) > 0 {
		if len(r.Tools) > 0 {
			return nil, inference.Invalid("functions", "cannot be given together with tools, which is the newer form of the same")
		}
		field, raw = "functions", r.Functions
	}
	var err error
	if l.size, err = countTools(field, raw); err != nil {
		return nil, err
	}
	for i, one := range raw {
		at := fmt.Sprintf("%s[%d]", field, i)
		f, where, err := readFunction(at, one, field == "functions")
		if err != nil {
			return nil, err
		}
		t, err := f.tool(where)
		if err != nil {
			return nil, err
		}
		if err := l.add(where, t); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// readFunction reads a tool's function, or a function by itself. A tool whose function's fields stand beside its type, as /v1/responses has them, is taken too.
func readFunction(at string, raw json.RawMessage, bare bool) (f functionTool, where string, err error) {
	if inference.KindOf(raw) != '{' {
		return f, at, inference.Invalid(at, "must be an object")
	}
	if bare {
		return f, at, unmarshal(at, raw, &f)
	}
	var t struct {
		Type     *string         `json:"type"`
		Function json.RawMessage `json:"function"`
	}
	if err := unmarshal(at, raw, &t); err != nil {
		return f, at, err
	}
	if t.Type != nil && *t.Type != "function" {
		return f, at, inference.Unsupported(at+".type", fmt.Sprintf("%.40q is not supported; allowed is function", *t.Type))
	}
	if !inference.Given(t.Function) {
		return f, at, unmarshal(at, raw, &f)
	}
	where = at + ".function"
	if inference.KindOf(t.Function) != '{' {
		return f, where, inference.Invalid(where, "must be an object")
	}
	return f, where, unmarshal(where, t.Function, &f)
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
	if err := unmarshal(out.Field, raw, &c); err != nil {
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
		if err := unmarshal(out.Field+".allowed_tools", at, &c); err != nil {
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
	for _, t := range c.Tools {
		out.Names = append(out.Names, t.name())
	}
	return nil
}

// unmarshal reads a part of a request, and names the field that has another type than it must.
func unmarshal(at string, raw json.RawMessage, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return inference.WrongType(at, err)
	}
	return nil
}
